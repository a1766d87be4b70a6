# SPDX-License-Identifier: Apache-2.0
"""A simulated secure sum without masks: the same bits, the same words, and never a real run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lab.tests.studies import STUDY

from dpfed.recipes.run import run_session
from dpfed.recipes.session import Session, prepare
from dpfed.sums.secure import Secure
from dpfed_lab.jobs import make_job
from dpfed_lab.simulated_secure_sum import Unmasked, without_masks

SECURE = {"privacy.trust": "distributed", "sum.name": "secure", "privacy.epsilon": 1.0}


def prepared(**changes: Any) -> Session:
    return prepare(make_job(STUDY["base"], {}, {"rounds": 5, **SECURE, **changes}).recipe, None)


@pytest.mark.parametrize("method", ["dp-fedgd", "dp-fedauto"])
def test_model_and_guarantee_are_those_of_the_secure_sum(method: str) -> None:
    masked = prepared(method=method, **{"privacy.noise": "keyed"})
    bare = without_masks(masked)
    assert isinstance(bare.plan.sum, Unmasked)
    with_masks, without = run_session(masked), run_session(bare)
    assert torch.equal(with_masks.params, without.params)
    assert with_masks.guarantee == without.guarantee
    assert with_masks.guarantee.claims[0].epsilon == pytest.approx(1.0, abs=1e-6)


def test_a_run_with_real_noise_keeps_its_masks() -> None:
    real = prepared(**{"privacy.noise": "os"})
    assert without_masks(real) is real
    assert isinstance(real.plan.sum, Secure)


def test_a_plain_sum_stays_plain() -> None:
    local = {"privacy.trust": "local", "sum.name": "plain", "privacy.noise": "keyed"}
    plain = prepared(**local)
    assert without_masks(plain) is plain
