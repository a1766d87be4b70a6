# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  sentences are quoted whole, as they stand on the page
"""What the pages say of train functions in shards."""

from __future__ import annotations

import json
import statistics
from functools import partial
from typing import Any

from tests.claims.files import RESULTS, Claim, rows

PAGE = "lab/studies/shards/results/README.md"
EPSILONS = ("1.0", "3.0", "8.0")
CELLS = [(trust, epsilon) for trust in ("local", "distributed") for epsilon in EPSILONS]
HEAD, SKLEARN = "PyTorch head", "scikit-learn"
SHARDED = ("shards", "shards, 5 epochs")


def of(file: str, **labels: str) -> list[float]:
    """Accuracy in percent, of the lines with these labels."""
    found = [
        float(row["accuracy"])
        for row in rows("shards", file)
        if all(row[name] == value for name, value in labels.items())
    ]
    assert found, f"no line with {labels} in {file}"
    return found


def by_cell(file: str, **labels: str) -> list[float]:
    """The mean over seeds in each cell: three epsilons under local trust, then distributed."""
    cells = (of(file, trust=trust, epsilon=e, **labels) for trust, e in CELLS)
    return [statistics.fmean(found) for found in cells]


def app(name: str) -> tuple[float, ...]:
    """Plain, then the six cells of each way."""
    ways = ("shards", "shards, 5 epochs", "row by row", "client level")
    return plain(name), *(x for way in ways for x in by_cell("apps.csv", app=name, way=way))


def plain(name: str) -> float:
    return statistics.fmean(of("apps.csv", app=name, way="plain"))


def ends(way: str) -> tuple[float, float]:
    """A way's accuracy with the PyTorch head at epsilon 1 and 8, with noise in each message."""
    found = by_cell("apps.csv", app=HEAD, way=way)
    return found[0], found[2]


def in_flower(name: str) -> tuple[float, float, float]:
    """By ``flwr run``, and the least and the most of the simulated rows in the same cell."""
    cell = {"app": name, "way": "shards, 5 epochs", "trust": "local", "epsilon": "8.0"}
    (found,), simulated = of("flower.csv", **cell), of("apps.csv", **cell)
    return found, min(simulated), max(simulated)


def own_module() -> list[float]:
    """The app's linear layer as a torch module, row by row."""
    return by_cell("apps.csv", app=HEAD, way="your module, row by row")


def regrets(name: str) -> list[float]:
    """The searched setting less the default, by cell."""
    both = (by_cell("unseen.csv", data=name, method=m) for m in ("searched", "default"))
    return [chosen - default for chosen, default in zip(*both, strict=True)]


UNSEEN = ("Fashion-MNIST", "credit default", "malaria")


def furthest_behind() -> tuple[float, ...]:
    return tuple(max(regrets(name)) for name in UNSEEN)


def mean_regrets() -> tuple[float, ...]:
    return tuple(statistics.fmean(regrets(name)) for name in UNSEEN)


def within() -> tuple[int, int]:
    """Cells in which the default is at most 1.5 points behind, and all cells."""
    found = [each for name in UNSEEN for each in regrets(name)]
    return sum(each <= 1.5 for each in found), len(found)


def by_seven(name: str, way: str) -> list[float]:
    """The mean over seeds under the secure sum, where the rule counts on seven of ten silos."""
    labels = {"data": name, "way": way}
    return [statistics.fmean(of("seven-of-ten.csv", epsilon=e, **labels)) for e in EPSILONS]


def seven_beside_nine() -> tuple[float, float]:
    ways = [("apps.csv", {"app": n, "way": w}, n, w) for n in (HEAD, SKLEARN) for w in SHARDED]
    ways += [("unseen.csv", {"data": n, "method": "default"}, n, "default") for n in UNSEEN]
    gaps = [
        now - before
        for file, labels, name, way in ways
        for now, before in zip(by_seven(name, way), by_cell(file, **labels)[3:], strict=True)
    ]
    return min(gaps), max(gaps)


def seven_within() -> tuple[int, int]:
    """As ``within``: local cells are the same."""
    found = [gap for name in UNSEEN for gap in regrets(name)[:3]]
    for name in UNSEEN:
        chosen = by_cell("unseen.csv", data=name, method="searched")[3:]
        found += [a - b for a, b in zip(chosen, by_seven(name, "default"), strict=True)]
    return sum(each <= 1.5 for each in found), len(found)


def behind_row_by_row(name: str, way: str) -> tuple[float, float]:
    """The least and the most that shards are behind, over the cells."""
    found = (by_cell("apps.csv", app=name, way=each) for each in ("row by row", way))
    gaps = [rows_ - shards for rows_, shards in zip(*found, strict=True)]
    return min(gaps), max(gaps)


def cnn() -> tuple[float, ...]:
    ways = ("plain", "shards, no noise, no clip", "shards")
    return tuple(statistics.fmean(of("cnn.csv", way=way)) for way in ways)


def chosen_by(varied: str, value: str, **labels: str) -> list[float]:
    """Runs on development sets that constants were chosen by."""
    return of("choices.csv", varied=varied, value=value, **labels)


def overshot() -> tuple[float, float]:
    """What a step of two without momentum loses to momentum, at 25 records and epsilon 8."""
    gaps = []
    for name in ("CIFAR-10", "Adult"):
        for trust in ("local", "distributed"):
            cell = {"batch": "3", "data": name, "records": "25", "trust": trust, "epsilon": "8.0"}
            cell["function"] = "momentum, 5 epochs"
            both = (chosen_by("server or clip", v, **cell) for v in ("momentum 0.5", "step 2"))
            gaps.append(next(a - b for a, b in zip(*both, strict=True)))
    return min(gaps), max(gaps)


def momentum_beside_one_step() -> tuple[float, float]:
    """Momentum less a step of one, over the cells of one batch."""
    found = (chosen_by("server or clip", v, batch="3") for v in ("momentum 0.5", "step 1"))
    gaps = [a - b for a, b in zip(*found, strict=True)]
    return min(gaps), max(gaps)


def first_clips() -> tuple[float, float]:
    """What the worst of a first clip 30 times too small and ten times too large costs, at rate 1."""

    def worst(value: str) -> float:
        found = (chosen_by("first clip at rate 1.0", v, batch="4") for v in ("1.0", value))
        return max(a - b for a, b in zip(*found, strict=True))

    return worst("0.03"), worst("10.0")


SIX = "{:.1f}, {:.1f} and {:.1f} % at epsilon 1, 3 and 8 under local trust, {:.1f}, {:.1f} and {:.1f} % under the secure sum"
APP = (
    "plain has {:.1f} %. In shards by default, the function as it is: " + SIX + ". With five "
    "passes over a shard: " + SIX + ". Row by row (dp-fedauto): " + SIX + ". Client level: " + SIX
)
TWO = "{:.1f} and {:.1f} %"
IN_THREE_WAYS = {
    "README.md": (
        "| each record | any torch module | " + TWO + "; our linear",
        "| each record | small models, any framework | " + TWO + " |",
        "| each client | many devices | " + TWO + " with these ten silos |",
    ),
    "docs/from-flower.md": (
        "| any torch module | 38 | " + TWO + " |",
        "| small models, any framework, Linux | 19 | " + TWO + " |",
        "| many devices | 15 | " + TWO + " |",
    ),
}


def shard_costs() -> tuple[float, ...]:
    """Milliseconds above the function's own, faults of a shard, and microseconds of a fault."""
    found = [row for row in benchmarked() if row["name"].startswith("a shard, ")]
    faults = [each["detail"]["faults"] for each in found]
    return (*(each["measured"] for each in found), *faults, found[0]["detail"]["us_a_fault"])


def rounds_of(function: str) -> list[float]:
    """Seconds of a round of 50, 200 and 500 shards."""
    name = "a round of {} shards, " + function
    found = {row["name"]: float(row["measured"]) for row in benchmarked()}
    return [found[name.format(count)] for count in (50, 200, 500)]


def benchmarked() -> list[dict[str, Any]]:
    kept = json.loads((RESULTS / "benchmarks/shards.json").read_text(encoding="utf-8"))
    lines: list[dict[str, Any]] = kept["results"]["shards"]
    return lines


ORDER = ("your module, row by row", "shards, 5 epochs", "client level")
CLAIMS = [
    *(
        Claim(page, text, partial(ends, way))
        for page, texts in IN_THREE_WAYS.items()
        for text, way in zip(texts, ORDER, strict=True)
    ),
    *(
        Claim(page, "accuracy at epsilon 1 and 8; plain: {:.1f} %", lambda: (plain(HEAD),))
        for page in IN_THREE_WAYS
    ),
    Claim("README.md", "; our linear model " + TWO, partial(ends, "row by row")),
    Claim(
        "docs/shards.md",
        "some {:.0f} ms (NumPy), {:.0f} (torch) or {:.0f} (scikit-learn) above the function's own time on one core, where 10 were the aim: after a fork its process has {:,.0f}, {:,.0f} or {:,.0f} page faults, of {:.1f} microseconds",
        shard_costs,
    ),
    *(
        Claim(
            "docs/shards.md",
            f"| {name} | {{:.1f}} | {{:.1f}} | {{:.1f}} |",
            partial(rounds_of, name),
        )
        for name in ("NumPy", "torch", "scikit-learn")
    ),
    Claim(
        "docs/from-flower.md",
        "with nothing to choose, reaches {:.1f} and {:.1f} % there",
        partial(ends, "row by row"),
    ),
    Claim(PAGE, "The app's own linear layer as a torch module, row by row: " + SIX, own_module),
    Claim(PAGE, "**A PyTorch head** on CIFAR-10's features: " + APP, partial(app, HEAD)),
    Claim(PAGE, "**A scikit-learn app** on Adult: " + APP, partial(app, SKLEARN)),
    Claim(
        PAGE,
        "With five passes, shards are {:.1f} to {:.1f} points behind row by row on CIFAR-10's features",
        partial(behind_row_by_row, HEAD, "shards, 5 epochs"),
    ),
    Claim(
        PAGE,
        "{:.1f} to {:.1f} points on Adult",
        partial(behind_row_by_row, SKLEARN, "shards, 5 epochs"),
    ),
    Claim(
        PAGE,
        "The PyTorch head has {:.1f} %, where the simulated shards have {:.1f} to {:.1f} % over five seeds",
        partial(in_flower, HEAD),
    ),
    Claim(
        PAGE,
        "the scikit-learn app {:.1f} %, where they have {:.1f} to {:.1f} %",
        partial(in_flower, SKLEARN),
    ),
    Claim(PAGE, "In {} of {} cells the defaults are at most 1.5 points behind", within),
    Claim(PAGE, "by cell {:+.1f} to {:+.1f} points beside the tables", seven_beside_nine),
    Claim(PAGE, "and {} of the {} cells below within 1.5 points", seven_within),
    Claim(
        PAGE,
        "at most {:.1f} points behind on Fashion-MNIST, {:.1f} points on credit default and {:.1f} points on malaria",
        furthest_behind,
    ),
    Claim(PAGE, "on average {:+.1f}, {:+.1f} and {:+.1f} points behind", mean_regrets),
    Claim(PAGE, "lost {:.1f} to {:.1f} points to momentum", overshot),
    Claim(PAGE, "is {:+.1f} to {:+.1f} points beside a step of one", momentum_beside_one_step),
    Claim(
        PAGE,
        "30 times too small cost at most {:.1f} points, ten times too large up to {:.1f} points",
        first_clips,
    ),
    Claim(
        PAGE,
        "plain it has {:.1f} %, in shards {:.1f} % without noise and clip, and {:.1f} % under the secure sum at epsilon 8",
        cnn,
    ),
]
