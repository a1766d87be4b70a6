# SPDX-License-Identifier: Apache-2.0
"""``noise_for``: the paper's sigma_g for a promise, under every trust."""

import math

import pytest

from dpfed.accounting import gdp
from dpfed.core.errors import RecipeError
from dpfed.core.types import Adjacency, Trust, Unit
from dpfed.recipes.noise_for import monthly_epsilon, noise_for

# PRIVACY.md, section 1: n = 20, T = 70, delta = 1e-5, replace-one, LOCAL.
GOLDEN = [
    (0.5, 0.142211, 526.2137, 117.665),
    (1.0, 0.268051, 279.1749, 62.425),
    (5.0, 1.121242, 66.7413, 14.924),
    (10.0, 2.000446, 37.4082, 8.365),
]


def answer(epsilon: float = 1.0, **options):
    return noise_for(**{"epsilon": epsilon, "delta": 1e-5, "rounds": 70, "clients": 20, **options})


@pytest.mark.parametrize(("epsilon", "mu", "sigma_g", "std"), GOLDEN)
def test_golden_table(epsilon, mu, sigma_g, std):
    found = answer(epsilon)
    assert found["mu"] == pytest.approx(mu, rel=1e-4)
    assert found["sigma_g"] == pytest.approx(sigma_g, rel=1e-4)
    assert found["std_over_clip"] == pytest.approx(std, rel=1e-4)


@pytest.mark.parametrize(("epsilon", "mu", "sigma_g", "std"), GOLDEN)
def test_sums_take_sqrt_20_less_noise_than_replies(epsilon, mu, sigma_g, std):
    found = answer(epsilon, trust=Trust.DISTRIBUTED)
    assert found["sigma_g"] == pytest.approx(sigma_g / math.sqrt(20), rel=1e-4)
    assert found["mu"] == pytest.approx(mu, rel=1e-4)


def test_a_trusted_server_adds_sigma_g_itself():
    found = answer(trust=Trust.CENTRAL)
    assert found["sigma_g"] == found["std_over_clip"]
    assert found["std_over_clip"] == pytest.approx(answer()["std_over_clip"], rel=1e-12)
    assert len(found["claims"]) == 1


@pytest.mark.parametrize(("trust", "terms"), [("local", 20), ("distributed", 1), ("central", 1)])
def test_the_signal_beside_the_noise_of_all_terms(trust, terms):
    found = answer(trust=trust, units=50_000, parameters=650)
    ratio = 50_000 * found["mu"] / (2 * math.sqrt(terms * 650))
    assert found["signal_to_noise"] == pytest.approx(ratio)
    assert "the noise in 650 parameters" in found["signal"]
    assert found["warnings"] == []


def test_without_hope_there_is_a_warning():
    found = answer(8.0, unit="client", parameters=62_006)
    assert [each[:37] for each in found["warnings"]] == ["this plan will learn next to nothing "]


def test_nothing_is_said_of_the_signal_without_parameters():
    assert not {"signal", "signal_to_noise"} & answer(unit="client").keys()


def test_records_must_be_counted_for_a_signal():
    with pytest.raises(RecipeError, match="units must be given with --parameters"):
        answer(parameters=650)


@pytest.mark.parametrize("adjacency", [Adjacency.ZERO_OUT, Adjacency.ADD_REMOVE])
@pytest.mark.parametrize("trust", Trust)
def test_no_replacement_halves_the_noise(adjacency, trust):
    found = answer(adjacency=adjacency, trust=trust)
    assert 2 * found["sigma_g"] == pytest.approx(answer(trust=trust)["sigma_g"], rel=1e-12)


@pytest.mark.parametrize(
    ("options", "honest"),
    [
        ({}, 20),
        ({"survivors": 16}, 16),
        ({"colluders": 4}, 16),
        ({"survivors": 16, "colluders": 4}, 12),
        ({"survivors": 1}, 1),
    ],
)
def test_shares_are_sized_for_the_honest_survivors(options, honest):
    """s = s_target / sqrt(t - c)."""
    found = answer(trust=Trust.DISTRIBUTED, **options)
    assert found["std_over_clip"] == pytest.approx(62.425 / math.sqrt(honest), rel=1e-4)
    assert f"at least {honest} honest shares" in found["guarantee"]


@pytest.mark.parametrize(
    ("options", "shares"), [({}, 19), ({"colluders": 5}, 15), ({"survivors": 10}, 9)]
)
def test_local_states_what_others_learn(options, shares):
    found = answer(**options)
    server, others = (claim["epsilon"] for claim in found["claims"])
    assert found["std_over_clip"] == answer()["std_over_clip"], "the server's figure sets the noise"
    assert server == pytest.approx(1.0, rel=1e-6)
    expected = gdp.epsilon_for(1e-5, found["mu"] / math.sqrt(shares))
    assert others == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("clients", [1, 2])
def test_so_few_clients_that_others_see_what_the_server_sees(clients):
    assert len(answer(clients=clients)["claims"]) == 1


@pytest.mark.parametrize("trust", Trust)
def test_the_sentence_prints_the_target(trust):
    found = answer(trust=trust, unit=Unit.CLIENT, delta=1e-6)
    assert found["guarantee"].startswith("(1, 1e-06)-DP for each client (replace-one), against ")
    assert found["guarantee"].endswith("noise from the operating system.")


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ({}, False),
        ({"units": 99_999}, False),
        ({"units": 100_000}, True),
        ({"unit": Unit.CLIENT}, False),
        ({"unit": Unit.CLIENT, "delta": 0.05}, True),
        ({"unit": Unit.CLIENT, "delta": 0.05, "units": 10}, False),
        ({"delta": 0.05}, False),
    ],
)
def test_warns_when_delta_reaches_one_over_units(options, warned):
    assert bool(answer(**options)["warnings"]) is warned


@pytest.mark.parametrize(
    "options",
    [
        {"survivors": 21},
        {"colluders": -1},
        {"colluders": 20, "trust": Trust.DISTRIBUTED},
        {"survivors": 5, "colluders": 5, "trust": Trust.DISTRIBUTED},
        {"epsilon": math.nan},
        {"epsilon": 0.0},
        {"delta": 1.0},
        {"delta": math.nan},
    ],
)
def test_senseless_options_are_refused(options):
    with pytest.raises(RecipeError):
        answer(**options)


@pytest.mark.parametrize("kind", [Unit, Adjacency, Trust])
def test_a_plain_word_is_the_choice_of_that_name(kind):
    name = kind.__name__.lower()
    for choice in kind:
        assert answer(**{name: str(choice.value)}) == answer(**{name: choice})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"trust": "distributd"},
            "trust must be one of local, distributed, central, got 'distributd'; ",
        ),
        ({"unit": "person"}, "unit must be one of record, group, client, got 'person'; "),
        (
            {"adjacency": "replace"},
            "must be one of replace-one, add-remove, zero-out, got 'replace'",
        ),
        ({"rounds": 0}, "rounds must be a whole number, at least 1, got 0; give a count"),
        ({"rounds": 2.5}, "rounds must be a whole number, at least 1, got 2.5; give"),
        ({"clients": 0}, "clients must be a whole number, at least 1, got 0; give"),
        ({"survivors": 0}, "survivors must be a whole number, at least 1, got 0; give"),
        ({"survivors": 21}, "survivors must be at most 20, the number of clients, got 21; "),
        ({"colluders": -1}, "colluders must be a whole number, at least 0, got -1; leave"),
    ],
)
def test_what_is_no_choice_or_no_count_is_refused_in_one_sentence(options, sentence):
    with pytest.raises(RecipeError) as caught:
        answer(**options)
    assert sentence in str(caught.value)


def test_months_of_trainings_cost_no_more_than_a_lifetime() -> None:
    each = monthly_epsilon(12, 3.0, 1e-5)
    assert 12 * gdp.mu_for(each, 1e-5) ** 2 <= gdp.mu_for(3.0, 1e-5) ** 2
    assert 12 * gdp.mu_for(each * 1.001, 1e-5) ** 2 > gdp.mu_for(3.0, 1e-5) ** 2
