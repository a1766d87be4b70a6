# SPDX-License-Identifier: Apache-2.0
"""How long a row may be by public words alone, and what that means for a rule that reads the clip.

Untuned DP-FedSOFIM takes the clip for the length of a row (server/sofim.py). Below that length it
loses little, above it much.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dpfed.data.contract import Contract
from dpfed.recipes.schema import DataRecipe, Recipe

READS_CLIP = ("sofim", "sofim_printed")
"""Server plug-ins whose rule reads the clip, where their rho is "auto"."""


def public_norm(data: DataRecipe, features: int) -> float | None:
    """The longest that a row can be, as its owner states it; None if nothing says so.

    Args:
        data: the recipe's table; a contract is in it as a value.
        features: how many features there are.

    >>> public_norm(DataRecipe(low=0.0, high=1.0), 784), public_norm(DataRecipe(radius=7.0), 40)
    (28.0, 7.0)
    """
    stated = [each for each in (data.norm, data.radius) if each is not None]
    if isinstance(data.contract, Contract):  # a number within [-1, 1], or a 1 among zeros
        stated.append(math.sqrt(len(data.contract.columns)))
    if data.low is not None and data.high is not None:
        ends = zip(_each(data.low, features), _each(data.high, features), strict=False)
        stated.append(math.hypot(*(max(abs(low), abs(high)) for low, high in ends)))
    return min(stated, default=None)


def _each(given: float | list[float], features: int) -> Sequence[float]:
    return given if isinstance(given, list) else [given] * features


def clip_warning(recipe: Recipe, features: int | None) -> str | None:
    """A warning where a rule reads the clip, and the clip is no length of a row.

    Args:
        recipe: the run's.
        features: of a linear model; None if rows are not as long as the features say.
    """
    if not any(map(_reads_clip, recipe.server)):
        return None
    clip = recipe.privacy.clip
    if recipe.privacy.adaptive is not None:
        return (
            "privacy.adaptive moves the clip, which the untuned rule takes for the length of a "
            "row; leave it out, and set privacy.clip to a third to two thirds of that length"
        )
    norm = None if features is None else public_norm(recipe.data, features)
    if norm is None or clip <= norm:
        return None
    return (
        f"privacy.clip {clip:g} is above {norm:.4g}, which no row is longer than, and the untuned "
        f"rule takes it for the length of a row; set it from {norm / 3:.3g} to {2 * norm / 3:.3g}"
    )


def _reads_clip(link: Mapping[str, Any]) -> bool:
    own = {"rho": "auto", **link}
    return own.get("name") in READS_CLIP and own["rho"] == "auto" and "preset" not in own
