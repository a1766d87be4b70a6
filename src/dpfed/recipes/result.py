# SPDX-License-Identifier: Apache-2.0
"""A finished run as a value, and as files that people use.

metrics.csv, metrics.jsonl   one row per round
model.safetensors            the trained parameters, by name
recipe.toml                  the resolved recipe: ``dpfed run recipe.toml`` repeats the run
guarantee.json               the promise, as numbers and as a sentence
convergence.png              accuracy and epsilon against rounds
"""

from __future__ import annotations

import csv
import json
import math
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfed.accounting.guarantee import Guarantee, jsonable
from dpfed.core.types import Vector
from dpfed.data.models import Model
from dpfed.recipes import schema as recipes
from dpfed.recipes.bar import percent
from dpfed.recipes.history import Row
from dpfed.recipes.schema import Recipe

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours: told apart by colour-blind readers
BLUE, VERMILION, GREEN = "#0072B2", "#D55E00", "#009E73"


@dataclass(frozen=True, eq=False)
class Result:
    """A finished run: the model, how it got there, and what it promises."""

    recipe: Recipe
    model: Model
    params: Vector
    history: list[Row]
    guarantee: Guarantee
    evaluation: str
    source: str
    warnings: tuple[str, ...] = ()

    @property
    def accuracy(self) -> float:
        """The last accuracy that was measured."""
        measured = [row["accuracy"] for row in self.history if row["accuracy"] is not None]
        return float(measured[-1]) if measured else math.nan

    def __repr__(self) -> str:
        return f"{self.recipe.name}: accuracy {percent(known(self.accuracy))}; {self.guarantee}"

    def plot(self, path: str | Path | None = None) -> Figure:
        """Accuracy and epsilon against rounds, with the guarantee underneath; notebooks show it."""
        figure = _convergence_figure(self)
        if path is not None:
            figure.savefig(path, dpi=150)
        return figure

    def save(self, folder: str | Path) -> Path:
        """Metrics, model, recipe, picture and guarantee as files."""
        return _save(self, Path(folder))


def known(value: float) -> float | None:
    """A figure as rows have it: None where it is not a number."""
    return None if math.isnan(value) else value


def _save(result: Result, folder: Path) -> Path:
    """Write all files into a folder, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(result.history, folder / "metrics.csv")
    lines = [json.dumps(jsonable(row)) for row in result.history]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "recipe.toml").write_text(recipes.dump(result.recipe), encoding="utf-8")
    (folder / "guarantee.json").write_text(json.dumps(_promise(result), indent=2) + "\n")
    _write_model(result, folder / "model.safetensors")
    result.plot(folder / "convergence.png")
    return folder


def write_csv(history: list[Row], path: Path) -> None:
    """Rows that share their columns, one line each."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(history[0]))
        writer.writeheader()
        writer.writerows(history)


def _write_model(result: Result, path: Path) -> None:
    from safetensors.torch import save_file

    tensors = {n: t.contiguous() for n, t in result.model.layout.unflatten(result.params).items()}
    save_file(tensors, path, metadata={"guarantee": result.guarantee.sentence})


def _promise(result: Result) -> dict[str, Any]:
    return {
        **result.guarantee.to_json(),
        "evaluation": result.evaluation,
        "data": result.source,
        "warnings": list(result.warnings),
    }


def _convergence_figure(result: Result) -> Figure:
    """Two panels over the same rounds: what was learned, and what it cost."""
    from dpfed.recipes.picture import Picture

    figure = Picture(figsize=(7.2, 5.6), layout="constrained")
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
                *_column(result, "epsilon_others"), color=GREEN, ls="--", label="to everyone else"
            )
        axes.legend(fontsize=8, frameon=False)
        axes.set_ylim(bottom=0)
    axes.set_ylabel("epsilon spent")
    axes.set_xlabel("round")
    axes.grid(alpha=0.25)
