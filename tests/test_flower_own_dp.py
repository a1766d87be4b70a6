# SPDX-License-Identifier: Apache-2.0
"""What docs/from-flower.md says of Flower's own differential privacy, seen on Flower itself.

Only on the versions that the page names: a newer Flower may do better, and the page is then read
again. Public names of Flower's alone.
"""

from __future__ import annotations

import inspect
import math
from importlib.metadata import version

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp import strategy as flower

from dpfed.accounting import gdp
from tests.training.flower.local_grid import become_a_server

READ = ("1.38.0", "1.41.0", "1.42.0")
pytestmark = pytest.mark.skipif(version("flwr") not in READ, reason=f"the page read {READ}")


@pytest.fixture(autouse=True)
def _server(monkeypatch: pytest.MonkeyPatch) -> None:
    become_a_server(monkeypatch)


def arrays(**named: object) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(each, np.float32)) for name, each in named.items()})


def order(model: ArrayRecord) -> Message:
    content = RecordDict({"arrays": model, "config": ConfigRecord()})
    return Message(content, dst_node_id=1, message_type="train")


def reply(asked: Message, model: ArrayRecord, **metrics: float) -> Message:
    content = {"arrays": model, "metrics": MetricRecord({"num-examples": 7.0, **metrics})}
    return Message(RecordDict(content), reply_to=asked)


def sent(model: ArrayRecord, update: ArrayRecord, noise: float) -> Message:
    """What a ClientApp with LocalDpMod answers; sensitivity scales the noise."""
    mod = LocalDpMod(clipping_norm=1.0, sensitivity=noise, epsilon=1.0, delta=1e-5)
    context = Context(1, 1, {}, RecordDict(), {})
    return mod(order(model), context, lambda asked, _: reply(asked, update, loss=0.25))


def test_the_local_mod_leaves_scalars_and_metrics_as_they_are() -> None:
    start = arrays(weight=[0.0] * 100, temperature=0.0)
    answer = sent(start, arrays(weight=[0.0] * 100, temperature=50.0), noise=1.0)
    (found,) = answer.content.array_records.values()
    assert found["weight"].numpy().std() > 1  # the noise is there
    assert float(found["temperature"].numpy()) == 50.0  # neither clipped to 1 nor noised
    (metrics,) = answer.content.metric_records.values()
    assert dict(metrics) == {"num-examples": 7.0, "loss": 0.25}


def test_one_nan_switches_the_clip_off() -> None:
    answer = sent(arrays(weight=[0.0, 0.0]), arrays(weight=[math.nan, 1e6]), noise=0.0)
    (found,) = answer.content.array_records.values()
    assert found["weight"].numpy()[1] == 1e6


def test_the_noise_is_numpys_global_generator() -> None:
    def drawn() -> np.ndarray:
        np.random.seed(0)
        answer = sent(arrays(weight=[0.0] * 5), arrays(weight=[0.1] * 5), noise=1.0)
        return next(iter(answer.content.array_records.values()))["weight"].numpy()

    assert (drawn() == drawn()).all()


def test_adaptive_noise_is_sized_by_the_clip_of_the_next_round() -> None:
    clients, dimension = 200, 20_000
    wrapped = flower.DifferentialPrivacyServerSideAdaptiveClipping(
        flower.FedAvg(),
        noise_multiplier=1.0,
        num_sampled_clients=clients,
        initial_clipping_norm=1.0,
        target_clipped_quantile=0.0,
        clip_norm_lr=1.0,
    )
    start = arrays(weight=np.zeros(dimension))
    wrapped.current_arrays = start
    long = arrays(weight=np.full(dimension, 1.0))  # all are clipped, to length 1
    found, _ = wrapped.aggregate_train(1, [reply(order(start), long) for _ in range(clients)])
    assert found is not None
    spread = next(iter(found.values())).numpy().std()
    assert wrapped.clipping_norm == pytest.approx(math.exp(-1), rel=0.2)
    needed = wrapped.noise_multiplier * 1.0 / clients  # one client moves the mean by 1 / clients
    assert spread == pytest.approx(needed * wrapped.clipping_norm, rel=0.05)
    assert spread < 0.5 * needed


def test_only_the_fixed_wrappers_have_an_accountant() -> None:
    names = [name for name in vars(flower) if name.startswith("DifferentialPrivacy")]
    with_one = {
        name
        for name in names
        if "accountant" in inspect.signature(getattr(flower, name)).parameters
    }
    assert len(names) == 4
    assert with_one == {name for name in names if "Fixed" in name}


def accountant(**changed: object) -> object:
    from flwr import serverapp

    config = {
        "target_delta": 1e-5,
        "population_size": 20,
        "neighboring_relation": serverapp.NeighboringRelation.ADD_OR_REMOVE_ONE,
        "sampling_method": serverapp.SamplingMethod.NO_AMPLIFICATION,
        **changed,
    }
    return serverapp.RdpAccountant(serverapp.PrivacyConfig(**config))


def test_the_accountant_takes_fedavg_without_amplification_only() -> None:
    from flwr.serverapp import SamplingMethod

    make = flower.DifferentialPrivacyServerSideFixedClipping
    make(flower.FedAvg(), 1.0, 1.0, 20, accountant=accountant())
    with pytest.raises(ValueError, match=r"FedAvg\.aggregate_train"):
        make(flower.FedAdam(), 1.0, 1.0, 20, accountant=accountant())
    drawn = accountant(sampling_method=SamplingMethod.POISSON)
    with pytest.raises(ValueError, match="no-amplification"):
        make(flower.FedAvg(), 1.0, 1.0, 20, accountant=drawn)


@pytest.mark.parametrize(("multiplier", "rounds"), [(5.0, 20), (20.0, 20), (30.0, 70)])
def test_its_epsilon_is_an_upper_bound_some_tenth_above_the_exact_one(
    multiplier: float, rounds: int
) -> None:
    from flwr.serverapp import GaussianPrivacyEvent

    counted = accountant()
    counted.compose(GaussianPrivacyEvent(multiplier, 20, 20), rounds)
    exact = gdp.epsilon_for(1e-5, math.sqrt(rounds) / multiplier)
    assert 1.07 < counted.get_epsilon(1e-5) / exact < 1.11


def test_the_local_mods_epsilon_is_that_of_one_message() -> None:
    """Ten rounds at epsilon 1: 2.7 if leaving out a client is hidden, 6.0 if replacing one is."""
    deviation = math.sqrt(2 * math.log(1.25 / 1e-5))
    mu = math.sqrt(10) / deviation
    assert f"{gdp.epsilon_for(1e-5, mu):.1f}" == "2.7"
    assert f"{gdp.epsilon_for(1e-5, 2 * mu):.1f}" == "6.0"
