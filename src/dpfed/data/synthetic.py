# SPDX-License-Identifier: Apache-2.0
"""Generated records, by kind: what ``datasets.load("synthetic", kind=...)`` draws.

============ ====================================================================================
``clusters`` Gaussian class clusters, no groups: for quickstarts and tests
``mixed``    Synthetic(alpha, beta) of Li et al. (2020): each client has a labelling rule and a
             place of its own (Krouka et al. 2025, section 6.1)
``glm``      one logistic or Poisson regression for all clients, whose sizes differ
             (Auddy et al. 2026, section 4); the parameters that generated it are known
============ ====================================================================================

The last two have groups, one per client: the partition ``natural`` gives the clients back. Each
client has a test part besides, a quarter of its size. None of this randomness protects anything, so
numpy's generator is sufficient. What is drawn depends on the options alone, ``seed`` among them.
"""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dpfed.core.errors import DataError
from dpfed.data._checks import bad_option, require_from_zero, require_one
from dpfed.data.readers import TablePart

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Drawn = tuple[Any, Any]  # one client's features and labels


class GeneratedRecords(NamedTuple):
    """Arrays as a reader gives them, with the parameters that generated them, if known."""

    parts: dict[str, TablePart]
    classes: int | None
    source: str
    truth: NDArray[np.float64] | None = None
    """The generating parameters, as a linear layer holds them: weight, then bias."""


def make(kind: str, options: dict[str, Any]) -> GeneratedRecords:
    """Generated records by name: clusters, mixed or glm; an unknown option is refused by name."""
    if kind not in KINDS:
        raise DataError(f"there is no kind {kind!r} of synthetic data; use {', '.join(KINDS)}")
    known = set(inspect.signature(KINDS[kind]).parameters)
    if set(options) - known:
        unknown = ", ".join(sorted(set(options) - known))
        allowed = ", ".join(sorted(known - {"classes"}))  # an option that all sources have
        which = "'synthetic'" if kind == "clusters" else f"'synthetic' of kind {kind!r}"
        raise DataError(f"{which} takes no option {unknown}; it takes {allowed}")
    return KINDS[kind](**options)


# --------------------------------------------------------------------------------------- clusters


def clusters(
    records: int = 4000,
    features: int = 20,
    classes: int = 10,
    seed: int = 0,
    separation: float = 3.0,
) -> GeneratedRecords:
    """Gaussian clusters x = c_y + N(0, I), with the centres at distance ``separation`` from 0.

    At the default separation neighbouring clusters overlap, so that no model is right on all
    records. The test part comes on top: a quarter of ``records``, from the same clusters.

    Args:
        records: how many training records, at least 1.
        features: the dimension of x, at least 1.
        classes: how many clusters, at least 1.
        seed: of the centres and the records.
        separation: the distance of each centre from 0; the noise has standard deviation 1.
    """
    require_one(records=records, features=features, classes=classes)
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((classes, features))
    centres *= separation / np.linalg.norm(centres, axis=1, keepdims=True)
    total = _with_test(records)
    # The labels are balanced, so that no class is missing by chance.
    y = rng.permutation(np.arange(total) % classes)
    x = centres[y] + rng.standard_normal((total, features))
    source = (
        f"synthetic Gaussian clusters ({records} records, {features} features, {classes} classes, "
        f"separation {separation}, seed {seed})"
    )
    parts = {
        "train": TablePart(x[:records], y[:records]),
        "test": TablePart(x[records:], y[records:]),
    }
    return GeneratedRecords(parts, classes, source)


# ------------------------------------------------------------------------------------------ mixed


def mixed(
    clients: int = 100,
    records: int = 20_000,
    features: int = 60,
    classes: int = 10,
    alpha: float = 5.0,
    beta: float = 5.0,
    seed: int = 0,
) -> GeneratedRecords:
    """Synthetic(alpha, beta), with ``records`` divided equally among the clients.

    Client k labels by y = argmax(W x + b), the entries of W and b being N(u_k, 1), u_k ~
    N(0, alpha). Its features are N(v_k, Sigma), v_kj ~ N(B_k, 1), B_k ~ N(0, beta), Sigma the
    diagonal j^-1.2; all second arguments are variances. 60 features, 10 classes and alpha = beta
    = 5 are Krouka et al.'s; we do not have their table of sizes.

    u_k adds the same number to every score and so drops out of the argmax: no two clients share a
    labelling rule whatever ``alpha`` is. The code that Krouka et al. 2025 used (Noble et al., 2022)
    draws u_k and B_k for each entry instead, and relabels 5 % of the records at random.

    Args:
        clients: how many clients, at least 1.
        records: training records of all clients together, at least one per client.
        features: the dimension of x, at least 1.
        classes: how many labels a rule chooses from, at least 1.
        alpha: the variance of u_k, at least 0.
        beta: the variance of B_k, at least 0.
        seed: of everything that is drawn.
    """
    require_one(clients=clients, features=features, classes=classes)
    if records < clients:
        bound = f"at least {clients}, the number of clients"
        raise bad_option("records", bound, records, "raise records or lower clients")
    require_from_zero(alpha=alpha, beta=beta)
    rng = np.random.default_rng(seed)
    sizes = _cut(np.ones(clients), records)
    spread = np.arange(1.0, features + 1) ** -0.6
    drawn = [_own_rule(rng, _with_test(n), spread, classes, alpha, beta) for n in sizes]
    source = (
        f"Synthetic({alpha:g}, {beta:g}) ({clients} clients, {records} records, {features} "
        f"features, {classes} classes, seed {seed})"
    )
    return GeneratedRecords(_by_client(drawn, sizes), classes, source)


def _own_rule(
    rng: np.random.Generator, records: int, spread: Floats, classes: int, alpha: float, beta: float
) -> Drawn:
    """One client's features and labels."""
    u, place = rng.normal(0, math.sqrt(alpha)), rng.normal(0, math.sqrt(beta))
    W, b = rng.normal(u, 1, (len(spread), classes)), rng.normal(u, 1, classes)
    x = rng.normal(place, 1, len(spread)) + spread * rng.standard_normal((records, len(spread)))
    return x, (x @ W + b).argmax(axis=1)


# -------------------------------------------------------------------------------------------- glm


def glm(
    link: str = "logistic",
    clients: int = 40,
    sizes: str = "equal",
    mean_size: int = 400,
    records: int | None = None,
    features: int = 10,
    norm: float = 1.0,
    seed: int = 0,
) -> GeneratedRecords:
    """A regression y ~ p(y | x theta), x ~ N(0, I), the same theta at every client.

    Sizes are those of section 4.2, a fixed total that of section 4.5. The text that we have states
    neither theta nor its dimension: here theta is drawn from the sphere of radius ``norm``, with no
    intercept, and depends on ``features``, ``norm`` and ``seed`` alone.

    Args:
        link: "logistic" or "poisson".
        clients: how many clients, at least 1.
        sizes: "equal", "uniform" from half to three halves of the mean, or "lognormal" (sigma 0.5).
        mean_size: about how many training records a client has, at least 1.
        records: the total of training records instead; None goes by ``mean_size``.
        features: the dimension of x, at least 1.
        norm: the Euclidean norm of theta, at least 0.
        seed: of everything that is drawn.
    """
    require_one(clients=clients, mean_size=mean_size, features=features)
    require_from_zero(norm=norm)
    if link not in _LINKS:
        raise bad_option("link", f"one of {', '.join(_LINKS)}", link)
    rng = np.random.default_rng(seed)
    theta = rng.standard_normal(features)
    theta *= norm / np.linalg.norm(theta)
    counts = _sizes(sizes, clients, mean_size, records, rng)
    drawn = [_LINKS[link](rng, theta, _with_test(n)) for n in counts]
    source = (
        f"synthetic {link} regression ({clients} clients, {counts.sum()} records, {sizes} sizes, "
        f"{features} features, |theta| = {norm:g}, seed {seed})"
    )
    classes = 2 if link == "logistic" else None
    return GeneratedRecords(_by_client(drawn, counts), classes, source, np.append(theta, 0.0))


def _logistic(rng: np.random.Generator, theta: Floats, records: int) -> Drawn:
    x = rng.standard_normal((records, len(theta)))
    return x, (rng.random(records) < 1 / (1 + np.exp(-x @ theta))).astype(np.int64)


def _poisson(rng: np.random.Generator, theta: Floats, records: int) -> Drawn:
    x = rng.standard_normal((records, len(theta)))
    return x, rng.poisson(np.exp(x @ theta)).astype(np.float32)


_LINKS: dict[str, Callable[[np.random.Generator, Floats, int], Drawn]] = {
    "logistic": _logistic,
    "poisson": _poisson,
}


def _sizes(
    how: str, clients: int, mean: int, records: int | None, rng: np.random.Generator
) -> Ints:
    """How many training records each client has."""
    shares = {
        "equal": np.ones(clients),
        "uniform": rng.uniform(0.5, 1.5, clients),
        "lognormal": rng.lognormal(-0.125, 0.5, clients),  # of mean 1
    }
    if how not in shares:
        raise bad_option("sizes", f"one of {', '.join(shares)}", how)
    counts = _cut(shares[how], round(mean * shares[how].sum()) if records is None else records)
    if counts.min() < 1:
        raise DataError(
            f"every client must have a record, got {counts.sum()} records for {clients} clients; "
            "raise records or mean_size, or lower clients"
        )
    return counts


# ---------------------------------------------------------------------------------------- helpers

KINDS: dict[str, Callable[..., GeneratedRecords]] = {
    "clusters": clusters,
    "mixed": mixed,
    "glm": glm,
}


def _with_test(records: int) -> int:
    return records + math.ceil(records / 4)


def _cut(shares: Floats, records: int) -> Ints:
    """``records`` in proportion to the shares, in whole numbers that add up."""
    ends = np.rint(np.cumsum(shares) / shares.sum() * records)
    counts: Ints = np.diff(ends, prepend=0).astype(np.int64)
    return counts


def _by_client(drawn: Sequence[Drawn], sizes: Ints) -> dict[str, TablePart]:
    """Of client i, the first ``sizes[i]`` records are for training, the others for testing."""

    def part(cuts: list[slice]) -> TablePart:
        x = [own[cut] for (own, _), cut in zip(drawn, cuts, strict=True)]
        y = [own[cut] for (_, own), cut in zip(drawn, cuts, strict=True)]
        groups = np.repeat(np.arange(len(y)), [len(own) for own in y])
        return TablePart(np.concatenate(x), np.concatenate(y), groups)

    return {"train": part([slice(n) for n in sizes]), "test": part([slice(n, None) for n in sizes])}
