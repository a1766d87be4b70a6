# SPDX-License-Identifier: Apache-2.0
"""Bugs of other libraries that must not come back here: one test for each, named after the bug.

Each asserts the core of it, briefly; the tests of the part itself say more. The docstring has the
upstream issue, where there is one.
"""

from __future__ import annotations

import inspect
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from dp_accounting import GaussianDpEvent
from dp_accounting.rdp import RdpAccountant
from flwr.app import ArrayRecord

from dpfed.accounting import gdp
from dpfed.accounting.accountant import RELATIONS
from dpfed.accounting.calibrate import calibrate, least_factor
from dpfed.accounting.guarantee import epsilon_of_event
from dpfed.audit.client_laws import MODEL
from dpfed.core.chain import stateless
from dpfed.core.errors import BadRelease, BadReply, RecipeError, Unpriceable, UnsoundPlan, Untrusted
from dpfed.core.grid import SLACK, to_grid, truncated_sum
from dpfed.core.matrices import Gram
from dpfed.core.randomness import Noise
from dpfed.core.rows import Chunks, Dense, Outer
from dpfed.core.sampling import Poisson
from dpfed.core.sum_protocol import SumContext
from dpfed.core.types import UPDATE, Adjacency, Aggregate, Facts, ServerOptimizer, Trust, Unit
from dpfed.data.modules import Network
from dpfed.flower import DPStrategy, client_app
from dpfed.mechanisms._rounded import rounded_normal
from dpfed.mechanisms.discrete_gaussian import discrete_gaussian
from dpfed.mechanisms.gaussian import gaussian
from dpfed.recipes import schema as recipe
from dpfed.recipes.build import plan_for
from dpfed.sums.plain import plain
from dpfed.sums.secagg import masks
from dpfed.training.reply import ClientState, client_reply
from dpfed.training.round import publish, run_round, start
from dpfed.training.wire.codec import Envelope, read_reply, write_reply
from tests.helpers.batches import FixedBatch
from tests.helpers.records import make_records
from tests.helpers.rounds import SIZES, Wire, client_states, make_plan
from tests.helpers.row_units import Tied, one_by_one
from tests.helpers.secure_requests import alive, answered, ask, out
from tests.training.flower.local_grid import LocalGrid, become_a_server, nodes

SIZE = MODEL.layout.size
STREAM = Noise(1).stream


def released(rows: Any, mechanism: Any, key: int = 0, size: int = SIZE) -> torch.Tensor:
    """One release's integers."""
    release, _ = mechanism.release(rows, mechanism.init(size), STREAM("release", key))
    return release.vector


# ------------------------------------------------------------------------------------- accounting


def test_replace_one_factor_2_in_rdp() -> None:
    """google/differential-privacy issue 378: RDP prices replace-one as add-remove."""
    event = GaussianDpEvent(4.0)
    relation = RELATIONS[Adjacency.REPLACE_ONE]
    wrong = RdpAccountant(neighboring_relation=relation).compose(event).get_epsilon(1e-5)
    ours = epsilon_of_event(event, 1e-5, Adjacency.REPLACE_ONE)[0]
    assert ours == pytest.approx(gdp.epsilon_for(1e-5, 2 / 4.0), rel=1e-6)
    assert ours > wrong / 0.7


def test_sigma_search_overshoots_epsilon() -> None:
    """opacus issue 346: a search that stops on the wrong side spends more than the target."""
    tried: list[float] = []

    def epsilon_at(factor: float) -> float:
        tried.append(factor)
        return 3.21 / factor

    found = least_factor(epsilon_at, 1.0)
    assert found in tried
    assert 3.21 <= found <= 3.21 * (1 + 1e-3)
    mechanism = calibrate(gaussian(), epsilon=1.0, delta=1e-5, releases=7)
    assert epsilon_of_event(mechanism.event(7), 1e-5, mechanism.adjacency)[0] <= 1.0


def test_integer_sensitivity_truncated_down() -> None:
    """opendp issue 314: a sensitivity of 1.9 counted as 1."""
    for clip in (1.0, 1.9, 1.9999):
        mechanism = discrete_gaussian(Facts(clip=clip, adjacency=Adjacency.ADD_REMOVE), std=8.0)
        assert mechanism.noise_multiplier() == pytest.approx(8.0 / clip / (1 + SLACK), rel=1e-12)


def test_nan_or_inf_in_the_configuration() -> None:
    """FLIP PR 833: NaN and infinity pass a check of ``<= 0``."""
    for bad in (math.nan, math.inf, -math.inf, 0.0, -1.0):
        with pytest.raises(RecipeError):
            Facts(clip=bad)
        with pytest.raises(RecipeError):
            gaussian(std=bad)
        with pytest.raises(RecipeError):
            calibrate(gaussian(), epsilon=bad, delta=1e-5, releases=1)
        with pytest.raises(RecipeError):
            calibrate(gaussian(), epsilon=1.0, delta=bad, releases=1)
        with pytest.raises(UnsoundPlan):
            make_plan(nominal=[10, bad])
        for field in ("epsilon", "clip", "delta"):
            with pytest.raises((RecipeError, UnsoundPlan)):
                plan_for(recipe.parse({"privacy": {"epsilon": 1.0, field: bad}}), [10.0, 10.0])


# ---------------------------------------------------------------------------------------- clipping


def test_zero_norm_clip_crash() -> None:
    """flower PR 7631: a zero update divides by its norm."""
    zeros = torch.zeros(3, 4)
    for rows in (Dense(zeros), Outer(zeros, torch.zeros(3, 5)), Gram(zeros)):
        assert not rows.clipped_sum(1.0).vector.any()
    assert not any(block.any() for block in Dense(zeros).clipped_rows(1.0))


def test_clip_bound_ignored() -> None:
    """opacus PR 664: the bound that was asked for is not the one that is used."""
    row = Dense(torch.full((1, 9), 50.0))
    for clip in (0.1, 1.0, 7.0):
        made = row.clipped_sum(clip)
        assert float(made.vector.double().norm()) == pytest.approx(clip, rel=1e-5)
        assert (made.bound, made.replace_bound) == (clip, 2 * clip)
    with pytest.raises(BadRelease, match="rows must be bounded by"):
        gaussian(Facts(1.0), 2.0).bounded(_Claims(row.clipped_sum(7.0)))


class _Claims:
    """Rows that say how they are bounded, whatever they are asked for."""

    def __init__(self, made: Any) -> None:
        self.made = made

    def clipped_sum(self, clip: float) -> Any:
        return self.made


def test_tied_parameters() -> None:
    """opacus issue 413: a parameter that is used twice is clipped as two."""
    torch.manual_seed(0)
    network, records = Network(Tied(), chunk=3), make_records(8)
    params = network.initial(0)
    expected = Dense(one_by_one(network, params, records)).clipped_sum(0.5).vector
    got = network.problem(records).rows(params, Unit.RECORD).clipped_sum(0.5).vector
    assert torch.allclose(got, expected, atol=1e-6)


def test_padding_rows_counted() -> None:
    """jax_privacy PR 223: rows that fill up a batch are clipped, summed and counted."""
    matrix = torch.randn(8, 5)
    asked: list[int] = []

    def gradients(index: torch.Tensor) -> torch.Tensor:
        asked.extend(index.tolist())
        return matrix[index]

    rows = Chunks(gradients, 8, 5, chunk=3)  # 3, 3 and 2: nothing fills up the last one
    assert torch.allclose(rows.clipped_sum(0.5).vector, Dense(matrix).clipped_sum(0.5).vector)
    assert (sorted(asked), rows.units) == (list(range(8)), 8)


def test_microbatch_doubles_sensitivity() -> None:
    """tensorflow/privacy issue 620: the bound of a record depends on how records are batched."""
    matrix = torch.randn(12, 5) * 10
    sums = [
        Chunks(lambda i: matrix[i], 12, 5, chunk=chunk).clipped_sum(1.0) for chunk in (1, 4, 12)
    ]
    assert {(made.bound, made.replace_bound) for made in sums} == {(1.0, 2.0)}
    assert all(torch.allclose(made.vector, sums[0].vector, atol=1e-5) for made in sums)
    less = Chunks(lambda i: matrix[1:][i], 11, 5, chunk=4).clipped_sum(1.0)
    assert float((sums[0].vector - less.vector).norm()) <= 1.0 + 1e-5


def test_per_parameter_clip() -> None:
    """fedbiomed issue 1443: each of L layers is clipped by itself: together sqrt(L) too long."""
    residual, feature = torch.full((1, 3), 9.0), torch.full((1, 5), 9.0)  # weight and bias
    made = Outer(residual, feature).clipped_sum(1.0).vector
    assert float(made.norm()) <= 1.0
    plan = make_plan()
    rows = client_states()[0].problem.rows(torch.ones(SIZE) * 50, Unit.RECORD)  # type: ignore[union-attr]
    assert float(rows.clipped_sum(plan.update.clip).vector.norm()) <= SIZES[0] * plan.update.clip


def test_covariance_of_unclipped_data() -> None:
    """smartnoise-sdk issue 622: a covariance is priced for rows that nobody bounded."""
    far = Gram(torch.full((1, 4), 1e6))
    assert float(far.clipped_matrix(1.0).norm()) <= 1.0
    assert far.clipped_sum(1.0).replace_bound == pytest.approx(math.sqrt(2))


def test_nan_passes_a_clamp() -> None:
    """google/differential-privacy PR 405: a NaN is neither above the bound nor below it."""
    rows = Dense(torch.tensor([[math.nan, math.nan], [0.3, 0.4]]))
    assert torch.allclose(rows.clipped_sum(1.0).vector.float(), torch.tensor([0.3, 0.4]))
    with pytest.raises(BadRelease):
        to_grid(np.array([math.nan]), 1.0)


def test_a_nan_coordinate_switches_clipping_off() -> None:
    """The norm is NaN, no comparison holds, and the other coordinates go out as they are."""
    for bad in (math.nan, math.inf, -math.inf):
        row = torch.tensor([[bad, 1e9, 1e9]])
        assert not Dense(row).clipped_sum(1.0).vector.any()
        assert not truncated_sum(Dense(row).clipped_rows(1.0), 3, 1.0, 2.0**-20).any()
        assert not Outer(row, torch.ones(1, 2)).clipped_sum(1.0).vector.any()


def test_norm_clamp_not_float_safe() -> None:
    """opendp issue 2953: after scaling, rounding leaves a row longer than the bound."""
    rows = torch.randn(2000, 7, generator=torch.Generator().manual_seed(0)) * 1e3
    for row in rows.split(1):
        assert float(Dense(row).clipped_sum(0.1).vector.double().norm()) <= 0.1


# ---------------------------------------------------------------------------------------- sampling


def test_batch_size_leaks_at_small_n() -> None:
    """opacus issue 571: the mean is over the realised batch, whose size is data."""
    plan = make_plan(channels={UPDATE: _drawn(0.5)}, nominal=[20, 20, 20])
    people = {
        i: ClientState(i, MODEL.problem(make_records(m, 4, 3))) for i, m in enumerate((1, 20, 90))
    }
    at = publish(plan, start(plan, torch.zeros(SIZE)))
    lengths = {
        len(client_reply(plan, at, "reply", {UPDATE: b""}, m)[0][UPDATE]) for m in people.values()
    }  # type: ignore[index]
    assert lengths == {4 * SIZE}
    assert plan.denominator(UPDATE) == 0.5 * 60
    _, outcome = run_round(plan, start(plan, torch.zeros(SIZE)), Wire(plan, people))
    releases = [
        client_reply(plan, at, "reply", {UPDATE: b""}, m)[0][UPDATE] for m in people.values()
    ]  # type: ignore[index]
    total = sum(np.frombuffer(data, "<i4").astype(np.int64) for data in releases)
    mean = torch.from_numpy(total * plan.step(UPDATE) / 30).float()
    assert torch.allclose(outcome.aggregate.mean, mean, rtol=1e-5)  # type: ignore[union-attr]


def _drawn(rate: float) -> Any:
    return gaussian(Facts(1.0, adjacency=Adjacency.ZERO_OUT), 2.0).with_sampling(Poisson(rate))


def test_fixed_batches_priced_as_poisson() -> None:
    """opacus issue 80: shuffled batches of one size are not Poisson draws."""
    mechanism = gaussian(Facts(1.0, adjacency=Adjacency.ZERO_OUT), 2.0)
    fixed = mechanism.with_sampling(FixedBatch(3, 12))  # type: ignore[arg-type]
    with pytest.raises(Unpriceable, match="SampledWithoutReplacement"):
        make_plan(channels={UPDATE: fixed}).guarantee()


def test_empty_poisson_batch() -> None:
    """opacus issue 161: a draw of nobody crashes, or is skipped, which tells."""
    rows = Dense(torch.full((5, SIZE), 1e3))
    vector = released(rows, _drawn(1e-6))
    assert vector.shape == (SIZE,)
    assert bool((vector != 0).all())
    assert float(vector.double().norm()) * _drawn(1e-6).step < 2.0 * 4 * math.sqrt(SIZE)


def test_dependent_draws_called_poisson() -> None:
    """jax_privacy issue 121: batches that partition the data are priced as independent draws."""
    draws = torch.stack([Poisson(0.25).draw(40, STREAM("d", i)) for i in range(2000)]).double()
    counts = draws.sum(dim=1)
    assert float(counts.var()) == pytest.approx(40 * 0.25 * 0.75, rel=0.15)  # fixed: 0
    again = (draws[1:] * draws[:-1]).mean()  # a partition never draws a unit twice in a row
    assert float(again) == pytest.approx(0.25**2, rel=0.1)


# ------------------------------------------------------------------------------------------- noise


def test_non_cryptographic_32_bit_mask_generator() -> None:
    """flower issue 7522: masks from a generator with 2^32 seeds can be tried out."""
    seeds = [b"same" + bytes(27) + bytes([last]) for last in (0, 1)]
    made = []
    for seed in seeds:
        words = np.zeros(16, "<u8")
        masks.apply(words, [seed], [])
        key = Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor().update(bytes(128))
        assert words.tobytes() == key  # all 256 bits enter
        made.append(words)
    assert not (made[0] == made[1]).any()
    assert "np.random" not in inspect.getsource(masks)


def test_secure_noise_still_unsafe_in_floats() -> None:
    """opacus issue 616: cryptographic bits in a float normal still leave tell-tale low bits."""
    mechanism, rows = discrete_gaussian(Facts(1.0), 4.0), Dense(torch.randn(6, 5))
    vector = released(rows, mechanism, 3, size=5)
    scale, stream = mechanism.std / mechanism.step, STREAM("release", 3)
    noise = torch.from_numpy(rounded_normal(scale, 5, stream.words))
    exact = truncated_sum(rows.clipped_rows(1.0), 5, 1.0, mechanism.step)
    assert torch.equal(vector.long(), exact + noise)  # integers plus integers: no float in between
    assert not gaussian().exact  # and the float mechanism says "idealized"


def test_some_values_released_without_noise() -> None:
    """NVFlare issue 343: biases, counts or single layers leave as they are."""
    for make in (gaussian, discrete_gaussian):
        still = Dense(torch.zeros(4, 500))
        first, second = (released(still, make(Facts(1.0), 2.0), key, 500) for key in (0, 1))
        assert bool((first != 0).all())
        assert bool((first != second).all())


@pytest.mark.slow
def test_double_noise() -> None:
    """fedbiomed issue 1443: noise is added by two layers, and only one is priced."""
    for trust, expected in ((Trust.LOCAL, 2.0 * math.sqrt(3)), (Trust.CENTRAL, 2.0)):
        plan = make_plan(channels={UPDATE: gaussian(Facts(1e-6, trust=trust), 2.0)}, rounds=300)
        seen = [_play_at(plan, at) for at in range(300)]
        mean = torch.stack([each.mean for each in seen]).double()
        assert float(mean.std()) == pytest.approx(seen[0].std, rel=0.05)
        assert seen[0].std == pytest.approx(expected / sum(SIZES))


def _play_at(plan: Any, at: int) -> Aggregate:
    from dataclasses import replace

    progress = replace(start(plan, torch.zeros(SIZE)), round=at)
    _, outcome = run_round(plan, progress, Wire(plan, client_states([2, 2, 2])))
    assert outcome.aggregate is not None
    return outcome.aggregate


def test_noise_equal_after_np_random_seed() -> None:
    """Noise from numpy's global generator repeats when user code seeds it."""
    draws = []
    for _ in range(2):
        np.random.seed(0)
        random.seed(0)
        torch.manual_seed(0)
        draws.append(Noise().stream("release", 0, 0).normal(8))
    assert not (draws[0] == draws[1]).any()


# ------------------------------------------------------------------------------------------ server


def test_a_1_shaped_update_is_broadcast() -> None:
    """One number is added to every coordinate of the model."""
    context = SumContext(0, 1, 0, 0, 0, "run")
    session, _ = plain().begin(None, {UPDATE: {0: 1.0}}, {UPDATE: SIZE}, context)
    for data in (bytes(4), bytes(8)):
        with pytest.raises(BadReply, match=f"integers of 4 or 8 bytes, got {len(data)} bytes;"):
            plain().add(session, 0, {UPDATE: data})
    with pytest.raises(BadRelease, match="rows of shape"):
        truncated_sum([torch.ones(3, 1, dtype=torch.float64)], SIZE, 1.0, 2.0**-20)


def test_client_sent_weights_own_the_mean() -> None:
    """A client that says num_examples = 10^9 is the mean."""
    record = write_reply(Envelope(0, 0, "reply", 1), {UPDATE: b"1234"})
    record.config_records["dpfed"].update({"num-examples": 10**9, "weight": 1e9})
    assert read_reply(record, Envelope(0, 0, "reply", 1)) == {UPDATE: b"1234"}
    plan = make_plan()
    assert plan.cohort(UPDATE) == {0: 1.0, 1: 1.0, 2: 1.0}
    assert plan.denominator(UPDATE) == sum(SIZES)


def test_optimizer_before_noise() -> None:
    """Moments of sums in clear: what is made of them is not private, whatever is added later."""
    seen: list[torch.Tensor] = []

    def update(direction: torch.Tensor, state: Any, aggregate: Aggregate) -> Any:
        seen.append(direction.clone())
        return direction, state

    channels = {UPDATE: gaussian(Facts(1e-6, trust=Trust.CENTRAL), 2.0)}
    plan = make_plan(channels=channels, server=ServerOptimizer(stateless, update))
    run_round(plan, start(plan, torch.zeros(SIZE)), Wire(plan, client_states()))
    size = float(seen[0].double().norm()) * sum(SIZES) / math.sqrt(SIZE)
    assert 0.5 < size / 2.0 < 2.0  # the noise's; in clear it would be below 1e-4
    assert "replies" not in Aggregate.__dataclass_fields__


def test_the_unmasking_client_accepts_one_party_as_both_alive_and_dropped() -> None:
    """With both kinds of share a server reads that party's vector."""
    for first, second in (("repair", "unmask"), ("unmask", "repair")):
        table = answered()
        lie = {"repair": out(4), "unmask": alive(table, 0)}
        ask(table, 0, first, lie[first])
        with pytest.raises(Untrusted):
            ask(table, 0, second, lie[second])


def test_budget_exhausted_and_the_model_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception at the last round takes the trained model with it."""
    monkeypatch.setenv("DPFED_STATE", str(tmp_path))
    become_a_server(monkeypatch)
    plan, people = make_plan(rounds=2), client_states()
    app = client_app(lambda c: people[c.node_config["partition-id"]].problem, plan)
    initial = ArrayRecord(MODEL.layout.unflatten(torch.zeros(SIZE)))
    result = DPStrategy(plan).start(LocalGrid(app, nodes(3)), initial, num_rounds=50)
    model = MODEL.layout.flatten(result.arrays.to_torch_state_dict())
    assert result.stopped == "the next round would exceed the plan's guarantee"
    assert len(result.history) == 2
    assert bool((model != 0).all())
    assert result.guarantee is not None
    assert result.guarantee.epsilon == plan.guarantee().epsilon


# -------------------------------------------------------------------------------- the list itself

BUGS = 28
"""27 of the list, of which one (fedbiomed 1443) is two."""


def test_every_bug_of_the_list_has_its_test() -> None:
    names = [name for name in globals() if name.startswith("test_")]
    assert len(names) - 1 == BUGS
    assert all(globals()[name].__doc__ for name in names if name != names[-1])
