# SPDX-License-Identifier: Apache-2.0
"""TensorBoard: ``tensorboard --logdir runs`` shows the curves during the run.

A resumed run writes its earlier rounds anew, and hides what the process that died had written.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dpfed.core.extras import require_extra
from dpfed.recipes.sinks._open import About, Add
from dpfed.training.history import Row, numbers


@contextmanager
def tensorboard(about: About) -> Iterator[Add]:
    """Curves of all columns that are numbers, and the guarantee as a text: planned, then spent."""
    with require_extra("tensorboard", "sink 'tensorboard'"):
        from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(about.folder / "tensorboard"), purge_step=0)

    def add(row: Row) -> None:
        for name, value in numbers(row).items():
            writer.add_scalar(name, value, row["round"])
        writer.flush()

    try:
        writer.add_text("planned_guarantee", about.guarantee)
        yield add
    finally:
        if about.finished:
            writer.add_text("guarantee", about.finished)
        writer.close()
