# SPDX-License-Identifier: Apache-2.0
"""The relay of a site: an Executor that passes bytes to the owner's gate and back.

    "class_allow_list": ["dpfed.nvflare.relay.GateRelay", ...]     in the site's resources.json

It loads neither Flower nor torch nor any code that reads data. A job chooses nothing: the socket is
the site's own, and the class takes no arguments.

| edge case                                    | what happens                                      |
|----------------------------------------------|---------------------------------------------------|
| a task of another name, or without an order  | a return code; the gate is not asked              |
| the gate is not there, or closes             | a return code; the log has the error's class      |
| the log is streamed to the server            | it never has more than that of the gate           |
"""

from __future__ import annotations

from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from dpfed.core.environment import GATE, variable
from dpfed.silo.frames import SOCKET, ask

TASK = "dpfed"
"""The name of every task, and what the two keys of its data are called."""
ORDER, REPLY = "order", "reply"


class GateRelay(Executor):  # type: ignore[misc]
    """Asks the gate on this machine: $DPFED_GATE, or /run/dpfed/gate.sock.

    {site} in $DPFED_GATE is the site's name, for several sites on one machine.

    >>> GateRelay().unsafe
    False
    """

    def __init__(self) -> None:
        super().__init__()

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        """The gate's reply to the order in a task, or a return code.

        Args:
            task_name: as the job's controller calls it.
            shareable: the task's data.
            fl_ctx: says which site this is.
            abort_signal: not looked at: NVFlare ends this process if the job is aborted.
        """
        del abort_signal
        order = shareable.get(ORDER)
        if task_name != TASK or not isinstance(order, bytes):
            return make_reply(ReturnCode.BAD_TASK_DATA)
        where = (variable(GATE) or SOCKET).replace("{site}", fl_ctx.get_identity_name())
        try:
            return Shareable({REPLY: ask(where, order)})
        except Exception as error:
            self.log_error(fl_ctx, f"the gate at {where} did not reply: {type(error).__name__}")
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
