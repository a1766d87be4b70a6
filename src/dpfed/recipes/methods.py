# SPDX-License-Identifier: Apache-2.0
"""The papers' methods by name: which plug-ins each one is made of, and what it costs.

``method = "dp-fedadam"`` in a recipe stands for the tables below; tables that the recipe gives
itself override them. ``methods_table`` builds each method for each unit and reads off what it
releases: only the names are written by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from dpfed.core import registry
from dpfed.core.checks import refuse
from dpfed.core.errors import RecipeError
from dpfed.core.types import UPDATE, ClientAlgorithm, Facts, Trust, Unit, channels_due

if TYPE_CHECKING:
    from dpfed.core.vector import Layout

PlugIn = dict[str, Any]


class Method(NamedTuple):
    """A method: its client, its server, its mechanism."""

    client: PlugIn
    server: tuple[PlugIn, ...] = ({"name": "scale"},)
    mechanism: str = "gaussian"
    rounds: int | None = None
    """The rounds of a recipe that gives none; None means the schema's own."""
    default: str = ""
    """How it chooses settings that are not given; empty if a rate has to be searched for."""
    able: Mapping[str, tuple[Any, ...]] = {}
    """Field of a recipe -> the values that it supports, the default first; others take any value.

    A recipe that names no method and asks for another value is not given this one.
    """


def _plain(name: str, **options: Any) -> PlugIn:
    return {"name": name, **options}


GRADIENT = _plain("gradient")

METHODS: dict[str, Method] = {
    "dp-fedsofim": Method(
        GRADIENT,
        (_plain("sofim", rho="auto"), _plain("scale")),
        default="untuned: rate, rho and momentum from rounds, clip, noise and classes",
    ),
    "dp-fedsofim-printed": Method(
        GRADIENT,
        (_plain("sofim_printed", rho="auto"), _plain("scale")),
        default="untuned; the authors' code does not use it, and at their settings it does not "
        "train",
    ),
    "dp-fedauto": Method(
        _plain("fedauto"),
        rounds=20,
        default="untuned; what a recipe without a method has",
        able={
            "model.name": ("softmax", "logistic"),
            "model.start": ("zero",),
            "privacy.mechanism": ("gaussian", "discrete_gaussian"),
            "privacy.weights": ("sum",),
            "privacy.participation": (None,),
            "evaluation.kind": ("test", "federated", "exact", "off"),
        },
    ),
    "dp-fedgd": Method(GRADIENT),
    "ema-only": Method(GRADIENT, (_plain("ema"), _plain("scale"))),
    "dp-fedavg": Method(_plain("fedavg")),
    "dp-fedadam": Method(GRADIENT, (_plain("adam"),)),
    "dp-fedyogi": Method(GRADIENT, (_plain("yogi"),)),
    "dp-ftrl": Method(GRADIENT, (_plain("ftrl"),), "tree"),
    "dp-mf": Method(GRADIENT, (_plain("ftrl"),), "banded"),
    "dp-adafedprox": Method(_plain("adafedprox")),
    "dp-scaffold": Method(_plain("scaffold")),
    "dp-fedfc": Method(_plain("fedfc")),
    "dp-fednew": Method(_plain("fednew")),
    "dp-fednew-fc": Method(_plain("fednew", curvature="covariance")),
    "fednewton": Method(_plain("fednewton")),
    "fedhybrid": Method(_plain("fedhybrid")),
    "dp-localadamw": Method(_plain("localadamw")),
    "dp-fedadamw": Method(_plain("fedadamw")),
    "dp-fedavg-ls": Method(_plain("fedavg"), (_plain("laplacian"),)),
    "dp-fedsam": Method(_plain("fedsam")),
    "adadps": Method(_plain("adadps")),
    "sofim-local": Method(_plain("fedavg"), (_plain("sofim_printed", rho=1.0),)),
}


QUERY = Method(_plain("statistics"), rounds=1)
"""Questions (query.py): it has a name for policies to allow, and trains nothing."""

DEFAULT = "dp-fedauto"
"""The method of a recipe that names neither a method nor a plug-in of its own."""

NETWORK = Method(
    GRADIENT,
    (_plain("adam", rate=1.0, beta1=0.9, beta2=0.99), _plain("pace", strength=0.5)),
    rounds=100,
    able={
        "privacy.mechanism": ("gaussian", "discrete_gaussian", "clear"),
        "privacy.unit": (Unit.RECORD, Unit.GROUP),
    },
)
"""What such a recipe has instead if its model is a network: lab/studies/networks-untuned."""
NETWORK_DRAW = 0.1
"""The probability with which it draws each unit."""
DRAWN: dict[str, tuple[float, float]] = {
    "privacy.epsilon": (1e-6, 50.0),
    "privacy.std_over_clip": (0.05, 1e9),
}
"""What terms can choose where units or clients are drawn: with less noise an accountant's grid has
no end."""


def method_of(client: str) -> str | None:
    """The first method whose client algorithm has this name; None if there is none."""
    found = (name for name, method in METHODS.items() if method.client["name"] == client)
    return next(found, None)


def is_able(method: Method, tree: Mapping[str, Any]) -> bool:
    """Whether a method supports what a recipe's tables ask for."""
    for key, able in method.able.items():
        table, _, field = key.partition(".")
        section = tree.get(table, {})
        given = section.get(field, able[0]) if isinstance(section, Mapping) else None
        if given not in able:
            return False
    return True


def network_tables(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The default of networks, under the tables that a recipe gives itself.

    Units are drawn only if the recipe says nothing of draws, and not with so little noise that an
    accountant would take minutes.

    Args:
        tree: a recipe's tables without method, client, server and train.

    >>> network_tables({"rounds": 50, "privacy": {"epsilon": 3.0}})["privacy"]
    {'record_rate': 0.1, 'epsilon': 3.0}
    """
    privacy = tree.get("privacy", {})
    made = {
        "rounds": NETWORK.rounds,
        **tree,
        "client": dict(NETWORK.client),
        "server": [dict(link) for link in NETWORK.server],
    }
    if _drawable(privacy):
        made["privacy"] = {"record_rate": NETWORK_DRAW, **privacy}
    return made


def _drawable(privacy: Mapping[str, Any]) -> bool:
    epsilon, ratio = privacy.get("epsilon"), privacy.get("std_over_clip")
    return (
        not privacy.keys() & {"client_rate", "cohort"}
        and not (isinstance(epsilon, int | float) and epsilon > DRAWN["privacy.epsilon"][1])
        and not (isinstance(ratio, int | float) and ratio < DRAWN["privacy.std_over_clip"][0])
    )


def method_tables(name: str) -> dict[str, Any]:
    """The recipe's tables that a method's name stands for."""
    if name not in METHODS and name != QUERY.client["name"]:
        raise refuse(
            "method",
            "a name that 'dpfed methods' lists",
            name,
            registry.suggest(name, list(METHODS)),
        )
    method = METHODS.get(name, QUERY)
    server = [dict(link) for link in method.server]
    tables = {"client": dict(method.client), "server": server, "mechanism": method.mechanism}
    return tables if method.rounds is None else {**tables, "rounds": method.rounds}


# --------------------------------------------------------------------------------------- the table


@cache
def _shape() -> Layout:
    """A head of 10 classes on 64 features: what the sizes in the table are measured on."""
    from dpfed.core.vector import Layout  # torch, which no one needs who only names a method

    return Layout({"weight": (10, 64), "bias": (10,)})


def methods_table() -> list[dict[str, str]]:
    """One row per method: what it protects, releases, sends and keeps."""
    return [_row(name, method) for name, method in METHODS.items()]


_CARD_ONLY = ("default", "upload", "keeps", "client memory")
_ALL = (", ".join(Unit), ", ".join(Trust))


def methods_markdown(rows: list[dict[str, str]]) -> str:
    """The table as Markdown: papers last, "all" for all units or kinds of trust, no sizes.

    docs/methods.md has it, and a test holds it there.
    """
    columns = [*(column for column in rows[0] if column not in (*_CARD_ONLY, "paper")), "paper"]
    cells = [[_shortened(row[column]) for column in columns] for row in rows]
    return "\n".join(markdown_table(columns, cells)) + "\n"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table; a bar in a cell would end it, and becomes a slash."""

    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"

    return [line(head), "|" + "---|" * len(head), *map(line, rows)]


def _shortened(cell: str) -> str:
    for whole in _ALL:
        cell = cell.replace(whole, "all")
    return cell


def _row(name: str, method: Method) -> dict[str, str]:
    built = {unit: _build(method, unit) for unit in Unit}
    found = {unit: algorithm for unit, algorithm in built.items() if algorithm is not None}
    first = next(iter(found.values()))
    return {
        "method": name,
        "paper": _paper(method),
        "made of": _made_of(method),
        "default": method.default,
        "protects": _by_unit(dict.fromkeys(found, "")),
        "trust": _by_unit({unit: _trust(method, a) for unit, a in found.items()}),
        "releases": _by_unit({unit: _releases(a) for unit, a in found.items()}),
        "upload": f"{_upload(first):.3g}",
        "keeps": f"{_kept(method, first):.3g}",
        "client memory": first.memory,
        "model": "one linear layer" if first.linear else "any",
        "post-processing only": "yes" if method.client == GRADIENT and _fresh(method) else "no",
    }


def _build(method: Method, unit: Unit) -> ClientAlgorithm | None:
    options = {key: value for key, value in method.client.items() if key != "name"}
    try:
        algorithm: ClientAlgorithm = registry.build(
            "client", method.client["name"], options, unit=unit, layout=_shape()
        )
    except RecipeError:  # it says that it cannot protect this unit
        return None
    return algorithm if unit in algorithm.units else None


def _fresh(method: Method) -> bool:
    return bool(registry.build("mechanisms", method.mechanism, {}).independent)


def _paper(method: Method) -> str:
    """The papers that its files name, without those of parts that any method may have."""
    links = [link["name"] for link in method.server if link["name"] != "scale"]
    found = [registry.paper("server", name) for name in links]
    if method.client != GRADIENT or not found:
        found.insert(0, registry.paper("client", method.client["name"]))
    if method.mechanism != "gaussian":
        found = [registry.paper("mechanisms", method.mechanism)]
    return "; ".join(found)


def _made_of(method: Method) -> str:
    parts = [method.client["name"], *(link["name"] for link in method.server)]
    return " + ".join([*parts, *([method.mechanism] if method.mechanism != "gaussian" else [])])


def _by_unit(words: Mapping[Unit, str]) -> str:
    """Units with the same words together."""
    groups: dict[str, list[str]] = {}
    for unit, word in words.items():
        groups.setdefault(word, []).append(str(unit))
    if len(groups) == 1 and "" not in groups and len(words) > 1:
        return next(iter(groups))
    return "; ".join(f"{', '.join(u)}: {w}" if w else ", ".join(u) for w, u in groups.items())


def _trust(method: Method, algorithm: ClientAlgorithm) -> str:
    if not algorithm.sends_unmodified or algorithm.reuses_own_releases:
        return str(Trust.LOCAL)
    return ", ".join(t for t in Trust if _accepts(method.mechanism, t))


def _accepts(mechanism: str, trust: Trust) -> bool:
    try:
        registry.build("mechanisms", mechanism, {}, facts=Facts(trust=trust))
    except RecipeError:
        return False
    return True


def _releases(algorithm: ClientAlgorithm) -> str:
    parts = []
    for name, channel in algorithm.channels.items():
        counts = [_phase(rounds, count) for rounds, count in channel.phases if count]
        kept = "" if channel.sent else " (kept)"
        parts.append(f"{name} {', then '.join(counts) or 'derived'}{kept}")
    return " + ".join(parts)


def _phase(rounds: int | None, count: int) -> str:
    if rounds is None:
        return f"x{count}"
    return "once" if rounds == count == 1 else f"x{count} for {rounds} rounds"


def _upload(algorithm: ClientAlgorithm) -> float:
    """Vectors of the model's size in the largest round."""
    rounds = range(1 + sum(rounds or 0 for rounds, _ in algorithm.channels[UPDATE].phases))
    channels = algorithm.channels
    sizes = {name: channel.size or _shape().size for name, channel in channels.items()}

    def upload(at: int) -> int:
        return sum(sizes[n] for n in channels_due(channels, lambda n: channels[n].releases(at)))

    return max(map(upload, rounds)) / _shape().size


def _kept(method: Method, algorithm: ClientAlgorithm) -> float:
    """Vectors of the model's size that a client keeps between rounds."""
    import torch

    mechanism = registry.build("mechanisms", method.mechanism, {}, horizon=70, rounds=70)
    state = (algorithm.init(torch.zeros(_shape().size)), mechanism.init(_shape().size))
    return _numbers(state) / _shape().size


def _numbers(tree: Any) -> int:
    if isinstance(tree, tuple):
        return sum(_numbers(part) for part in tree)
    return int(tree.numel()) if hasattr(tree, "numel") and tree.numel() > 1 else 0
