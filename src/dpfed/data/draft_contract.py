# SPDX-License-Identifier: Apache-2.0
"""A draft of a contract from one owner's file, with a mark where a value was read off records.

Guarantee: terms refuse a contract with such a mark, so that nobody agrees to a private value by
mistake. The draft itself is as private as the file.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from dpfed.core.errors import DataError
from dpfed.core.log import shown
from dpfed.data.cells import number, spelling, text
from dpfed.data.compare import MOST, MOST_CODES
from dpfed.data.contract import DEFAULT_ABSENT, MAX_CHARACTERS, is_missing
from dpfed.data.mapping import with_point
from dpfed.data.readers import SPLIT
from dpfed.data.sheets import read_header, read_lines

MOST_DRAFTED = 50
"""Words of a column that a draft lists; of a column with more, none."""
_COMMA = '  # its numbers have a decimal comma: say decimal = "," in data.mapping'
_TOO_MANY = f"  # more than {MOST_DRAFTED} words: if it is a name, a date or a text, take it out"


def describe(path: Path, label: str | None = None, person: str | None = None) -> str:
    """A draft of a contract from one owner's file, as TOML; what was read off records is marked.

    Args:
        path: a .csv or .parquet.
        label: the label's column; None takes "y", "label" or the last one.
        person: the column of persons; None is none.
    """
    header = read_header(path)
    names = header.names
    last = next((each for each in reversed(names) if each != SPLIT), names[-1])
    found = label or next((each for each in ("y", "label") if each in names), last)
    for each in filter(None, (found, person)):
        if each not in names:
            raise DataError(f"{path.name!r} has no column {shown(each)!r}; name one of its own")
    columns = _cells_by_column(path)
    lines = [
        "# A draft. What is under from_records was read off private records: replace it by what is",
        "# known in public (or by private statistics), then take from_records out. Until then no",
        "# terms take it.",
        'row = "one record"  # CHANGE: what a row stands for',
        *([f"person = {_quoted(person)}"] if person else []),
        *([f"# {SPLIT!r} says which records are for testing: it is no feature"] * (SPLIT in names)),
        "columns = [",
    ]
    kept = [name for name in names if name not in (found, person, SPLIT)]
    for name in kept:
        drafted, note = _drafted(name, columns[name])
        lines.append(f"  {drafted},{note}")
    lines += ["]", f"label = {_drafted_label(found, columns[found])}", ""]
    return "\n".join(lines)


def _cells_by_column(path: Path) -> dict[str, list[str]]:
    header = read_header(path)
    made: dict[str, list[str]] = {name: [] for name in header.names}
    for line in read_lines(path, header):
        for name, cell in zip(header.names, line.cells or (), strict=False):
            made[name].append(text(cell))
    return made


def _drafted(name: str, cells: Sequence[str]) -> tuple[str, str]:
    """A column's line, and what to say behind it."""
    known = [cell for cell in cells if not is_missing(cell, DEFAULT_ABSENT)]
    pointed = [with_point(cell.strip()) for cell in known]
    note = _COMMA if _count_numbers(pointed) > max(_count_numbers(known), MOST * len(known)) else ""
    known = pointed if note else known
    numbers = [value for value in map(number, known) if math.isfinite(value)]
    words = Counter(map(spelling, known))
    codes = len(words) <= MOST_CODES and all(value.is_integer() for value in numbers)
    if numbers and len(numbers) > MOST * len(known) and not (codes and len(words) > 2):
        if set(words) <= {"0", "1"}:
            return f'{{name = {_quoted(name)}, kind = "flag", from_records = ["kind"]}}', note
        ends = f"[{min(numbers):g}, {max(numbers):g}]" if min(numbers) < max(numbers) else "[0, 1]"
        drafted = (
            f'{{name = {_quoted(name)}, kind = "number", range = {ends}, from_records = ["range"]}}'
        )
        return drafted, note
    many = len(words) > MOST_DRAFTED
    found = [] if many else [word for word, _ in words.most_common()]
    listed = ", ".join(map(_quoted, found)) or '"CHANGE"'
    drafted = (
        f'{{name = {_quoted(name)}, kind = "category", words = [{listed}], '
        f'from_records = ["words"]}}'
    )
    return drafted, _TOO_MANY if many else ""


def _count_numbers(cells: Sequence[str]) -> int:
    return sum(math.isfinite(number(cell)) for cell in cells)


def _drafted_label(name: str, cells: Sequence[str]) -> str:
    known = [cell for cell in cells if not is_missing(cell, DEFAULT_ABSENT)]
    words = sorted(set(map(spelling, known)))
    if len(words) > MOST_DRAFTED and all(not math.isnan(number(word)) for word in words):
        values = list(map(number, words))
        ends = f"[{min(values):g}, {max(values):g}]"
        return f'{{column = {_quoted(name)}, range = {ends}, from_records = ["range"]}}'
    listed = ", ".join(map(_quoted, words[:MOST_DRAFTED]))
    return f'{{column = {_quoted(name)}, words = [{listed}], from_records = ["words"]}}'


def _quoted(word: str) -> str:
    """A text as TOML has it, without what steers a screen, and not longer than a word may be."""
    return json.dumps(shown(word, MAX_CHARACTERS - 3), ensure_ascii=False)
