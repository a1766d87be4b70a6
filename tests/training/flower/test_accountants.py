# SPDX-License-Identifier: Apache-2.0
"""dpfed's accountants inside of Flower's own strategies, and what no accountant can see there.

To be run on each Flower that has the protocol: ``scripts/test-flower VERSION --beside``.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyAccountant,
    PrivacyConfig,
    RdpAccountant,
    SamplingMethod,
)
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from hypothesis import given
from hypothesis import strategies as st

from dpfed.accounting import gdp
from dpfed.core.errors import RecipeError, UnsoundPlan
from dpfed.flower import ExactAccountant, PLDAccountant
from tests.training.flower.local_grid import LocalGrid, become_a_server, nodes

DELTA, NODES, PLACES, MULTIPLIER, CLIP = 1e-5, 20, 10, 5.0, 2.0
EVENT = GaussianPrivacyEvent(MULTIPLIER, PLACES, NODES)
BOTH = pytest.mark.parametrize("kind", [ExactAccountant, PLDAccountant])


def settings(**changes: Any) -> PrivacyConfig:
    usual = {
        "target_delta": DELTA,
        "population_size": NODES,
        "neighboring_relation": NeighboringRelation.ADD_OR_REMOVE_ONE,
        "sampling_method": SamplingMethod.NO_AMPLIFICATION,
    }
    return PrivacyConfig(**{**usual, **changes})


def within(epsilon: float, accountant: Any, least: int = 1) -> int:
    """How many releases stay within an epsilon."""
    found = (n for n in range(least, 100) if accountant.would_exceed(EVENT, epsilon, n + 1))
    return next(found)


@BOTH
def test_it_has_all_of_flowers_protocol(kind: Any) -> None:
    names = [name for name in vars(PrivacyAccountant) if not name.startswith("_")]
    assert len(names) >= 9
    for name in names:
        asked, had = vars(PrivacyAccountant)[name], inspect.getattr_static(kind, name)
        assert isinstance(had, property) == isinstance(asked, property)
        if not isinstance(asked, property):
            assert list(inspect.signature(had).parameters) == list(
                inspect.signature(asked).parameters
            )


# ------------------------------------------------------------------------------------- the figures


def test_twenty_one_rounds_instead_of_eighteen() -> None:
    """Noise multiplier 5, epsilon 4, delta 1e-5."""
    assert within(4.0, RdpAccountant(settings())) == 18
    assert within(4.0, ExactAccountant(settings())) == 21
    assert within(4.0, PLDAccountant(settings()), least=20) == 21
    assert within(8.99, ExactAccountant(settings(), "replace-one")) == 21


@BOTH
def test_both_figures_are_stated_and_add_remove_is_not(kind: Any) -> None:
    made = kind(settings())
    made.compose(EVENT, 21)
    found = made.epsilons()
    assert found == pytest.approx({"zero-out": 3.9581, "replace-one": 8.9839}, abs=1e-4)
    spent = made.get_privacy_spent()
    assert (spent.epsilon, spent.num_releases) == (found["zero-out"], 21)
    assert "zero-out (replace-one: 8.984)" in spent.accounting_method
    for text in ("(3.959, 1e-05)-DP for each client (zero-out)", "(8.984, 1e-05)-DP (replace-one)"):
        assert text in str(made)
    for text in (str(made), spent.accounting_method):
        assert "add" not in text.replace("added", "")


@given(
    multiplier=st.floats(0.3, 300),
    releases=st.integers(1, 10_000),
    delta=st.floats(1e-12, 1e-2),
)
def test_every_figure_lies_between_the_curve_and_rdp(
    multiplier: float, releases: int, delta: float
) -> None:
    exact, rdp = ExactAccountant(settings()), RdpAccountant(settings())
    event = GaussianPrivacyEvent(multiplier, PLACES, NODES)
    for each in (exact, rdp):
        each.compose(event, releases)
    zeroed, replaced = exact.epsilons(delta).values()
    assert zeroed <= rdp.get_epsilon(delta) * (1 + 1e-9)
    for epsilon, sensitivity in ((zeroed, 1), (replaced, 2)):
        mu = sensitivity * math.sqrt(releases) / multiplier
        assert gdp.delta_for(epsilon, mu) <= delta
        assert epsilon == 0 or gdp.delta_for(epsilon * (1 - 1e-6), mu) > delta


@pytest.mark.parametrize("releases", [1, 21, 400])
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_pld_agrees_with_the_curve(adjacency: str, releases: int) -> None:
    exact, pld = ExactAccountant(settings(), adjacency), PLDAccountant(settings(), adjacency)
    for each in (exact, pld):
        each.compose(EVENT, releases)
    assert pld.get_epsilon(DELTA) == pytest.approx(exact.get_epsilon(DELTA), rel=1e-6)
    assert pld.get_delta(1.0) == pytest.approx(exact.get_delta(1.0), rel=1e-6)


def test_rdp_is_five_to_nine_percent_above_at_usual_noise() -> None:
    """A larger gap at small epsilon: docs/from-flower.md has other settings."""
    for multiplier, releases in ((1.0, 20), (2.0, 20), (5.0, 20), (5.0, 70)):
        exact, rdp = ExactAccountant(settings()), RdpAccountant(settings())
        for each in (exact, rdp):
            each.compose(GaussianPrivacyEvent(multiplier, PLACES, NODES), releases)
        saved = 1 - exact.get_epsilon(DELTA) / rdp.get_epsilon(DELTA)
        print(multiplier, releases, saved)
        assert 0.04 < saved < 0.09


# ------------------------------------------------------- why: a fixed number of places, by numbers


Density = np.ndarray[tuple[int], np.dtype[np.float64]]


def hockey_stick(first: Density, other: Density, e: float) -> float:
    """The delta at epsilon ``e`` of one density against another, by a sum over a fine grid."""
    return float(np.maximum(0.0, first - math.exp(e) * other).sum() * STEP)


STEP = 1e-4
POINTS = np.arange(-12, 12, STEP)


def mixed(*parts: tuple[float, float]) -> Density:
    """A mixture of unit normals, by (weight, mean)."""
    density = (
        w * np.exp(-((POINTS - mean) ** 2) / 2) / math.sqrt(2 * math.pi) for w, mean in parts
    )
    return sum(density, np.zeros_like(POINTS))


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.3, 0.6])
def test_the_draw_makes_no_figure_too_small(epsilon: float) -> None:
    """The worst updates, in units of the noise; everybody else's is -C: an add-remove is 2C."""
    z, n, k = 2.0, 20, 18
    zeroed, replaced = 1 / z, 2 / z
    still, moved = mixed((1, 0)), mixed((1 - k / n, 0), (k / n, zeroed))
    far = mixed((1 - k / n, 0), (k / n, replaced))
    added = mixed((1 - k / (n + 1), 0), (k / (n + 1), replaced))  # it takes another's place
    for one, other in ((moved, still), (still, moved)):
        assert hockey_stick(one, other, epsilon) <= gdp.delta_for(epsilon, zeroed) + 1e-9
    for pair in ((far, still), (added, still)):
        for one, other in (pair, pair[::-1]):
            assert hockey_stick(one, other, epsilon) <= gdp.delta_for(epsilon, replaced) + 1e-9
    assert hockey_stick(added, still, epsilon) > 1.5 * gdp.delta_for(epsilon, zeroed)


def test_flowers_figure_for_a_fixed_size_draw_is_too_small() -> None:
    """Everyone is drawn, and one is replaced: the sum moves by two clips, RDP here counts one."""
    config = settings(
        neighboring_relation=NeighboringRelation.REPLACE_ONE,
        sampling_method=SamplingMethod.WITHOUT_REPLACEMENT,
    )
    rdp = RdpAccountant(config)
    rdp.compose(GaussianPrivacyEvent(MULTIPLIER, NODES, NODES), 21)
    truth = ExactAccountant(settings(), "replace-one")
    truth.compose(EVENT, 21)
    assert rdp.get_epsilon(DELTA) < 0.5 * truth.get_epsilon(DELTA)


# ------------------------------------------------------------------------------- what is refused


@BOTH
def test_a_draw_is_not_credited(kind: Any) -> None:
    fixed = {
        "sampling_method": SamplingMethod.WITHOUT_REPLACEMENT,
        "neighboring_relation": NeighboringRelation.REPLACE_ONE,
    }
    for config in (settings(**fixed), settings(sampling_method=SamplingMethod.POISSON)):
        with pytest.raises(UnsoundPlan, match=r"no-amplification.*privacy\.client_rate"):
            kind(config)


@BOTH
def test_add_remove_is_refused(kind: Any) -> None:
    with pytest.raises(RecipeError, match="zero-out or replace-one, got 'add-remove'"):
        kind(settings(), "add-remove")


@pytest.mark.parametrize(
    ("event", "releases"),
    [
        (GaussianPrivacyEvent(5.0, 10, 21), 1),
        (GaussianPrivacyEvent(1e101, 10, 20), 1),
        (EVENT, 0),
        (EVENT, -1),
        (EVENT, True),
        (EVENT, 1.5),
        (EVENT, 2**60),
    ],
)
def test_what_cannot_be_counted_is_refused(event: GaussianPrivacyEvent, releases: Any) -> None:
    made = ExactAccountant(settings())
    for call in (made.compose, lambda e, n: made.would_exceed(e, 4.0, n)):
        with pytest.raises(RecipeError):
            call(event, releases)
    assert made.num_releases == 0


def test_limits_and_levels_are_checked() -> None:
    made = ExactAccountant(settings())
    assert made.epsilons() == {"zero-out": 0.0, "replace-one": 0.0}
    assert made.get_delta(0.0) == 0.0
    for bad in (0.0, 1.0, math.nan):
        with pytest.raises(RecipeError, match="delta"):
            made.get_epsilon(bad)
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(RecipeError, match="epsilon"):
            made.get_delta(bad)
        with pytest.raises(RecipeError, match="epsilon"):
            made.would_exceed(EVENT, bad)
    with pytest.raises(RecipeError, match="max_epsilon"):
        made.would_exceed(EVENT)


@BOTH
@pytest.mark.parametrize("multiplier", [5e-324, 1e-9, 1e100])
def test_no_noise_and_endless_noise_are_bounded(kind: Any, multiplier: float) -> None:
    made = kind(settings())
    made.compose(GaussianPrivacyEvent(multiplier, 10, 20), 2**53)
    zeroed, replaced = made.epsilons(1e-300 if kind is ExactAccountant else DELTA).values()
    assert 0 < replaced == zeroed == math.inf or 0 <= zeroed <= replaced
    if multiplier < 1:
        assert replaced > 1e10
        assert made.get_delta(1.0) == 1.0
        assert made.would_exceed(EVENT, 4.0)


# ---------------------------------------------------------------------------------------- its state


@BOTH
def test_it_goes_on_from_its_state(kind: Any) -> None:
    made, again = kind(settings(max_epsilon=4.0)), kind(settings(max_epsilon=4.0))
    made.compose(EVENT, 5)
    made.compose(GaussianPrivacyEvent(7.0, 10, 20))
    again.load_state_dict(json.loads(json.dumps(made.state_dict())))
    assert again.state_dict() == made.state_dict()
    assert (again.num_releases, again.epsilons()) == (6, made.epsilons())
    with pytest.raises(UnsoundPlan, match="6 releases, which it would forget"):
        again.load_state_dict(made.state_dict())


def changed(state: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**json.loads(json.dumps(state)), **changes}


@pytest.mark.parametrize(
    "changes",
    [
        {"adjacency": "replace-one"},
        {"backend": "rdp"},
        {"schema_version": 2},
        {"more": 1},
        {"config": None},
        {"compositions": None},
        {"compositions": {}},
        {"compositions": [{}]},
        {"compositions": [{"event": {}, "count": 1}]},
        *(
            {"compositions": [{"event": event, "count": times}]}
            for event, times in [
                ({"noise_multiplier": 5.0, "sample_size": 10, "population_size": 20}, -3),
                ({"noise_multiplier": 5.0, "sample_size": 10, "population_size": 20}, True),
                ({"noise_multiplier": 5.0, "sample_size": 10, "population_size": 20}, 0.5),
                ({"noise_multiplier": 5.0, "sample_size": 10, "population_size": 40}, 1),
                ({"noise_multiplier": math.nan, "sample_size": 10, "population_size": 20}, 1),
                ({"noise_multiplier": "5", "sample_size": 10, "population_size": 20}, 1),
                ({"noise_multiplier": 1e200, "sample_size": 10, "population_size": 20}, 1),
            ]
        ),
    ],
)
def test_other_state_is_refused(changes: dict[str, Any]) -> None:
    made = ExactAccountant(settings())
    state = ExactAccountant(settings()).state_dict()
    with pytest.raises(RecipeError, match=r"state|population_size|noise_multiplier"):
        made.load_state_dict(changed(state, **changes))
    assert made.num_releases == 0


# ------------------------------------------------------------------------------- a training with it

TARGET = np.linspace(-1, 1, 6).astype(np.float32)


def app(update: Callable[[np.ndarray, Context], Any], **metrics: float) -> ClientApp:
    made = ClientApp()

    @made.train()
    def train(message: Message, context: Context) -> Message:
        (sent,) = message.content.array_records.values()
        model = ArrayRecord({"weight": Array(np.asarray(update(sent["weight"].numpy(), context)))})
        told = MetricRecord({"num-examples": 1.0, **metrics})
        return Message(RecordDict({"arrays": model, "metrics": told}), reply_to=message)

    return made


def least_squares(start: np.ndarray, context: Context) -> np.ndarray:
    """One step of a node on data of its own."""
    own = np.random.default_rng(int(context.node_config["partition-id"]))
    x = own.normal(size=(50, 6)).astype(np.float32)
    return start - np.float32(0.5) * (x.T @ (x @ (start - TARGET))) / np.float32(50)


class Draws:
    """Flower's source of noise, which writes down what is drawn from it."""

    def __init__(self) -> None:
        self.usual, self.stds = np.random.normal, list[float]()

    def normal(self, mean: float, std: float, size: Any) -> Any:
        self.stds.append(std)
        return self.usual(mean, std, size)


@pytest.fixture
def draws(monkeypatch: pytest.MonkeyPatch) -> Draws:
    become_a_server(monkeypatch)
    found = Draws()
    monkeypatch.setattr(np.random, "normal", found.normal)
    return found


def strategy(accountant: PrivacyAccountant | None, **more: Any) -> Any:
    inner = FedAvg(**{"fraction_train": PLACES / NODES, "fraction_evaluate": 0.0, **more})
    return DifferentialPrivacyServerSideFixedClipping(
        inner, MULTIPLIER, CLIP, PLACES, accountant=accountant
    )


def start(made: Any, client: ClientApp, rounds: int, kept: list[ArrayRecord]) -> Any:
    def keep(round: int, arrays: ArrayRecord) -> None:
        kept.append(arrays)

    begin = ArrayRecord({"weight": Array(np.zeros(6, np.float32))})
    grid = LocalGrid(client, nodes(NODES))
    return made.start(grid=grid, initial_arrays=begin, num_rounds=rounds, evaluate_fn=keep)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("kind", "rounds"),
    [
        (ExactAccountant, 21),
        (RdpAccountant, 18),
        pytest.param(PLDAccountant, 21, marks=pytest.mark.slow),
    ],
)
def test_flowers_strategy_trains_until_the_budget_is_spent(
    kind: Any, rounds: int, draws: Draws
) -> None:
    accountant: PrivacyAccountant = kind(settings(max_epsilon=4.0))
    made, kept = strategy(accountant), list[ArrayRecord]()
    with pytest.raises(Exception, match="would exceed max_epsilon"):
        start(made, app(least_squares), 70, kept)
    assert accountant.num_releases == rounds == len(kept) - 1
    assert draws.stds == [MULTIPLIER * CLIP / PLACES] * rounds
    # recounted from the draws of noise: one client of PLACES moves the mean by C / PLACES, or 2C
    mu = math.sqrt(sum((CLIP / PLACES / std) ** 2 for std in draws.stds))
    assert made.privacy_spent().epsilon <= 4.0
    if kind is RdpAccountant:
        return
    assert accountant.epsilons() == pytest.approx(  # type: ignore[attr-defined]
        {"zero-out": gdp.epsilon_for(DELTA, mu), "replace-one": gdp.epsilon_for(DELTA, 2 * mu)}
    )
    assert accountant.would_exceed(EVENT)


def test_as_many_rounds_as_fit_end_with_a_model(draws: Draws) -> None:
    accountant = ExactAccountant(settings(max_epsilon=8.99), "replace-one")
    result = start(strategy(accountant), app(least_squares), within(8.99, accountant), [])
    assert accountant.num_releases == 21
    assert result.arrays["weight"].numpy().shape == (6,)
    assert accountant.get_epsilon(DELTA) <= 8.99


def test_a_round_with_a_client_too_few_is_not_counted_and_releases_nothing(draws: Draws) -> None:
    def some_fail(start: np.ndarray, context: Context) -> np.ndarray:
        raise RuntimeError

    accountant = ExactAccountant(settings())
    made = strategy(accountant)
    begin = ArrayRecord({"weight": Array(np.zeros(6, np.float32))})
    made.configure_train(1, begin, _config(), LocalGrid(app(some_fail), nodes(NODES)))
    assert made.aggregate_train(1, []) == (None, None)
    assert (accountant.num_releases, draws.stds) == (0, [])


def _config() -> Any:
    from flwr.app import ConfigRecord

    return ConfigRecord()


# --------------------------------------- what the strategies leave open: docs/flower-accountant.md


def one_round(client: ClientApp, begin: Iterable[float] = (0.0,) * 6, places: int = NODES) -> Any:
    """The released model and metrics of one round in which everybody is drawn."""
    inner = FedAvg(fraction_evaluate=0.0)
    accountant = ExactAccountant(settings())
    made = DifferentialPrivacyServerSideFixedClipping(
        inner, 1.0, CLIP, places, accountant=accountant
    )
    model = ArrayRecord({"weight": Array(np.asarray(begin, np.float32))})
    grid = LocalGrid(client, nodes(NODES))
    asked = made.configure_train(1, model, _config(), grid)
    return made.aggregate_train(1, grid.send_and_receive(asked)), accountant


@pytest.mark.usefixtures("draws")
def test_a_nan_passes_the_clip() -> None:
    def one_nan(start: np.ndarray, context: Context) -> np.ndarray:
        first = context.node_config["partition-id"] == 0
        return np.float32([math.nan, 1e6, 0, 0, 0, 0]) if first else start + 1

    (arrays, _), accountant = one_round(app(one_nan))
    assert arrays["weight"].numpy()[1] > 0.9e6 / NODES  # a clip is 2
    assert accountant.num_releases == 1


@pytest.mark.usefixtures("draws")
@pytest.mark.parametrize("step", [0.0, 1e-30])
def test_an_update_of_zero_divides_by_zero(step: float) -> None:
    def one_zero(start: np.ndarray, context: Context) -> np.ndarray:
        first = context.node_config["partition-id"] == 0
        return start + np.float32(step if first else 1)

    with pytest.raises(ZeroDivisionError):  # the squares of 1e-30 are zero in single precision
        one_round(app(one_zero))


@pytest.mark.usefixtures("draws")
def test_a_parameter_without_dimensions_is_not_clipped() -> None:
    (arrays, _), _ = one_round(app(lambda start, _: start + np.float32(1e6)), begin=1.0)  # type: ignore[arg-type]
    assert float(arrays["weight"].numpy()) > 0.9e6


@pytest.mark.usefixtures("draws")
def test_the_noise_is_numpys_and_single_precision() -> None:
    """Whoever seeds it knows it; and it is added by rounding, so low bits show what it hides."""

    def released() -> np.ndarray:
        np.random.seed(7)
        (arrays, _), _ = one_round(app(lambda start, _: start + np.float32(0.1)), begin=[1e4] * 6)
        found: np.ndarray = arrays["weight"].numpy()
        return found

    found = released()
    np.random.seed(7)
    noise = np.random.normal(0, CLIP / NODES, 6).astype(np.float32)
    assert (found == released()).all()
    assert found.dtype == np.float32
    assert np.abs(found - np.float32(10000.1) - noise).max() < 0.01
    assert (found * 1024 == np.round(found * 1024)).all()  # multiples of 2^-10 near 10,000


@pytest.mark.usefixtures("draws")
def test_metrics_leave_in_clear() -> None:
    (_, metrics), _ = one_round(app(least_squares, loss=0.25))
    assert dict(metrics) == {"loss": pytest.approx(0.25)}


@pytest.mark.usefixtures("draws")
def test_the_number_of_examples_decides_whether_a_round_fails() -> None:
    def train(message: Message, context: Context) -> Message:
        told = MetricRecord({"num-examples": 1.0 + int(context.node_config["partition-id"])})
        content = {"arrays": next(iter(message.content.array_records.values())), "m": told}
        return Message(RecordDict(content), reply_to=message)

    made = ClientApp()
    made.train()(train)
    with pytest.raises(ValueError, match="equal client weights"):
        one_round(made)
