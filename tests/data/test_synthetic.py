# SPDX-License-Identifier: Apache-2.0
"""Generated records: what each kind promises, and that clients come back by ``natural``."""

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfed.core.errors import DataError
from dpfed.data import synthetic
from dpfed.data.datasets import Dataset, load
from dpfed.data.models import Linear
from dpfed.data.partitions import natural


def digest(dataset: Dataset) -> str:
    parts = [p for p in (dataset.train, dataset.test) if p is not None]
    arrays = [t.numpy().tobytes() for p in parts for t in (p.x, p.y)]
    return hashlib.sha256(b"".join(arrays)).hexdigest()[:16]


SMALL = {
    "clusters": {"records": 60, "features": 3, "classes": 2},
    "mixed": {"clients": 5, "records": 60, "features": 4, "classes": 3},
    "glm": {"clients": 5, "records": 60, "features": 4},
}


# -------------------------------------------------------------------------------------- every kind


@pytest.mark.parametrize("kind", synthetic.KINDS)
def test_a_kind_is_decided_by_its_seed(kind) -> None:
    first, again, other = (load("synthetic", kind=kind, **SMALL[kind], seed=s) for s in (1, 1, 2))
    assert digest(first) == digest(again) != digest(other)
    assert first.test is not None
    assert (len(first.train), len(first.test)) == (60, 15)
    assert "seed 1" in first.source


@pytest.mark.parametrize("kind", synthetic.KINDS)
def test_only_glm_knows_its_truth(kind) -> None:
    assert (load("synthetic", kind=kind, **SMALL[kind]).truth is not None) == (kind == "glm")


@pytest.mark.parametrize("kind", ["mixed", "glm"])
def test_clients_come_back_by_the_natural_partition(kind) -> None:
    data = load("synthetic", kind=kind, **SMALL[kind])
    parts = natural(data.train)
    assert [len(part) for part in parts] == [12] * 5
    assert data.test is not None
    assert data.test.groups is not None
    assert torch.bincount(data.test.groups).tolist() == [3] * 5


def test_the_clusters_are_those_of_the_first_release() -> None:
    # sha256 of the arrays that datasets.synthetic has always made at these options
    again = load("synthetic", records=60, features=3, classes=2, seed=4)
    assert digest(again) == "c12fe6c78f7e9f3a"


def test_what_is_unknown_is_refused_by_name() -> None:
    with pytest.raises(DataError, match="kind 'glmm' of synthetic"):
        load("synthetic", kind="glmm")
    with pytest.raises(DataError, match="kind 'mixed' takes"):
        load("synthetic", kind="mixed", sizes="equal")
    with pytest.raises(DataError, match="kind 'glm' takes"):
        load("synthetic", kind="glm", classes=3)
    with pytest.raises(DataError, match=r"link.*got 'probit'"):
        load("synthetic", kind="glm", link="probit")
    with pytest.raises(DataError, match=r"sizes.*got 'pareto'"):
        load("synthetic", kind="glm", sizes="pareto")


@pytest.mark.parametrize(
    ("kind", "option", "value"),
    [
        ("mixed", "clients", 0),
        ("mixed", "records", 50),
        ("mixed", "classes", 0),
        ("mixed", "beta", -1),
        ("mixed", "alpha", float("inf")),
        ("glm", "clients", 0),
        ("glm", "mean_size", 0),
        ("glm", "norm", -1.0),
        ("glm", "records", 3),
    ],
)
def test_what_cannot_be_made_is_refused(kind, option, value) -> None:
    bound = rf"{option} must be .*, got {value};|got 3 records for 40 clients; raise records"
    with pytest.raises(DataError, match=bound):
        load("synthetic", kind=kind, **{option: value})


# ------------------------------------------------------------------------------------------- mixed


def test_features_have_the_stated_spread_around_each_clients_place() -> None:
    data = load("synthetic", kind="mixed", clients=4, records=80_000, features=6)
    places = []
    for part in natural(data.train):
        own = data.train.x[part].double().numpy()
        np.testing.assert_allclose(own.var(axis=0), np.arange(1, 7) ** -1.2, rtol=0.05)
        places.append(own.mean(axis=0))
    assert np.ptp(places, axis=0).min() > 0.5, "clients are in different places"


def test_places_vary_by_one_within_a_client_and_by_beta_among_them() -> None:
    data = load("synthetic", kind="mixed", clients=400, records=4000, features=50, beta=9.0)
    means = torch.stack([data.train.x[part].mean(dim=0) for part in natural(data.train)]).double()
    among = float(means.mean(dim=1).var())
    assert 7.5 < among < 10.5  # 9 + 1 / 50, from 400 draws
    within = float((means - means.mean(dim=1, keepdim=True)).var())
    assert 0.9 < within < 1.2  # 1, and a tenth of Sigma's mean


@pytest.mark.long
@pytest.mark.slow
def test_each_client_follows_one_linear_rule_of_its_own() -> None:
    """A softmax of one client's records fits them all; one of all records cannot."""
    data = load("synthetic", kind="mixed", clients=3, records=900, features=8, classes=4)
    model = Linear("softmax", 8, 4)

    def accuracy(index: torch.Tensor) -> float:
        part = data.train.take(index)
        problem, params = model.problem(part), model.initial(0)
        for _ in range(3000):
            params = params - 0.2 * problem.gradient(params)
        return float(model.judge(params, part)[0].mean())

    parts = natural(data.train)
    assert min(map(accuracy, parts)) > 0.95
    assert accuracy(torch.cat(parts)) < 0.95


# --------------------------------------------------------------------------------------------- glm


@pytest.mark.parametrize("link", ["logistic", "poisson"])
def test_the_truth_is_where_the_expected_gradient_is_zero(link) -> None:
    data = load("synthetic", kind="glm", link=link, clients=10, records=100_000, norm=0.7)
    assert data.truth is not None
    assert data.truth.shape == (11,)
    assert data.truth[-1] == 0
    assert float(data.truth.norm()) == pytest.approx(0.7)
    gradient = Linear(link, 10).problem(data.train).gradient(data.truth.float())
    assert float(gradient.abs().max()) < 0.02
    elsewhere = Linear(link, 10).problem(data.train).gradient(torch.zeros(11))
    assert float(elsewhere.abs().max()) > 0.05
    assert data.classes == (2 if link == "logistic" else None)


def test_theta_does_not_depend_on_how_records_are_divided() -> None:
    made = [
        load("synthetic", kind="glm", clients=m, sizes=how).truth
        for m, how in ((3, "equal"), (9, "uniform"), (20, "lognormal"))
    ]
    assert all(torch.equal(made[0], each) for each in made)


@settings(deadline=None, max_examples=30)
@given(
    how=st.sampled_from(["equal", "uniform", "lognormal"]),
    clients=st.integers(1, 70),
    seed=st.integers(0, 2**32 - 1),
)
def test_sizes(how, clients, seed) -> None:
    drawn = synthetic.make("glm", {"clients": clients, "sizes": how, "features": 1, "seed": seed})
    sizes = np.bincount(drawn.parts["train"].groups)
    assert len(sizes) == clients
    if how == "equal":
        assert set(sizes) == {400}
    if how == "uniform":
        assert sizes.min() >= 199
        assert sizes.max() <= 601
    fixed = synthetic.make(
        "glm", {"clients": clients, "sizes": how, "features": 1, "seed": seed, "records": 20_000}
    )
    assert len(fixed.parts["train"].y) == 20_000


def test_drawn_sizes_have_the_mean_that_was_asked_for() -> None:
    for how, spread in (("uniform", 1 / np.sqrt(12)), ("lognormal", np.sqrt(np.exp(0.25) - 1))):
        drawn = synthetic.make("glm", {"clients": 2000, "sizes": how, "features": 1})
        sizes = np.bincount(drawn.parts["train"].groups)
        assert abs(sizes.mean() - 400) < 3 * 400 * spread / np.sqrt(2000)
        assert sizes.std() == pytest.approx(400 * spread, rel=0.1)
