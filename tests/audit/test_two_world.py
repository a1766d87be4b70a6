# SPDX-License-Identifier: Apache-2.0
"""What the audit of two worlds sees: a sound run's claimed mu, and twice that at half the noise."""

from __future__ import annotations

import numpy as np
import pytest

from dpfed.audit.finding import Verdict
from dpfed.audit.two_world import _claim, sees_by_counts, sees_by_curve, two_world, worlds
from tests.audit.planted import Quiet, target, with_mechanism


def measured_mu(subject) -> float:
    """The distance of the two worlds' means, in standard deviations."""
    seen = worlds(subject, releases=10, pairs=20_000)
    spread = np.sqrt((seen.inside.var() + seen.outside.var()) / 2)
    return float((seen.inside.mean() - seen.outside.mean()) / spread)


@pytest.mark.long
@pytest.mark.slow
def test_the_worlds_of_a_sound_run_are_as_far_apart_as_claimed() -> None:
    sound = target()
    claimed = _claim(sound, 10)[1]
    assert measured_mu(sound) == pytest.approx(claimed, abs=0.05)
    assert measured_mu(with_mechanism(sound, Quiet)) == pytest.approx(2 * claimed, abs=0.1)


@pytest.mark.slow
def test_only_the_run_with_half_the_noise_is_flagged() -> None:
    sound = target()
    assert two_world(sound).verdict is Verdict.PASSED
    assert two_world(with_mechanism(sound, Quiet)).verdict is Verdict.FLAGGED


def test_more_runs_see_smaller_faults_and_the_curve_sees_more_than_counts() -> None:
    few, many = sees_by_curve(1.0, 1_000), sees_by_curve(1.0, 100_000)
    assert 0 < few < many < 1
    assert sees_by_counts(1.0, 100_000, 4.4, 1e-5) < many
