# SPDX-License-Identifier: Apache-2.0
"""LoRA in a Flower app: peft, SST-2, FedAvg."""
