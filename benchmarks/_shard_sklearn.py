# SPDX-License-Identifier: Apache-2.0
"""A train function in scikit-learn, for shards.py."""

from __future__ import annotations

from typing import Any

from benchmarks._shard_faults import counted
from dpfed.data.train_functions import sklearn_train


def model() -> Any:
    """A linear classifier, trained by one ``partial_fit``."""
    from sklearn.linear_model import SGDClassifier

    return SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.01)


train = sklearn_train(model, classes=10)
faults = counted(train)
