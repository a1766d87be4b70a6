# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  sentences are quoted whole, as they stand on the page
"""Every sentence with a measured figure, computed again from the runs that are kept in results/.

A claim is a piece of a page with gaps, and a function that fills them from committed files. It
fails if the page says something else, or if the figures no longer follow. A figure on a page
(a percentage, points, a signed decimal) that no claim covers must stand in ELSEWHERE with a reason.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import runpy
import statistics
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dpfed.experiments.jobs import diverged
from dpfed.experiments.scores import ACCURACY
from dpfed.experiments.significance import Gap, paired_gap

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"

pytestmark = pytest.mark.skipif(not RESULTS.exists(), reason="an sdist has no results")

# ------------------------------------------------------------------------------- from files to figures


@cache
def rows(folder: str, name: str = "final.csv") -> list[dict[str, str]]:
    with (RESULTS / folder / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def seeds(folder: str, method: str, column: str = "accuracy", **cell: Any) -> dict[int, float]:
    """Seed -> percent, of a method in a cell; a cell's values as the file writes them.

    A run that diverged is in no figure.
    """
    found = {
        int(row["seed"]): 100 * float(row[column])
        for row in rows(folder)
        if row["method"] == method
        and all(row[key] == str(cell[key]) for key in cell)
        and not diverged(row)
    }
    assert found, f"no run of {method} in {folder} at {cell}"
    return found


def mean(folder: str, method: str, column: str = "accuracy", **cell: Any) -> float:
    return statistics.fmean(seeds(folder, method, column, **cell).values())


def gap(folder: str, method: str, other: str = "DP-FedGD", **cell: Any) -> Gap:
    """A method less another one, paired by seed."""
    pair = paired_gap(seeds(folder, method, **cell), seeds(folder, other, **cell), ACCURACY)
    assert pair is not None
    return pair


def lead(folder: str, method: str, other: str = "DP-FedGD", **cell: Any) -> float:
    return gap(folder, method, other, **cell).mean


def significant(*gaps: Gap) -> None:
    assert all(each.significant for each in gaps)


def methods_of(folder: str, but: Iterable[str] = ()) -> list[str]:
    return [m for m in dict.fromkeys(row["method"] for row in rows(folder)) if m not in but]


def nine(folder: str, **cell: Any) -> list[float]:
    """The means of all methods but DP-FTRL."""
    return [mean(folder, m, **cell) for m in methods_of(folder, ("DP-FTRL",))]


def spread(folder: str, **cell: Any) -> float:
    figures = nine(folder, **cell)
    return max(figures) - min(figures)


ADAMW = ("DP-FedAvg", "DP-SCAFFOLD", "DP-FedAvg-LS", "DP-FedSAM", "DP-LocalAdamW", "DP-FedAdamW")


def furthest(folder: str, methods: Iterable[str], **cell: Any) -> float:
    """How far the best of these methods is from the last."""
    figures = [mean(folder, method, **cell) for method in methods]
    return max(figures) - min(figures)


def above_adapters() -> tuple[float, float]:
    """The head alone less each adapter, over both epsilons."""
    adapters = ("DP-FedAvg", "DP-LocalAdamW", "DP-FedAdamW", "DP-FedAdam", "EMA-only")
    return ends(mean("adamw-sst2", "head, dp-fedauto", epsilon=e) - mean("adamw-sst2", m, epsilon=e)
                for e in ("1", "8") for m in adapters)  # fmt: skip


def best_lead(folder: str, **cell: Any) -> float:
    return max(nine(folder, **cell)) - mean(folder, "DP-FedGD", **cell)


def ends(figures: Iterable[float]) -> tuple[float, float]:
    found = sorted(figures)
    return found[0], found[-1]


# --------------------------------------------------------------------------------------- sofim-fair

FAIR, LARGE = "results/sofim-fair/README.md", ("CIFAR-10", "Fashion-MNIST")
FAIR_LINES = ("EMA-only", "DP-FedAdam", *(f"DP-FedSOFIM, rho {rho}" for rho in ("0.1", "1", "10")))


def holm_marks() -> tuple[int, ...]:
    """Lines ahead and behind after Holm's correction: momentum and Adam, then DP-FedSOFIM's."""
    known = [row for row in rows("sofim-fair", "tables/paired.csv") if row["p (Holm)"]]
    sure = [row for row in known if float(row["p (Holm)"]) < 0.05]
    signs = [("SOFIM" in row["method"], float(row["difference (points)"]) > 0) for row in sure]
    behind = [row["method"] for row in sure if float(row["difference (points)"]) < 0]
    assert set(behind) == {"DP-FedSOFIM, rho 0.1", "DP-FedSOFIM, rho 1"}
    kinds = ((False, True), (False, False), (True, True), (True, False))
    return (len(known), *(signs.count(kind) for kind in kinds))


def fair_rate(method: str, records: str, epsilon: str) -> float:
    """The rate that was chosen in a cell."""
    chosen = json.loads((RESULTS / "sofim-fair/settings.json").read_text(encoding="utf-8"))
    (rate,) = chosen[f"records {records} | epsilon {epsilon} | {method}"]["set"].values()
    return float(rate)


def same_rate() -> tuple[int, float, float]:
    """Cells in which rho 10 and DP-FedGD have one effective rate; how far apart, end and round 10."""
    line = "DP-FedSOFIM, rho 10"
    cells = [{"records": d, "epsilon": e} for d in LARGE for e in ("0.5", "1", "5", "10")
             if abs(fair_rate(line, d, e) / 10 - fair_rate("DP-FedGD", d, e)) < 1e-9]  # fmt: skip
    last, early = (
        [mean("sofim-fair", line, c, **cell) - mean("sofim-fair", "DP-FedGD", c, **cell)
         for cell in cells] for c in ("accuracy", "round_10")
    )  # fmt: skip
    assert max(last) < 0
    return len(cells), -min(last), max(map(abs, early))


def fair_diverged() -> tuple[int, int]:
    lost = [row for row in rows("sofim-fair") if diverged(row)]
    assert all(row["records"] not in LARGE or row["method"].endswith("rho 0.1") for row in lost)
    gone = ["SOFIM" in row["method"] for row in lost]
    return gone.count(True), gone.count(False)


def chosen_diverged() -> tuple[int]:
    """Entries of the search of which every trial diverged."""
    trials: dict[str, list[dict[str, Any]]] = {}
    with gzip.open(RESULTS / "sofim-fair/runs.jsonl.gz", "rt", encoding="utf-8") as file:
        for row in map(json.loads, file):
            if row["stage"] == "tuning":
                trials.setdefault(row["entry"], []).append(row)
    gone = [entry for entry, found in trials.items() if all(map(diverged, found))]
    assert all("SOFIM" in entry for entry in gone)
    return (len(gone),)


def fair_edges() -> tuple[()]:
    assert all(fair_rate("EMA-only", "Fashion-MNIST", e) == 3.0 for e in ("5", "10"))
    return ()


# ------------------------------------------------------------------------------------ heterogeneity

UNLIKE = "results/heterogeneity/README.md"


def unlike(method: str, *settings: str) -> tuple[float, ...]:
    return tuple(mean("heterogeneity", method, setting=each) for each in settings)


def unlike_leads(method: str, *settings: str) -> tuple[float, ...]:
    return tuple(lead("heterogeneity", method, setting=each) for each in settings)


def unlike_cells() -> tuple[int]:
    """Cells; in none of them DP-FedSOFIM's mean is above DP-FedGD's, and some leads are in range."""
    cells = list(dict.fromkeys(row["setting"] for row in rows("heterogeneity")))
    assert max(unlike_leads("DP-FedSOFIM", *cells)) < 0
    plain = [each for each in cells if "a round" not in each and each != "1,000 clients"]
    ahead = [lead for m in ("EMA-only", "DP-FedAdam") for lead in unlike_leads(m, *plain)]
    assert 0.5 <= min(ahead) <= max(ahead) < 3
    return (len(cells),)


def few_at_a_time() -> tuple[float, ...]:
    few = ("100 clients, 30 % a round", "100 clients, 10 % a round")
    for method in ("EMA-only", "DP-FedAdam"):
        assert not any(gap("heterogeneity", method, setting=each).significant for each in few)
    return unlike("DP-FedGD", "100 clients", *few)


def unlike_runs() -> tuple[int, int]:
    return len(rows("heterogeneity", "tuning.csv")), len(rows("heterogeneity"))


# ------------------------------------------------------------------------------- fleet, and scale.md

FLEET, SCALE = "results/fleet/README.md", "docs/scale.md"


@cache
def tree() -> tuple[dict[str, Any], dict[str, list[float]], list[dict[str, Any]]]:
    """What was measured; devices in ten minutes of one core; what rounds of more would take."""
    made = runpy.run_path(str(ROOT / "scripts/tree-load"))
    found, fleet = (json.loads((RESULTS / f"fleet/{name}.json").read_text(encoding="utf-8"))
                    for name in ("tree", "fleet"))  # fmt: skip
    return found, made["worth"](found, fleet), made["counted"](found, fleet)


def fleet(key: str, kind: str = "") -> list[Any]:
    """A figure of every case that has it, by kind and count."""
    found = json.loads((RESULTS / "fleet/fleet.json").read_text(encoding="utf-8"))["cases"]
    return [case[key] for case in found if key in case and kind in case["devices"]]


def fleet_memory() -> tuple[int, int, int, int]:
    app, link = fleet("serverapp_mb", "stand-ins"), fleet("superlink_mb", "stand-ins")
    return app[-1][1], app[0][1], link[-2][1], link[0][1]


def tree_cases(devices: int) -> list[dict[str, Any]]:
    """By size."""
    found = sorted(tree()[0]["cases"], key=lambda each: int(each["size"]))
    return [each for each in found if each["devices"] == devices]


def aggregator_ms() -> list[float]:
    return [statistics.median(each["cpu_ms_a_reply"]) for each in tree_cases(10_000)]


def aggregator_times() -> tuple[float, ...]:
    """Milliseconds a reply, and over those of one server."""
    server = [each["server_cpu_ms_a_reply"] for each in tree_cases(10_000)]
    ratios = [ms / other for ms, other in zip(aggregator_ms(), server, strict=True)]
    return (*aggregator_ms(), *ratios)


def tree_part(*names: str) -> tuple[float, ...]:
    """In memory, at 10^6 parameters."""
    (part,) = (each for each in tree()[0]["parts"] if each["size"] == 10**6)
    return tuple(part[f"{name}_ms"] for name in names)


def root_ms() -> tuple[float, float, float]:
    total, noise = tree_part("partial", "noise")
    return total, tree_cases(10_000)[-1]["root_receives_cpu_ms"], noise


def tree_grows() -> tuple[float, float]:
    return ends((many["peak_bytes"] - few["peak_bytes"]) / 1e6
                for few, many in zip(tree_cases(100), tree_cases(10_000), strict=True))  # fmt: skip


def tree_worth(*names: str) -> list[int]:
    """Devices, rounded to three digits, or to tens."""
    return [int(round(each, -1 if each < 10_000 else -2 if each < 50_000 else -3))
            for name in names for each in tree()[1][name]]  # fmt: skip


def same_bits() -> tuple[int]:
    assert all(each["same_bits"] and not each["refused"] for each in tree()[0]["cases"])
    return (len(tree()[0]["cases"]),)


def many_devices(*names: str) -> list[float]:
    line = tree()[2][-1]
    assert (line["devices"], line["aggregator_gb"]) == (100_000, 1.0)
    found = [line[name] for name in names]
    return [one for each in found for one in (each if isinstance(each, list) else [each])]


def secure_scale(column: str, *clients: int) -> list[float]:
    found = {int(row["clients"]): float(row[column])
             for row in rows("benchmarks", "secure-scale.csv") if row["measured"] == "yes"}  # fmt: skip
    return [found[each] for each in clients]


def noisy_rounds() -> tuple[float, ...]:
    """Over Flower's simulation, at 650 and 10^6 parameters: seconds, and over FedAvg's."""
    measured = json.loads((RESULTS / "release/round.json").read_text(encoding="utf-8"))
    found = {row["name"]: row for group in measured["results"].values() for row in group}
    lines = [found[f"Flower round, {size} parameters, with noise"] for size in (650, 10**6)]
    return (*(each["measured"] / 1e3 for each in lines), *(each["ratio"] for each in lines))


def secure_sums() -> tuple[float, float]:
    measured = json.loads((RESULTS / "benchmarks/secure.json").read_text(encoding="utf-8"))
    found = {
        row["name"]: row["measured"] for group in measured["results"].values() for row in group
    }
    name = "secure sum in one process, {} words"
    return found[name.format(650)], found[name.format(10**6)] / 1e3


# ---------------------------------------------------------------------------------- the pages' claims


class Claim(NamedTuple):
    page: str
    text: str
    """With one gap of str.format for each figure."""
    figures: Callable[[], tuple[Any, ...]]


RAW, CENTRED = ({"features": kind, "weights": "sum"} for kind in ("raw", "centred"))
TUNED = ("DP-FedGD", "EMA-only", "DP-FedAdam")


def secure_sum(method: str = "DP-FedGD") -> tuple[float, ...]:
    """What distributed trust adds, by epsilon."""
    folder = "secure-sum"
    return tuple(
        mean(folder, method, epsilon=e, trust="distributed")
        - mean(folder, method, epsilon=e, trust="local")
        for e in ("0.5", "1", "5", "10")
    )


def central(epsilon: str) -> float:
    folder = "sofim-trust"
    at = {trust: mean(folder, "DP-FedGD", epsilon=epsilon, trust=trust)
          for trust in ("central", "local")}  # fmt: skip
    return at["central"] - at["local"]


def rate(epsilon: str) -> float:
    """The best rate's lead over one ten times smaller."""
    folder = "sofim-rate"
    at = {row["rate"]: mean(folder, "DP-FedGD", epsilon=epsilon, rate=row["rate"])
          for row in rows(folder)}  # fmt: skip
    top = max(at, key=lambda each: at[each])
    smaller = next(each for each in at if float(each) == pytest.approx(float(top) / 10))
    return at[top] - at[smaller]


def weights(epsilon: str) -> float:
    by = [mean("sofim-wide", "DP-FedGD", epsilon=epsilon, features="raw", weights=kind)
          for kind in ("sum", "average")]  # fmt: skip
    return by[0] - by[1]


def centring(epsilon: str, column: str = "accuracy") -> float:
    by = [mean("sofim-wide", "DP-FedGD", column, epsilon=epsilon, **kind)
          for kind in (CENTRED, RAW)]  # fmt: skip
    return by[0] - by[1]


def auto(
    method: str, others: tuple[str, ...] = TUNED, folder: str = "auto-unseen"
) -> dict[str, float]:
    """By data set: the mean over trusts and epsilons of a line less the best of others."""
    found: dict[str, list[float]] = {}
    for cell in {(row["records"], row["trust"], row["epsilon"]): row for row in rows(folder)}:
        at = dict(zip(("records", "trust", "epsilon"), cell, strict=True))
        best = max(mean(folder, other, **at) for other in others)
        found.setdefault(cell[0], []).append(mean(folder, method, **at) - best)
    return {records: statistics.fmean(leads) for records, leads in found.items()}


def auto_ten() -> tuple[float, ...]:
    found = auto("DP-FedAuto, 10 rounds")
    order = ("activity", "pneumonia", "credit default", "heart disease", "SST-2",
             "Medical Abstracts")  # fmt: skip
    return tuple(found[records] for records in order)


def above_each() -> tuple[float, ...]:
    """DP-FedAuto in 10 rounds less each tuned method, on average over sets."""
    return tuple(
        statistics.fmean(auto("DP-FedAuto, 10 rounds", (each,)).values()) for each in TUNED
    )


def against_lent() -> float:
    found = [statistics.fmean(auto("DP-FedAuto, 10 rounds", (other,)).values())
             for other in ("DP-FedGD, lent", "DP-FedAdam, lent")]  # fmt: skip
    assert found[0] == pytest.approx(found[1], abs=0.05)
    return found[0]


def control(column: str, *studies: str) -> list[float]:
    """DP-FedSOFIM less its control by cell, in studies with these words in their names."""
    cells: dict[tuple[str, str], list[float]] = {}
    for row in rows("sofim-control", "control.csv"):
        if any(word in row["study"] for word in studies):
            apart = float(row[f"sofim_{column}"]) - float(row[f"control_{column}"])
            cells.setdefault((row["study"], row["cell"]), []).append(apart)
    return [statistics.fmean(each) for each in cells.values()]


FEATURES = ("cifar10", "wide", "trust", "ablation", "fashion")


def apart(column: str) -> float:
    return max(map(abs, control(column, *FEATURES)))


def against_gd(method: str) -> list[Gap]:
    """A method's differences to DP-FedGD on CIFAR-10 and Fashion-MNIST, tuned or lent."""
    found = [gap(folder, method, epsilon=e) for folder in ("sofim-cifar10", "sofim-fashion")
             for e in ("0.5", "1", "5", "10")]  # fmt: skip
    found += [gap("sofim-wide", method, epsilon=e, **kind) for e in ("0.5", "5")
              for kind in (RAW, CENTRED)]  # fmt: skip
    return found + [gap("auto-development", method, records=records, trust="local", epsilon=e)
                    for records in ("CIFAR-10", "Fashion-MNIST")
                    for e in ("0.5", "1", "3", "10")]  # fmt: skip


def worse() -> tuple[float, ...]:
    """By how much EMA-only is significantly worse, twice; DP-FedAdam never is."""
    assert not any(each.significant and each.mean < 0 for each in against_gd("DP-FedAdam"))
    found = [each for each in against_gd("EMA-only") if each.significant and each.mean < -0.1]
    assert found[0] == gap("sofim-cifar10", "EMA-only", epsilon="0.5")
    assert len(found) == 2
    return tuple(-each.mean for each in found)


def raw_leads(*folders: str) -> tuple[float, float]:
    both = ("EMA-only", "DP-FedAdam")
    found = [lead(folder, m, epsilon=e) for folder in folders for m in both for e in ("5", "10")]
    return ends(found + [lead("sofim-wide", m, epsilon="5", **RAW) for m in both])


def at_ten(records: str) -> tuple[float, float]:
    """EMA-only's and DP-FedAdam's leads, searched for the set itself."""
    return ends(lead("auto-development", m, records=records, trust="local", epsilon="10")
                for m in ("EMA-only", "DP-FedAdam"))  # fmt: skip


def medical(images: str) -> tuple[float, float]:
    """The better of DP-FedAdam and DP-FedYogi, which is best of all, less DP-FedGD."""
    leads = []
    for e in ("0.5", "1", "5", "10"):
        found = {m: seeds("sofim-medical", m, epsilon=e, images=images)
                 for m in methods_of("sofim-medical")}  # fmt: skip
        most = max(map(len, found.values()))  # a method of which a run diverged is not best
        at = {m: statistics.fmean(by.values()) for m, by in found.items() if len(by) == most}
        best = max(at, key=lambda m: at[m])
        assert best in ("DP-FedAdam", "DP-FedYogi")
        leads.append(at[best] - at["DP-FedGD"])
    return ends(leads)


def silo(method: str, epsilon: str, silos: str) -> float:
    pair = gap("silos", method, epsilon=epsilon, silos=silos)
    significant(pair)
    return pair.mean


def silos_go_both_ways() -> tuple[float, ...]:
    sites = ends(silo("DP-FedAdam", e, "X-rays, 8 sites") for e in ("1", "5"))
    return (
        -silo("DP-FedAdam", "5", "heart, 4 hospitals"),
        -silo("DP-FedAdam", "1", "malaria, whole patients, 5 silos"),
        silo("DP-FedAdam", "5", "activity, whole subjects, 5 silos"),
        *sites,
        -silo("EMA-only", "5", "activity, 30 subjects"),
    )


def averaging() -> tuple[float, float]:
    raw, centred = (
        gap("sofim-wide", "DP-FedAvg", epsilon="0.5", **kind) for kind in (RAW, CENTRED)
    )
    assert raw.significant
    assert not centred.significant
    return raw.mean, centred.mean


def momentum_or_curvature() -> tuple[float, ...]:
    """EMA-only, then DP-FedFC, by epsilon; no difference between the two is significant."""
    folder, both = "fednew-synthetic", ("EMA-only", "DP-FedFC")
    for e in ("0.3", "1", "10"):
        assert not gap(folder, "DP-FedFC", "EMA-only", epsilon=e).significant
    return tuple(mean(folder, method, epsilon=e) for method in both for e in ("0.3", "1", "10"))


def on_adult(method: str, other: str, epsilon: str, of: str = "records") -> tuple[float, ...]:
    """A method less another one with 10 and 100 clients; with 100 where whole clients count."""
    counts = ("10", "100") if of == "records" else ("100",)
    return tuple(lead("fednew-adult", method, other, epsilon=epsilon, setting=f"{n} clients, {of}")
                 for n in counts)  # fmt: skip


def fednew_behind() -> tuple[float, float]:
    """How far DP-FedNew is below DP-FedGD at epsilon 0.3 and 1."""
    pairs = [gap("fednew-synthetic", "DP-FedNew, 15 rounds", epsilon=e) for e in ("0.3", "1")]
    significant(*pairs)
    return -pairs[0].mean, -pairs[1].mean


def newton() -> tuple[float, float, float]:
    binary, classes = (gap("fednewton-mnist", "FedNewton", "FedSGD", epsilon="8", task=task)
                       for task in ("binary", "multiclass"))  # fmt: skip
    significant(binary, classes)
    hybrid = [gap("fednewton-mnist", "FedHybrid", "FedSGD", epsilon=e, task=task)
              for e in ("0.5", "1", "4", "8") for task in ("binary", "multiclass")]  # fmt: skip
    assert not any(each.significant and each.mean < 0 for each in hybrid)
    behind = -lead("fednewton-mnist", "FedNewton", "FedSGD", epsilon="0.5", task="multiclass")
    return binary.mean, classes.mean, behind


def correlated(folder: str) -> tuple[float, float]:
    return ends(-lead(folder, "DP-FTRL", epsilon=e) for e in ("0.5", "1", "5", "10"))


def paper(method: str, epsilon: str, round: str = "70", name: str = "sofim-cifar10") -> float:
    """A figure of Nair et al.'s tables, less DP-FedGD's there."""
    at = {row["method"]: float(row["accuracy"]) for row in rows(name, "paper.csv")
          if (row["epsilon"], row["round"]) == (epsilon, round)}  # fmt: skip
    return at[method] - at["DP-FedGD"]


def not_reproduced() -> tuple[float, ...]:
    ours = [lead("sofim-cifar10", "DP-FedSOFIM", epsilon=e) for e in ("5", "10")]
    theirs = [paper("DP-FedSOFIM", e) for e in ("5", "10")]
    small = ("DP-SCAFFOLD", "DP-FedFC")
    return (
        *theirs,
        *ours,
        *(paper(m, "0.5") for m in small),
        *(lead("sofim-cifar10", m, epsilon="0.5") for m in small),
    )


def hidden(word: str) -> float:
    """The most that a mean hides of the worst silo, over methods and epsilons."""
    found = []
    for row in {(r["epsilon"], r["silos"], r["method"]): r for r in rows("silos")}:
        epsilon, silos, method = row
        runs = [r for r in rows("silos") if (r["epsilon"], r["silos"], r["method"]) == row]
        if silos == word and not any(map(diverged, runs)):
            worst = mean("silos", method, "worst_silo", epsilon=epsilon, silos=silos)
            found.append(mean("silos", method, epsilon=epsilon, silos=silos) - worst)
    return max(found)


def hidden_all() -> tuple[float, float, float]:
    hospitals, sites, patients = map(
        hidden, ("heart, 4 hospitals", "X-rays, 8 sites", "malaria, 200 patients")
    )
    return hospitals, sites, patients


def persons() -> tuple[float, float]:
    by = [mean("silos", "DP-FedGD", epsilon="5", silos=silos)
          for silos in ("malaria, 200 patients", "malaria, whole patients, 5 silos")]  # fmt: skip
    return by[0], by[1]


def subjects() -> tuple[float, float, float]:
    at = ["activity, 30 subjects", "activity, whole subjects, 5 silos"]
    gd = [mean("silos", "DP-FedGD", epsilon="5", silos=each) for each in at]
    others = [m for m in methods_of("silos") if m != "DP-FedSOFIM"]  # which diverged
    best = max(mean("silos", m, epsilon="5", silos=at[1]) for m in others)
    return gd[0], gd[1], best


def it_diverged() -> tuple[()]:
    cell = ("5", "activity, whole subjects, 5 silos", "DP-FedSOFIM")
    runs = [r for r in rows("silos") if (r["epsilon"], r["silos"], r["method"]) == cell]
    assert len(runs) == 3
    assert all(map(diverged, runs))
    return ()


def soon() -> tuple[int]:
    """Rounds until DP-FedAdam has 95 % of DP-FedGD's end, at epsilon 5."""
    goal = 0.95 * mean("sofim-cifar10", "DP-FedGD", epsilon="5")
    rounds = (10, 20, 30, 40, 50, 60, 70)
    return (next(r for r in rounds if mean("sofim-cifar10", "DP-FedAdam", f"round_{r}",
                                           epsilon="5") >= goal),)  # fmt: skip


def few_rounds() -> tuple[float, ...]:
    at = [mean("sofim-cifar10", m, "round_10", epsilon="5")
          for m in ("DP-FedAdam", "EMA-only", "DP-FedGD")]  # fmt: skip
    same = statistics.fmean(
        float(row["control_10"]) for row in rows("sofim-control", "control.csv")
        if (row["study"], row["cell"]) == ("sofim-cifar10", "epsilon 5")
    )  # fmt: skip
    return at[0], at[1], same, at[2]


def trusts() -> tuple[float, ...]:
    gd, sofim = secure_sum(), secure_sum("DP-FedSOFIM")
    clear = mean("secure-sum", "DP-FedGD", epsilon="inf", trust="local")
    between = max(
        abs(mean("secure-sum", "DP-FedSOFIM", epsilon=e, trust=trust)
            - mean("secure-sum", "DP-FedGD", epsilon=e, trust=trust))
        for e in ("0.5", "1", "5", "10") for trust in ("local", "distributed")
    )  # fmt: skip
    return (*gd, clear, *sofim, between)


def at_ends(folder: str, names: tuple[str, ...], epsilons: tuple[str, ...]) -> tuple[float, float]:
    return ends(lead(folder, m, epsilon=e) for m in names for e in epsilons)


def cifar10() -> tuple[float, ...]:
    ahead = at_ends("sofim-cifar10", ("DP-FedAdam", "DP-FedYogi", "EMA-only"), ("5", "10"))
    return (*ahead, *correlated("sofim-cifar10"))


def iid() -> tuple[float, ...]:
    sofim = [lead("sofim-cifar10-iid", "DP-FedSOFIM", epsilon=e) for e in ("5", "10")]
    assert f"{sofim[0]:.1f}" == f"{sofim[1]:.1f}"
    others = [
        m
        for m in methods_of("sofim-cifar10-iid")
        if m not in ("DP-FedGD", "DP-FedSOFIM", "DP-FTRL")
    ]
    return (sofim[0], *at_ends("sofim-cifar10-iid", tuple(others), ("5", "10")))


def fashion() -> tuple[float, ...]:
    names = ("DP-FedYogi", "EMA-only", "DP-FedAdam")
    sofim = [gap("sofim-fashion", "DP-FedSOFIM", epsilon=e) for e in ("1", "5", "10")]
    significant(*sofim)
    assert f"{sofim[1].mean:.1f}" == f"{sofim[2].mean:.1f}"
    return (
        *at_ends("sofim-fashion", names, ("5", "10")),
        *at_ends("sofim-fashion", names, ("1",)),
        sofim[0].mean,
        sofim[1].mean,
    )


def ablation() -> tuple[float, float]:
    assert all(abs(lead("sofim-ablation", "DP-FedSOFIM", epsilon=e)) < 0.1 for e in ("5", "10"))
    return at_ends("sofim-ablation", ("EMA-only",), ("5", "10"))


def medical_all() -> tuple[float, ...]:
    both = [medical(images) for images in ("X-rays", "malaria")]
    for images in ("X-rays", "malaria"):
        for e in ("0.5", "1", "5", "10"):
            assert not gap("sofim-medical", "DP-FedSOFIM", epsilon=e, images=images).significant
    return tuple(each for pair in both for each in pair)


def dev() -> tuple[float, ...]:
    found = auto("DP-FedAuto, 30 rounds", TUNED, "auto-development")
    return tuple(
        found[each] for each in ("CIFAR-10", "Fashion-MNIST", "malaria", "X-rays", "Adult")
    )


def ten_times_too_small() -> tuple[float, float]:
    return ends(rate(e) for e in ("1", "5", "10"))


def preconditioner(weighing: str, kind: str) -> tuple[float, ...]:
    return tuple(lead("sofim-wide", "DP-FedSOFIM", epsilon=e, features=kind, weights=weighing)
                 for e in ("0.5", "5"))  # fmt: skip


def only_significant() -> tuple[float]:
    found = {(kind, weighing, e): gap("sofim-wide", "DP-FedSOFIM", epsilon=e, features=kind,
                                      weights=weighing)
             for kind in ("raw", "centred") for weighing in ("sum", "average")
             for e in ("0.5", "5")}  # fmt: skip
    assert [at for at, each in found.items() if each.significant] == [("raw", "average", "5")]
    return (found["raw", "average", "5"].mean,)


def fewer_trials() -> tuple[float, ...]:
    return tuple(mean("sofim-wide", "DP-FedGD", epsilon=e, **CENTRED)
                 - mean("sofim-trust", "DP-FedGD", epsilon=e, trust="local")
                 for e in ("0.5", "5"))  # fmt: skip


def printed(method: str, epsilon: str, round: str = "70", name: str = "sofim-cifar10") -> float:
    """A figure of the paper's."""
    (found,) = (float(row["accuracy"]) for row in rows(name, "paper.csv")
                if (row["method"], row["epsilon"], row["round"]) == (method, epsilon, round))  # fmt: skip
    return found


def at_rate(rate: str, epsilon: str) -> float:
    return mean("sofim-rate", "DP-FedGD", epsilon=epsilon, rate=rate)


def sofim_seeds(epsilon: str) -> tuple[float, float]:
    pair = gap("sofim-cifar10", "DP-FedSOFIM", epsilon=epsilon)
    assert pair.std is not None
    return pair.mean, pair.std


def start() -> tuple[float, float]:
    ours = mean("sofim-cifar10", "DP-FedSOFIM", "round_10", epsilon="5") - mean(
        "sofim-cifar10", "DP-FedGD", "round_10", epsilon="5")  # fmt: skip
    return ours, paper("DP-FedSOFIM", "5", "10")


def medical_control() -> tuple[float, ...]:
    found = control("last", "medical")
    assert sum(each > 0 for each in found) == 2
    return (*ends(found), statistics.fmean(found))


def rho() -> tuple[float, ...]:
    """The spread from rho 0.5 on, and what is below."""
    kept = ("rho 0.5", "rho 1", "rho 2", "rho 5", "rho 10")
    by = [[mean("sofim-rho", m, epsilon=e) for m in kept] for e in ("1", "5")]
    assert not any(map(diverged, rows("sofim-rho")))
    low = [mean("sofim-rho", m, epsilon=e) for e in ("1", "5") for m in ("rho 0.01", "rho 0.1")]
    return (max(max(each) - min(each) for each in by), *low, by[1][1])


def by_holm(folder: str) -> list[dict[str, str]]:
    """The differences of a folder that are significant after Holm's correction."""
    return [
        r
        for r in rows(folder, "tables/paired.csv")
        if r["p (Holm)"] and float(r["p (Holm)"]) < 0.05
    ]


CLIPS = "results/adaptive-clip/README.md"
CLIP_LINES = (
    "best fixed clip",
    "adapts from 3",
    "adapts from 30",
    "adapts from 0.3",
    "fixed at 30",
    "fixed at 0.3",
)


def clips_row(records: str, epsilon: str) -> tuple[float, ...]:
    return tuple(mean("adaptive-clip", m, records=records, epsilon=epsilon) for m in CLIP_LINES)


def clip_gaps(method: str, other: str = CLIP_LINES[0]) -> tuple[float, float]:
    """The least and the largest difference over data sets and epsilons."""
    return ends(
        lead("adaptive-clip", method, other, records=r, epsilon=e)
        for r in ("CIFAR-10", "Fashion-MNIST")
        for e in ("1", "5")
    )


def clips_by_holm(method: str) -> list[float]:
    """Its differences that are significant after Holm's correction."""
    assert len(rows("adaptive-clip", "tables/paired.csv")) == 30
    known = [row for row in by_holm("adaptive-clip") if row["method"] == method]
    return [float(row["difference (points)"]) for row in known]


def clip_good() -> tuple[float, ...]:
    (only,) = clips_by_holm("adapts from 3")
    return (*clip_gaps("adapts from 3"), only)


def clip_large() -> tuple[float, ...]:
    lost = clips_by_holm("adapts from 30")
    assert len(lost) == 2
    assert max(lost) < 0
    low, high = clip_gaps("fixed at 30")
    return (*clip_gaps("adapts from 30"), -high, -low)


def clip_small() -> tuple[float, ...]:
    low, high = clip_gaps("adapts from 0.3")
    return (-high, -low, *clip_gaps("adapts from 0.3", "fixed at 0.3"))


def clip_spread(*methods: str) -> list[float]:
    return [
        statistics.stdev(seeds("adaptive-clip", m, records="X-rays", epsilon="5").values())
        for m in methods
    ]


def clip_rays() -> tuple[float, ...]:
    better = [
        lead("adaptive-clip", m, CLIP_LINES[0], records="X-rays", epsilon="5")
        for m in CLIP_LINES[1:]
    ]
    assert not any(row["records"] == "X-rays" for row in by_holm("adaptive-clip"))
    return (*clip_spread(CLIP_LINES[0]), *ends(each for each in better if each > 0))


USERS, TURNS = "results/users/README.md", "independent, turns"


def users_row(method: str) -> tuple[float, ...]:
    """Mean and standard deviation at each epsilon."""
    found = [seeds("users", method, epsilon=e).values() for e in ("2", "8", "18")]
    return tuple(x for each in found for x in (statistics.fmean(each), statistics.stdev(each)))


def users_lead(*epsilons: str) -> tuple[float, ...]:
    """Banded and BLT beside independent noise with turns."""
    return tuple(lead("users", name, TURNS, epsilon=e)
                 for e in epsilons for name in ("banded, turns", "BLT, turns"))  # fmt: skip


def users_ahead() -> tuple[float, ...]:
    """At epsilon 2 and 8, significant by Holm; at 18, and with trees, not."""
    won = {
        (e, m) for e in ("2", "8") for m in ("banded, turns", "BLT, turns", "independent, drawn")
    }
    assert {(row["epsilon"], row["method"]) for row in by_holm("users")} == won
    return users_lead("2", "8")


def users_drawn() -> tuple[float, ...]:
    return tuple(
        lead("users", "banded, turns", "independent, drawn", epsilon=e) for e in ("2", "8", "18")
    )


PATIENTS = "sofim-patients"


def patients() -> tuple[float, ...]:
    names = ("DP-FedAdam", "EMA-only", "DP-FedGD")
    lost = [row for row in rows(PATIENTS) if diverged(row)]
    assert {(row["epsilon"], row["method"]) for row in lost} == {("10", "DP-FedSOFIM, rho 1")}
    found = [mean(PATIENTS, name, epsilon=e) for name in names for e in ("1", "10")]
    ours = [mean(PATIENTS, "DP-FedSOFIM, rho 1", epsilon=e) for e in ("1", "10")]
    assert {row["method"] for row in by_holm(PATIENTS)} == {"DP-FedSOFIM, rho 1"}
    return (*found, ours[0], -lead(PATIENTS, "DP-FedSOFIM, rho 1", epsilon="1"), ours[1], len(lost))


def auto_headline() -> tuple[float, int, int]:
    """DP-FedAuto in 10 untuned rounds less the best tuned: the mean over cells, and cells ahead."""
    found, columns = [], ("records", "trust", "epsilon")
    for cell in {tuple(row[each] for each in columns) for row in rows("auto-unseen")}:
        at = dict(zip(columns, cell, strict=True))
        best = max(mean("auto-unseen", other, **at) for other in TUNED)
        found.append(mean("auto-unseen", "DP-FedAuto, 10 rounds", **at) - best)
    return statistics.fmean(found), sum(each > 0 for each in found), len(found)


def flower_round() -> tuple[float, float]:
    """Over FedAvg's time, at 10^6 parameters: without noise and with it."""
    measured = json.loads((RESULTS / "release/round.json").read_text(encoding="utf-8"))
    ratio = {row["name"]: row["ratio"] for group in measured["results"].values() for row in group}
    name = "Flower round, 1000000 parameters"
    return ratio[name], ratio[f"{name}, with noise"]


def weight() -> tuple[str, str, str]:
    """Packages, megabytes, and those of torch, as results/release says after the change."""
    text = (RESULTS / "release/weight.md").read_text(encoding="utf-8")
    lines = dict(re.findall(r"(?m)^\| (.+?) \| .+ \| ([\d,.]+) \|$", text))
    return lines["packages"], lines["MB"], lines["MB of torch"]


def soaked() -> tuple[int, int, int]:
    found = json.loads((RESULTS / "ledger/soak.json").read_text(encoding="utf-8"))
    return found["kills"], found["overspent"], found["releases_without_an_entry"]


def counted() -> tuple[int]:
    from dpfed.audit.suite import AUDITS
    from dpfed.recipes.methods import METHODS

    assert len(AUDITS) == 6
    return (len(METHODS),)


# --------------------------------------------------------------------------------------- dimension

SIZE = "results/dimension/README.md"
SIZES = ("650", "1,290", "2,570", "5,130", "12,810", "20,010")


def sizes(method: str) -> tuple[float, ...]:
    """The accuracies of a method from the smallest to the largest model."""
    return tuple(mean("dimension", method, parameters=p) for p in SIZES)


def size_leads(method: str, other: str = "DP-FedGD") -> list[Gap]:
    return [gap("dimension", method, other, parameters=p) for p in SIZES]


def sure_by_size(method: str) -> tuple[int, int]:
    """Sizes at which a method is ahead of and behind DP-FedGD after Holm's correction."""
    known = [row for row in rows("dimension", "tables/paired.csv") if row["p (Holm)"]]
    sure = [float(row["difference (points)"]) for row in known
            if row["method"] == method and float(row["p (Holm)"]) < 0.05]  # fmt: skip
    return sum(each > 0 for each in sure), sum(each < 0 for each in sure)


def cost(method: str, parameters: str, column: str) -> float:
    (row,) = (row for row in rows("dimension", "tables/cost.csv") if row["method"] == method
              and row["parameters"] == parameters.replace(",", ""))  # fmt: skip
    return float(row[column])


def newton_at(method: str, parameters: str = "650") -> float:
    return mean("dimension-newton", method, parameters=parameters)


def without_a_matrix() -> tuple[float, float]:
    """DP-FedAuto's lead over DP-FedGD at the two sizes at which it sends no matrix."""
    leads = [lead("dimension", "DP-FedAuto", parameters=p) for p in SIZES[-2:]]
    for parameters in SIZES[-2:]:  # 30 rounds of updates, but for the mean's: no f x f numbers
        assert cost("DP-FedAuto", parameters, "sent") < cost("DP-FedGD", parameters, "sent")
    return leads[0], leads[1]


def beside_gd() -> tuple[float, float]:
    """DP-FedSOFIM from DP-FedGD where both have one rate, and where the search gave it another."""
    chosen = json.loads((RESULTS / "dimension/settings.json").read_text(encoding="utf-8"))
    rates = {(p, m): next(iter(chosen[f"parameters {p} | {m}"]["set"].values()))
             for p in SIZES for m in ("DP-FedGD", "DP-FedSOFIM")}  # fmt: skip
    leads = {p: lead("dimension", "DP-FedSOFIM", parameters=p) for p in SIZES}
    other = [p for p in SIZES if rates[p, "DP-FedGD"] != rates[p, "DP-FedSOFIM"]]
    assert other == ["2,570"]
    assert (rates["2,570", "DP-FedGD"], rates["2,570", "DP-FedSOFIM"]) == (30.0, 10.0)
    return max(abs(leads[p]) for p in SIZES if p not in other), leads["2,570"]


SIZE_CLAIMS = [
    Claim(SIZE, "DP-FedGD has {:.1f}, {:.1f}, {:.1f}, {:.1f}, {:.1f} and {:.1f} %", lambda: sizes("DP-FedGD")),
    Claim(SIZE, "DP-FedSOFIM is at most {:.2f} points from it at five sizes, and {:+.2f} at 2,570", beside_gd),
    Claim(SIZE, "EMA-only {:+.1f} to {:+.1f}, DP-FedAdam {:+.1f} to {:+.1f}",
          lambda: (*ends(g.mean for g in size_leads("EMA-only")), *ends(g.mean for g in size_leads("DP-FedAdam")))),
    Claim(SIZE, "DP-FedFC, with its matrix, {:+.1f} to {:+.1f}", lambda: ends(g.mean for g in size_leads("DP-FedFC"))),
    Claim(SIZE, "DP-FedAuto, which is searched nowhere, {:+.1f} to {:+.1f}", lambda: ends(g.mean for g in size_leads("DP-FedAuto"))),
    Claim(SIZE, "of six sizes DP-FedSOFIM is ahead at {} and behind at {}, EMA-only {} and {}, DP-FedAdam {} and {}, DP-FedFC {} and {}, DP-FedAuto {} and {}",
          lambda: sum((sure_by_size(m) for m in ("DP-FedSOFIM", "EMA-only", "DP-FedAdam", "DP-FedFC", "DP-FedAuto")), ())),
    Claim(SIZE, "and is still {:+.1f} and {:+.1f} points above DP-FedGD", without_a_matrix),
    Claim(SIZE, "DP-FedNew has {:.1f} and {:.1f} % in 5 rounds, FedNewton {:.1f} and {:.1f} in 3, DP-FedGD {:.1f} and {:.1f} in 5, DP-FedAdam {:.1f} and {:.1f}",
          lambda: tuple(newton_at(m, p) for m in ("DP-FedNew", "FedNewton", "DP-FedGD", "DP-FedAdam") for p in SIZES[:2])),
    Claim(SIZE, "{:.2f} MB at 650 parameters and {:.1f} at 20,010", lambda: tuple(cost("DP-FedGD", p, "memory") / 1e6 for p in ("650", "20,010"))),
    Claim(SIZE, "{:.1f} and {:.0f} MB under DP-FedFC", lambda: tuple(cost("DP-FedFC", p, "memory") / 1e6 for p in ("650", "20,010"))),
    Claim(SIZE, "{:.0f} MB at 650 and {:.0f} at 5,130 under DP-FedNew, {:.0f} at 650 and {:.0f} at 2,570 under FedNewton",
          lambda: tuple(cost(m, p, "memory") / 1e6 for m, p in (("DP-FedNew", "650"), ("DP-FedNew", "5,130"), ("FedNewton", "650"), ("FedNewton", "2,570")))),
    Claim(SIZE, "they would hold {:.1f} and {:.1f} GB", lambda: tuple(cost(m, "20,010", "memory") / 1e9 for m in ("DP-FedNew", "FedNewton"))),
    Claim(SIZE, "{:.2f} s at 650 parameters and {:.2f} s at 20,010 under DP-FedSOFIM, {:.2f} and {:.1f} under DP-FedFC",
          lambda: tuple(cost(m, p, "seconds") for m in ("DP-FedSOFIM", "DP-FedFC") for p in ("650", "20,010"))),
    Claim(SIZE, "{:.1f} s at 650 and {:.0f} at 5,130 under DP-FedNew, {:.1f} at 650 and {:.0f} at 2,570 under FedNewton",
          lambda: tuple(cost(m, p, "seconds") for m, p in (("DP-FedNew", "650"), ("DP-FedNew", "5,130"), ("FedNewton", "650"), ("FedNewton", "2,570")))),
    Claim(SIZE, "{:.2f} MB at 650 and {:.1f} at 20,010, DP-FedFC {:.2f} and {:.1f}",
          lambda: tuple(cost(m, p, "sent") / 1e6 for m in ("DP-FedGD", "DP-FedFC") for p in ("650", "20,010"))),
    Claim("results/README.md", "DP-FedGD has {:.1f} % at 650 parameters, {:.1f} at 12,810 and {:.1f} at 20,010",
          lambda: tuple(mean("dimension", "DP-FedGD", parameters=p) for p in ("650", "12,810", "20,010"))),
    Claim("results/README.md", "DP-FedSOFIM is {:+.1f} to {:+.1f} points beside it, DP-FedFC {:+.1f} to {:+.1f}, DP-FedAuto {:+.1f} to {:+.1f}",
          lambda: sum((ends(g.mean for g in size_leads(m)) for m in ("DP-FedSOFIM", "DP-FedFC", "DP-FedAuto")), ())),
    Claim("results/README.md", "at 20,010 parameters {:.1f} MB for vectors, {:.0f} MB for a matrix of the features, and by computation {:.1f} and {:.1f} GB for one of the parameters",
          lambda: (cost("DP-FedGD", "20,010", "memory") / 1e6, cost("DP-FedFC", "20,010", "memory") / 1e6,
                   *(cost(m, "20,010", "memory") / 1e9 for m in ("DP-FedNew", "FedNewton")))),
]  # fmt: skip


FLOWER = "docs/from-flower.md"
HELPS = "results/what-helps.md"

CLAIMS = [
    # ------------------------------------------------------------------------------------ README.md
    Claim("README.md", "+{:.1f} points for DP-FedGD at epsilon 0.5 on CIFAR-10 features",
          lambda: secure_sum()[:1]),
    Claim("README.md", "by set {:+.1f}, {:+.1f}, {:+.1f}, {:+.1f}, and {:+.1f}, {:+.1f} on text",
          auto_ten),
    Claim("README.md", "on average {:.1f} points above the best of three methods that were tuned for each cell and ran for 70, and ahead in {} of {} cells",
          auto_headline),
    Claim("README.md", "takes {:.2f} of FedAvg's time without noise, {:.1f} with noise", flower_round),
    Claim("README.md", "has {} packages and {} MB, of which torch {}", weight),
    Claim("README.md", "{:,} kills, {} overspent, {} releases without an entry", soaked),
    Claim("README.md", "**{} methods, those of the papers", counted),
    Claim("README.md", "nine of ten first-order methods end within {:.1f} points",
          lambda: (max(spread("sofim-wide", epsilon=e, **kind) for e in ("0.5", "5")
                       for kind in (RAW, CENTRED)),)),
    # --------------------------------------------------------------------------------- docs/choose.md
    Claim("docs/choose.md", "| the trust model | +{:.1f} (secure sum), +{:.1f} (central) | +{:.1f} |",
          lambda: (secure_sum()[0], central("0.5"), central("5"))),
    Claim("docs/choose.md", "| the rate, against one ten times too small | +{:.1f} (at epsilon 1) | +{:.1f} |",
          lambda: (rate("1"), rate("5"))),
    Claim("docs/choose.md", "| how records are weighed | +{:.1f} | +{:.1f} |",
          lambda: (weights("0.5"), weights("5"))),
    Claim("docs/choose.md", "| features centred by a *public* mean | +{:.1f} | +{:.1f} |",
          lambda: (centring("0.5"), centring("5"))),
    Claim("docs/choose.md", "| the best of nine optimizers | +{:.1f} raw, +{:.1f} centred | +{:.1f} raw, +{:.1f} centred |",
          lambda: tuple(best_lead("sofim-wide", epsilon=e, **kind) for e in ("0.5", "5")
                        for kind in (RAW, CENTRED))),
    Claim("docs/choose.md", "EMA-only twice by more than 0.1 ({:.1f} points on CIFAR-10 at epsilon 0.5, {:.1f} at 3). At epsilon 5 and 10 on raw features they are {:.1f} to {:.1f} points better; with centred ones and grids of eight settings at epsilon 10, {:.1f} on CIFAR-10 and {:.1f} to {:.1f} on Fashion-MNIST",
          lambda: (*worse(), *raw_leads("sofim-cifar10", "sofim-fashion"), at_ten("CIFAR-10")[0],
                   *at_ten("Fashion-MNIST"))),
    Claim("docs/choose.md", "{:+.1f} and {:+.1f} points (activity, pneumonia), {:+.1f} (credit default), {:+.1f} (heart disease), {:+.1f} and {:+.1f} on text",
          auto_ten),
    Claim("docs/choose.md", "against the same methods at lent settings {:+.1f} on average",
          lambda: (against_lent(),)),
    Claim("docs/choose.md", "best at every epsilon on X-rays, {:.0f} to {:.0f} points above DP-FedGD, and on malaria cells, {:.0f} to {:.0f}",
          lambda: (*medical("X-rays"), *medical("malaria"))),
    Claim("docs/choose.md", "DP-FedAdam {:.1f} %, EMA-only {:.1f}, DP-FedGD at rate 0.2 {:.1f}, DP-FedGD at the rate 0.3 that its coarse grid chose for round 70 {:.1f}",
          few_rounds),
    Claim("docs/choose.md", "DP-FedAdam loses {:.0f} points on heart disease at epsilon 5 and {:.0f} on whole patients at epsilon 1, and gains {:.0f} on whole subjects at epsilon 5 and {:.0f} to {:.0f} on X-ray sites, all significant; EMA-only loses {:.1f} on 30 subjects at epsilon 5, significant",
          silos_go_both_ways),
    Claim("docs/choose.md", "+{:.1f} on raw features, significant, +{:.1f} on centred ones, not", averaging),
    Claim("docs/choose.md", "at epsilon 0.3, 1 and 10 momentum has {:.1f}, {:.1f} and {:.1f} %, DP-FedFC {:.1f}, {:.1f} and {:.1f}",
          momentum_or_curvature),
    Claim("docs/choose.md", "FedNewton +{:.1f} (binary) and +{:.1f} (ten classes) over FedSGD on MNIST at epsilon 8, significant, and with ten classes {:.0f} *behind* at epsilon 0.5",
          newton),
    Claim("docs/choose.md", "{:.0f} points below DP-FedGD at epsilon 0.3 on Synthetic(5, 5)",
          lambda: fednew_behind()[:1]),
    Claim("docs/choose.md", "{:.0f} to {:.0f} points below DP-FedGD on CIFAR-10, {:.0f} to {:.0f} on Fashion-MNIST",
          lambda: (*correlated("sofim-cifar10"), *correlated("sofim-fashion"))),
    Claim("docs/choose.md", "In {} cells on CIFAR-10 and Fashion-MNIST features the two end at most {:.2f} points apart",
          lambda: (len(control("last", *FEATURES)), apart("last"))),
    Claim("docs/choose.md", "on two small medical sets they differ by up to {:.1f} points",
          lambda: (max(map(abs, control("last", "medical"))),)),
    Claim("docs/choose.md", "its paper reports leads of {:.1f} and {:.1f} points over DP-FedGD at epsilon 5 and 10",
          lambda: not_reproduced()[:2]),
    Claim("docs/choose.md", "it diverged in all three seeds on whole subjects at epsilon 5", it_diverged),
    Claim("docs/choose.md", "malaria at epsilon 5 falls from {:.1f} % (records; 200 patients, a silo each) to {:.1f} %",
          persons),
    Claim("docs/choose.md", "fell from {:.0f} to {:.0f} % for DP-FedGD at epsilon 5, {:.0f} % at best", subjects),
    Claim("docs/choose.md", "at epsilon 5 DP-FedAdam needs {} for 95 % of DP-FedGD's end", soon),
    Claim("docs/choose.md", "the mean hides up to {:.0f} points (hospitals), {:.0f} (patients), {:.0f} (X-ray sites)",
          lambda: (hidden_all()[0], hidden_all()[2], hidden_all()[1])),
    Claim("docs/choose.md", "at lent settings, nine are {:.1f} points apart at epsilon 10",
          lambda: (spread("sofim-fashion", epsilon="10"),)),
    # ------------------------------------------------------------------------ the fleet and its tree
    Claim(FLEET, "A round of 10, 30, 100 and 300 stand-ins takes {}, {}, {} and {} s", lambda: tuple(fleet("seconds_a_round", "stand-ins"))),
    Claim(FLEET, "the SuperLink takes {} to {} ms of CPU, the ServerApp, where DPStrategy is, {:.0f} to {:.0f}",
          lambda: (*ends(fleet("superlink_ms_a_device")), *ends(fleet("serverapp_ms_a_device")))),
    Claim(FLEET, "the ServerApp has {} MB at 300 devices and {} at 10, the SuperLink {} and {}", fleet_memory),
    Claim(FLEET, "Waiting costs** {:.1f} to {:.1f} ms for one look", lambda: ends(fleet("idle_ms_a_look"))),
    Claim(FLEET, "that is {} to {} connections for a whole core", lambda: tuple(tree_worth("waiting"))),
    Claim(FLEET, "are made in {:.0f} s and held; the link then answers as many looks as one core can ({:.1f} ms each)",
          lambda: (fleet("seconds_to_connect")[-1], fleet("idle_ms_a_look")[-1])),
    Claim("results/README.md", "limit: {:.0f} s a round at 100 devices, {:.0f} s at 300, where the sum takes {:.2f} s a device",
          lambda: (*fleet("seconds_a_round", "stand-ins")[-2:], fleet("serverapp_ms_a_device", "stand-ins")[-1] / 1e3)),
    Claim(FLEET, "10 take {} s a round, 30 take {}", lambda: tuple(fleet("seconds_a_round", "SuperNodes"))),
    Claim(FLEET, "share memory: {} MB more for each of 30", lambda: (fleet("mb_a_node")[-1],)),
    Claim(FLEET, "in all {} cases the root's model is that of one server", same_bits),
    Claim(FLEET, "{:.2f}, {:.2f} and {:.2f} ms of CPU a reply at 650, 10^5 and 10^6 parameters: {:.1f}, {:.1f} and {:.1f} times what one server takes",
          aggregator_times),
    Claim(FLEET, "checked and added in {:.1f} ms, its bare addition takes {:.1f}", lambda: tree_part("reply", "bare_reply")),
    Claim(FLEET, "from 100 to 10,000 devices it grows by {:.1f} to {:.1f} MB", tree_grows),
    Claim(FLEET, "{:.1f} ms for a total of 10^6 parameters, {:.1f} to receive it, and {:.0f} for the noise", root_ms),
    Claim(FLEET, "one core adds up {:,} replies of 10^6 parameters. The ServerApp as measured above does {:,} to {:,} devices, the SuperLink {:,} to {:,}, and it holds {} to {} that wait",
          lambda: tuple(tree_worth("adding", "app", "linked", "waiting"))),
    Claim(FLEET, "{:.0f} of them, {:.0f} to {:.0f} cores for waiting (if nobody else is connected), {:.0f} to {:.0f} for the link (in it are the looks of those who wait meanwhile), {:.1f} for adding; {:.0f} GB of replies, of which 1 GB for each, and {:.1f} GB and {:.1f} s for the root",
          lambda: tuple(many_devices("aggregators", "waiting_cores", "link_cores", "adding_cores", "all_gb", "root_gb", "root_seconds"))),
    Claim(SCALE, "An aggregator takes {:.1f} ms of CPU for a reply of 10^6 parameters, in memory that does not grow; the root {:.0f} ms for its total. So one core adds up {:,} replies in ten minutes, in which Flower's link serves {:,} to {:,} devices",
          lambda: (aggregator_ms()[-1], sum(root_ms()[:2]), *tree_worth("adding", "linked"))),
    Claim(SCALE, "it would take {:.0f} aggregators of 250, {:.0f} to {:.0f} cores, all but one or two for Flower's link",
          lambda: tuple(many_devices("aggregators", "waiting_cores"))),
    Claim(SCALE, "a core holds {} to {} that only wait. A round of 100 takes {:.0f} s, of 300 {:.0f} s",
          lambda: (*tree_worth("waiting"), *fleet("seconds_a_round", "stand-ins")[-2:])),
    Claim(SCALE, "SuperLink {:.1f} to {:.1f} s of CPU, the ServerApp {:.2f} s at most",
          lambda: tuple(each / 1e3 for each in (*ends(fleet("superlink_ms_a_device")), max(fleet("serverapp_ms_a_device"))))),
    Claim(SCALE, "[{:.2f} s at 650, {:.2f} s at 10^6](../results/release/round.md): {:.1f} and {:.1f} times FedAvg's", noisy_rounds),
    Claim(SCALE, "one client | {:.1f} ms at 5, {:.1f} at 50, {:.1f} at 500", lambda: tuple(secure_scale("client_ms", 5, 50, 500))),
    Claim(SCALE, "20 clients with the server: {:.0f} ms at 650, {:.2f} s at 10^6", secure_sums),
    Claim(SCALE, "the server | {:.1f} ms at 20, {:.0f} ms at 100, ", lambda: tuple(secure_scale("server_ms", 20, 100))),
    Claim(SCALE, "{:.2f} s at 500 |", lambda: (secure_scale("server_ms", 500)[0] / 1e3,)),
    Claim(SCALE, "secure: {:.1f} kB at 20, {:.1f} kB at 500 (d = 650)", lambda: tuple(each / 1e3 for each in secure_scale("sent_bytes", 20, 500))),
    # --------------------------------------------------------------------------------- other pages
    Claim("docs/secure-sum.md", "gains {:.1f} points at epsilon 0.5 and {:.1f} at epsilon 1, where it is within {:.1f} of no privacy",
          lambda: (*secure_sum()[:2], mean("secure-sum", "DP-FedGD", epsilon="inf", trust="local")
                   - mean("secure-sum", "DP-FedGD", epsilon="1", trust="distributed"))),
    Claim("docs/methods.md", "is on average {:.1f} points above DP-FedGD, {:.1f} above EMA-only and {:.1f} above DP-FedAdam",
          above_each),
    Claim("docs/threats.md", "costs {:.0f} to {:.0f} points", ten_times_too_small),
    Claim(FLOWER, "takes {:.1f} times FedAvg's with noise, ledger and answers on disk, {:.2f} without", lambda: flower_round()[::-1]),
    Claim(FLOWER, "torch is required, {} of {} MB", lambda: weight()[:0:-1]),
    # ------------------------------------------------------------------------------ results/README.md
    *SIZE_CLAIMS,
    Claim("results/README.md", "is {:.1f} to {:.1f} points above every adapter", above_adapters),
    Claim("results/README.md", "six methods within {:.1f} points at sigma 0.5 and {:.1f} at 1",
          lambda: tuple(furthest("adamw-small", ADAMW, sigma=sigma) for sigma in ("0.5", "1"))),
    Claim("results/README.md", "at lent settings, they are {:.1f} apart at epsilon 10; tuned there with eight settings each, DP-FedAdam is {:.1f} points above DP-FedGD)",
          lambda: (spread("sofim-fashion", epsilon="10"), at_ten("Fashion-MNIST")[1])),
    Claim("results/README.md", "EMA-only twice by more than 0.1 ({:.1f} points at epsilon 0.5, {:.1f} at 3), and they are up to {:.1f} points better at epsilon 5 and 10 on CIFAR-10's raw features",
          lambda: (*worse(), raw_leads("sofim-cifar10")[1])),
    # -------------------------------------------------------------------------------- adaptive clips
    *(Claim(CLIPS, f"| {r} | {e} | " + " | ".join(["{:.1f}"] * 6) + " |", partial(clips_row, r, e))
      for r in ("CIFAR-10", "Fashion-MNIST", "X-rays") for e in ("1", "5")),
    Claim(CLIPS, "{:+.1f} to {:+.1f} points on CIFAR-10 and Fashion-MNIST, of which only the {:+.1f} is significant", clip_good),
    Claim(CLIPS, "it is {:+.1f} to {:+.1f} there (two below, significant); the same clip kept is {:.1f} to {:.1f} below", clip_large),
    Claim(CLIPS, "it is {:.1f} to {:.1f} *below* the best fixed clip, and {:.1f} to {:.1f} above the same clip kept", clip_small),
    Claim(CLIPS, "varies by {:.1f} points between test seeds, so that all others but one look {:.0f} to {:.0f} points better", clip_rays),
    Claim(CLIPS, "the adapting ones vary by {:.1f} to {:.1f} there", lambda: ends(clip_spread(*CLIP_LINES[1:4]))),
    Claim("docs/methods.md", "from one ten times too small it ends up to {:.1f} points below", lambda: (clip_small()[1],)),
    Claim("results/README.md", "{:+.1f} to {:+.1f} beside the best of 16 fixed settings from a good first clip on two sets, {:+.1f} to {:+.1f} from one ten times too large, up to {:.1f} below from one ten times too small",
          lambda: (*clip_gaps("adapts from 3"), *clip_gaps("adapts from 30"), clip_small()[1])),
    # ---------------------------------------------------------------------------------------- users
    *(Claim(USERS, f"| {name} | {{:.1f}} ± {{:.1f}} | {{:.1f}} ± {{:.1f}} | {{:.1f}} ± {{:.1f}} |", partial(users_row, name))
      for name in (TURNS, "independent, drawn", "tree (DP-FTRL), turns", "banded, turns", "BLT, turns")),
    Claim(USERS, "banded and BLT are {:+.1f} and {:+.1f} points beside independent noise at epsilon 2, {:+.1f} and {:+.1f} at 8", users_ahead),
    Claim(USERS, "correction; {:+.1f} and {:+.1f} at 18, not significant", lambda: users_lead("18")),
    Claim(USERS, "a draw is at {:+.1f}, {:+.1f} and {:+.1f} points", users_drawn),
    Claim(USERS, "gain {:+.1f} at epsilon 2 and nothing at 8 and 18 ({:+.1f}, {:+.1f})",
          lambda: tuple(lead("users", "tree (DP-FTRL), turns", TURNS, epsilon=e) for e in ("2", "8", "18"))),
    Claim(USERS, "Every line begins at {:.1f} %", lambda: (min(100 * float(row["round_8"]) for row in rows("users")),)),
    Claim("results/README.md", "Banded and BLT are {:+.1f} and {:+.1f} points beside independent noise at epsilon 2 and {:+.1f} and {:+.1f} at 8", users_ahead),
    Claim(SCALE, "these two are {:.1f} points ahead of independent noise at epsilon 2", lambda: (min(users_lead("2")),)),
    Claim("results/README.md", "rho from 0.5 on within {:.1f} points; with 0.01 and 0.1 {:.1f} and {:.1f} % at epsilon 1, where the noise is divided by a small rho, {:.1f} and {:.1f} % at 5 (rho 1: {:.1f})", rho),
    Claim("results/README.md", "DP-FedAdam has {:.1f} and {:.1f} % at epsilon 1 and 10, EMA-only {:.1f} and {:.1f}, DP-FedGD {:.1f} and {:.1f}, no difference significant; DP-FedSOFIM at rho 1 has {:.1f} at 1, {:.1f} points below and significant, and {:.1f} at 10, where {} of 5 runs diverged", patients),
    Claim("results/README.md", "five local steps: {:.1f} at epsilon 1, level at 5",
          lambda: (lead("sofim-local", "DP-FedAvg, 5 steps", epsilon="1"),)),
    Claim("results/README.md", "EMA-only has {:.1f}, {:.1f} and {:.1f} % at epsilon 0.3, 1 and 10, DP-FedFC {:.1f}, {:.1f} and {:.1f}",
          momentum_or_curvature),
    Claim("results/README.md", "DP-FedFC is {:+.1f} and {:+.1f} points beside DP-FedAdam at epsilon 1 (10 and 100 clients), {:+.1f} and {:+.1f} at 10; beside EMA-only {:+.1f} and {:+.1f}, {:+.1f} and {:+.1f}. For whole clients at epsilon 1 it is at {:+.1f} beside DP-FedAdam, and DP-FedNew at {:+.1f}",
          lambda: (*(each for other in ("DP-FedAdam", "EMA-only") for e in ("1", "10") for each in on_adult("DP-FedFC", other, e)),
                   *on_adult("DP-FedFC", "DP-FedAdam", "1", "clients"), *on_adult("DP-FedNew", "DP-FedAdam", "1", "clients"))),
    Claim("results/README.md", "DP-FedNew is {:.0f} points below DP-FedGD at epsilon 0.3 and {:.1f} at 1", fednew_behind),
    # --------------------------------------------------------------------- results/sofim-fair/README.md
    Claim(FAIR, "over the {} differences to DP-FedGD of which at least two seeds are left, EMA-only and DP-FedAdam are ahead in {} and behind in {}; DP-FedSOFIM is ahead in {} and behind in {}", holm_marks),
    Claim(FAIR, "EMA-only is {:+.1f} points ahead on CIFAR-10 and {:+.1f} on Fashion-MNIST, DP-FedAdam {:+.1f} and {:+.1f}; DP-FedSOFIM is at {:+.1f} and {:+.1f} with rho 0.1, {:+.1f} and {:+.1f} with rho 1, {:z.1f} and {:z.1f} with rho 10",
          lambda: tuple(lead("sofim-fair", m, records=d, epsilon="10") for m in FAIR_LINES for d in LARGE)),
    Claim(FAIR, "In {} cells on CIFAR-10 and Fashion-MNIST", lambda: same_rate()[:1]),
    Claim(FAIR, "The two are at most {:.2f} points apart at the end, and {:.2f} at round 10", lambda: same_rate()[1:]),
    Claim(FAIR, "is at {:+.1f} points on CIFAR-10 and {:+.1f} on Fashion-MNIST at epsilon 0.5, {:+.1f} and {:+.1f} at 1; corrected momentum alone is at {:+.1f}, {:+.1f}, {:+.1f} and {:+.1f}",
          lambda: tuple(lead("sofim-fair", m, records=d, epsilon=e) for m in ("DP-FedSOFIM, corrected, warm-up", "EMA-only, corrected")
                        for e in ("0.5", "1") for d in LARGE)),
    Claim(FAIR, "Of DP-FedSOFIM's 400 runs {} diverged, of the other 400 {}", fair_diverged),
    Claim(FAIR, "{:.1f} % on CIFAR-10 at epsilon 0.5 in the search (rho 0.1, rate 0.001)",
          lambda: tuple(100 * float(row["accuracy"]) for row in rows("sofim-fair", "tuning.csv")
                        if row["entry"] == "records CIFAR-10 | epsilon 0.5 | DP-FedSOFIM, rho 0.1" and row["setting"] == "server.1.rate = 0.001")),
    Claim(FAIR, "at which its trial diverged only where all did, in {} entries here, all of DP-FedSOFIM", chosen_diverged),
    Claim(FAIR, "EMA-only chose 3, the largest, on Fashion-MNIST at epsilon 5 and 10", fair_edges),
    # ------------------------------------------------------------------ results/heterogeneity/README.md
    Claim(UNLIKE, "DP-FedSOFIM is at or below DP-FedGD in all {} cells; momentum and Adam gain 1 to 3 points", unlike_cells),
    Claim(UNLIKE, "DP-FedGD has {:.1f} % at alpha 10, {:.1f} at 1, {:.1f} at 0.3 and {:.1f} at 0.1",
          lambda: unlike("DP-FedGD", "alpha 10", "alpha 1", "alpha 0.3", "alpha 0.1")),
    Claim(UNLIKE, "costs nothing ({:.1f})", lambda: unlike("DP-FedGD", "one class each")),
    Claim(UNLIKE, "With the counts of the paper's Table 14: {:.1f}.", lambda: unlike("DP-FedGD", "Table 14")),
    Claim(UNLIKE, "by {:+.1f} points at alpha 0.1, {:+.1f} at 1 and {:+.1f} on Table 14's counts; EMA-only by {:+.1f}, {:+.1f} and {:+.1f}; DP-FedSOFIM is at {:+.1f}, {:+.1f} and {:+.1f}",
          lambda: tuple(v for m in ("DP-FedAdam", "EMA-only", "DP-FedSOFIM") for v in unlike_leads(m, "alpha 0.1", "alpha 1", "Table 14"))),
    Claim(UNLIKE, "{:.1f} % for 10, {:.1f} for 100, {:.1f} for 1,000 (DP-FedGD)", lambda: unlike("DP-FedGD", "10 clients", "100 clients", "1,000 clients")),
    Claim(UNLIKE, "the lead of Adam is {:+.1f}, {:+.1f} and {:+.1f}", lambda: unlike_leads("DP-FedAdam", "10 clients", "100 clients", "1,000 clients")),
    Claim(UNLIKE, "at borrowed rates is at {:+.1f} with 1,000", lambda: unlike_leads("EMA-only", "1,000 clients")),
    Claim(UNLIKE, "takes 100 clients back to {:.1f}, and DP-FedAdam to {:.1f}",
          lambda: (*unlike("DP-FedGD", "100 clients, secure"), *unlike("DP-FedAdam", "100 clients, secure"))),
    Claim(UNLIKE, "all, 30 % and 10 % a round give {:.1f}, {:.1f} and {:.1f} %", few_at_a_time),
    Claim(UNLIKE, "a trusted server's noise gives {:.1f} %, DP-FedAdam {:.1f}",
          lambda: (*unlike("DP-FedGD", "1,000 whole clients"), *unlike("DP-FedAdam", "1,000 whole clients"))),
    Claim(UNLIKE, "{} runs of search and {} final ones", unlike_runs),
    Claim("results/README.md", "of 100 clients sharing the records 10 % a round {:.1f} below all", lambda: (few_at_a_time()[0] - few_at_a_time()[2],)),
    Claim("results/README.md", "(paper {:.1f} and {:.1f} points at epsilon 5 and 10; here {:.1f} and {:z.1f}), DP-SCAFFOLD's and DP-FedFC's losses at small epsilon (paper {:.1f} and {:.1f} at 0.5; here {:.1f} and {:.1f})",
          not_reproduced),
    Claim("results/README.md", "the mean hides the worst silo by up to {:.0f} points (hospitals), {:.0f} (X-ray sites), {:.0f} (patients,",
          hidden_all),
    Claim("results/README.md", "malaria at epsilon 5 falls from {:.1f} to {:.1f} %", persons),
    Claim("results/README.md", "subjects is lost ({:.0f} %)", lambda: subjects()[1:2]),
    Claim("results/README.md", "Adam, Yogi, EMA ahead by {:.1f} to {:.1f} at epsilon 5 and 10; SOFIM level with FedGD; FTRL {:.0f} to {:.0f} below",
          cifar10),
    Claim("results/README.md", "SOFIM +{:.1f} at epsilon 5 and 10, the seven others but FTRL +{:.1f} to +{:.1f}", iid),
    Claim("results/README.md", "nine methods within {:.1f}; centring +{:.0f}, sum +{:.0f} at epsilon 0.5",
          lambda: (max(spread("sofim-wide", epsilon=e, **kind) for e in ("0.5", "5")
                       for kind in (RAW, CENTRED)), centring("0.5"), weights("0.5"))),
    Claim("results/README.md", "noise once for the sum: +{:.1f} at epsilon 0.5", lambda: (central("0.5"),)),
    Claim("results/README.md", "DP-FedGD gains {:.1f} points at epsilon 0.5, {:.1f} at 1, {:.1f} at 5 and {:.1f} at 10, where little was left to gain (no privacy: {:.2f} %); DP-FedSOFIM {:.1f}, {:.1f}, {:.1f}, {:.1f}. Between the two methods at most {:.1f}.",
          trusts),
    Claim("results/README.md", "level: {} cells on CIFAR-10 and Fashion-MNIST features at most {:.2f} points apart at the end, {:.2f} at round 10; {} cells on small medical sets {:+.1f} to {:+.1f}",
          lambda: (len(control("last", *FEATURES)), apart("last"), apart("10"),
                   len(control("last", "medical")), *ends(control("last", "medical")))),
    Claim("results/README.md", "a rate ten times too small costs {:.0f} to {:.0f} points", ten_times_too_small),
    Claim("results/README.md", "momentum +{:.1f} to +{:.1f} at epsilon 5 and 10; the preconditioner nothing", ablation),
    Claim("results/README.md", "Adam and Yogi carry over best, {:.0f} to {:.0f} points above DP-FedGD on X-rays, {:.0f} to {:.0f} on malaria; SOFIM within noise of DP-FedGD",
          medical_all),
    Claim("results/README.md", "Yogi, EMA, Adam +{:.1f} to +{:.1f} at epsilon 5 and 10, +{:.1f} to +{:.1f} at 1; SOFIM +{:.1f} at epsilon 1 and {:.1f} at 5 and 10, significant",
          fashion),
    Claim("results/README.md", "{:+.1f}, {:+.1f}, {:+.1f}, {:+.1f}, {:+.1f}, {:+.1f} by set",
          lambda: tuple(sorted(auto_ten(), reverse=True))),
    Claim("results/README.md", "{:+.1f} against lent settings", lambda: (against_lent(),)),
    Claim("results/README.md", "{:+.1f} CIFAR-10, {:+.1f} Fashion-MNIST, {:+.1f} malaria, {:+.1f} X-rays, {:+.1f} Adult", dev),
    Claim("results/README.md", "FedNewton first at epsilon 8 (+{:.1f} binary, +{:.1f} multiclass), {:.0f} behind at 0.5 multiclass",
          newton),
    # -------------------------------------------------------------------------- results/what-helps.md
    Claim(HELPS, "at each client | +{:.1f} | +{:.1f} (EMA-only +{:.1f}) |",
          lambda: (central("0.5"), central("5"),
                   mean("sofim-trust", "EMA-only", epsilon="5", trust="central")
                   - mean("sofim-trust", "EMA-only", epsilon="5", trust="local"))),
    Claim(HELPS, "one ten times too small | +{:.1f} at epsilon 1 | +{:.1f} |",
          lambda: (rate("1"), rate("5"))),
    Claim(HELPS, "instead of the paper's average | +{:.1f} | +{:.1f} |",
          lambda: (weights("0.5"), weights("5"))),
    Claim(HELPS, "by a public mean | +{:.1f} (round 10: +{:.1f}) | +{:.1f} (round 10: +{:.1f}) |",
          lambda: (centring("0.5"), centring("0.5", "round_10"), centring("5"), centring("5", "round_10"))),
    Claim(HELPS, "instead of DP-FedGD | +{:.1f} | +{:.1f} raw, +{:.1f} centred |",
          lambda: (best_lead("sofim-wide", epsilon="0.5", **RAW), *(
              best_lead("sofim-wide", epsilon="5", **kind) for kind in (RAW, CENTRED)))),
    Claim(HELPS, "DP-FedSOFIM instead of DP-FedGD | +{:.1f} | {:.1f} |", lambda: preconditioner("sum", "raw")),
    Claim(HELPS, "DP-FedGD ends {:.1f} points lower at epsilon 0.5 and {:.1f} at epsilon 5", fewer_trials),
    Claim(HELPS, "within {:.1f} points of each other at epsilon 0.5 and {:.1f} at epsilon 5 on raw features, {:.1f} and {:.1f} on centred ones",
          lambda: tuple(spread("sofim-wide", epsilon=e, **kind) for kind in (RAW, CENTRED) for e in ("0.5", "5"))),
    Claim(HELPS, "| raw features, sum | {:+.1f} | {:+.1f} | | raw features, average | {:z.1f} | {:+.1f} | | centred features, sum | {:+.1f} | {:+.1f} | | centred features, average | {:+.1f} | {:+.1f} |",
          lambda: (*preconditioner("sum", "raw"), *preconditioner("average", "raw"),
                   *preconditioner("sum", "centred"), *preconditioner("average", "centred"))),
    Claim(HELPS, "No entry but the one at raw, average, epsilon 5 ({:.2f})", only_significant),
    Claim(HELPS, "EMA-only gains {:.1f} points at epsilon 5 on raw features, DP-FedAvg with 4 small local steps {:.1f} at epsilon 0.5",
          lambda: (lead("sofim-wide", "EMA-only", epsilon="5", **RAW), averaging()[0])),
    Claim(HELPS, "DP-FedSOFIM {:.1f} points above DP-FedGD at epsilon 5 and {:.1f} at epsilon 10",
          lambda: not_reproduced()[:2]),
    Claim(HELPS, "we find {:.1f} +- {:.1f} and {:z.1f} +- {:.1f}", lambda: (*sofim_seeds("5"), *sofim_seeds("10"))),
    Claim(HELPS, "({:.1f} % at round 10, {:.1f} % at round 70) and still rises by {:.1f} points over the last ten rounds",
          lambda: (printed("DP-FedGD", "5", "10"), printed("DP-FedGD", "5"),
                   printed("DP-FedGD", "5") - printed("DP-FedGD", "5", "60"))),
    Claim(HELPS, "at a rate of 0.03: {:.1f} % at epsilon 5 and {:.1f} % at 10, still rising; at a rate of 0.3 it has {:.1f} and {:.1f} %",
          lambda: (at_rate("0.03", "5"), at_rate("0.03", "10"), at_rate("0.3", "5"), at_rate("0.3", "10"))),
    Claim(HELPS, "The rate alone is worth {:.0f} points here", lambda: (rate("5"),)),
    Claim(HELPS, "EMA-only is {:.1f} and {:.1f} points *above* DP-FedSOFIM",
          lambda: tuple(lead("sofim-ablation", "EMA-only", "DP-FedSOFIM", epsilon=e) for e in ("5", "10"))),
    Claim(HELPS, "At round 10 and epsilon 5 DP-FedSOFIM is {:.1f} points above the DP-FedGD of the table (the paper: {:.1f})", start),
    Claim(HELPS, "they are at most {:.2f} points apart at the end and {:.2f} at round 10", lambda: (apart("last"), apart("10"))),
    Claim(HELPS, "they differ by {:.1f} to +{:.1f} points at the end, {:.1f} on average, and DP-FedSOFIM leads in two", medical_control),
    Claim(HELPS, "gain over that control at round 10 is {:.0f} points",
          lambda: (statistics.fmean(few_rounds()[:2]) - few_rounds()[2],)),
]  # fmt: skip


def words(page: str) -> str:
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.page}: {claim.text[:50]}")
def test_the_page_says_what_the_runs_give(claim: Claim) -> None:
    said = claim.text.format(*claim.figures())
    assert said in words(claim.page), f"the runs give {said!r}"


# ---------------------------------------------------------------------- figures that nobody checks

FIGURE = re.compile(
    r"(?<![\w.^-])[+-]?\d+(?:\.\d+)?(?: (?:and|to|or) [+-]?\d+(?:\.\d+)?)* (?:%|points?\b)"
    r"|(?<![\w.])[+-]\d+\.\d+"
)
PAGES = ["README.md", "results/README.md", HELPS, FAIR, SIZE,
         *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]  # fmt: skip

CONFIDENCE = "the level of an interval"
ELSEWHERE = {
    "docs/accounting.md": {r"0\.02 % of noise": "a bound that accounting adds, tests/mechanisms"},
    "docs/audit.md": {r"% (short|too far|too little)": "planted faults: tests/audit/test_planted.py"},
    "docs/choose.md": {r"95 % interval": CONFIDENCE},
    "docs/exact-noise.md": {r"0\.02 % of noise": "the slack in core/rows.py"},
    "docs/from-flower.md": {r"7 to 11 % above": "tests/test_flower_own_dp.py"},
    "docs/methods.md": {r"round, 5 % of mu|round, 10 %": "shares that client/fedauto.py declares"},
    "docs/privacy.md": {r"6 % better than constant": "tests/mechanisms/test_banded.py",
                        r"exceeds 1 % of it": "a limit that a plan refuses at"},
    "docs/scale.md": {r"20 % may drop out|5 % collude": "what is asked for, not what was measured"},
    "docs/secure-sum.md": {r"exceeds 1 % of delta": "a limit that a plan refuses at",
                           r"sqrt\(20/15\) - 1 = 15 %": "arithmetic on the spot"},
    "docs/trust.md": {r"\d %": "the table of guesses: tests/test_docs.py, from the accountant"},
    "docs/watching.md": {r"accuracy 55\.3 %": "what a screen looks like, of a run of no interest"},
    "docs/your-own-optimizer.md": {r"13 points behind|95 % interval": "the page runs its own study"},
    "README.md": {r"15 % of the budget": "two shares that client/fedauto.py declares",
                  r"Apache--2\.0": "a badge: tests/test_packaging.py"},
    HELPS: {r"about 74 %|ours 74 %|about 68\.5 %": "linear probes without privacy, not kept",
            r"95 % t interval": CONFIDENCE,
            r"57\.2 and 54\.7 %": "the paper's Table 10, as printed"},
    "results/README.md": {
        r"more than 0\.15 points": "a table that was replaced by the one at cap 2",
        r"without both up to 24 points": "auto-parts: its own table",
        r"LoRA 3\.1 points": "results/sst2-lora: its README",
    },
}  # fmt: skip
"""Page -> what stands around a figure -> where it is checked, or why it cannot be."""


def unchecked(page: str) -> list[str]:
    """Figures of a page that are neither in a claim nor excused."""
    text = words(page)
    spans = []
    for claim in (each for each in CLAIMS if each.page == page):
        said = claim.text.format(*claim.figures())
        spans += [(found.start(), found.end()) for found in re.finditer(re.escape(said), text)]
    missing = []
    for found in FIGURE.finditer(text):
        inside = any(start <= found.start() and found.end() <= end for start, end in spans)
        around = text[max(0, found.start() - 25) : found.end() + 25]
        if not inside and not any(re.search(each, around) for each in ELSEWHERE.get(page, {})):
            missing.append(around)
    return missing


@pytest.mark.parametrize("page", PAGES)
def test_every_figure_is_checked(page: str) -> None:
    assert unchecked(page) == [], "add a claim, or say in ELSEWHERE where it is checked"


@pytest.mark.parametrize("page", ELSEWHERE)
def test_every_excuse_is_needed(page: str) -> None:
    for pattern, why in ELSEWHERE[page].items():
        assert why
        assert re.search(pattern, words(page)), f"{pattern!r} excuses nothing on {page}"


def test_a_wrong_figure_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim fails, and so does the search for figures that no claim covers."""
    true, page = words("README.md"), "README.md"
    planted = true.replace("+4.1 points for DP-FedGD", "+4.2 points for DP-FedGD")
    assert planted != true
    monkeypatch.setattr(f"{__name__}.words", lambda name: planted if name == page else "")
    claim = next(each for each in CLAIMS if "points for DP-FedGD at epsilon 0.5" in each.text)
    with pytest.raises(AssertionError, match=r"\+4\.1 points"):
        test_the_page_says_what_the_runs_give(claim)
    assert any("+4.2 points" in each for each in unchecked(page))


def test_a_sentence_without_a_claim_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    page = "docs/choose.md"
    more = f"{words(page)} Nothing backs this: 7.7 points better."
    monkeypatch.setattr(f"{__name__}.words", lambda name: more)
    assert [each for each in unchecked(page) if "7.7 points" in each]


def test_a_run_that_changes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = [
        {**row, "accuracy": str(float(row["accuracy"]) + 0.01)}
        if (row["trust"], row["epsilon"]) == ("distributed", "0.5")
        else row
        for row in rows("secure-sum")
    ]
    monkeypatch.setattr(f"{__name__}.rows", lambda folder, name="final.csv": moved)
    claim = next(each for each in CLAIMS if "points for DP-FedGD at epsilon 0.5" in each.text)
    with pytest.raises(AssertionError, match=r"\+5\.1 points"):
        test_the_page_says_what_the_runs_give(claim)


def test_the_control_is_the_committed_one() -> None:
    """settings.json of DP-FedSOFIM's main study is what the control was run at."""
    chosen = json.loads((RESULTS / "sofim-cifar10/settings.json").read_text(encoding="utf-8"))
    point = chosen["epsilon 5 | DP-FedSOFIM"]["set"]
    ran = next(row for row in rows("sofim-control", "control.csv")
               if (row["study"], row["cell"]) == ("sofim-cifar10", "epsilon 5"))  # fmt: skip
    assert (float(ran["rate"]), float(ran["rho"])) == (
        point["server.1.rate"],
        point["server.0.rho"],
    )


def test_what_the_evidence_took_is_counted_from_its_runs() -> None:
    """results/evidence.md is what ``scripts/evidence --cost`` writes."""
    made = runpy.run_path(str(ROOT / "scripts/evidence"))["cost_table"]()
    assert (RESULTS / "evidence.md").read_text(encoding="utf-8") == made


def test_the_tables_of_the_tree_are_made_from_its_file() -> None:
    """results/fleet/tree.md is what ``scripts/tree-load --table`` writes."""
    made = runpy.run_path(str(ROOT / "scripts/tree-load"))["table"]
    files = [json.loads((RESULTS / f"fleet/{name}.json").read_text()) for name in ("tree", "fleet")]
    assert (RESULTS / "fleet/tree.md").read_text(encoding="utf-8") == made(*files)


def test_results_are_small() -> None:
    assert sum(path.stat().st_size for path in RESULTS.rglob("*") if path.is_file()) < 15 * 2**20
