# SPDX-License-Identifier: Apache-2.0
"""NVFlare's tasks as a Grid: who is a node, what comes back, and what an abort does."""

from __future__ import annotations

import pytest

pytest.importorskip("nvflare")

from flwr.app import ConfigRecord, Message, RecordDict
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from dpfed.core.flower_private import from_bytes, to_bytes
from dpfed.nvflare.grid import JobAborted, TaskGrid
from dpfed.nvflare.relay import ORDER, REPLY
from dpfed.training.flower.replies import flower_error
from tests.nvflare.fakes import FakeController, Site
from tests.training.flower.local_grid import become_a_server


@pytest.fixture(autouse=True)
def _server(monkeypatch: pytest.MonkeyPatch) -> None:
    become_a_server(monkeypatch)


def record(word: str) -> RecordDict:
    return RecordDict({"said": ConfigRecord({"word": word})})


def order(content: RecordDict, node: int, group: str = "1") -> Message:
    return Message(content, node, "train", ttl=60.5, group_id=group)


def echo(data: Shareable) -> Shareable:
    return Shareable({REPLY: data[ORDER]})


def grid_of(**sites: Site) -> tuple[TaskGrid, FakeController, Signal]:
    controller, abort = FakeController(sites), Signal()
    return TaskGrid(controller, controller.context, abort), controller, abort


def test_sites_keep_their_numbers_whoever_is_gone() -> None:
    grid, controller, _ = grid_of(b=echo, a=echo)
    assert grid.get_node_ids() == [1, 2]
    controller.gone = {"a"}
    assert grid.get_node_ids() == [2]
    controller.gone = set()
    assert grid.get_node_ids() == [1, 2]
    ids = list(grid.push_messages([order(record("x"), 2)]))
    assert [site for site, _ in controller.tasks] == ["b"]
    (reply,) = grid.pull_messages(ids)
    assert reply.metadata.reply_to_message_id == ids[0]
    assert reply.metadata.src_node_id == 2
    assert reply.content == record("x")
    assert grid.pull_messages(ids) == []  # once


def test_one_contents_bytes_are_shared_and_a_task_ends_with_its_message() -> None:
    grid, controller, _ = grid_of(a=echo, b=echo)
    grid.get_node_ids()
    same = record("all")
    grid.push_messages([order(same, 1), order(same, 2), order(record("one"), 1)])
    sent = [task.data[ORDER] for _, task in controller.tasks]
    assert sent[0] is sent[1]
    assert from_bytes(sent[2]) == record("one")
    assert {task.timeout for _, task in controller.tasks} == {61}


@pytest.mark.parametrize(
    "result",
    [
        make_reply(ReturnCode.EXECUTION_EXCEPTION),
        Shareable(),
        Shareable({REPLY: "text"}),
        Shareable({REPLY: b"no records"}),
        Shareable({REPLY: b""}),
        Shareable({REPLY: b"\xff" * 20}),
    ],
)
def test_garbage_is_that_sites_error_alone(result: Shareable) -> None:
    grid, _, _ = grid_of(a=lambda _: result, b=echo)
    grid.get_node_ids()
    ids = grid.push_messages([order(record("x"), node) for node in (1, 2)])
    bad, good = grid.pull_messages(ids)
    assert bad.has_error()
    assert flower_error(bad) == "the site's relay brought no reply of its gate"
    assert good.content == record("x")


def test_a_late_reply_of_another_round_is_dropped_and_so_is_what_nobody_pulls() -> None:
    grid, controller, _ = grid_of(a=lambda _: None)
    grid.get_node_ids()
    (late,) = grid.push_messages([order(record("x"), 1, group="1")])
    (who,) = grid.push_messages([order(record("who"), 1, group="")])  # an enrolment has no round
    grid.push_messages([order(record("y"), 1, group="2")])
    for _, task in controller.tasks[:2]:
        controller.submit("a", task, echo(task.data))
    assert grid.pull_messages([late]) == []
    assert len(list(grid.pull_messages([who]))) == 1
    assert grid._came == {}
    assert len(grid._asked) == 1


def test_an_abort_ends_the_wait_wherever_it_is() -> None:
    grid, controller, abort = grid_of(a=echo)
    grid.get_node_ids()
    abort.trigger(True)
    for act in (
        grid.get_node_ids,
        lambda: grid.pull_messages(["1"]),
        lambda: grid.push_messages([order(record("x"), 1)]),
    ):
        with pytest.raises(JobAborted, match="resumes from its checkpoint"):
            act()
    assert controller.tasks == []


def test_what_dpstrategy_does_not_use_is_refused() -> None:
    grid, _, _ = grid_of(a=echo)
    with pytest.raises(NotImplementedError):
        grid.send_and_receive([])
    with pytest.raises(NotImplementedError):
        grid.create_message()
    with pytest.raises(NotImplementedError):
        grid.set_run(1)
    with pytest.raises(NotImplementedError):
        _ = grid.run


def test_bytes_are_those_of_a_flower_relay() -> None:
    grid, controller, _ = grid_of(a=echo)
    grid.get_node_ids()
    grid.push_messages([order(record("x"), 1)])
    assert controller.tasks[0][1].data[ORDER] == to_bytes(record("x"))
