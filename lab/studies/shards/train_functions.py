# SPDX-License-Identifier: Apache-2.0
"""The train functions of two apps, as their authors wrote them: nothing here knows of shards.

``train`` is that of Flower's quickstart-pytorch, word for word but for its batches, which are pairs.
``fit`` is the middle of Flower's example for scikit-learn, with ``partial_fit`` in place of ``fit``:
``LogisticRegression.fit`` refuses a shard with one class, and makes a smaller model where one of
ten classes is missing, so that most of its shards would have a zero row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def train(net: Any, trainloader: Any, epochs: int, lr: float, device: Any) -> float:
    """Train the model on the training set."""
    net.to(device)  # move model to GPU if available
    criterion = torch.nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    running_loss = 0.0
    for _ in range(epochs):
        for images, labels in trainloader:
            optimizer.zero_grad()
            loss = criterion(net(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return running_loss / (epochs * len(trainloader))


def fit(model: Any, x: Any, y: Any, classes: int) -> Any:
    """One pass over the records, from the parameters that the model has."""
    return model.partial_fit(x, y, classes=np.arange(classes))
