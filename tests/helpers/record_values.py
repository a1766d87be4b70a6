# SPDX-License-Identifier: Apache-2.0
"""A plan for records of any value."""

from __future__ import annotations

import math
from typing import Any

from dpfed.core.randomness import Noise
from dpfed.core.registry import build
from dpfed.core.types import METRICS, UPDATE, Facts, Trust, Unit
from dpfed.mechanisms.gaussian import gaussian
from dpfed.sums.plain import plain
from dpfed.sums.secure import secure
from dpfed.training.plan import Plan

FEATURES, CLASSES, SIZES = 5, 3, [9, 6, 7]


CLIP = 1.0


def plan_for(unit: Unit, hides: bool, **changes: Any) -> Plan:
    trust = Trust.DISTRIBUTED if hides else Trust.LOCAL
    shares = 2 if hides else 1
    options: dict[str, Any] = {
        "client": build("client", "gradient", {}),
        "channels": {
            UPDATE: gaussian(Facts(CLIP, unit=unit, trust=trust), 2.0, shares),
            METRICS: gaussian(Facts(math.sqrt(2), unit=unit, trust=trust), 2.0, shares),
        },
        "sum": secure(survivors=1.0) if hides else plain(),
        "server": build("server", "scale", {}),
        "nominal": SIZES,
        "rounds": 2,
        "noise": Noise(0),
    }
    return Plan(**{**options, **changes})
