# SPDX-License-Identifier: Apache-2.0
"""What users may build on: the exact names, each documented, and the signatures they call.

A change here is a change for users: it needs a changelog fragment, and a new minor version (major
from 1.0 on) where something is taken away.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path

import pytest

import dpfed
import dpfed.accounting
import dpfed.flower
import dpfed.parts

REPOSITORY = Path(__file__).parent.parent
PUBLIC = {
    "dpfed": [
        "AdaptiveClip",
        "Data",
        "Evaluation",
        "Guarantee",
        "Ledger",
        "Model",
        "Participation",
        "Partition",
        "Plan",
        "Privacy",
        "Result",
        "TrainedModel",
        "__version__",
        "calibrate",
        "load",
        "run",
    ],
    "dpfed.flower": [
        "About",
        "DPResult",
        "DPStrategy",
        "ExactAccountant",
        "Linear",
        "Network",
        "PLDAccountant",
        "Records",
        "Standardised",
        "Terms",
        "augmented",
        "began_at",
        "claim_folder",
        "client_app",
        "dataset_batches",
        "errors_in_one_sentence",
        "evaluate",
        "loss_by_name",
        "make_plan",
        "open_sinks",
        "private",
        "read_records",
        "read_terms",
        "save_adapter",
        "save_model",
        "silo_app",
        "tensor_batches",
        "text_model",
    ],
    "dpfed.accounting": ["GaussianAccountant", "epsilon_of_event"],
    "dpfed.parts": [
        "NoiseShare",
        "NoisyMetrics",
        "NoisySum",
        "NoisyValue",
        "ServerStepper",
        "SumParty",
        "SumServer",
        "charged",
        "noisy_metrics",
        "own_key",
        "secure_sum",
        "server_step",
    ],
}
MODULES = {
    "dpfed": dpfed,
    "dpfed.flower": dpfed.flower,
    "dpfed.accounting": dpfed.accounting,
    "dpfed.parts": dpfed.parts,
}
SIGNATURES = {
    "dpfed.run": "(recipe=None, *, seed=None, out=None, overrides=(), watch=None, "
    "engine='in-process', resume=None, sinks=(), overwrite=False, **sections)",
    "dpfed.parts.NoisySum": "(*, clip, epsilon, delta, releases=1, "
    "adjacency=<Adjacency.REPLACE_ONE: 'replace-one'>, rate=1.0, mechanism='gaussian', "
    "options=None, parties=1, colluders=1, survivors=1.0, dataset=None, name='', ledger=None)",
    "dpfed.parts.secure_sum": "(terms, *, exact_total=False)",
    "dpfed.accounting.epsilon_of_event": "(event, delta, adjacency)",
    "dpfed.load": "(folder, *, module=None, base=None, weights=None, mapping=None)",
    "dpfed.calibrate": "(mechanism, *, epsilon, delta, releases, budget_fraction=1.0)",
    "dpfed.flower.make_plan": "(clients=(), layout=None, **sections)",
    "dpfed.flower.ExactAccountant": "(config, adjacency='zero-out')",
    "dpfed.flower.PLDAccountant": "(config, adjacency='zero-out')",
    "dpfed.flower.private": "(plan, ledger=None, evaluate=None)",
    "dpfed.flower.client_app": "(problem, plan, ledger=None)",
    "dpfed.flower.augmented": "(records, change, *, secret=None)",
    "dpfed.flower.read_records": "(**data)",
    "dpfed.flower.claim_folder": "(out, training)",
    "dpfed.flower.errors_in_one_sentence": "(folder=None)",
    "dpfed.flower.read_terms": "(text)",
    "dpfed.flower.silo_app": "(path=None)",
    "dpfed.flower.open_sinks": "(names, about)",
    "dpfed.flower.evaluate": "(model, params, records)",
    "dpfed.flower.save_model": "(folder, result, model, *, name, classes=None, contract=None, "
    "shape=None, tested=0, data='')",
}
NAMES = [(module, name) for module, names in PUBLIC.items() for name in names]


def bare(signature: inspect.Signature) -> str:
    """Names and defaults, without annotations."""
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
    ]
    return str(inspect.Signature(parameters))


@pytest.mark.parametrize("module", PUBLIC)
def test_the_public_names_are_these(module: str) -> None:
    assert sorted(MODULES[module].__all__) == PUBLIC[module]


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_each_is_there_and_documented(module: str, name: str) -> None:
    value = getattr(MODULES[module], name)
    if name == "__version__":
        return
    doc = inspect.getdoc(value)
    assert doc
    assert not doc.startswith(f"{name}(")  # a dataclass without a docstring makes one up
    page = (REPOSITORY / "docs" / "api.md").read_text(encoding="utf-8")
    assert re.search(rf"^::: {re.escape(module)}\.{name}$", page, re.MULTILINE)


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_signatures_are_these(name: str) -> None:
    module, _, function = name.rpartition(".")
    found = inspect.signature(getattr(MODULES[module], function))
    assert bare(found) == SIGNATURES[name]


def test_a_result_has_what_the_documentation_names() -> None:
    fields = {"recipe", "params", "history", "guarantee", "warnings"}
    assert fields <= set(dpfed.Result.__dataclass_fields__)
    for name in ("accuracy", "plot", "save"):
        assert inspect.getdoc(getattr(dpfed.Result, name))


def test_the_version_is_semantic_and_the_same_everywhere() -> None:
    assert re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}(-[\w.]+)?", dpfed.__version__)
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == dpfed.__version__
    citation = (REPOSITORY / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {dpfed.__version__}\n" in citation
    assert f"{{{dpfed.__version__}}}" in (REPOSITORY / "docs" / "index.md").read_text()


def test_an_app_that_dpfed_new_writes_uses_public_names_only() -> None:
    plug_ins = {"dpfed.core.types", "dpfed.core.errors", "dpfed.core.chain", "dpfed.core.testing"}
    found: set[str] = set()
    for path in (REPOSITORY / "src/dpfed/cli/templates").rglob("*.py.template"):
        text = path.read_text(encoding="utf-8")
        for module, names in re.findall(r"^from (dpfed[\w.]*) import (\([^)]*\)|.+)$", text, re.M):
            found.add(module)
            assert module in plug_ins or set(re.findall(r"\w+", names)) <= set(PUBLIC[module]), path
    assert "dpfed.flower" in found
