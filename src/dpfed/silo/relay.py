# SPDX-License-Identifier: Apache-2.0
"""The relay: a whole ClientApp that passes bytes to the gate and back, and knows nothing else.

    app = dpfed.flower.silo_app()

It imports neither torch nor any code that reads data, so that it starts fast; anyone may ship it,
and nothing depends on its being honest. Its frames, both ways: frames.py. NVIDIA FLARE has a relay
of its own (dpfed/nvflare/relay.py).
"""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from dpfed.core.environment import GATE, variable
from dpfed.core.flower_private import from_bytes, to_bytes
from dpfed.core.log import log, shown
from dpfed.silo.frames import SOCKET, ask


def silo_app(path: str | None = None) -> ClientApp:
    """A ClientApp that asks the silo's own gate.

    Args:
        path: the gate's socket; None is $DPFED_GATE, or ``gate`` of the run's configuration, or
            /run/dpfed/gate.sock. {partition-id} in it is the node's, for silos on one machine.

    Returns:
        an app that passes bytes on, and reads no data.

    >>> type(silo_app("/run/dpfed/gate.sock")).__name__
    'ClientApp'
    """
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        where = path or variable(GATE) or str(context.run_config.get("gate") or SOCKET)
        where = where.replace("{partition-id}", str(context.node_config.get("partition-id", "")))
        try:
            reply = from_bytes(ask(where, to_bytes(message.content)))
        except OSError as error:
            log.error(
                "no gate answers at %r (%s); start it, or correct DPFED_GATE, or gate in the run's "
                "configuration",
                shown(where, 400),
                error.strerror or error,
            )
            raise
        return Message(reply, reply_to=message)

    return app


app = silo_app()
"""For apps without code: ``clientapp = "dpfed.silo.relay:app"``."""
