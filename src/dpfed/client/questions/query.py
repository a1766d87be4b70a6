# SPDX-License-Identifier: Apache-2.0
"""From the tables of a query to its questions: what does not fit the columns is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dpfed.client.questions.cells import MOST_CELLS
from dpfed.client.questions.columns import Column, Columns
from dpfed.client.questions.rows import Question
from dpfed.core.checks import refuse
from dpfed.core.errors import RecipeError

MOST_QUESTIONS = 200
"""In one query."""


def read_questions(tables: Sequence[Mapping[str, Any]], columns: Columns) -> tuple[Question, ...]:
    """The questions of a query, checked against what is public of the columns.

    Args:
        tables: one for each question: name, kind, and the kind's own keys.
        columns: by name.
    """
    if not 1 <= len(tables) <= MOST_QUESTIONS:
        raise refuse("questions", f"from 1 to {MOST_QUESTIONS}", len(tables), "ask others later")
    made = tuple(_read(table, columns) for table in tables)
    names = [question.name for question in made]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise refuse("questions", "of different names", twice[0], "name each of them once")
    return made


def _read(table: Mapping[str, Any], columns: Columns) -> Question:
    name = table.get("name")
    try:
        question: Question = msgspec.convert(_filled(table, columns), Question)
    except msgspec.ValidationError as error:
        raise RecipeError(
            f"question {name!r} cannot be read ({error}); see docs/statistics.md"
        ) from error
    for column in question.used:
        if column not in columns:
            raise refuse(
                f"a column of question {question.name!r}",
                f"one of {', '.join(list(columns)[:20])}",
                column,
                "correct its name",
            )
    for column in question.numbers:
        if columns[column].words:
            raise refuse(
                f"column {column!r} of question {question.name!r}",
                "numbers",
                list(columns[column].words)[:5],
                "ask for its histogram, or name another column",
            )
    for column, value in question.where.items():
        _check_where(question.name, column, columns[column], value)
    question.check(columns)
    return question


def _filled(table: Mapping[str, Any], columns: Columns) -> dict[str, Any]:
    """The table with what follows from its columns: words of a category, cells of a grid."""
    made = dict(table)
    for key, edges, words in (("column", "edges", "words"), ("by", "by_edges", "by_words")):
        column = columns.get(str(made.get(key)))
        if column is not None and column.words and made.get("kind") in ("histogram", "table"):
            made.setdefault(words, list(column.words))
        elif column is not None and isinstance(cells := made.pop("cells", None), int):
            if not 1 <= cells <= MOST_CELLS:
                raise refuse(f"cells of {made.get('name')!r}", f"from 1 to {MOST_CELLS}", cells)
            made.setdefault(edges, column.grid(cells))
    column = columns.get(str(made.get("column")))
    if column is not None and made.get("kind") == "quantiles":
        made.setdefault("edges", column.grid(64))
    return made


def _check_where(name: str, key: str, column: Column, value: str | float | list[float]) -> None:
    label = f"where.{key} of question {name!r}"
    if column.words:
        if value not in column.words:
            raise refuse(label, f"one of {', '.join(column.words[:20])}", value, "name a word")
    elif isinstance(value, str):
        raise refuse(label, "a number, or [from, below]", value, "its column holds numbers")
    elif isinstance(value, list) and not (len(value) == 2 and value[0] < value[1]):
        raise refuse(label, "[from, below], the first below the second", value)
