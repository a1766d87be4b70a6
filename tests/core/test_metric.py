# SPDX-License-Identifier: Apache-2.0
"""The joint row of metrics, whatever their own code makes of whatever scores and labels."""

from __future__ import annotations

import math

import pytest
import torch

from dpfed.core import registry
from dpfed.core.errors import DataError
from dpfed.core.metric import (
    KEPT,
    Metric,
    ScoredRecords,
    joint_bound,
    joint_replace_bound,
    joint_row,
    joint_size,
    metric_parts,
)
from dpfed.core.rows import MetricRows

STRANGE = (0.0, -0.0, 1.0, -1.0, 1e-310, 1e38, -1e300, 1e308, math.inf, -math.inf, math.nan)


def saying(
    *rows: list[float], bound: float = 1.0, apart: float = math.sqrt(2)
) -> tuple[Metric, ScoredRecords]:
    """A metric that says these rows, and as many records."""
    table = torch.tensor(rows, dtype=torch.float64)
    metric = Metric(len(rows[0]), lambda _: table, lambda m, s: {}, ("x",), bound, apart * bound)
    return metric, ScoredRecords(*(torch.zeros(len(rows)) for _ in range(4)))


@pytest.mark.parametrize(
    ("row", "kept"),
    [
        ([0.3, 0.4], [0.3, 0.4]),
        ([3.0, 4.0], [0.6, 0.8]),
        ([-3.0, 0.5], [0.0, 0.5]),
        ([math.nan, 0.5], [0.0, 0.0]),
        ([math.inf, 0.5], [0.0, 0.0]),
        ([1e300, 1e300], [math.sqrt(0.5), math.sqrt(0.5)]),
        ([1e307, 0.0], [1.0, 0.0]),
    ],
)
def test_a_part_keeps_its_bound_and_has_nothing_below_zero(
    row: list[float], kept: list[float]
) -> None:
    for bound in (1.0, 5.0):
        metric, records = saying([each * bound for each in row], bound=bound)
        made = joint_row([metric])(records)[0]
        assert made.tolist() == pytest.approx(kept, rel=2e-6)
        assert float(made.norm()) <= 1


@pytest.mark.parametrize("apart", [1.0, 1.2, 1.4142, math.sqrt(2)])
def test_no_two_rows_are_further_apart_than_is_declared(apart: float) -> None:
    """The rows of one's own metric said 1, and were 1.41 apart."""
    rows = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.9, 0.9, 0.0], [0.0] * 3, [9.0] * 3]
    for bound in (1.0, 0.2):
        metric, records = saying(
            *[[n * bound for n in row] for row in rows], bound=bound, apart=apart
        )
        made = joint_row([metric])(records)
        gaps = [math.dist(a, b) for a in made.tolist() for b in made.tolist()]
        assert max(gaps) <= joint_replace_bound([metric])
        assert max(gaps) >= 0.8 * joint_replace_bound([metric])


def test_parts_stand_one_after_the_other_and_come_back_in_their_own_scale() -> None:
    first, records = saying([0.5, 0.5])
    second, _ = saying([3.0], bound=4.0)
    metrics = [first, second]
    assert (joint_size(metrics), joint_bound(metrics)) == (3, math.sqrt(2))
    made = joint_row(metrics)(records)[0]
    assert made.tolist() == [0.5 * KEPT, 0.5 * KEPT, 0.75 * KEPT]
    parts = dict(metric_parts(metrics, made))
    assert parts[first].tolist() == pytest.approx([0.5, 0.5])
    assert parts[second].tolist() == pytest.approx([3.0])


def test_the_bounds_of_several_are_those_of_parts_at_right_angles() -> None:
    metrics = [registry.build("metrics", name, {}) for name in ("accuracy", "auc", "perplexity")]
    assert joint_replace_bound(metrics) == pytest.approx(math.sqrt(1 + 2 + 1))
    assert joint_bound(metrics) == pytest.approx(math.sqrt(3))


def test_rows_of_another_length_are_refused() -> None:
    metric, records = saying([1.0, 1.0])
    with pytest.raises(DataError, match=r"x.*shape \(1, 3\), got \(1, 2\)"):
        joint_row([metric._replace(size=3)])(records)


def hostile(name: str, seed: int) -> ScoredRecords:
    """Records of three classes with every strange number as a score, a label or a loss."""
    generator = torch.Generator().manual_seed(seed)
    pool = torch.tensor(STRANGE, dtype=torch.float64)
    strange = pool[torch.randint(0, len(pool), (200, 6), generator=generator)]
    labels = torch.tensor([0, 1, 2, -1, -100, 3, 2**62])[
        torch.randint(0, 7, (200,), generator=generator)
    ]
    scores = strange[:, :3] if name != "mae" else strange[:, :1]
    return ScoredRecords(
        scores, strange[:, 5] if name == "mae" else labels, strange[:, 3], strange[:, 4]
    )


@pytest.mark.parametrize("name", registry.names("metrics"))
def test_no_score_label_or_loss_breaks_a_metrics_bounds(name: str) -> None:
    takes = registry.find("metrics", name).__code__.co_varnames
    metric: Metric = registry.build("metrics", name, {"classes": 3} if "classes" in takes else {})
    made = torch.cat([metric.row(hostile(name, seed)) for seed in range(5)]).double()
    usable = made[torch.isfinite(made).all(dim=1)]  # the rest is zero in the joint row
    assert len(usable) > 100
    assert bool((usable >= 0).all())
    slack = 1 + 1e-12
    assert float(usable.norm(dim=1).max()) <= metric.bound * slack
    rows = torch.cat([usable, torch.zeros(1, metric.size)])
    assert float(torch.cdist(rows, rows).max()) <= metric.replace_bound * slack
    means = (rows[:-1] + rows[1:]) / 2  # of persons with two records
    assert float(torch.cdist(means, means).max()) <= metric.replace_bound * slack


def test_rows_say_how_far_a_replaced_one_moves_them() -> None:
    rows = MetricRows(torch.eye(3, dtype=torch.float64), distance=1.5)
    assert rows.clipped_sum(1.0).replace_bound == 1.5
    assert rows.clipped_sum(0.5).replace_bound == 1.0
    kept = rows.select(torch.tensor([True, False, True]))
    assert (kept.matrix.sum().item(), kept.units, kept.distance) == (2.0, 3, 1.5)
