# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  sentences are quoted whole, as they stand on the page
"""What the pages say of public features and of the studies that anyone can run."""

from __future__ import annotations

from tests.claims.files import Claim, lead, mean, rows


def probed(pixels: int, *features: str, data: str = "cifar10") -> tuple[float, ...]:
    """Percent, of linear probes without privacy."""
    found = {
        row["features"]: float(row["accuracy"])
        for row in rows("public-features", "probe.csv")
        if (row["data"], row["pixels"]) == (data, str(pixels))
    }
    return tuple(found[each] for each in features)


def probes() -> tuple[float, ...]:
    three = ("all", "classifier", "random")
    return (*probed(96, *three), *probed(128, *three), *probed(96, "pca"))


CIFAR, FASHION = "sofim-cifar10-public", "sofim-fashion-public"
EPSILONS = ("0.5", "1", "5", "10")
TUNED = (
    "DP-FedGD",
    "EMA-only",
    "DP-FedAdam",
    "DP-FedYogi",
    "DP-FedSOFIM, printed",
    "DP-FedSOFIM, momentum",
)
UNTUNED, PRINTED = "DP-FedSOFIM, untuned", "DP-FedSOFIM, printed, untuned"


def untuned(folder: str) -> tuple[float, ...]:
    """Accuracy of the rule by epsilon."""
    return tuple(mean(folder, UNTUNED, epsilon=e) for e in EPSILONS)


def beside_the_best(folder: str) -> tuple[float, ...]:
    """The rule less the best of the six tuned lines, by epsilon."""
    best = (max(mean(folder, each, epsilon=e) for each in TUNED) for e in EPSILONS)
    return tuple(_shown(mine - other) for mine, other in zip(untuned(folder), best, strict=True))


def over_gd(folder: str, method: str) -> tuple[float, ...]:
    return tuple(_shown(lead(folder, method, epsilon=e)) for e in EPSILONS)


def _shown(points: float) -> float:
    """To a tenth, and never as -0.0."""
    return round(points, 1) + 0.0


def searched(folder: str) -> tuple[int, int, int]:
    """Lines, settings for each line and epsilon, and all trials of the search."""
    tried = [row["entry"] for row in rows(folder, "tuning.csv") if not row["entry"].endswith("ned")]
    lines = {entry.partition(" | ")[2] for entry in tried}
    return len(lines), len(tried) // len(set(tried)), len(tried)


READINGS = (
    "Points above tuned DP-FedGD at epsilon 0.5, 1, 5 and 10: untuned {:+.1f}, {:+.1f}, {:+.1f} and "
    "{:+.1f}; tuned momentum reading {:+.1f}, {:+.1f}, {:+.1f} and {:+.1f}; EMA-only {:+.1f}, "
    "{:+.1f}, {:+.1f} and {:+.1f}; printed reading, tuned, {:+.1f}, {:+.1f}, {:+.1f} and {:+.1f}, "
    "untuned {:+.1f}, {:+.1f}, {:+.1f} and {:+.1f}."
)
RULE = (
    "It has {:.1f}, {:.1f}, {:.1f} and {:.1f} % at epsilon 0.5, 1, 5 and 10: {:+.1f}, {:+.1f}, "
    "{:+.1f} and {:+.1f} points beside the best of six lines that were tuned for each epsilon."
)
SEARCH = "{} lines were searched over {} settings each for every epsilon: {} runs"


def claims_of(folder: str) -> list[Claim]:
    page = f"lab/studies/{folder}/results/README.md"
    lines = (UNTUNED, "DP-FedSOFIM, momentum", "EMA-only", "DP-FedSOFIM, printed", PRINTED)
    return [
        Claim(page, RULE, lambda: (*untuned(folder), *beside_the_best(folder))),
        Claim(page, READINGS, lambda: tuple(x for each in lines for x in over_gd(folder, each))),
        Claim(page, SEARCH, lambda: searched(folder)),
    ]


CLAIMS = [
    *claims_of(CIFAR),
    *claims_of(FASHION),
    Claim(
        "lab/studies/public-features/results/README.md",
        "{:.2f} % with floats, {:.2f} % with bytes",
        lambda: probed(96, "float", "byte", data="fashion-mnist"),
    ),
    Claim(
        "lab/studies/public-features/results/README.md",
        "64 columns along the classifier lose {:.1f} and {:.1f} points of a linear probe, 64 random ones {:.1f} and {:.1f}",
        lambda: lost("classifier") + lost("random"),
    ),
]


def lost(way: str) -> tuple[float, ...]:
    """On CIFAR-10 and Fashion-MNIST at 96 pixels."""
    both = (probed(96, "all", way, data=data) for data in ("cifar10", "fashion-mnist"))
    return tuple(whole - part for whole, part in both)
