# SPDX-License-Identifier: Apache-2.0
"""The data owner's side: a policy, approvals, and the gate, the only process that reads the data.

To review what leaves a silo, read these files first, in this order:

    silo/handler.py                which orders get a reply: approved trainings, owner's settings
    training/wire/responder.py   from an order to a reply, enrolment included; ledger and replays
    training/wire/codec.py       the messages: every field that a silo reads or sends
    training/reply.py              one round on the data; its PricedReleaser is the only door out
    core/rows.py                   per-unit rows, clipped and summed (arithmetic: core/clipping.py)
    mechanisms/gaussian.py         the noise, or whichever mechanism the terms name
    sums/plain.py                  a release as bytes; if the terms name the secure sum, instead
                                   sums/secure.py and sums/secagg/client.py: masks and opening

``dpfed silo check --modules`` lists every module that a gate loads, with its number of lines.
"""

from __future__ import annotations

import sys


def gate_command() -> list[str]:
    """The words that start a gate's process (__main__.py); a policy's path follows.

    With -P, Python does not search the current directory for modules. An interpreter that was
    started without environment variables (-E), without a user's own packages (-s), or without both
    (-I) stays so: else PYTHONPATH could bring code into a gate that its owner keeps it out of.
    """
    kept = {
        "-I": sys.flags.isolated,
        "-E": sys.flags.ignore_environment,
        "-s": sys.flags.no_user_site,
    }
    return [sys.executable, "-P", *(flag for flag, on in kept.items() if on), "-m", "dpfed.silo"]
