# SPDX-License-Identifier: Apache-2.0
"""The runs whose bits are kept: every method, both sums, and each kind of plan beside them.

Noise is keyed, so a run is a function of the code. ``python -m tests.goldens.make`` wrote
``runs.json``; nothing but a change that is meant to change bits may write it again.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import torch
from flwr.app import ArrayRecord

from dpfed.client._standardised import Standardised
from dpfed.core.types import Problem, Vector
from dpfed.data.datasets import Records
from dpfed.data.models import Linear, Model
from dpfed.data.modules import Network
from dpfed.flower import DPStrategy, client_app
from dpfed.recipes.build import plan_for
from dpfed.recipes.methods import METHODS
from dpfed.recipes.schema import parse
from dpfed.training.inprocess import rounds
from dpfed.training.plan import Plan
from tests.training.flower.local_grid import LocalGrid, nodes

ROUNDS = 3
SIZES = [14, 9, 20, 12, 16]


class Golden(NamedTuple):
    """One run: its recipe's tables, and the model that it trains."""

    tables: dict[str, Any]
    model: str = "softmax"


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))


MODELS: dict[str, Model] = {
    "softmax": Linear("softmax", features=4, outputs=3),
    "logistic": Linear("logistic", features=4),
    "network": Network(network(), chunk=8, sampler="func"),
    "standardised": Standardised("softmax", features=4, outputs=3),
}


def _method(name: str, unit: str, **privacy: Any) -> dict[str, Any]:
    level = {} if "std_over_clip" in privacy else {"epsilon": 8.0}
    given = {"unit": unit, "noise": "keyed", **level, **privacy}
    return {"method": name, "rounds": ROUNDS, "privacy": given}


PRINTED = {"server": [{"name": "sofim_printed", "rho": 1.0}, {"name": "scale"}]}
"""Algorithm 1 without the untuned rule."""

_AT_CLIENT_LEVEL_ONLY = {"dp-fedavg-ls", "dp-fedsam"}


def _methods() -> dict[str, Golden]:
    found = {}
    for name in METHODS:
        unit = "client" if name in _AT_CLIENT_LEVEL_ONLY else "record"
        found[name] = Golden(_method(name, unit))
    found["dp-fedsofim-printed"] = Golden({**_method("dp-fedsofim-printed", "record"), **PRINTED})
    tables = {**_method("dp-fedauto", "record"), "rounds": 4}  # fewer are refused
    found["dp-fedauto"] = Golden(tables, "standardised")
    return found


def _sums() -> dict[str, Golden]:
    """Both sums: the secure one where it is needed, and where it gives the bits of ``plain``."""
    hidden = {"sum": {"name": "secure"}}
    exact = _method(
        "dp-fedsofim-printed", "record", trust="distributed", mechanism="discrete_gaussian"
    )
    return {
        "sum-plain": Golden(_method("dp-fedgd", "record")),
        "sum-secure-local": Golden({**_method("dp-fedgd", "record"), **hidden}),
        "sum-secure": Golden({**exact, **hidden, **PRINTED}),
    }


def _kinds() -> dict[str, Golden]:
    """Each kind of plan that takes another path through the round."""
    judged = {"evaluation": {"kind": "federated", "every": 2, "share": 0.1}}
    drawn = {"adjacency": "zero-out", "record_rate": 0.5, "std_over_clip": 2.0}
    asked = {"adjacency": "zero-out", "client_rate": 0.5, "trust": "central", "std_over_clip": 2.0}
    return {
        "metrics": Golden({**_method("dp-fedgd", "record"), **judged}),
        "metrics-tree": Golden({**_method("dp-ftrl", "record"), **judged}),
        "records-drawn": Golden(_method("dp-fedadam", "record", **drawn), "logistic"),
        "records-drawn-metrics": Golden({**_method("dp-fedgd", "record", **drawn), **judged}),
        "clients-drawn": Golden(_method("dp-fedavg", "client", **asked)),
        "average": Golden(
            {**_method("dp-fedsofim-printed", "record", weights="average"), **PRINTED}
        ),
        "groups": Golden(_method("dp-scaffold", "group"), "logistic"),
        "network": Golden(_method("dp-localadamw", "client"), "network"),
        "network-records": Golden(_method("dp-fedgd", "record"), "network"),
        "exact-noise": Golden(_method("dp-fedyogi", "record", mechanism="discrete_gaussian")),
        "clear": Golden(
            {
                "method": "dp-fedgd",
                "rounds": ROUNDS,
                "privacy": {"mechanism": "clear", "noise": "keyed"},
            }
        ),
    }


GOLDENS = {**_methods(), **_sums(), **_kinds()}


def records(model: str) -> list[Records]:
    generator = torch.Generator().manual_seed(4)
    made = []
    for size in SIZES:
        x = torch.randn(size, 4, generator=generator)
        y = torch.randint(0, 3, (size,), generator=generator)
        made.append(Records(x, (y > 0).long() if model == "logistic" else y, _groups(size)))
    return made


def _groups(size: int) -> torch.Tensor:
    return torch.arange(size) // 2


def plan_of(golden: Golden) -> Plan:
    unit = golden.tables["privacy"].get("unit", "record")
    sizes = {
        "record": [float(n) for n in SIZES],
        "group": [float(len(torch.unique(_groups(n)))) for n in SIZES],
        "client": [1.0 for _ in SIZES],
    }
    return plan_for(parse(golden.tables), sizes[unit], MODELS[golden.model].layout)


def problems_of(golden: Golden) -> list[Problem]:
    return [MODELS[golden.model].problem(part) for part in records(golden.model)]


def in_process(golden: Golden) -> tuple[Vector, str]:
    """The final parameters and the guarantee's sentence."""
    plan = plan_of(golden)
    *_, (last, _) = rounds(plan, problems_of(golden), MODELS[golden.model].initial(0))
    return last.params, plan.guarantee(last.release_counts, last.round).sentence


def over_flower(golden: Golden, checkpoint: Path | None = None) -> tuple[Vector, str]:
    """The same, through Flower's messages."""
    plan, problems, model = plan_of(golden), problems_of(golden), MODELS[golden.model]
    app = client_app(lambda context: problems[context.node_config["partition-id"]], plan)
    initial = model.layout.unflatten(model.initial(0))
    arrays = ArrayRecord({name: tensor.clone() for name, tensor in initial.items()})
    result = DPStrategy(plan, checkpoint=checkpoint).start(
        LocalGrid(app, nodes(len(SIZES))), arrays
    )
    assert result.guarantee is not None
    return model.layout.flatten(result.arrays.to_torch_state_dict()), result.guarantee.sentence


def digest(params: Vector) -> str:
    return hashlib.sha256(params.contiguous().numpy().tobytes()).hexdigest()
