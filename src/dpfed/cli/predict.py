# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: D301  click cuts the help at \f
"""``dpfed predict``: a trained model and a file of new records, a file of predictions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpfed.recipes.display import bar, percent

if TYPE_CHECKING:
    from dpfed.bundle.scoring import Tally


def predict(
    model: Annotated[Path, typer.Argument(help="The model's folder, such as out/model.")],
    records: Annotated[Path, typer.Argument(help="New records: .csv, .parquet, or .npz with x.")],
    out: Annotated[Path, typer.Option(help="The .csv to write.")] = Path("scored.csv"),
    keep: Annotated[
        list[str] | None, typer.Option(help="A column to copy, such as an id. Repeatable.")
    ] = None,
    mapping: Annotated[
        Path | None, typer.Option("--map", help="How the file says what the contract means: TOML.")
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="A frozen backbone's weights, if they lie elsewhere.")
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="The pretrained model that an adapter was trained on.")
    ] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Also where most of a column breaks the contract.")
    ] = False,
    quiet: Annotated[bool, typer.Option(help="Show no progress.")] = False,
) -> None:
    """Predict new records with a trained model: the class and all probabilities, or a number.

    The file is read as the training's files were: columns by name, in any order, through the same
    ranges, categories and constants. A column that the file lacks, or that is mostly in other words
    or units than the model's contract has it, is an error that names it. Lines stay in their order.
    --map names a file with the keys of a policy's load.mapping: rename, factor, offset, words,
    decimal.

    If the file has the label's column, the accuracy is printed. Records that are predicted are not
    covered by the model's guarantee; nothing of them is sent or stored but the file that you name.

    Example: dpfed predict out/model new.csv --out scored.csv --keep patient

    \f

    Args:
        model: the folder with model.json.
        records: a table with the model's columns, or an .npz with an array x.
        out: the .csv to write; one of that name is replaced.
        keep: columns of the records that are copied in front of the predictions, by the file's
            own names.
        mapping: how the file says what the model's contract means; None: as the contract does.
        weights: the file of a frozen backbone's weights; None looks where training looked.
        base: the folder, or the name on the hub, of a pretrained model.
        anyway: also predict where most of a column does not fit the model's contract.
        quiet: show no progress bar.
    """
    from dpfed.cli.limits import DAY, all_memory, in_limits

    def work() -> list[str]:
        return _predicted(model, records, out, keep or [], mapping, weights, base, anyway, quiet)

    for line in in_limits(work, DAY, all_memory()):
        typer.echo(line)


def _predicted(
    model: Path,
    records: Path,
    out: Path,
    keep: list[str],
    mapping: Path | None,
    weights: Path | None,
    base: str | None,
    anyway: bool,
    quiet: bool,
) -> list[str]:
    """Write the predictions; returns what is said of them."""
    from dpfed.bundle.scoring import score_file
    from dpfed.bundle.trained import load
    from dpfed.data.sheets import not_utf8

    loaded = load(model, weights=weights, base=base, mapping=mapping)
    with bar(quiet) as shown:
        task = shown.add_task("records", total=None, figures="")
        tally = score_file(
            loaded,
            records,
            out,
            keep,
            watch=lambda done, total: shown.update(task, completed=done, total=max(done, total)),
            anyway=anyway,
        )
        shown.update(task, completed=tally.records, total=tally.records)
    lines = []
    if odd := not_utf8(records):
        lines.append(
            f"{odd[0]:,} lines are not UTF-8 (first: line {odd[1]}), so that words with accents "
            f"may be missing ones; write the file as UTF-8 (iconv -f latin1 -t utf8)"
        )
    said = _said(tally, loaded.description.target)
    return [*lines, *said, f"{tally.records:,} predictions in {out}"]


def _said(tally: Tally, target: str) -> list[str]:
    said = []
    if tally.empty:
        said.append(
            f"{tally.empty:,} records have a missing value that nothing fills: no prediction"
        )
    if tally.accuracy is not None:
        said.append(f"accuracy {percent(tally.accuracy)} on {tally.labelled:,} labelled records")
    elif tally.labelled:
        from dpfed.core.log import shown

        said.append(
            f"accuracy is not computed: {tally.strange:,} labels in {shown(target)!r} are none of "
            f"the classes"
        )
    return said
