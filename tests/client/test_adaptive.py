# SPDX-License-Identifier: Apache-2.0
"""A clip that follows a quantile: against NumPy, under hostile clips, and with planted bugs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpfed.audit.client_laws import breaches
from dpfed.client import _adaptive
from dpfed.client._adaptive import CLIP, COUNT, adaptive, tracking
from dpfed.core.adaptive_rows import MAX_CLIP, MIN_CLIP, ClipIndicator, ScaledByClip
from dpfed.core.errors import RecipeError, UnsoundPlan
from dpfed.core.grid import pack
from dpfed.core.log import log
from dpfed.core.registry import build
from dpfed.core.types import (
    UPDATE,
    Adjacency,
    Aggregate,
    BoundedSum,
    Broadcast,
    Channel,
    Facts,
    Phase,
    Release,
    Unit,
)
from dpfed.data.datasets import Records
from dpfed.mechanisms.clear import clear
from dpfed.mechanisms.gaussian import gaussian
from dpfed.training.plan import Plan
from dpfed.training.reply import ClientState, PricedReleaser, make_reply
from tests.helpers.checkpoints import Died, exchange_of, run
from tests.helpers.rounds import make_plan as round_plan
from tests.helpers.scaffold_oracle import (
    SIZE,
    clipped,
    draw,
    federation,
    make_plan,
    problems,
    unit_rows,
    walk,
)
from tests.laws.neighbours import PAIRS, Draw, Effort, Search
from tests.laws.sensitivity import FEATURES, LINEAR, MODELS, NETWORKS, Case, cases, mu_of, plan_for
from tests.laws.survey import Survey, survey
from tests.refusals import named

FIRST, QUANTILE, RATE = 0.05, 0.7, 0.3
HOSTILE = (
    math.nan,
    math.inf,
    -math.inf,
    0.0,
    -1.0,
    5e-324,
    1e-300,
    MIN_CLIP,
    1e-6,
    1.0,
    1e6,
    MAX_CLIP,
    1e300,
)


def adapting(first: float = FIRST, name: str = "gradient", **options: Any) -> Any:
    chosen = {"quantile": QUANTILE, "rate": RATE, **options}
    facts = {"unit": Unit.CLIENT} if name == "fedavg" else {}
    return adaptive(build("client", name, {}, **facts), first, **chosen)


# ------------------------------------------------------------------------------ what it computes


@pytest.mark.parametrize("unit", list(Unit))
@pytest.mark.parametrize("std", [0.0, 0.5])
def test_the_path_is_the_papers(std: float, unit: Unit) -> None:
    data, rate = federation(3, 20), 0.7
    update, count = (
        gaussian(Facts(C, unit=unit), std * C) if std else clear(Facts(C, unit=unit))
        for C in (1.0, 0.5)
    )
    server = build("server", "scale", {"rate": rate})
    channels = {UPDATE: update, COUNT: count}
    plan = make_plan(adapting(), data, 12, update, channels=channels, server=server)
    theta, clip, clips = np.zeros(SIZE), FIRST, []
    for t, (state, broadcast, _) in enumerate(walk(plan, data)):
        assert float(broadcast.shared[CLIP]) == pytest.approx(clip, rel=1e-5)
        rows = [unit_rows(theta, one, unit) for one in data]
        units = sum(map(len, rows))
        sums = [clipped(r / clip, 1).sum(axis=0) + std * draw(t, i, 0) for i, r in enumerate(rows)]
        theta = theta - rate * clip * sum(sums) / units
        counts = [np.where(np.linalg.norm(r, axis=1) <= clip, 0.5, -0.5).sum() for r in rows]
        noise = [
            plan.noise.stream("release", t, i, 0, COUNT, 0).normal(1)[0] * std / 2 for i in range(3)
        ]
        within = np.clip(0.5 + (sum(counts) + sum(noise)) / units, 0, 1)
        clip *= np.exp(-RATE * (within - QUANTILE))
        clips.append(clip)
        assert np.abs(state.params.numpy() - theta).max() < 1e-4
    assert max(clips) > 1.5 * FIRST


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9])
def test_it_follows_the_quantile_of_norms_that_drift(quantile: float) -> None:
    """Norms grow fifteenfold, shrink, and grow again; the counts have noise of 5 %."""
    rng, server = np.random.default_rng(1), tracking(1.0, quantile, 0.2)
    state, G, found = server.init(torch.zeros(1)), torch.zeros(1), []
    for t in range(1100):
        level = 1.35 * math.sin(t / 150)
        norms = np.exp(level + rng.normal(size=400))
        within = float(np.mean(norms <= state.clip))
        count = torch.tensor([within - 0.5 + 0.05 * rng.normal()])
        _, state = server.update(G, state, Aggregate(t, G, G, 1.0, 9, {COUNT: count}))
        found.append(within)
    late = np.array(found[100:])
    assert abs(late.mean() - quantile) < 0.02
    assert np.abs(late - quantile).max() < 0.2
    assert np.abs(late - quantile).mean() < 0.06


def test_much_noise_moves_the_clip_by_a_bounded_factor() -> None:
    server, G = tracking(1.0, 0.5, 0.2), torch.zeros(1)
    for noise in (1e9, -1e9):
        seen = Aggregate(0, G, G, 1.0, 9, {COUNT: torch.tensor([noise])})
        _, state = server.update(G, server.init(G), seen)
        assert math.log(state.clip) == pytest.approx(-math.copysign(0.1, noise))
    for first, bound, count in ((MIN_CLIP, MIN_CLIP, 1.0), (MAX_CLIP, MAX_CLIP, -1.0)):
        far = tracking(first, 0.5, 9.0)
        seen = Aggregate(0, G, G, 1.0, 9, {COUNT: torch.tensor([count])})
        assert far.update(G, far.init(G), seen)[1].clip == bound


def test_nobody_asked_leaves_the_clip_as_it_is() -> None:
    server, G = tracking(2.0, 0.2, 0.2), torch.zeros(1)
    seen = Aggregate(0, G, G, 1.0, 0, {COUNT: torch.zeros(1)})
    assert server.update(G, server.init(G), seen)[1].clip == 2.0


def test_what_follows_is_told_the_noise_in_the_means_own_units() -> None:
    """Adam subtracts the noise's square, which it must know; buffers are reused to the bit."""
    heard: list[float] = []
    spy = build("server", "scale", {})
    plan = make_plan(
        adapting(),
        federation(2, 8),
        3,
        gaussian(Facts(1.0), 0.5),
        channels={UPDATE: gaussian(Facts(1.0), 0.5), COUNT: gaussian(Facts(0.5), 0.5)},
        server=spy._replace(update=_hearing(heard), update_=None),
    )
    clips = [float(b.shared[CLIP]) for _, b, _ in walk(plan, federation(2, 8))]
    assert heard == pytest.approx([plan.noise_std(UPDATE) * clip for clip in clips])
    pure = reused = plan.client.companion.init(torch.zeros(3))  # type: ignore[union-attr]
    for t in range(3):
        G = torch.linspace(-1, 1, 3) * (t + 1)
        seen = Aggregate(t, G, G, 1.0, 2, {COUNT: torch.tensor([0.3])})
        one, pure = plan.client.companion.update(G, pure, seen)  # type: ignore[union-attr]
        other, reused = plan.client.companion.update_(G.clone(), reused, seen)  # type: ignore
        assert torch.equal(one, other)
        assert pure == reused


def _hearing(heard: list[float]) -> Callable[..., Any]:
    def update(direction: Any, state: Any, seen: Aggregate) -> Any:
        heard.append(seen.std)
        return direction, state

    return update


def test_a_run_that_stops_between_rounds_goes_on_with_its_clip(tmp_path: Path) -> None:
    channels = {UPDATE: gaussian(Facts(1.0), 2.0), COUNT: gaussian(Facts(0.5), 1.0)}
    plan = round_plan(client=adapting(), channels=channels, rounds=5)
    whole, _ = run(plan, tmp_path / "whole", exchange_of(plan))
    with pytest.raises(Died):
        run(
            plan, tmp_path / "part", exchange_of(plan), lambda at, when: (at, when) == (2, "before")
        )
    after, _ = run(plan, tmp_path / "part", exchange_of(plan))
    assert torch.equal(after.params, whole.params)
    assert after.optimizer == whole.optimizer
    assert after.optimizer[0].clip != FIRST


# -------------------------------------------------------------------------- what is refused


WRONG = [
    {"quantile": 0.0},
    {"quantile": 1.0},
    {"share": 0.0},
    {"share": 1.0},
    {"rate": 0.0},
    {"rate": math.nan},
]


@pytest.mark.parametrize("options", WRONG)
def test_options_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(RecipeError, match=named("privacy.adaptive", options)):
        adapting(**options)


@pytest.mark.parametrize("first", [0.0, -1.0, math.nan, math.inf, 1e300])
def test_a_first_clip_that_no_client_would_use_is_refused(first: float) -> None:
    with pytest.raises(RecipeError, match=r"privacy.clip must be between 2\^-40 and 2\^40"):
        adapting(first)


def test_algorithms_with_a_clip_or_a_server_half_of_their_own_are_refused() -> None:
    for name in ("adadps", "fedfc", "scaffold", "adafedprox"):
        with pytest.raises(RecipeError, match=rf"left out for client '{name}'.*dp-fedgd"):
            adaptive(
                build("client", name, {}, unit=Unit.RECORD, layout=MODELS["softmax"].layout), 1
            )
    with pytest.raises(RecipeError, match="left out for client 'fedavg'"):
        adaptive(build("client", "fedavg", {}, unit=Unit.RECORD), 1.0)
    assert adapting(name="fedavg").units == frozenset({Unit.CLIENT})


@pytest.mark.parametrize("shared", [{}, {CLIP: torch.ones(2)}, {CLIP: torch.zeros(0)}])
def test_an_order_without_one_clip_is_refused_before_data_is_touched(shared: Any) -> None:
    plan = plan_for(case())
    model = MODELS["softmax"]
    problem = model.problem(Search(plan, model).draw.bag(torch.ones(4, 3)))
    order = Broadcast(0, torch.zeros(problem.dimension), shared)
    client = ClientState(0, problem)
    with pytest.raises(UnsoundPlan, match="must share one number as 'clip'"):
        make_reply(plan, order, client, PricedReleaser(plan, order, client))


def test_its_options_and_those_of_what_it_is_around_are_in_the_plans_fingerprint() -> None:
    made = [
        adapting().made_by,
        adapting(0.06).made_by,
        adapting(share=0.02).made_by,
        adapting(quantile=0.4).made_by,
        adapting(rate=0.1).made_by,
        adapting(name="fedavg").made_by,
    ]
    assert len({str(each) for each in made}) == len(made)
    assert str(made[0]).startswith("adaptive(gradient(), first=0.05, quantile=0.7")


# ----------------------------------------------------------------------- what a unit can move


def case(
    unit: Unit = Unit.RECORD, adjacency: Adjacency = Adjacency.REPLACE_ONE, **more: Any
) -> Case:
    return Case(
        "gradient", (), unit, adjacency, more.pop("model", "softmax"), adaptive=True, **more
    )


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> object:
    """Hostile broadcasts are logged at length; prices are remembered by mechanism."""
    monkeypatch.setattr(log, "disabled", True)
    mu_of.cache_clear()
    yield
    mu_of.cache_clear()


def _longer(draw: Draw, others: Records) -> tuple[Records, Records]:
    """A row within the clip, and one outside of it."""
    x, y = draw.normal(draw.count(), FEATURES), draw.labels(1)
    labels = y.expand(len(x)).clone()
    return draw.bag(x * 1e-4, labels), draw.bag(x * 1e12, labels)


def sent(search: Search, clips: tuple[float, ...]) -> Search:
    """Neighbours of some kinds under each of these clips."""
    for clip, pair in itertools.product(clips, (*PAIRS[:4], _longer)):
        scene = search._scene(pair, search.start, "sane", (0, 1, 2))
        shared: Any = torch.tensor([clip], dtype=torch.float64)
        search.look_at(replace(scene, shared=shared))
    return search


@pytest.mark.parametrize(
    ("unit", "adjacency"),
    [each for each in itertools.product(Unit, Adjacency) if each != ("client", "add-remove")],
)
@pytest.mark.sample(6)
def test_no_clip_that_is_broadcast_moves_more_than_is_priced(
    unit: Unit, adjacency: Adjacency
) -> None:
    search = sent(Search(plan_for(case(unit, adjacency)), MODELS["softmax"]), HOSTILE)
    assert search.faults == {}
    assert min(search.best[UPDATE][0], search.best[COUNT][0]) > 0.99  # the law is not empty


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("gradient", marks=pytest.mark.long), "fedavg"])
def test_a_unit_moves_releases_and_counts_by_at_most_what_is_priced(name: str) -> None:
    found = survey(Survey(), cases(name, LINEAR, most=1, adaptive=True), Effort(6, more=6))
    survey(found, cases(name, NETWORKS, clip=1e-2, most=1, adaptive=True), Effort(2, more=2), 100)
    exact = cases(name, LINEAR[:1], "discrete_gaussian", most=1, adaptive=True)
    survey(found, exact, Effort(2), seed=300)
    assert found.faults == []
    units = {Unit.CLIENT} if name == "fedavg" else set(Unit)
    for unit, adjacency, channel in itertools.product(units, Adjacency, (UPDATE, COUNT)):
        if (unit, adjacency) != (Unit.CLIENT, Adjacency.ADD_REMOVE):  # refused
            assert found.somewhere()[unit, adjacency, channel] > 0.99


def test_a_record_more_or_less_moves_no_other_count() -> None:
    """Weights of 1e18 that cancel: other records' norms are rounding alone (see laws/)."""
    for unit, model in ((Unit.RECORD, "softmax"), (Unit.GROUP, "logistic")):
        search = Search(plan_for(case(unit, Adjacency.ADD_REMOVE, model=model)), MODELS[model])
        for count in range(3, 36, 4):
            assert search.cancels(count).faults == []


# ------------------------------------------------------------------------------- planted bugs


def halved_count(plan: Plan, patch: pytest.MonkeyPatch) -> Plan:
    """Replacing a unit counts as 1/2, as the paper has it."""
    honest = ClipIndicator.clipped_sum

    def less(self: ClipIndicator, clip: float) -> BoundedSum:
        return replace(honest(self, clip), replace_bound=clip)

    patch.setattr(ClipIndicator, "clipped_sum", less)
    mechanism: Any = plan.channels[COUNT]
    return replace(plan, channels={**plan.channels, COUNT: mechanism.with_facts(replace_bound=0.5)})


def clipped_first(plan: Plan, patch: pytest.MonkeyPatch) -> Plan:
    """Rows are clipped to the plan's clip and then divided: a small number outgrows the noise."""

    def wrong(self: ScaledByClip, clip: float) -> BoundedSum:
        return BoundedSum(self.rows.clipped_sum(clip).vector / self.by, clip, 2 * clip)

    patch.setattr(ScaledByClip, "clipped_sum", wrong)
    return replace(plan)


def clipped_to_the_broadcast(plan: Plan, patch: pytest.MonkeyPatch) -> Plan:
    """Rows are clipped to what the server says and not divided: a large one outgrows the noise."""

    def wrong(self: ScaledByClip, clip: float) -> BoundedSum:
        return BoundedSum(self.rows.clipped_sum(self.by).vector, clip, 2 * clip)

    patch.setattr(ScaledByClip, "clipped_sum", wrong)
    return replace(plan)


def within_or_not(plan: Plan, patch: pytest.MonkeyPatch) -> Plan:
    """b itself is counted, at the price of b - 1/2."""
    honest = ClipIndicator.clipped_sum

    def wrong(self: ClipIndicator, clip: float) -> BoundedSum:
        made = honest(self, clip)
        return replace(made, vector=made.vector + 0.5 * self.units)

    patch.setattr(ClipIndicator, "clipped_sum", wrong)
    return replace(plan)


@pytest.mark.parametrize(
    ("bug", "adjacency", "channel"),
    [
        (halved_count, Adjacency.REPLACE_ONE, COUNT),
        (clipped_first, Adjacency.REPLACE_ONE, UPDATE),
        (clipped_first, Adjacency.ADD_REMOVE, UPDATE),
        (clipped_to_the_broadcast, Adjacency.ZERO_OUT, UPDATE),
        (within_or_not, Adjacency.ADD_REMOVE, COUNT),
    ],
)
def test_a_planted_bug_is_caught_by_the_law(
    bug: Any, adjacency: Adjacency, channel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = bug(plan_for(case(adjacency=adjacency)), monkeypatch)
    found = sent(Search(plan, MODELS["softmax"]), (1e-3, 1.0, 1e3)).faults
    assert any(f"on '{channel}'" in fault and "of what is priced" in fault for fault in found)


def test_a_count_that_is_not_priced_is_refused_and_one_without_noise_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = adapting(1.0)
    assert breaches(honest, Unit.RECORD) == []
    plan = plan_for(case())
    update = {UPDATE: Channel(clip=1.0)}
    for channels in (update, {**update, COUNT: Channel((Phase(None, 0),), size=1)}):
        client = honest._replace(channels=channels)
        kept = {name: m for name, m in plan.channels.items() if name != COUNT}
        with pytest.raises(UnsoundPlan, match="releases on 'count' in round 0 must be at most 0"):
            _reply_of(replace(plan, client=client, channels=kept))
    monkeypatch.setattr(_adaptive, "_ScalingReleaser", _Loud)
    assert breaches(honest, Unit.RECORD)
    with pytest.raises(UnsoundPlan, match="is not the one release"):
        _reply_of(replace(plan, client=honest))


class _Loud(_adaptive._ScalingReleaser):
    """Releases the count and sends it in clear."""

    def __call__(self, rows: Any, channel: str = UPDATE) -> Release:
        made = super().__call__(rows, channel)
        exact = ClipIndicator(rows, self._clip).clipped_sum(0.5).vector
        self.counts[COUNT] = Release(pack(exact, 2.0**-10), 0.0, 2.0**-10)
        return made


def _reply_of(plan: Plan) -> Any:
    (problem,) = problems(federation(1, 8))
    order = Broadcast(0, torch.zeros(SIZE, dtype=torch.float64), {CLIP: torch.ones(1)})
    client = ClientState(0, problem)
    return make_reply(plan, order, client, PricedReleaser(plan, order, client))
