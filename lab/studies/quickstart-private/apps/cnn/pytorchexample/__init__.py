# SPDX-License-Identifier: Apache-2.0
"""A first Flower app: PyTorch, CIFAR-10, FedAvg."""
