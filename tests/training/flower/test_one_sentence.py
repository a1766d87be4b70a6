# SPDX-License-Identifier: Apache-2.0
"""A ServerApp's error in the log: dpfed's own in one sentence, another library's in full."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpfed.core.errors import BudgetSpent
from dpfed.training.flower.strategy import ShortErrors, errors_in_one_sentence


@pytest.fixture
def flower() -> Iterator[tuple[logging.Logger, io.StringIO]]:
    logger, said = logging.getLogger("flwr"), io.StringIO()
    handler, filters = logging.StreamHandler(said), list(logger.filters)
    logger.addHandler(handler)
    yield logger, said
    logger.removeHandler(handler)
    logger.filters = filters


def raised(logger: logging.Logger, error: Exception) -> None:
    """As flwr-serverapp does it."""
    try:
        raise error
    except Exception as caught:
        logger.log(logging.ERROR, "%s raised an exception", "ServerApp", exc_info=caught)


def test_an_error_of_ours_is_one_line_and_its_traceback_a_file(
    flower: tuple[logging.Logger, io.StringIO], tmp_path: Path
) -> None:
    logger, said = flower
    errors_in_one_sentence()
    errors_in_one_sentence(tmp_path)
    assert sum(isinstance(each, ShortErrors) for each in logger.filters) == 1
    raised(logger, BudgetSpent("the budget of 'ward' is spent; raise it"))
    place = tmp_path / "error.txt"
    assert said.getvalue() == (
        "ServerApp raised an exception: BudgetSpent: the budget of 'ward' is spent; raise it "
        f"(traceback in {place})\n"
    )
    assert "in raised" in place.read_text()


def test_any_other_error_keeps_its_traceback(
    flower: tuple[logging.Logger, io.StringIO], tmp_path: Path
) -> None:
    logger, said = flower
    errors_in_one_sentence(tmp_path)
    raised(logger, ZeroDivisionError("oh"))
    logger.error("plain words")
    assert "Traceback" in said.getvalue()
    assert "plain words" in said.getvalue()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_to_hides_no_error(
    flower: tuple[logging.Logger, io.StringIO], tmp_path: Path
) -> None:
    logger, said = flower
    errors_in_one_sentence(tmp_path / "not there")
    raised(logger, BudgetSpent("spent; wait"))
    assert said.getvalue() == "ServerApp raised an exception: BudgetSpent: spent; wait\n"
