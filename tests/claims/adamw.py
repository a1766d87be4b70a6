# SPDX-License-Identifier: Apache-2.0
"""DP-FedAdamW's supplement in miniature, and adapters: the studies adamw-*, and sst2-lora."""

from __future__ import annotations

import json
import statistics

from tests.claims.files import by_holm, ends, lead, mean, results_of, rows, seeds

SMALL, PARTS, TEXT, LORA = (
    f"lab/studies/{name}/results/README.md"
    for name in ("adamw-small", "adamw-parts", "adamw-sst2", "sst2-lora")
)
METHODS = ("DP-FedAvg", "DP-SCAFFOLD", "DP-FedAvg-LS", "DP-FedSAM", "DP-LocalAdamW", "DP-FedAdamW")
ADAPTERS = ("DP-FedAvg", "DP-LocalAdamW", "DP-FedAdamW", "DP-FedAdam", "EMA-only")
HEAD, OURS, LOCAL = "head, dp-fedauto", "DP-FedAdamW", "DP-LocalAdamW"
SIGMAS = ("0.5", "1", "2")


def below_local() -> tuple[float, ...]:
    """How far DP-FedAdamW is below DP-LocalAdamW, by sigma; below DP-FedAvg at two."""
    assert by_holm("adamw-small") == []
    assert sum(lead("adamw-small", OURS, "DP-FedAvg", sigma=s) < 0 for s in SIGMAS) == 2
    return tuple(-lead("adamw-small", OURS, LOCAL, sigma=s) for s in SIGMAS)


def unaligned() -> tuple[float, float]:
    """Without alignment, and the spread of that difference over seeds."""
    assert by_holm("adamw-parts") == []
    with_it, without = (seeds("adamw-parts", m) for m in (OURS, "without alignment"))
    gaps = [without[seed] - with_it[seed] for seed in with_it]
    return statistics.fmean(gaps), statistics.stdev(gaps)


def shared_moments() -> tuple[float]:
    """The most that accuracy moves with what shares a second moment."""
    lines = ("a moment per channel", "one moment for all")
    return (max(abs(lead("adamw-parts", m, OURS)) for m in lines),)


def betas() -> tuple[float, float, float]:
    """How far apart the four pairs are for both methods, and DP-LocalAdamW's lead."""
    pairs = ("", ", betas 0.9, 0.99", ", betas 0.95, 0.99", ", betas 0.95, 0.999")
    low, high = zip(
        *(ends(mean("adamw-parts", m + p) for p in pairs) for m in (OURS, LOCAL)), strict=True
    )
    return high[0] - low[0], high[1] - low[1], lead("adamw-parts", LOCAL, OURS)


def above_adapters(*epsilons: str) -> tuple[float, float]:
    """The head alone less each adapter, over these epsilons."""
    return ends(lead("adamw-sst2", HEAD, m, epsilon=e) for e in epsilons for m in ADAPTERS)


def head_ahead() -> tuple[float, ...]:
    """The head's leads at epsilon 1 and 8; the page names where Holm's correction leaves one."""
    sure = {(r["epsilon"], r["method"]) for r in by_holm("adamw-sst2")}
    assert sure == {("8", m) for m in ("DP-FedAvg", LOCAL, "DP-FedAdam")}
    return (*above_adapters("1"), *above_adapters("8"))


def first_adapter() -> tuple[float, float, float]:
    """DP-FedAdamW's leads at epsilon 8, and how far it is behind DP-FedAvg at 1."""
    at = {m: mean("adamw-sst2", m, epsilon="8") for m in ADAPTERS}
    assert max(at, key=lambda m: at[m]) == OURS
    return (
        at[OURS] - at["DP-FedAdam"],
        at[OURS] - at[LOCAL],
        -lead("adamw-sst2", OURS, epsilon="1", other="DP-FedAvg"),
    )


def last_rates() -> tuple[float, ...]:
    """What the fourth rate gained over the third in the search."""
    tried: dict[str, dict[float, float]] = {}
    for each in rows("adamw-sst2", "tuning.csv"):
        if each["setting"]:  # the head alone has nothing to search
            rate = float(each["setting"].split(" = ")[1])
            tried.setdefault(each["entry"], {})[rate] = 100 * float(each["accuracy"])
    gains = []
    for method in (LOCAL, "DP-FedAdam", OURS, "EMA-only"):
        found = tried[f"epsilon 1 | {method}"]
        third, fourth = sorted(found)[-2:]
        gains.append(found[fourth] - found[third])
    return tuple(gains)


def lora(model: str) -> tuple[float]:
    """A model's accuracy in percent."""
    lines = (results_of("sst2-lora") / "runs.jsonl").read_text(encoding="utf-8").splitlines()
    (found,) = (each for each in map(json.loads, lines) if each["model"] == model)
    return (100 * found["accuracy"],)


def lora_behind() -> tuple[float, float]:
    """The frozen head less the adapter with plain steps, and with Adam."""
    head, plain, adam = (lora(model)[0] for model in ("head", "lora", "lora-adam"))
    return head - plain, head - adam
