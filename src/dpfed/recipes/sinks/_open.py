# SPDX-License-Identifier: Apache-2.0
"""Sinks: where a run's rows go during the run, in addition to the files that it leaves.

    about = About("ward", Path("out"), plan.guarantee().sentence)
    with open_sinks(("csv", "tensorboard"), about) as add:
        result = DPStrategy(plan, watch=add).start(grid, arrays)
        about.finished = str(result.guarantee)

A sink is one file of ``sinks/`` (or an entry point of the group ``dpfed.sinks``): a context manager
that is given ``About`` and yields ``add``. At its close ``About.finished`` is what was spent.

| edge case                         | what happens                                              |
|-----------------------------------|-----------------------------------------------------------|
| an unknown sink, a missing extra  | an error before the first round: nothing is spent         |
| a sink fails during the run       | it is left out from there on, with one warning: a         |
|                                   | dashboard that is down must not waste a round             |
| a sink fails at its close         | a warning                                                 |
| a row with columns of its own     | numbers get through, as ``evaluate_fn`` returns them on   |
|                                   | the server; texts and lists do not                        |
| a run that dies, or does not say  | the sink has the planned guarantee, which is called that, |
| what it spent                     | and no other                                              |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpfed.core.errors import MissingExtra, RecipeError
from dpfed.core.log import log
from dpfed.core.registry import find
from dpfed.training.history import COLUMNS, Row, with_own_numbers

Add = Callable[[Row], None]
"""Takes one round's row."""


@dataclass
class About:
    """What a sink is told of a run: before its first round, except ``finished``.

    Args:
        name: the run's name.
        folder: where a sink writes.
        guarantee: the text of the plan's guarantee.
        settings: the recipe's values by their dotted keys.
        columns: the names of a row's numbers.
        finished: the text of the guarantee for what was spent, once the run has ended.

    >>> About("first", Path("out"), guarantee="epsilon 1").name
    'first'
    """

    name: str
    folder: Path
    guarantee: str = ""
    """The sentence of the whole run, as planned."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    columns: Sequence[str] = COLUMNS
    """The columns of the rows: ``columns_of(plan)`` if a plan names metrics of its own."""
    finished: str = ""
    """The sentence of what was spent: whoever runs sets it before the sinks are closed."""


@contextmanager
def open_sinks(names: Sequence[str], about: About) -> Iterator[Add]:
    """All of these sinks as one.

    Args:
        names: csv, tensorboard, mlflow, wandb, or another package's.
        about: what the sinks are told of the run.

    Returns:
        a context; inside of it a function takes each round's row.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with open_sinks(["csv"], About("first", Path(folder))) as add:
    ...         add({"round": 1, "accuracy": 0.5})
    ...     sorted(path.name for path in Path(folder).iterdir())
    ['metrics.csv']
    """
    factories = {name: find("sinks", name) for name in names}
    about.folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        sinks = [
            stack.enter_context(_forgiving(name, make(about))) for name, make in factories.items()
        ]

        def add(row: Mapping[str, Any]) -> None:
            for sink in sinks:
                sink(with_own_numbers(row, about.columns))

        yield add


@contextmanager
def _forgiving(name: str, sink: AbstractContextManager[Add]) -> Iterator[Add]:
    """The sink; once it fails nothing more goes there, and training continues."""
    add, broken = _open(name, sink), False

    def careful(row: Row) -> None:
        nonlocal broken
        if not broken:
            try:
                add(row)
            except Exception as error:
                broken = True
                log.warning("sink %r gets no more rounds, since it failed: %s", name, error)

    failure: BaseException | None = None
    try:
        yield careful
    except BaseException as error:
        failure = error
        raise
    finally:
        _close(name, sink, failure)


def _open(name: str, sink: AbstractContextManager[Add]) -> Add:
    try:
        return sink.__enter__()
    except (RecipeError, MissingExtra):
        raise
    except Exception as error:
        raise RecipeError(
            f"sink {name!r} cannot be opened ({error}); fix that, or run without --sink {name}"
        ) from error


def _close(name: str, sink: AbstractContextManager[Add], failure: BaseException | None) -> None:
    try:
        sink.__exit__(type(failure) if failure else None, failure, None)
    except Exception as error:
        if error is not failure:
            log.warning("sink %r did not close: %s", name, error)
