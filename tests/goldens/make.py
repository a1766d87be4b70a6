# SPDX-License-Identifier: Apache-2.0
"""Writes the goldens: ``python -m tests.goldens.make``, before a change that must keep them.

runs.json             by run: a digest of the final parameters, the parameters, the sentence
"""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import torch

from tests.goldens.runs import GOLDENS, digest, in_process

FOLDER = Path(__file__).parent


def make_runs() -> dict[str, Any]:
    made: dict[str, Any] = {
        "machine": {
            "capability": torch.backends.cpu.get_cpu_capability(),
            "torch": torch.__version__,
            "python": platform.python_version(),
        }
    }
    for name, golden in GOLDENS.items():
        params, sentence = in_process(golden)
        made[name] = {"digest": digest(params), "params": params.tolist(), "sentence": sentence}
    return made


def main() -> None:
    (FOLDER / "runs.json").write_text(json.dumps(make_runs(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
