# SPDX-License-Identifier: Apache-2.0
"""An attack on the final model: does its loss on a record show whether it was trained on it?

Yeom et al. 2018: the attack calls a record a member of the training set if its loss is below a
threshold; half of the records choose the threshold, and the other half test it. Under
(epsilon, delta)-DP the advantage of such an attack is bounded:

    TPR - FPR <= tanh(epsilon / 2) + 2 delta / (1 + e^epsilon)

with the epsilon against whoever gets the model. Records of one data set share one model, so this
bounds the average over runs; a single run may exceed it by about 1 / sqrt(records). This is the
attack that people know best, and by far the weakest of the audits: a model may leak much and pass.

Guarantee: only that of the confidence interval, which takes records as independent.

| edge case                                  | what happens                                     |
|--------------------------------------------|--------------------------------------------------|
| no records were held out                   | skipped: set data.holdout, or evaluation 'exact' |
| the model's losses are not finite          | such records count as non-members                |
"""

from __future__ import annotations

import math

import numpy as np
import torch

from dpfed.audit.finding import ERROR_PROBABILITY, Finding, Subject, judged, skipped
from dpfed.audit.statistics import Floats, epsilon_of, error_rates
from dpfed.core.randomness import Noise, public_seed
from dpfed.training import inprocess

NAME = "membership"


def membership(target: Subject) -> Finding:
    """Train as the recipe says, then attack the model by its losses."""
    silos = target.federation
    held = [silos.test] if silos.test is not None else list(silos.held)
    if not held:
        return skipped(NAME, target.others, "no records are held out; set data.holdout = 0.2")
    params = _trained(target)
    inside = _scores([silos.model.judge(params, each)[1] for each in silos.clients], target.seed)
    outside = _scores([silos.model.judge(params, each)[1] for each in held], target.seed)
    true, false, low, high = attack(inside, outside)
    found = epsilon_of(low, high, target.delta)
    bound = advantage_bound(target.others, target.delta)
    detail = (
        f"accuracy {(1 + true - false) / 2:.3f}, advantage {true - false:+.3f} (at least "
        f"{low - high:+.3f}), at most {bound:.3f} is guaranteed; {len(inside):,} members, "
        f"{len(outside):,} others"
    )
    most = bound + (true - false) - (low - high)
    return judged(NAME, target.others, found, f"sees an advantage above {most:.2f}", detail)


def attack(inside: Floats, outside: Floats) -> tuple[float, float, float, float]:
    """True and false positive rate on the second halves, then a lower and an upper limit."""
    a, b = len(inside) // 2, len(outside) // 2
    threshold = _threshold(inside[:a], outside[:b])
    tested = inside[a:], outside[b:]
    true, false = (float((each > threshold).mean()) for each in tested)
    return true, false, *error_rates(*tested, threshold, ERROR_PROBABILITY)


def advantage_bound(epsilon: float, delta: float) -> float:
    """The largest TPR - FPR of any attack under (epsilon, delta)-DP."""
    return math.tanh(epsilon / 2) + 2 * delta / (1 + math.exp(min(epsilon, 700.0)))


def _threshold(inside: Floats, outside: Floats) -> float:
    """The threshold with the largest advantage on these records."""
    candidates = np.quantile(np.concatenate([inside, outside]), np.linspace(0.01, 0.99, 99))
    gains = [(inside > t).mean() - (outside > t).mean() for t in candidates]
    return float(candidates[int(np.argmax(gains))])


def _scores(losses: list[torch.Tensor], seed: int) -> Floats:
    """Minus the loss, shuffled by the audit's seed; a loss that is not finite scores lowest."""
    joined = -torch.cat(losses).double().numpy()
    order = np.argsort(Noise(seed).stream("records").words(len(joined)), kind="stable")
    shuffled: Floats = np.where(np.isfinite(joined), joined, -np.inf)[order]
    return np.maximum(shuffled, -1e300)


def _trained(target: Subject) -> torch.Tensor:
    silos = target.federation
    params = silos.model.initial(public_seed(target.recipe.seed, "model"))
    for state, _ in inprocess.rounds(target.plan, silos.problems, params):
        params = state.params
    return params
