# SPDX-License-Identifier: Apache-2.0
"""A recipe's table ``privacy.adaptive``: the clip follows a quantile of the units' norms."""

from __future__ import annotations

import msgspec

from dpfed.core.types import ClientAlgorithm


class AdaptiveRecipe(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The clip adapts: privacy.clip is the first one, later ones follow a quantile of the norms.

    For clients that send one clipped sum a round: gradient, and local steps at client level.
    """

    quantile: float = 0.5
    """The part of the units whose rows should be within the clip."""
    rate: float = 0.2
    """How fast the clip moves: by at most a factor of exp(rate) per round."""
    share: float = 0.01
    """The share of mu^2 spent on counting."""


def with_adaptive_clip(
    client: ClientAlgorithm, table: AdaptiveRecipe, *, clip: float
) -> ClientAlgorithm:
    """The client with a clip that adapts; refuses what it does not apply to.

    Args:
        client: the recipe's client algorithm.
        table: the recipe's table.
        clip: the first clip.
    """
    from dpfed.client._adaptive import adaptive  # loads torch, which a schema does without

    return adaptive(client, clip, quantile=table.quantile, rate=table.rate, share=table.share)
