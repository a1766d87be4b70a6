# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: D301  click cuts the help at \f
"""``dpfed data check``, which looks at an owner's records, and ``dpfed data get``: public sets.

Guarantee of ``check``: it reads the records on this machine, prints to this screen, and writes
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from dpfed.data.catalogue import PublicSet
    from dpfed.data.compare import Finding
    from dpfed.data.datasets import Dataset, Records
    from dpfed.data.readers import Public
    from dpfed.data.screen import ColumnScreen, Screen
    from dpfed.recipes.schema import DataRecipe

data_app = typer.Typer(
    help="Check your own records before anything is trained on them; fetch public data sets.",
    no_args_is_help=True,
)


@data_app.command("check")
def check_data(
    source: Annotated[
        str,
        typer.Argument(help="A recipe, a silo's policy, a file, a folder or a pattern ('*.csv')."),
    ],
    y: Annotated[str | None, typer.Option("--y", help="The label's column.")] = None,
    groups: Annotated[str | None, typer.Option(help="The column that names the person.")] = None,
    silo: Annotated[str | None, typer.Option(help="The column that names the silo.")] = None,
    skeleton: Annotated[
        bool, typer.Option("--skeleton", help="Print a data.schema table to fill in.")
    ] = False,
    contract: Annotated[
        Path | None, typer.Option(help="A contract to compare the files with.")
    ] = None,
) -> None:
    """Report for each column what is missing, out of range, constant, unscaled or left out.

    With a contract (--contract, or a recipe's or policy's own) it says what differs from it: whose
    file, which line and column.

    The output reveals records: show it only to people who may read them. Nothing is sent or
    written. Exits with 1 while there is something to decide, otherwise with 0.

    Example: dpfed data check visits.csv --y ill --groups patient

    \f

    Args:
        source: a recipe or a policy (.toml), or data as ``data.source`` takes it.
        y: the label's column, if it is not "y" or "label".
        groups: the column that names the person.
        silo: the column that names the silo.
        skeleton: print a schema with the columns' names, and no figure of the data.
        contract: a contract's file, for data that is named by its path.
    """
    given = {name: v for name, v in (("y", y), ("groups", groups), ("silo", silo)) if v is not None}
    found = 0
    for label, table, root, public in _tables(source, given, contract):
        from dpfed.recipes.schema import Recipe
        from dpfed.recipes.screened import screened_dataset

        differing = contract_findings(table, root)
        found += len(differing)
        for each in differing:
            colour = typer.colors.RED if each.blocks else typer.colors.YELLOW
            typer.secho(f"{'WRONG' if each.blocks else 'look at'}: {each.said}", fg=colour)
        if any(each.blocks for each in differing):
            continue
        dataset, screen = screened_dataset(Recipe(data=table), root, public)
        if skeleton:
            typer.echo("\n".join(_skeleton(dataset)))
            continue
        typer.echo("\n".join([*([f"[data.{label}]"] if label else []), *_report(dataset, screen)]))
        findings = screen.findings()
        found += len(findings)
        for sentence in findings:
            typer.secho(f"look at: {sentence}", fg=typer.colors.YELLOW)
    raise typer.Exit(1 if found else 0)


def contract_findings(load: DataRecipe, root: Path | None = None) -> list[Finding]:
    """What differs between each of an owner's files and the contract; nothing without one.

    Args:
        load: a recipe's table ``data``.
        root: where a relative path is looked up, after the working directory.
    """
    from dpfed.data.contract import Contract
    from dpfed.data.mapping import FileMapping
    from dpfed.data.places import find_files
    from dpfed.data.readers import SPLIT
    from dpfed.recipes.schema import with_contract

    load = with_contract(load, root)
    if not isinstance(load.contract, Contract):
        return []
    own = load.mapping if isinstance(load.mapping, FileMapping) else None
    from dpfed.data.compare import compare

    files = find_files(load.source, root)
    named = (load.options.get("split", SPLIT), load.options.get("silo"))
    beside = {str(name) for name in named if name}
    return [each for path in files for each in compare(path, load.contract, own, beside)]


@data_app.command("describe")
def describe_data(
    file: Annotated[Path, typer.Argument(help="A table: .csv or .parquet.")],
    y: Annotated[str | None, typer.Option("--y", help="The label's column.")] = None,
    person: Annotated[str | None, typer.Option(help="The column that names the person.")] = None,
) -> None:
    """Draft a contract from a table; what was read off its records is marked.

    The draft is as private as the table. Terms refuse it until every marked value is replaced by
    what is known in public.

    Example: dpfed data describe visits.csv --y ill > contract.toml

    \f

    Args:
        file: the table.
        y: the label's column; "y", "label" or the last one if left out.
        person: the column that names the person.
    """
    from dpfed.data.draft_contract import describe

    typer.echo(describe(file, y, person), nl=False)


def _tables(
    source: str, given: dict[str, Any], contract: Path | None = None
) -> Iterator[tuple[str, DataRecipe, Path | None, Public | None]]:
    """Each table of data: its name in a policy, what it says, where its paths begin, its labels."""
    from dpfed.recipes.schema import DataRecipe, load_recipe, read_toml
    from dpfed.silo.policy import load_policy

    path = Path(source)
    if path.suffix != ".toml":
        read_by = None if contract is None else str(contract.resolve())
        yield "", DataRecipe(source=source, options=given, contract=read_by), None, None
    elif path.is_file() and "gate" in read_toml(path):
        for name, data in load_policy(path).data.items():
            yield name, data.load, None, data.public
    else:
        yield "", load_recipe(path).data, path.resolve().parent, None


# ----------------------------------------------------------------------------------- public sets


@data_app.command("get")
def get_data(
    name: Annotated[
        str | None, typer.Argument(help="The set; without one, all are listed.")
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(help="The data folder. Default: the first of DPFED_DATA, or the user's own."),
    ] = None,
    origin: Annotated[
        str | None,
        typer.Option("--from", help="Another https address, a file, or a folder with the files."),
    ] = None,
) -> None:
    """Fetch a public data set, check it, and write the .npz that studies read; or list all sets.

    An interrupted download is continued by the same command. Recipes and studies find the file
    without further settings.

    Example: dpfed data get cifar10

    \f

    Args:
        name: the set, as the list calls it.
        to: the data folder.
        origin: where to take the files from, with the same sizes and checksums.
    """
    from dpfed.core.errors import DataError
    from dpfed.data.catalogue import CATALOGUE

    if name is None:
        typer.echo("\n\n".join("\n".join(_described(entry)) for entry in CATALOGUE.values()))
        return
    if name not in CATALOGUE:
        raise DataError(f"there is no set {name!r}; there are {', '.join(CATALOGUE)}")
    entry, folder = CATALOGUE[name], _data_folder(to)
    typer.echo("\n".join(_described(entry)))
    if (folder / entry.path).exists():
        typer.echo(f"{folder / entry.path} is there already; to fetch it again, delete it")
        return
    path = _fetch(entry, folder, origin)
    typer.echo(f"wrote {path}: recipes and studies name it {entry.path!r}")
    if not _is_found(path, entry.path):
        typer.echo(f"to let them find it, set DPFED_DATA={folder}")


def _described(entry: PublicSet) -> Iterator[str]:
    yield f"{entry.name}: {entry.about}"
    yield f"  download  {entry.size / 1e6:,.1f} MB from {entry.files[0].url.split('/')[2]}"
    yield f"  file      {entry.path}"
    yield f"  licence   {entry.licence}"
    yield f"  cite      {entry.citation}"
    yield f"  checked   {entry.checked}"


def _data_folder(to: Path | None) -> Path:
    from dpfed.core.environment import data_folders, user_data_folder
    from dpfed.core.errors import DataError

    folder = to or next(iter(data_folders()), None) or user_data_folder()
    if folder is None:
        raise DataError("this user has no home folder; give a folder by --to, or set DPFED_DATA")
    return folder.expanduser().resolve()


def _is_found(path: Path, source: str) -> bool:
    from dpfed.core.errors import DataError
    from dpfed.data.places import find_file

    try:
        return find_file(source).resolve() == path.resolve()
    except DataError:
        return False


def _fetch(entry: PublicSet, folder: Path, origin: str | None) -> Path:
    """Fetch it under a bar with speed and time left; a log file gets only the last line."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    from dpfed.data.catalogue import get

    shown = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    with shown:
        task = shown.add_task(entry.name, total=entry.size, visible=False)
        return get(
            entry,
            folder,
            origin,
            lambda done, total: shown.update(task, completed=done, total=total, visible=True),
        )


# ----------------------------------------------------------------------------------------- words


def screen_lines(load: DataRecipe, public: Public | None = None) -> list[str]:
    """What the owner should look at in the records before approving a training."""
    from dpfed.core.errors import DataError, MissingExtra
    from dpfed.recipes.schema import Recipe
    from dpfed.recipes.screened import screened_dataset

    try:
        _, found = screened_dataset(Recipe(data=load), None, public)
    except (DataError, MissingExtra, OSError) as error:
        return [f"the records cannot be read here: {error}"]
    differing = [each.said for each in contract_findings(load)]
    lost = [f"{found.lost}, as data.missing says"] if found.missing and found.lost else []
    return [*differing, *found.findings(), *lost] or ["every record is used; nothing to decide"]


def _report(dataset: Dataset, found: Screen) -> Iterator[str]:
    records = dataset.train
    total = len(records) + (0 if dataset.test is None else len(dataset.test))
    shape = "x".join(str(size) for size in records.x.shape[1:])
    labels = "numbers" if dataset.classes is None else f"{dataset.classes} classes"
    yield f"{dataset.source}: {total:,} records of {shape} features, labels: {labels}"
    if dataset.table and dataset.table.words:
        agreed = dataset.contract is not None
        yield _agreed(dataset.table.words) if agreed else _numbered(dataset.table.words)
    yield from _who(records)
    yield from _columns(found)
    if found.missing == "fill" and found.incomplete:
        yield f"{found.incomplete:,} records have a missing value, which is filled"
    elif found.missing and found.lost:
        yield f"{found.lost}, as data.missing = 'drop' says"


def _agreed(words: Sequence[str]) -> str:
    return f"labels are numbered by the contract: {_places(words)}"


def _places(words: Sequence[str]) -> str:
    listed = ", ".join(f"{word} is {place}" for place, word in enumerate(words[:6]))
    return listed + (f" and {len(words) - 6} more" if len(words) > 6 else "")


def _numbered(words: Sequence[str]) -> str:
    return (
        f"labels are numbered by what is in here: {_places(words)}. Where each silo reads a file "
        "of its own, write the numbers instead: a file without one of the words would shift the "
        "others"
    )


def _who(records: Records) -> Iterator[str]:
    """How many silos and persons: a number means another person in another silo."""
    persons = [] if records.groups is None else records.groups.tolist()
    silos = [0] * len(records) if records.silos is None else records.silos.tolist()
    if persons:
        yield f"{len(set(zip(silos, persons, strict=True))):,} persons in the training records"
    if records.silos is not None:
        yield f"{len(set(silos)):,} silos"


def _columns(found: Screen) -> Iterator[str]:
    if not found.columns:
        return
    wide = max(6, *(len(column.name) for column in found.columns))
    yield f"{'column':{wide}} {'missing':>8} {'outside':>8} {'lowest':>11} {'highest':>11}"
    for column in found.columns:
        yield f"{column.name:{wide}} {column.missing:8} {column.outside:8} {_range(column)}"


def _range(column: ColumnScreen) -> str:
    if math.isinf(column.low):
        return f"{'--':>11} {'--':>11}"
    end = "  constant" if column.constant else ""
    return f"{column.low:11.4g} {column.high:11.4g}{end}"


def _skeleton(dataset: Dataset) -> Iterator[str]:
    """A schema with column names only: ranges read from the records would leak them."""
    table = dataset.table
    yield "[data.schema]"
    for name in table.features if table else ():
        yield f"{_key(name)} = []  # CHANGE: [lowest, highest], as is known in public"
    for said in table.left_out if table else ():
        yield f'{_key(said.rpartition(" (")[0])} = []  # CHANGE: ["word", ...], or leave it out'


def _key(name: str) -> str:
    plain = name.replace("_", "").replace("-", "").isalnum() and name.isascii()
    return name if plain else f'"{name}"'
