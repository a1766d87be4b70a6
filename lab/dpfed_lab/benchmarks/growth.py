# SPDX-License-Identifier: Apache-2.0
"""(o) What grows how: cost by clients, parameters, records, silos, rounds and rows of a ledger.

Each line is one piece of work at growing sizes: processor seconds (the median of 3 runs where one
is short) and the peak of resident memory above what the process held before, its data included.
Each point is measured in a process of its own, with one thread. What by the points before it would
need more than MOST_SECONDS or MOST_BYTES is not run: it is extrapolated by the measured exponent,
and marked so. Files lie in memory: the disk's time per commit does not grow.

The exponent is the slope of a least-squares line through the logarithms of the last measured
points, its spread the standard error of that slope. Held to the target of 1.1 is the exponent over
that of linear growth; memory too small to be told from the allocator's has none.
"""

from __future__ import annotations

import gc
import json
import logging
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import count, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dpfed.accounting.ledger.balance import Balance, Budget
from dpfed.accounting.ledger.journal import Body, Row
from dpfed.accounting.ledger.ledger import Ledger
from dpfed.core.types import UPDATE, Broadcast
from dpfed.data.datasets import Records
from dpfed.data.models import Linear
from dpfed.flower import make_plan
from dpfed.training.account import Account
from dpfed.training.checkpoint import Checkpoint
from dpfed.training.inprocess import rounds
from dpfed.training.plan import Plan
from dpfed.training.reply import ClientState, client_reply
from dpfed.training.round import run_round, start
from dpfed_lab.benchmarks._measure import Result, peak_above, threads
from dpfed_lab.benchmarks._secure import Table
from dpfed_lab.benchmarks.round_time import CLASSES, FEATURES, player, random_records, split

MEASURES = (
    "dpfed.training.plan",
    "dpfed.training.round",
    "dpfed.training.loop",
    "dpfed.training.reply",
    "dpfed.training.inprocess",
    "dpfed.training.account",
    "dpfed.training.checkpoint",
    "dpfed.accounting.event_tree",
    "dpfed.accounting.ledger.ledger",
    "dpfed.accounting.ledger.balance",
    "dpfed.accounting.ledger.journal",
    "dpfed.accounting.ledger.verification",
    "dpfed.sums.plain",
    "dpfed.sums.secagg.client",
    "dpfed.sums.secagg.server",
    "dpfed.sums.secagg.graph",
)

TARGET = 1.1
MOST_SECONDS = 6.0
"""Processor seconds of one run of a point that is measured."""
MOST_BYTES = 6 << 30
SHORT_SECONDS = 1.0
"""A run below this is made three times, else twice."""
TELLING_BYTES = 8 << 20
"""Less than this may be the allocator's: it is not fitted."""
FITTED = 4
"""How many of the last points an exponent is fitted to."""
EACH = 5
"""Records of a client, where clients are counted."""


# ------------------------------------------------------------------------------------ the fit


class Fit(NamedTuple):
    """An exponent, and its standard error; NaN of two points."""

    exponent: float
    spread: float


def fit(points: Iterable[tuple[float, float]]) -> Fit:
    """The slope of a least-squares line through the logarithms of (size, cost).

    >>> fit([(10, 3.0), (100, 300.0), (1000, 30_000.0)])
    Fit(exponent=2.0, spread=0.0)
    """
    logs = [(math.log10(size), math.log10(cost)) for size, cost in points]
    middle_x, middle_y = (statistics.fmean(axis) for axis in zip(*logs, strict=True))
    across = math.fsum((x - middle_x) ** 2 for x, _ in logs)
    slope = math.fsum((x - middle_x) * (y - middle_y) for x, y in logs) / across
    off = math.fsum((y - middle_y - slope * (x - middle_x)) ** 2 for x, y in logs)
    free = len(logs) - 2
    spread = math.sqrt(off / free / across) if free else math.nan
    return Fit(round(slope, 12) + 0.0, round(spread, 12))


@dataclass(frozen=True)
class Point:
    """One size of one line."""

    size: int
    seconds: float
    bytes: float
    measured: bool = True


def exponents(points: Sequence[Point]) -> dict[str, Fit]:
    """Of seconds and of bytes, by the last measured points; none where there is too little."""
    seen = [each for each in points if each.measured]
    costs = {"seconds": [(each.size, each.seconds) for each in seen]}
    costs["bytes"] = [(each.size, each.bytes) for each in seen if each.bytes >= TELLING_BYTES]
    return {name: fit(of[-FITTED:]) for name, of in costs.items() if len(of) >= 3}


def extrapolated(points: Sequence[Point], size: int) -> Point:
    """A further point, from the last measured one by the measured exponents.

    Args:
        points: what is known, the smallest first.
        size: of the further point.
    """
    last = [each for each in points if each.measured][-1]
    found, grown = exponents(points), size / last.size
    seconds = last.seconds * grown ** found.get("seconds", Fit(0.0, 0.0)).exponent
    # 0 bytes of a line whose memory was too small to tell how it grows
    held = last.bytes * grown ** found["bytes"].exponent if "bytes" in found else 0.0
    return Point(size, seconds, held, measured=False)


# -------------------------------------------------------------------------------- what is run

Work = Callable[[], object]
"""One run of a line at a size; it may return the seconds that count, if not all do."""


@dataclass(frozen=True)
class Line:
    """One piece of work, and the sizes that it is run at."""

    axis: str
    name: str
    build: Callable[[int, Path], Work]
    """Makes the work at a size; a folder is there for its files."""
    sizes: tuple[int, ...]
    target: float | None = TARGET


def steps(low: int, high: int) -> tuple[int, ...]:
    """1, 10, 100 and so on from one size to another, and from 300 on 3 times each.

    >>> steps(10, 1000)
    (10, 100, 300, 1000)
    """
    found = (lead * 10**power for power in range(12) for lead in (1, 3))
    return tuple(size for size in found if low <= size <= high and size not in {3, 30})


def _plan_for(clients: int, each: int = EACH) -> Plan:
    """A hundred rounds, epsilon 8."""
    return make_plan([each] * clients, rounds=100, privacy={"epsilon": 8.0})


def _round_of(clients: int, folder: Path) -> Work:
    """A plain round, all clients in one process."""
    del folder
    problems = split(random_records(EACH * clients), clients)
    return player(_plan_for(clients), problems)


def _entered_round_of(clients: int, folder: Path) -> Work:
    """The same with a ledger that has an account and a budget for each client."""
    problems = split(random_records(EACH * clients), clients)
    plan = _plan_for(clients)
    account = Account(Ledger(folder / "ledger.sqlite"), "growth", budget=Budget(8.0, 1e-5))
    played = rounds(plan, problems, Linear("softmax", FEATURES, CLASSES).initial(0), account)
    return lambda: next(played)


def _accounts_of(clients: int, folder: Path) -> Work:
    """``dpfed ledger show`` of the accounts of all clients, after a round of them."""
    _entered_round_of(clients, folder)()
    balance = Ledger(folder / "ledger.sqlite").balance()
    return lambda: (balance.totals(1e-5), balance.totals(1e-5, every=True))


def _plan_of(clients: int, folder: Path) -> Work:
    """A plan of that many clients: its noise, its guarantee and its fingerprint."""
    del folder

    def work() -> None:
        plan = _plan_for(clients)
        plan.fingerprint(), plan.guarantee()

    return work


def _problem(parameters: int, records: int) -> Any:
    """A client's records under a softmax layer of about that many parameters."""
    features = max(1, parameters // CLASSES - 1)
    made = torch.Generator().manual_seed(0)
    x = torch.empty(records, features)
    for block in torch.split(x, max(1, 2**20 // features)):  # no second matrix for a moment
        block.normal_(generator=made)
    y = torch.arange(records) % CLASSES
    return Linear("softmax", features, CLASSES).problem(Records(x, y))


def _answer(problem: Any, records: int) -> Work:
    """A client's answer, each time as if it were its first."""
    plan, params = _plan_for(1, records), torch.zeros(problem.dimension)

    def work() -> object:
        return client_reply(
            plan, Broadcast(0, params), "reply", {UPDATE: b""}, ClientState(0, problem)
        )

    return work


def _answer_by_parameters(parameters: int, folder: Path) -> Work:
    """The answer of a client of two records."""
    del folder
    return _answer(_problem(parameters, 2), 2)


def _answer_by_records(records: int, folder: Path) -> Work:
    """The answer of a client of 65 numbers a record, 650 parameters."""
    del folder
    return _answer(_problem(650, records), records)


def _server_by_parameters(parameters: int, folder: Path) -> Work:
    """The server's part of a round of ten clients, whose messages are made as it pulls them."""
    del folder
    plan = _plan_for(10)
    state = start(plan, torch.zeros(parameters))
    block = bytes(4 * parameters)

    def exchange(
        broadcast: Broadcast, stage: str, requests: Mapping[str, Mapping[int, bytes]]
    ) -> Iterator[tuple[int, Mapping[str, bytes]]]:
        del broadcast, stage
        for client in requests[UPDATE]:
            yield client, {UPDATE: block}

    return lambda: run_round(plan, state, exchange)


def _table(silos: int) -> Table:
    table = Table(silos, 650, colluders=max(1, round(0.05 * silos)), clock=time.process_time)
    table.play()  # keys are exchanged once
    return table


def _secure_server(silos: int, folder: Path) -> Work:
    """The server's part of a secure sum, every silo there."""
    del folder
    table = _table(silos)

    def work() -> float:
        began = time.process_time()
        table.play()
        return time.process_time() - began - table.client_seconds

    return work


def _secure_client(silos: int, folder: Path) -> Work:
    """One silo's part of it."""
    del folder
    table = _table(silos)

    def work() -> float:
        table.play()
        return table.client_seconds / silos

    return work


def _long_plan(many: int) -> Plan:
    """A plan of four silos that judges its model in every fifth round."""
    judged = {"kind": "federated", "every": 5}
    return make_plan([EACH] * 4, rounds=many, privacy={"epsilon": 8.0}, evaluation=judged)


def _planned(many: int, folder: Path) -> Work:
    """The plan of that many rounds: calibrated, checked, with its guarantee."""
    del folder

    def work() -> None:
        plan = _long_plan(many)
        plan.fingerprint(), plan.guarantee()

    return work


def _trained(many: int, folder: Path) -> Work:
    """A whole training, nothing kept."""
    del folder
    return partial(_train, many, None)


def _kept(many: int, folder: Path) -> Work:
    """The same with a ledger and a checkpoint, as a real server and its silos keep them."""
    return partial(_train, many, folder)


def _train(many: int, folder: Path | None) -> None:
    problems = split(random_records(4 * EACH), 4)
    plan, params = _long_plan(many), Linear("softmax", FEATURES, CLASSES).initial(0)
    if folder is None:
        made = rounds(plan, problems, params)
    else:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            account = Account(
                Ledger(Path(place) / "ledger.sqlite"), "growth", budget=Budget(9.0, 1e-5)
            )
            made = rounds(plan, problems, params, account, checkpoint=Checkpoint(Path(place)))
            assert sum(1 for _ in made) == many
            return
    assert sum(1 for _ in made) == many


ROUNDS_EACH = 100
"""Rounds of one training in the ledgers that are opened."""


def _ledger(rows: int, folder: Path) -> Ledger:
    """A silo's ledger with that many rows: trainings of 100 rounds, each entered and confirmed.

    Every row is made from those that a true training of one round has left.
    """
    ledger = Ledger(folder / "ledger.sqlite")
    _enter(ledger, "first", 0)
    _, *known = ({n: v for n, v in row.body.items() if n != "write"} for row in ledger.rows())

    def write(balance: Balance, append: Callable[..., Row]) -> None:
        for body in islice(_bodies(balance, *known), rows - balance.last):
            append(**body)

    ledger.change(write)
    return ledger


def _bodies(balance: Balance, claim: Body, entry: Body, confirm: Body) -> Iterator[Body]:
    """The rows of one training after the other, each as soon as the one before it is written."""
    for training in count():
        name = {"training": f"t{training}"}
        yield claim | name
        for place in range(ROUNDS_EACH):
            yield entry | name | {"round": place}
            yield confirm | {"rows": [balance.last]}


def _enter(ledger: Ledger, training: str, at: int) -> None:
    """Enrol in a training, and enter a round of it."""
    plan = _one_silo()
    account = Account(ledger, "growth", divided=False)
    if not ledger.budget_of("growth"):
        ledger.declare(account.key(plan, 0), Budget(1e6, 1e-5))
    account.admit(plan, training, 0)
    account.confirm(account.begin(plan, Broadcast(at, torch.zeros(1), training=training), _SILO))


_SILO = ClientState(0)


@cache
def _one_silo() -> Plan:
    return _plan_for(1)


def _opened(rows: int, folder: Path) -> Work:
    """Opening a ledger: its rows are read, checked and added up."""
    path = _ledger(rows, folder).path
    return lambda: Ledger(path).balance()


def _verified(rows: int, folder: Path) -> Work:
    """``dpfed ledger verify``."""
    ledger = _ledger(rows, folder)

    def work() -> None:
        assert not ledger.verify()

    return work


def _entry(rows: int, folder: Path) -> Work:
    """Entering a round of a new training into an open ledger, and confirming it."""
    ledger, names = _ledger(rows, folder), count()
    return lambda: _enter(ledger, f"new{next(names)}", 0)


LEDGER = steps(10, 100_000)
SILOS = (3, 10, 50, 100, 200, 300, 500)
PARAMETERS = (100, 10_000, *steps(10**6, 10**8))
LINES = (
    Line("clients", "a round, all in one process", _round_of, steps(10, 100_000)),
    Line("clients", "the same with a ledger", _entered_round_of, steps(10, 100_000)),
    Line("clients", "showing their accounts", _accounts_of, steps(10, 30_000)),
    Line("clients", "making the plan", _plan_of, steps(10, 100_000)),
    Line("parameters", "one client", _answer_by_parameters, PARAMETERS),
    Line("parameters", "the server, 10 clients", _server_by_parameters, PARAMETERS),
    Line("records", "one client", _answer_by_records, steps(1_000, 10**7)),
    Line("silos", "secure sum, the server", _secure_server, SILOS),
    Line("silos", "secure sum, one silo", _secure_client, SILOS),
    Line("rounds", "making the plan", _planned, steps(10, 100_000)),
    Line("rounds", "a training", _trained, steps(10, 100_000)),
    Line("rounds", "the same, kept on disk", _kept, steps(10, 100_000)),
    Line("rows of a ledger", "opening it", _opened, LEDGER),
    Line("rows of a ledger", "verifying it", _verified, LEDGER),
    Line("rows of a ledger", "one enrolment and entry", _entry, LEDGER),
)


# -------------------------------------------------------------------------------- measuring it


def run() -> list[Result]:
    """Each line's exponents, with its points in the detail."""
    return [result for line in LINES for result in results_of(line, _points(line))]


def _points(line: Line) -> list[Point]:
    points: list[Point] = []
    for size in line.sizes:
        points.append(_next_point(line, points, size))
    return points


def _next_point(line: Line, points: Sequence[Point], size: int) -> Point:
    """Measured if it is expected to fit; once one was not, those above are extrapolated, too."""
    if not points:
        return measured(line, size)
    due = extrapolated(points, size)
    fits = due.seconds < MOST_SECONDS and due.bytes < MOST_BYTES
    if len(points) < 3 or (fits and points[-1].measured):
        return measured(line, size)
    return due


def measured(line: Line, size: int) -> Point:
    """A point, measured in a process of its own that has loaded all it needs beforehand."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["dpfed_lab.benchmarks.growth"])
    with ProcessPoolExecutor(1, context) as pool:
        seconds, held = pool.submit(taken, LINES.index(line), size).result()
    sys.stderr.write(f"  {line.axis} {size:,}, {line.name}: {seconds:.3g} s, {held / 1e6:.3g} MB\n")
    return Point(size, seconds, held)


def taken(place: int, size: int) -> tuple[float, int]:
    """In the child: seconds of a run, and the bytes at the peak of making and running it.

    Args:
        place: of the line.
        size: to run it at.
    """
    line, shared = LINES[place], Path("/dev/shm")  # noqa: S108 (memory, not a secret)
    logging.getLogger("dpfed").setLevel(logging.ERROR)  # of plans that could learn nothing
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder, threads(1):
        for name in ("warm", "timed"):
            (Path(folder) / name).mkdir()
        line.build(line.sizes[0], Path(folder) / "warm")()  # loads what is loaded late
        seconds: list[float] = []

        def first() -> Work:
            work = line.build(size, Path(folder) / "timed")
            seconds.append(_timed(work))
            return work

        held, work = peak_above(first)
        assert callable(work)
        # the first run also makes what later ones find: a rehearsal, blocks of records
        seconds += [_timed(work) for _ in range(2 if seconds[0] < SHORT_SECONDS else 1)]
        return statistics.median_low(seconds), held


def _timed(work: Work) -> float:
    gc.collect()
    began = time.process_time()
    counted = work()
    return counted if isinstance(counted, float) else time.process_time() - began


def results_of(line: Line, points: Sequence[Point]) -> Iterator[Result]:
    """A line of the table for seconds, and one for memory if there is enough of it to tell.

    Args:
        line: what was run.
        points: all sizes, the smallest first.
    """
    last = [each for each in points if each.measured][-1].size
    for what, found in exponents(points).items():
        kept: dict[str, Any] = {"axis": line.axis, "line": line.name, "of": what}
        kept |= {"spread": found.spread, "measured_to": last}
        if what == "seconds":
            kept["points"] = [asdict(each) for each in points]
        name = f"{line.axis}: {line.name}, {'memory' if what == 'bytes' else what}"
        target = line.target if what == "seconds" else None
        against = f"linear growth; +- {found.spread:.2f}, measured up to {last:,}"
        yield Result(name, found.exponent, 1.0, "exponent", target, against, kept)


# ------------------------------------------------------------------------------- on the page

BEGIN, END = "<!-- growth.json -->", "<!-- end of growth.json -->"


def with_table(text: str, found: Sequence[Mapping[str, Any]]) -> str:
    """A page's text with the table between its two marks made anew.

    Args:
        text: the page.
        found: the results, as growth.json has them.
    """
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{page_table(found)}\n\n{END}{rest.split(END)[1]}"


def page_table(found: Sequence[Mapping[str, Any]]) -> str:
    """Every line: its exponents, the largest size that was measured, and where the axis ends."""
    rows = [
        "| by | what | power of time | of memory | largest measured | by the power, not run |",
        "|---|---|---|---|---|---|",
    ]
    for each in found:
        kept = each["detail"]
        if kept["of"] == "seconds":
            rows.append(f"| {' | '.join(_cells(each, found))} |")
    return "\n".join(rows)


def _cells(time: Mapping[str, Any], found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    kept = time["detail"]
    memory = next(
        (
            each
            for each in found
            if each["detail"]["of"] == "bytes" and _named(each) == _named(time)
        ),
        None,
    )
    points = [Point(**each) for each in kept["points"]]
    seen = [each for each in points if each.measured]
    yield from _named(time)
    yield _power(time)
    yield "" if memory is None else _power(memory)
    yield _cost(seen[-1])
    yield "" if points[-1].measured else f"~ {_cost(points[-1])}"


def _named(result: Mapping[str, Any]) -> tuple[str, str]:
    return result["detail"]["axis"], result["detail"]["line"]


def _power(result: Mapping[str, Any]) -> str:
    return f"{result['measured']:.2f} ± {result['detail']['spread']:.2f}"


def _cost(point: Point) -> str:
    held = f", {_bytes(point.bytes)}" if point.bytes >= TELLING_BYTES else ""
    return f"{point.size:,}: {_seconds(point.seconds)}{held}"


def _seconds(seconds: float) -> str:
    if seconds < 1:
        return f"{1e3 * seconds:.2g} ms" if seconds < 0.0995 else f"{1e3 * seconds:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def _bytes(held: float) -> str:
    return f"{held / 1e6:.0f} MB" if held < 1e9 else f"{held / 1e9:.1f} GB"


def main() -> None:
    """Write a page's table anew: ``python -m dpfed_lab.benchmarks.growth growth.json PAGE``."""
    kept, page = map(Path, sys.argv[1:])
    found = json.loads(kept.read_text(encoding="utf-8"))["results"]["growth"]
    page.write_text(with_table(page.read_text(encoding="utf-8"), found), encoding="utf-8")


if __name__ == "__main__":
    main()
