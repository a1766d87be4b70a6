# SPDX-License-Identifier: Apache-2.0
"""The one logger, ``dpfed``. A client's log may quote data, and stays on the client."""

from __future__ import annotations

import logging

log = logging.getLogger("dpfed")
