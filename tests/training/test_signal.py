# SPDX-License-Identifier: Apache-2.0
"""A plan's signal: from public numbers, alike for all kinds of noise; both sides of what learns."""

import logging
import math

import pytest
import torch

from dpfed.accounting import gdp
from dpfed.core.types import Broadcast
from dpfed.core.vector import Layout
from dpfed.data.datasets import Records
from dpfed.data.models import Linear
from dpfed.flower import make_plan
from dpfed.recipes.run import run
from dpfed.training.reply import ClientState, rehearse
from dpfed.training.signal import warn_of_noise

HEAD = Linear("softmax", features=64, outputs=10).layout
CNN = Layout({"conv": (6, 3, 5, 5), "fc": (10, 400)})
CLIENT = {"epsilon": 8.0, "unit": "client"}


def ratio(nominal, model=HEAD, *, rounds=10, method="dp-fedgd", total="plain", **privacy) -> float:
    plan = make_plan(nominal, rounds=rounds, method=method, privacy=privacy, sum=total)
    return plan.signal_to_noise(model).ratio


@pytest.mark.parametrize("rounds", [1, 10, 70])
@pytest.mark.parametrize("clip", [0.1, 10.0])
def test_it_follows_from_the_guarantee_alone(rounds, clip):
    """Neither clip nor rounds change it: r mu / (2 sqrt(n d)) under replace-one."""
    expected = 50_000 * gdp.mu_for(0.5, 1e-5) / (2 * math.sqrt(20 * 650))
    assert ratio([2500] * 20, rounds=rounds, clip=clip, epsilon=0.5) == pytest.approx(expected)


def test_the_secure_sum_and_a_trusted_server_have_sqrt_n_times_as_much():
    local, central = (ratio([500] * 16, epsilon=1.0, trust=trust) for trust in ("local", "central"))
    assert central == pytest.approx(4 * local)
    distributed = ratio([500] * 16, epsilon=1.0, trust="distributed", total="secure")
    assert local < distributed <= central


@pytest.mark.parametrize("mechanism", ["tree", "banded", "blt", "discrete_gaussian"])
def test_correlated_noise_is_averaged_as_well_as_its_guarantee_allows(mechanism):
    """A unit that is in every release moves them by what a server can average: one number."""
    independent = ratio([500] * 4, epsilon=1.0, rounds=16)
    assert ratio([500] * 4, epsilon=1.0, rounds=16, mechanism=mechanism) == pytest.approx(
        independent, rel=2e-3
    )


def test_clients_that_take_turns():
    """Fewer rows in a round, and less noise, which bands spread better."""
    turns = {"min_separation": 4, "at_most": 2}
    common = {"unit": "client", "trust": "central", "adjacency": "zero-out", "epsilon": 2.0}
    always = ratio(64, rounds=8, method="dp-fedavg", **common)
    common |= {"participation": turns}
    independent, banded = (
        ratio(64, rounds=8, method="dp-fedavg", mechanism=mechanism, **common)
        for mechanism in ("gaussian", "banded")
    )
    assert independent == pytest.approx(always / 4 * 2)  # a quarter of the rows, half of the noise
    assert banded > independent


def test_no_noise_is_no_limit():
    assert ratio([5], mechanism="clear") == math.inf


def test_unequal_silos_count_by_what_the_mean_divides_by():
    found = [ratio([10, 1000], epsilon=1.0, weights=weights) for weights in ("sum", "average")]
    assert found[0] > 5 * found[1]


def test_the_model_says_whether_it_is_one_layer():
    plan = make_plan(10, method="dp-fedavg", privacy=CLIENT)
    assert plan.signal_to_noise(HEAD).one_layer is True
    assert plan.signal_to_noise(CNN).one_layer is False
    assert plan.signal_to_noise(CNN.size).one_layer is None


def test_a_method_with_a_model_of_its_own_counts_its_own_update():
    plan = make_plan([100] * 4, HEAD, rounds=10, method="dp-fedauto", privacy={"epsilon": 1.0})
    found = plan.signal_to_noise(HEAD)
    assert found.parameters == plan.size("update", HEAD.size)
    assert found.one_layer is True


# ------------------------------------------------------------------------------- who is told


def test_make_plan_warns_once_if_it_knows_the_model(caplog):
    plan = make_plan(10, CNN, method="dp-fedavg", privacy=CLIENT)
    warn_of_noise(plan, CNN)
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("this plan will learn next to nothing")
    make_plan([2500] * 20, HEAD, method="dp-fedgd", privacy={"epsilon": 0.5})
    make_plan(10, method="dp-fedavg", privacy=CLIENT)
    assert len(caplog.messages) == 1


def test_a_run_says_it_before_its_first_round_and_in_its_result(caplog):
    made_up = {"options": {"records": 60, "features": 30}, "partition": {"clients": 2}}
    seen = []
    result = run(
        data=made_up,
        method="dp-fedavg",
        rounds=2,
        privacy={"epsilon": 0.1, "unit": "client", "noise": "keyed"},
        watch=lambda row, rounds: seen.append(len(told(caplog))),
    )
    assert seen == [1, 1]
    assert told(caplog)[0] in result.warnings


def told(caplog) -> list[str]:
    return [each for each in caplog.messages if "learn next to nothing" in each]


def test_the_rehearsal_warns_whatever_the_records_are(caplog):
    """Public numbers only: a client with one record says the same as one with a thousand."""
    said = []
    for size in (1, 1000):
        plan = make_plan(2, method="dp-fedavg", privacy={"epsilon": 0.1, "unit": "client"})
        model = Linear("softmax", features=30, outputs=2)
        problem = model.problem(Records(torch.ones(size, 30), torch.zeros(size).long()))
        asked = Broadcast(round=0, params=torch.zeros(model.layout.size))
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            rehearse(plan, asked, ClientState(0, problem))
        said.append(caplog.messages)
    assert said[0] == said[1]
    assert len(said[0]) == 1


# --------------------------------------------------------------- what learned, and what did not

LENET = Layout(
    {"c1": (6, 1, 5, 5), "c2": (16, 6, 5, 5), "f1": (120, 256), "f2": (84, 120), "f3": (10, 84)}
)
QUICKSTART = Layout(
    {"c1": (6, 3, 5, 5), "c2": (16, 6, 5, 5), "f1": (120, 400), "f2": (84, 120), "f3": (10, 84)}
)
ADAPTERS = Layout({"q.a": (2, 384), "q.b": (384, 2), "v.a": (2, 384), "v.b": (384, 2)})
WHOLE_SUBJECTS = {"epsilon": 1.0, "delta": 1e-3, "unit": "group"}
SECURE = {"epsilon": 8.0, "trust": "distributed"}

LEARNED = {
    "DP-FedSOFIM on CIFAR-10's features (sofim-clip)": (
        HEAD,
        [2500] * 20,
        {"rounds": 70, "method": "dp-fedsofim", "privacy": {"epsilon": 0.5, "clip": 15.0}},
    ),
    "100 devices, a trusted server, Fashion-MNIST's features (fednew-fashion)": (
        HEAD,
        100,
        {"privacy": {"epsilon": 1.0, "unit": "client", "trust": "central"}},
    ),
    "adapters on a pretrained encoder (adamw-sst2), had it drawn no records": (
        ADAPTERS,
        [1000] * 10,
        {"rounds": 20, "privacy": {"epsilon": 1.0, "adjacency": "zero-out"}},
    ),
}
HOPELESS = {
    "Flower's quickstart, ten silos, client level: 0.133": (
        QUICKSTART,
        10,
        {"rounds": 10, "method": "dp-fedavg", "privacy": CLIENT},
    ),
    "a head on CIFAR-10's features, ten silos, client level: 13.7 %": (
        HEAD,
        10,
        {"rounds": 10, "method": "dp-fedavg", "privacy": CLIENT},
    ),
    "a LeNet from scratch, ten silos of 80 rows, secure sum": (
        LENET,
        [80] * 10,
        {"rounds": 10, "sum": "secure", "privacy": SECURE},
    ),
    "24 whole subjects in 5 silos (silos): 20 % of six classes": (
        Linear("softmax", features=256, outputs=6).layout,
        [5, 5, 5, 5, 4],
        {"rounds": 50, "privacy": WHOLE_SUBJECTS},
    ),
}


@pytest.mark.parametrize("name", LEARNED)
def test_no_false_alarm_where_it_learned(name):
    model, nominal, sections = LEARNED[name]
    assert warned(model, nominal, sections) is None


@pytest.mark.parametrize("name", HOPELESS)
def test_a_warning_where_it_did_not(name):
    model, nominal, sections = HOPELESS[name]
    assert "a larger epsilon" in warned(model, nominal, sections)


def warned(model, nominal, sections) -> str | None:
    named = {} if "method" in sections else {"method": "dp-fedgd"}
    return make_plan(nominal, **sections, **named).signal_to_noise(model).warning
