# SPDX-License-Identifier: Apache-2.0
"""The former name of ``dpfed.data.frozen_layers``, which recipes of dpfed 0.2 give as a factory."""

from dpfed.data.frozen_layers import hidden_states, top_layers

__all__ = ["hidden_states", "top_layers"]
