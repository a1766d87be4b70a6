# SPDX-License-Identifier: Apache-2.0
"""The longest possible signal beside the noise: arithmetic, thresholds, and the sentences."""

import math
from dataclasses import replace

import pytest

from dpfed.accounting.signal import LEAST, LEAST_LINEAR, LEAST_NETWORK, Signal
from dpfed.core.types import Trust, Unit

SILOS = Signal(parameters=62_006, rows=10, noise_std=12.0, averaged=10, clients=10)


def at(ratio: float, **changes) -> Signal:
    """So large a ratio: 400 rows, and as much noise in 100 parameters as that takes."""
    return Signal(parameters=100, rows=400, noise_std=40 / ratio, unit=Unit.RECORD, **changes)


def test_noise_grows_with_the_root_of_the_parameters_and_shrinks_with_that_of_the_rounds():
    assert SILOS.noise == pytest.approx(12 * math.sqrt(62_006 / 10))
    assert SILOS.ratio == pytest.approx(10 / SILOS.noise)
    assert replace(SILOS, parameters=4 * 62_006).ratio == pytest.approx(SILOS.ratio / 2)
    assert replace(SILOS, averaged=40).ratio == pytest.approx(SILOS.ratio * 2)
    assert replace(SILOS, rows=20).ratio == pytest.approx(SILOS.ratio * 2)


@pytest.mark.parametrize("changes", [{"noise_std": 0.0}, {"averaged": math.inf}])
def test_no_noise_or_no_bound_is_no_warning(changes):
    found = replace(SILOS, **changes)
    assert found.ratio == math.inf
    assert found.warning is None


@pytest.mark.parametrize(("one_layer", "least"), [(True, LEAST_LINEAR), (None, LEAST)])
def test_a_linear_model_or_an_unknown_one_is_warned_below_its_threshold(one_layer, least):
    assert at(0.99 * least, one_layer=one_layer).hopeless
    assert at(1.01 * least, one_layer=one_layer).warning is None


def test_a_network_is_in_doubt_below_the_larger_threshold():
    found = at(0.99 * LEAST_NETWORK, one_layer=False)
    assert not found.hopeless
    assert at(0.99 * LEAST, one_layer=False).hopeless
    assert "may learn little" in found.warning
    assert at(1.01 * LEAST_NETWORK, one_layer=False).warning is None


def test_the_sentence_has_both_lengths_and_the_warning_the_ways_out():
    assert "62,006 parameters is 945 clips long" in str(SILOS)
    assert "10 clients that agree, 10 clips: a ratio of 0.0106" in str(SILOS)
    for words in (
        "at most 694 parameters",
        "a frozen part",
        "unit 'record'",
        "the secure sum (up to 3.2 times the ratio)",
        "a larger epsilon",
    ):
        assert words in SILOS.warning


def test_no_way_out_is_named_that_is_taken_already_or_closed():
    found = at(0.01, one_layer=True, trust=Trust.DISTRIBUTED, clients=10)
    assert found.warning.endswith("use more records or a larger epsilon")
    assert "secure sum" not in at(0.01, clients=1).warning


def test_what_it_says_is_enough_parameters_is_enough():
    assert replace(SILOS, parameters=694).warning is None
    assert replace(SILOS, parameters=695).hopeless
