# SPDX-License-Identifier: Apache-2.0
"""The version of dpfed, for every layer that states or checks it."""

from __future__ import annotations

VERSION = "0.3.0"
