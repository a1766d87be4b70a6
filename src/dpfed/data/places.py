# SPDX-License-Identifier: Apache-2.0
"""Where the files of a data set are: a path, a pattern, a folder of tables, a name of the package.

A relative path is looked up as given, then under ``root``, then under each directory of $DPFED_DATA
(several are separated as in $PATH: by a colon, or by a semicolon on Windows), then in the user's
folder, where ``dpfed data get`` puts public data sets (catalogue.py).

Nothing is read, and torch is not imported: a silo's owner asks for a status without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dpfed.core.environment import DATA, data_folders, user_data_folder
from dpfed.core.errors import DataError
from dpfed.data._checks import bad_option

TABLES = (".csv", ".parquet")
"""The endings of tables."""


def tables_in(folder: Path) -> list[Path]:
    """The tables that lie in a folder, by name."""
    return sorted(path for path in folder.iterdir() if path.suffix in TABLES)


def find_files(source: str | Path | Sequence[str | Path], root: Path | None = None) -> list[Path]:
    """The files of a path, a pattern, a list, or a directory of tables; in order."""
    if not isinstance(source, str | Path):
        if not source:
            raise DataError("data.source is an empty list; name one file or more")
        return [path for each in source for path in find_files(each, root)]
    if matched := _matching(Path(source).expanduser(), root):
        return matched
    path = find_file(source, root)
    inside = tables_in(path) if path.is_dir() else []
    return inside or [path]


def _matching(source: Path, root: Path | None) -> list[Path]:
    """The files of a pattern, in the first place that has any; none if it is a plain path."""
    wild = [any(sign in part for sign in "*?[") for part in source.parts]
    if not any(wild) or source.exists():
        return []
    last = len(wild) - wild.index(True)  # parts of the pattern; the root may contain such signs
    for place in _places(source, root):
        found = sorted(Path(*place.parts[:-last]).glob("/".join(place.parts[-last:])))
        if found:
            return found
    return []


def find_file(source: str | Path, root: Path | None = None) -> Path:
    """The first of: ``source`` as given, under ``root``, $DPFED_DATA's, the user's folder.

    ``dpfed:NAME`` is a file of the package.
    """
    if str(source).startswith(_PACKAGE):
        return _shipped(str(source).removeprefix(_PACKAGE))
    places = _places(source, root)
    for place in places:
        if place.exists():
            return place
    tried = ", ".join(str(place) for place in places)
    raise DataError(f"{str(source)!r} was not found at {tried}; {_way_out(source)}")


def _way_out(source: str | Path) -> str:
    from dpfed.data.catalogue import name_of

    name = name_of(source)
    fetch = "" if name is None else f"fetch it by 'dpfed data get {name}', "
    return f"{fetch}set {DATA} or give a path"


_PACKAGE = "dpfed:"
_SHIPPED = Path(__file__).parent / "shipped"


def _shipped(name: str) -> Path:
    known = sorted(path.stem for path in _SHIPPED.glob("*.npz"))
    if name not in known:
        there = ", ".join(_PACKAGE + each for each in known)
        raise bad_option("data.source", there, _PACKAGE + name, "nothing else comes with dpfed")
    return _SHIPPED / f"{name}.npz"


def _places(source: str | Path, root: Path | None) -> list[Path]:
    path = Path(source).expanduser()
    if path.is_absolute():
        return [path]
    parents = (root, *data_folders(), user_data_folder())
    return [path, *(parent.expanduser() / path for parent in parents if parent)]
