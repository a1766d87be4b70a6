# SPDX-License-Identifier: Apache-2.0
"""A gate's files after so many refusals, and its metrics: for the script ``monitoring``."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.helpers.handlers import enrolment, handler

from dpfed.core.files import replace_file
from dpfed.silo.figures import gate_figures, metrics_text

if __name__ == "__main__":
    folder, times, out = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    held = handler(folder)
    for _ in range(times):
        held.reply(enrolment("nobody-knows-this"))
    replace_file(out, metrics_text(gate_figures(held)).encode(), readable=True)
