# SPDX-License-Identifier: Apache-2.0
"""A finished run as a value, and as files that people use: the same ones from every engine.

metrics.csv, metrics.jsonl   one row per round; over Flower the latter grows during the run
model/                       the model as a bundle (dpfed/bundle): what dpfed.load and dpfed predict
                             take
model.safetensors            the trained parameters, by name
adapter/                     of a model with an adapter: what PeftModel.from_pretrained reads
recipe.toml                  the resolved recipe: ``dpfed run recipe.toml`` repeats the run
convergence.png              accuracy and epsilon against rounds
answers.csv, answers.png     of a query, instead: values with their intervals
guarantee.json               the guarantee, as numbers and as a sentence; written last, so where it
                             is, the others are complete
error.json                   over Flower, instead: the class and sentence of what stopped the run
error.txt                    the whole of that error, for whoever looks into it
training.txt                 over Flower: whose files these are; another training gets a folder of
                             its own
"""

from __future__ import annotations

import csv
import datetime as dt
import json
import math
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

import msgspec

from dpfed.accounting.guarantee import Guarantee
from dpfed.client.questions.answers import Answer
from dpfed.core import errors
from dpfed.core.extras import require_extra, skip_if_missing
from dpfed.core.files import json_line, jsonable, read_json_lines, replace_file
from dpfed.core.html import html_table
from dpfed.core.log import log
from dpfed.core.types import Vector
from dpfed.data.models import Model
from dpfed.data.modules import Network
from dpfed.data.pretrained import has_adapter, save_adapter
from dpfed.recipes import schema as recipes
from dpfed.recipes.answers import (
    ANSWERS_PICTURE,
    ANSWERS_TABLE,
    answers_rows,
    answers_text,
    draw_answers,
)
from dpfed.recipes.display import percent, steps_text
from dpfed.recipes.schema import EvaluationKind, Recipe
from dpfed.training.history import COLUMNS, Row, known, to_frame, wasted_attempts
from dpfed.training.loop import Step
from dpfed.training.stopping import nothing_trained

if TYPE_CHECKING:
    import torch
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from dpfed.bundle.description import Description

# Okabe and Ito's colours: told apart by colour-blind readers
BLUE, VERMILION, GREEN = "#0072B2", "#D55E00", "#009E73"

METRICS_FILE, MODEL_FILE = "metrics.jsonl", "model.safetensors"
ADAPTER_FOLDER, BUNDLE_FOLDER = "adapter", "model"
GUARANTEE_FILE, ERROR_FILE = "guarantee.json", "error.json"
TRAINING_FILE, TRACEBACK_FILE = "training.txt", "error.txt"


@dataclass(frozen=True, eq=False, kw_only=True)
class Result:
    """A finished run: the model, how it got there, and what it guarantees.

    ``save`` writes it as files, ``plot`` draws it, and ``accuracy`` is the last one that was
    measured; ``history`` has one row per attempt at a round.

    >>> from dpfed import run
    >>> made_up = {"records": 60, "features": 3, "classes": 2}
    >>> data = {"options": made_up, "partition": {"clients": 2}}
    >>> result = run(data=data, privacy={"epsilon": 1.0}, rounds=2, method="dp-fedgd")
    >>> result.guarantee.epsilon <= 1.0, [row["round"] for row in result.history]
    (True, [1, 2])
    """

    recipe: Recipe
    model: Model
    params: Vector
    history: list[Row]
    guarantee: Guarantee
    evaluation: str
    source: str
    warnings: tuple[str, ...] = ()
    stopped: str | None = None
    """Why training ended before the plan's last round, if it did."""
    divided: str = ""
    """The column or files that define the clients, if these are natural ones."""
    nominal: tuple[float, ...] = ()
    """Each client's public number of units."""
    rows: str = ""
    """How the rows of a network were clipped, in words; empty for models with only one way."""
    steps: Mapping[str, float] = field(default_factory=dict)
    """What the server stepped by, by name, where its optimizer says so: eta, rho, beta."""
    answered: Mapping[str, Any] = field(default_factory=dict)
    """Who is in the totals of which rounds (``dpfed.training.history.participants``)."""
    answers: tuple[Answer, ...] = ()
    """Of a query: what came back for each question."""
    description: Description | None = None
    """What model.json says of the model."""

    @property
    def accuracy(self) -> float:
        """The last accuracy that was measured."""
        measured = [row["accuracy"] for row in self.history if row["accuracy"] is not None]
        return float(measured[-1]) if measured else math.nan

    def __repr__(self) -> str:
        if self.answers:
            return f"{answers_text(self.answers)}\n{self.guarantee}"
        return f"{self.recipe.name}: accuracy {percent(known(self.accuracy))}; {self.guarantee}"

    def _repr_html_(self) -> str:
        """As a notebook shows it: what was learned, or the answers, with the guarantee below."""
        said = self.guarantee.sentence
        if self.answers:
            found = answers_rows(self.answers)
            return html_table(
                self.recipe.name, [*found[0]], [[*row.values()] for row in found], said
            )
        done = sum(not row["aborted"] for row in self.history)
        measured = [row["loss"] for row in self.history if row["loss"] is not None]
        rows = [
            ("accuracy", percent(known(self.accuracy))),
            ("loss", f"{measured[-1]:.4g}" if measured else "--"),
            ("measured", self.evaluation),
            ("rounds", f"{done} of {self.recipe.rounds}"),
            ("data", self.source),
            *([("steps", steps_text(self.steps))] if self.steps else []),
            *([("stopped", self.stopped)] if self.stopped else []),
            *(("warning", each) for each in self.warnings),
        ]
        return html_table(self.recipe.name, (), rows, said)

    def to_frame(self) -> DataFrame:
        """The history as a pandas DataFrame: a line per attempt at a round (extra ``pandas``)."""
        return to_frame(self.history)

    def plot(self, path: str | Path | None = None) -> Figure:
        """Accuracy and epsilon against rounds, or answers; with the guarantee underneath.

        Notebooks show it.
        """
        said = self.guarantee.sentence
        if self.answers:
            figure = draw_answers(new_figure(), self.answers, self.recipe.name, said)
        else:
            figure = _convergence_figure(self)
        if path is not None:
            figure.savefig(path, dpi=150)
        return figure

    def save(self, folder: str | Path) -> Path:
        """Metrics, model, recipe, picture and guarantee as files."""
        return _save(self, Path(folder))


def require_a_round(step: Step, detail: str = "") -> None:
    """Refuse to report a training that completed no round: its model is the one it began with.

    ``detail`` is the ledger's own error, if this process has seen it.
    """
    if step.state.round or not step.stopped:
        return
    raise nothing_trained(step.stopped, step.history[-1]["aborted"] if step.history else "", detail)


# -------------------------------------------------------------------------------------- files out


def _save(result: Result, folder: Path) -> Path:
    """Write all files into a folder, which is made if need be; the guarantee last."""
    from safetensors.torch import save

    folder.mkdir(parents=True, exist_ok=True)
    named = result.model.layout.unflatten(result.params)
    tensors = {name: tensor.contiguous() for name, tensor in named.items()}
    columns = dict.fromkeys([*COLUMNS, *(name for row in result.history for name in row)])
    write_csv(result.history, folder / "metrics.csv", list(columns))
    _write(folder / METRICS_FILE, "".join(map(json_line, result.history)))
    steps = f"# steps: {steps_text(result.steps)}\n" if result.steps else ""
    _write(folder / "recipe.toml", steps + recipes.dump_recipe(result.recipe))
    about = {"guarantee": result.guarantee.sentence}
    if needs := getattr(result.model, "needs", ""):
        about["needs"] = needs
    replace_file(folder / MODEL_FILE, save(tensors, about), 0o644)
    _save_bundle(result, tensors, folder / BUNDLE_FOLDER)
    if has_adapter(result.model):
        save_adapter(cast(Network, result.model), result.params, folder / ADAPTER_FOLDER)
    with skip_if_missing("pictures"):
        result.plot(folder / (ANSWERS_PICTURE if result.answers else "convergence.png"))
    if result.answers:
        write_csv(answers_rows(result.answers), folder / ANSWERS_TABLE)
    facts = {
        **result.guarantee.to_json(),
        "evaluation": result.evaluation,
        "data": result.source,
        **({"clients": result.divided} if result.divided else {}),
        **({"steps": dict(result.steps)} if result.steps else {}),
        **_run_facts(result),
        **({"started": began} if (began := began_at(folder)) else {}),
        "warnings": list(result.warnings),
        "stopped": result.stopped,
    }
    _write(folder / GUARANTEE_FILE, json.dumps(jsonable(facts), indent=2) + "\n")
    return folder


def _save_bundle(result: Result, tensors: dict[str, torch.Tensor], folder: Path) -> None:
    """The model as a bundle; without one a result is a result, and no model is lost for it."""
    if result.description is None:
        return
    from dpfed.bundle.folder import write_bundle

    try:
        write_bundle(folder, result.description, tensors)
    except errors.DpfedError:
        log.exception("the result has no bundle (%s): it cannot be written", folder)


def _run_facts(result: Result) -> dict[str, Any]:
    """What a statement says of the run: public, or with noise; no accuracy from clear records."""
    kind, accuracy = result.recipe.evaluation.kind, result.accuracy
    shown = kind in (EvaluationKind.TEST, EvaluationKind.FEDERATED) and not math.isnan(accuracy)
    return {
        "accuracy": accuracy if shown else None,
        "participants": len(result.nominal),
        "units": sum(result.nominal),
        "answered": dict(result.answered),
        "rounds_asked": result.recipe.rounds,
        "wasted_attempts": wasted_attempts(result.history),
        "finished": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    }


def write_csv(rows: Sequence[Row], path: Path, columns: Sequence[str] | None = None) -> None:
    """Rows that share their columns, one line each.

    Args:
        rows: what is written.
        path: the file.
        columns: their names, where there may be no row to tell.
    """
    text = StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(columns or rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    replace_file(path, text.getvalue().encode(), 0o644)


def _write(path: Path, text: str) -> None:
    replace_file(path, text.encode(), 0o644)


def is_taken(out: Path) -> bool:
    """Whether a run has left files in a folder that another run would overwrite."""
    files = (GUARANTEE_FILE, MODEL_FILE, METRICS_FILE)
    table = out / "metrics.csv"  # a run that failed before its first round leaves its head
    rows = table.is_file() and len(table.read_bytes().splitlines()) > 1
    return rows or any((out / name).exists() for name in files)


def refuse_taken(out: Path, way_out: str) -> None:
    """Refuse to write over what another run has left: its model was paid for."""
    if is_taken(out):
        raise errors.RecipeError(f"{str(out)!r} holds another run's result already; {way_out}")


def free_folder(out: Path) -> Path:
    """The folder, or the first of NAME-2, NAME-3, ... that no run has written into."""
    return next(each for each in _numbered(out) if not is_taken(each))


def _numbered(out: Path) -> tuple[Path, ...]:
    return out, *(out.with_name(f"{out.name}-{i}") for i in range(2, 10_000))


def claim_folder(out: Path, training: str) -> Path:
    """The folder for a training's files: as named, or NAME-2, ... if another training used that.

    A training that resumes finds the folder that it had, also if that was not the first one.

    Args:
        out: the folder that is wished for.
        training: the training's name.

    Returns:
        ``out``, or the first of out-2, out-3, ... that is free or was this training's.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as top:
    ...     out = claim_folder(Path(top) / "out", "ward-7")
    ...     out.name, claim_folder(Path(top) / "out", "ward-7").name
    ('out', 'out')
    """
    own = next(each for each in _numbered(out) if _claimed(each, training) or not is_taken(each))
    if not _claimed(own, training):
        own.mkdir(parents=True, exist_ok=True)
        _write(own / TRAINING_FILE, training + "\n")
    return own


def began_at(out: Path) -> str | None:
    """When a training claimed its folder, in ISO 8601: its first process, whoever ended it.

    Args:
        out: the folder that ``claim_folder`` gave.

    Returns:
        the time, or None if no training has claimed the folder.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as top:
    ...     out = claim_folder(Path(top) / "out", "ward-7")
    ...     began_at(out) is None, began_at(Path(top))
    (False, None)
    """
    path = out / TRAINING_FILE
    if not path.is_file():
        return None
    return dt.datetime.fromtimestamp(path.stat().st_mtime, dt.UTC).isoformat(timespec="seconds")


def _claimed(out: Path, training: str) -> bool:
    path = out / TRAINING_FILE
    return path.is_file() and path.read_text(encoding="utf-8").strip() == training


EVIDENCE_FOLDER = "evidence"


def clear_result(out: Path, kept: Sequence[Row] = ()) -> None:
    """Remove what an earlier process of the run left; if it has rows, these and its model stay.

    Without rows there is nothing to resume from: the files would be taken for this run's.
    """
    for name in (ERROR_FILE, TRACEBACK_FILE, *(() if kept else (GUARANTEE_FILE, MODEL_FILE))):
        (out / name).unlink(missing_ok=True)
    if not kept:
        for name in (ADAPTER_FOLDER, BUNDLE_FOLDER, EVIDENCE_FOLDER):
            shutil.rmtree(out / name, ignore_errors=True)
    if kept:  # in one step: a process that dies here loses no row
        _write(out / METRICS_FILE, "".join(map(json_line, kept)))
    else:
        (out / METRICS_FILE).unlink(missing_ok=True)


def add_row(out: Path, row: Row) -> None:
    """Append a round's row to the file that is watched during the run."""
    with (out / METRICS_FILE).open("a", encoding="utf-8") as file:
        file.write(json_line(row))


def write_error(out: Path, error: Exception) -> None:
    """Write why there is no result."""
    _write(out / ERROR_FILE, json.dumps({"error": type(error).__name__, "sentence": str(error)}))


# --------------------------------------------------------------------------------------- files in


class ResultFiles(NamedTuple):
    """What a finished run left in a folder."""

    params: dict[str, torch.Tensor]
    history: list[Row]
    guarantee: Guarantee
    stopped: str | None
    answered: dict[str, Any]


def is_finished(out: Path) -> bool:
    """Whether a run has left its result or its error in a folder."""
    return any((out / name).exists() for name in (GUARANTEE_FILE, ERROR_FILE))


def read_history(out: Path) -> list[Row]:
    """The rounds that are complete by now."""
    return read_json_lines(out / METRICS_FILE)


def read_result(out: Path) -> ResultFiles | None:
    """What a run left in ``out``, or nothing; what stopped it is raised again."""
    from safetensors.torch import load_file

    if (out / ERROR_FILE).exists():
        _raise(json.loads((out / ERROR_FILE).read_text(encoding="utf-8")))
    if not (out / GUARANTEE_FILE).exists():
        return None
    told = json.loads((out / GUARANTEE_FILE).read_text(encoding="utf-8"))
    guarantee = msgspec.convert(told, Guarantee, strict=False)
    return ResultFiles(
        params=load_file(out / MODEL_FILE),
        history=read_history(out),
        guarantee=guarantee,
        stopped=told.get("stopped"),
        answered=told.get("answered", {}),
    )


def _raise(left: Mapping[str, str]) -> NoReturn:
    """One of dpfed's own errors keeps its class; any other is named in the sentence."""
    kind = getattr(errors, left["error"], None)
    if isinstance(kind, type) and issubclass(kind, errors.DpfedError):
        raise kind(left["sentence"])
    raise errors.DpfedError(
        f"the ServerApp failed with {left['error']}: {left['sentence']}; see its log"
    )


# ---------------------------------------------------------------------------------- the picture


def new_figure(**options: Any) -> Figure:
    """A figure that a notebook shows by itself, without pyplot and its global state."""
    with require_extra("plots", "a picture", "matplotlib"):
        from matplotlib.figure import Figure

    class Shown(Figure):
        def _repr_png_(self) -> bytes:
            made = BytesIO()
            self.savefig(made, format="png", dpi=110)
            return made.getvalue()

    return Shown(**options)


def _convergence_figure(result: Result) -> Figure:
    """Two panels over the same rounds: what was learned, and what it cost."""
    figure = new_figure(figsize=(7.2, 5.6), layout="constrained")
    learned, cost = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1.4])
    _draw_accuracy(learned, result)
    _draw_epsilon(cost, result)
    figure.suptitle(result.recipe.name, fontsize=12)
    caption = textwrap.fill(result.guarantee.sentence, 105)
    figure.supxlabel(caption, fontsize=8, color="#333333")
    return figure


def _column(result: Result, name: str) -> tuple[list[int], list[float]]:
    rows = [row for row in result.history if row[name] is not None]
    return [row["round"] for row in rows], [float(row[name]) for row in rows]


def _draw_accuracy(axes: Axes, result: Result) -> None:
    rounds, accuracy = _column(result, "accuracy")
    name, label = ("accuracy", "accuracy (%)") if accuracy else ("loss", "loss")
    rounds, values = _column(result, name)
    scaled = [100 * value for value in values] if accuracy else values
    axes.plot(rounds, scaled, color=BLUE, linewidth=2)
    if scaled:
        end = (rounds[-1], scaled[-1])
        axes.annotate(f"{scaled[-1]:.1f}", end, (0, -14), textcoords="offset points", ha="right")
    axes.set_ylabel(label)
    about = textwrap.fill(f"{result.source}; measured {result.evaluation}", 110)
    axes.set_title(about, fontsize=8, loc="left", color="#333333")
    axes.grid(alpha=0.25)


def _draw_epsilon(axes: Axes, result: Result) -> None:
    if math.isinf(result.guarantee.epsilon):
        axes.text(0.5, 0.5, "no privacy", ha="center", va="center", transform=axes.transAxes)
    else:
        axes.plot(*_column(result, "epsilon"), color=VERMILION, label="to the server")
        if len(result.guarantee.claims) > 1:
            axes.plot(
                *_column(result, "epsilon_others"), color=GREEN, ls="--", label="to others below"
            )
        axes.legend(fontsize=8, frameon=False)
        axes.set_ylim(bottom=0)
    axes.set_ylabel("epsilon spent")
    axes.set_xlabel("round")
    axes.grid(alpha=0.25)
