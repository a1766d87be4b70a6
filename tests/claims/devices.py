# SPDX-License-Identifier: Apache-2.0
"""Connections, trees, devices that take turns, and what a round or a package costs."""

from __future__ import annotations

import json
import re
import runpy
import statistics
from functools import cache
from typing import Any

from tests.claims.files import RESULTS, ROOT, by_holm, ends, gap, lead, rows

FLEET, SCALE = "results/fleet/README.md", "docs/scale.md"


@cache
def tree() -> tuple[dict[str, Any], dict[str, list[float]], list[dict[str, Any]]]:
    """What was measured; devices in ten minutes of one core; what rounds of more would take."""
    made = runpy.run_path(str(ROOT / "lab/scripts/tree_load.py"))
    found, fleet = (
        json.loads((RESULTS / f"fleet/{name}.json").read_text(encoding="utf-8"))
        for name in ("tree", "fleet")
    )
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
    return ends(
        (many["peak_bytes"] - few["peak_bytes"]) / 1e6
        for few, many in zip(tree_cases(100), tree_cases(10_000), strict=True)
    )


def tree_worth(*names: str) -> list[int]:
    """Devices, rounded to three digits, or to tens."""
    return [
        int(round(each, -1 if each < 10_000 else -2 if each < 50_000 else -3))
        for name in names
        for each in tree()[1][name]
    ]


def same_bits() -> tuple[int]:
    assert all(each["same_bits"] and not each["refused"] for each in tree()[0]["cases"])
    return (len(tree()[0]["cases"]),)


def many_devices(*names: str) -> list[float]:
    line = tree()[2][-1]
    assert (line["devices"], line["aggregator_gb"]) == (100_000, 1.0)
    found = [line[name] for name in names]
    return [one for each in found for one in (each if isinstance(each, list) else [each])]


def secure_scale(column: str, *clients: int) -> list[float]:
    found = {
        int(row["clients"]): float(row[column])
        for row in rows("benchmarks", "secure-scale.csv")
        if row["measured"] == "yes"
    }
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


def nvflare_rounds() -> tuple[float, ...]:
    """Gated under NVFlare, with 650 and 10^6 parameters, and an empty task: seconds."""
    measured = json.loads((RESULTS / "benchmarks/nvflare.json").read_text(encoding="utf-8"))
    small, large = measured["results"]["nvflare_round"]
    assert [each["name"].split()[-2] for each in (small, large)] == ["650", "1000000"]
    return tuple(each[what] / 1e3 for what in ("measured", "limit") for each in (small, large))


USERS, TURNS = "lab/studies/users/results/README.md", "independent, turns"


def users_lead(*epsilons: str) -> tuple[float, ...]:
    """Banded and BLT beside independent noise with turns."""
    return tuple(
        lead("users", name, TURNS, epsilon=e)
        for e in epsilons
        for name in ("banded, turns", "BLT, turns")
    )


def users_ahead() -> tuple[float, ...]:
    """At epsilon 2 and 8, significant by Holm; at 18, and with trees, not."""
    won = {
        (e, m) for e in ("2", "8") for m in ("banded, turns", "BLT, turns", "independent, drawn")
    }
    assert {(row["epsilon"], row["method"]) for row in by_holm("users")} == won
    return users_lead("2", "8")


def users_drawn() -> tuple[float, ...]:
    """Banded noise beside a draw; of its intervals the second alone excludes 0."""
    pairs = [
        gap("users", "banded, turns", "independent, drawn", epsilon=e) for e in ("2", "8", "18")
    ]
    assert [each.significant for each in pairs] == [False, True, False]
    return tuple(each.mean for each in pairs)


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


def bad_replies() -> tuple[int]:
    """Replies of hostile clients: every one was refused."""
    found = json.loads((RESULTS / "hostile/replies.json").read_text(encoding="utf-8"))
    assert found["refused"] == found["replies"]
    return (found["replies"],)


def on_flower() -> tuple[int, int]:
    """Runs over Flower with the bits and the guarantee of the same run in one process, and all."""
    found = json.loads((RESULTS / "methods-on-flower.json").read_text(encoding="utf-8"))["runs"]
    return sum(each["same_bits"] and each["same_guarantee"] for each in found), len(found)


def counted() -> tuple[int]:
    from dpfed.audit.suite import AUDITS
    from dpfed.recipes.methods import METHODS

    assert len(AUDITS) == 7
    return (len(METHODS),)
