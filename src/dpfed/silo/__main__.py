# SPDX-License-Identifier: Apache-2.0
"""The gate's process: ``python -m dpfed.silo POLICY``.

``dpfed silo serve`` becomes this process, so that a gate has no command line in its memory. With
``--modules`` it loads what a gate loads, prints the list, and ends (modules.py).
"""

from __future__ import annotations

import sys
from pathlib import Path

from dpfed.core.errors import DpfedError, as_sentence
from dpfed.core.log import say_if_slow, shown
from dpfed.silo.policy import read_policy


def main(arguments: list[str]) -> None:
    """Serve by a policy until the process is stopped; an error is one sentence, and exit code 2."""
    try:
        if arguments[0] == "--modules":
            from dpfed.silo.modules import print_modules

            print_modules(*map(Path, arguments[1:]))
            return
        policy, digest = read_policy(Path(arguments[0]))
        with say_if_slow("the gate loads torch, and the code that its trainings need"):
            from dpfed.silo.gate import run_gate
        run_gate(
            policy,
            ready=lambda: print(f"the gate answers on {policy.gate.socket}", flush=True),
            digest=digest,
        )
    except (DpfedError, OSError) as error:
        print(f"error: {shown(as_sentence(error), 2000)}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main(sys.argv[1:])
