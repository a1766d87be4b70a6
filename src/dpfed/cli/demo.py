# SPDX-License-Identifier: Apache-2.0
"""``dpfed demo``: the same training three times, at one epsilon if there is one.

    no privacy      what could be had if everyone trusted everyone
    local           the server reads each silo's message; each has all of the noise
    secure sum      the server opens only the total; each has a share of the noise

The data is generated (Gaussian clusters, 20 silos of unequal mixture); noise comes from the
operating system, so that figures differ a bit from run to run.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dpfed.accounting.attack_odds import of_100, read_odds
from dpfed.accounting.gdp import check_epsilon
from dpfed.accounting.guarantee import round_up
from dpfed.core.extras import require_extra, skip_if_missing
from dpfed.recipes.display import percent
from dpfed.recipes.result import BLUE, VERMILION, Result
from dpfed.recipes.run import run_session
from dpfed.recipes.schema import parse
from dpfed.recipes.session import prepare

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table

PICTURE = "demo.png"


class Run(NamedTuple):
    """One of the three runs."""

    name: str
    title: str
    seen: str
    """What the server sees of the silos."""
    colour: str
    privacy: dict[str, Any]
    sum: dict[str, Any]


RUNS = (
    Run(
        name="no-privacy",
        title="no privacy",
        seen="every gradient",
        colour="#555555",
        privacy={"mechanism": "clear"},
        sum={"name": "plain"},
    ),
    Run(
        name="local",
        title="local noise",
        seen="noisy messages",
        colour=VERMILION,
        privacy={"trust": "local"},
        sum={"name": "plain"},
    ),
    Run(
        name="secure-sum",
        title="secure sum",
        seen="the total alone",
        colour=BLUE,
        privacy={"trust": "distributed", "mechanism": "discrete_gaussian", "colluders": 1},
        sum={"name": "secure", "survivors": 0.8},
    ),
)

Watch = Callable[[Run, dict[str, Any], int], None]


class FinishedRun(NamedTuple):
    """A run with its result."""

    run: Run
    result: Result
    noise: float
    """The standard deviation that one silo adds, over the clip."""


def tables(run: Run, epsilon: float) -> dict[str, Any]:
    """The run as a recipe: all three share everything but who sees what."""
    budget = {} if run.privacy.get("mechanism") == "clear" else {"epsilon": epsilon, "delta": 1e-5}
    return {
        "name": run.name,
        "seed": 1,
        "method": "dp-fedauto",
        "data": {
            "source": "synthetic",
            "options": {"records": 6000, "features": 40, "classes": 10},
            "partition": {"name": "dirichlet", "clients": 20, "options": {"alpha": 0.5}},
        },
        "privacy": {**budget, **run.privacy},
        "sum": run.sum,
    }


def play(out: Path, epsilon: float = 1.0, watch: Watch | None = None) -> list[FinishedRun]:
    """Train three times, and write each run and the picture into ``out``.

    Args:
        out: a folder; made if missing.
        epsilon: of the two private runs, above 0.
        watch: called after each round with the run, the round's row and the number of rounds; None
            is nobody.
    """
    check_epsilon(epsilon)  # now, since the first run has no epsilon and would not refuse
    results = [_train(run, out, epsilon, watch) for run in RUNS]
    with skip_if_missing("pictures"):
        draw(results, epsilon).savefig(out / PICTURE, dpi=150)
    return results


def _train(run: Run, out: Path, epsilon: float, watch: Watch | None) -> FinishedRun:
    prepared = prepare(parse(tables(run, epsilon)))
    follow = None if watch is None else (lambda row, rounds: watch(run, row, rounds))
    result = run_session(prepared, follow)
    result.save(out / run.name)
    return FinishedRun(run, result, prepared.plan.update.std / prepared.plan.update.clip)


# ---------------------------------------------------------------------------------- what is said


def demo_table(played: Sequence[FinishedRun]) -> Table:
    """One line per run."""
    from rich.table import Table

    made = Table(title="DP-FedAuto, three ways", title_justify="left", title_style="bold")
    for name in ("run", "the server sees", "noise of a silo", "epsilon", "accuracy"):
        made.add_column(name, justify="left" if name in {"run"} or "sees" in name else "right")
    for run, result, noise in played:
        private = math.isfinite(result.guarantee.epsilon)
        epsilon = round_up(result.guarantee.epsilon) if private else "none"
        level = f"{noise:.1f} clips" if noise else "none"
        made.add_row(run.title, run.seen, level, epsilon, percent(result.accuracy))
    return made


def words(played: Sequence[FinishedRun], out: Path) -> Iterator[str]:
    """What the figures mean, where they come from, and what to try next."""
    first = played[0].result
    yield f"Data: {first.source}; accuracy {first.evaluation}. Noise is drawn anew in every run."
    yield ""
    for run, result, _ in played:
        yield f"[bold]{run.title}[/]: {attack_in_words(result)}"
        yield f"  {result.guarantee.sentence}"
    yield ""
    if (out / PICTURE).exists():  # not without the extra 'plots'
        yield f"[bold]picture[/] {out / PICTURE}"
    yield "[bold]what next[/]"
    for command, what in next_commands(out):
        yield f"  {command:<44} {what}"


def attack_in_words(result: Result) -> str:
    """The guarantee as the best that an attacker can do."""
    found = result.guarantee
    if math.isinf(found.epsilon):
        return "whoever sees a message or the model may recognise a single record in it."
    right = max(of_100(read_odds(claim, found.trust).right) for claim in found.claims)
    return (
        f"whoever knows all other records, sees all that the server sees, and guesses which of two "
        f"records was used, is right at most {right} times of 100 (chance: 50)."
    )


def next_commands(out: Path) -> list[tuple[str, str]]:
    """Commands that work right after the demo, and what each does."""
    last = out / RUNS[-1].name
    return [
        (f"dpfed explain {last}", "the guarantee on one page, for decision makers"),
        (f"dpfed run {last / 'recipe.toml'}", "the same run again; --set changes it"),
        ("dpfed new my-app", "a Flower app of your own that is private"),
        ("dpfed doctor", "is this machine ready for more?"),
        ("dpfed methods", "what else it can train with"),
    ]


# ------------------------------------------------------------------------------------ the picture


def draw(played: Sequence[FinishedRun], epsilon: float) -> Figure:
    """Draw accuracy by round, and next to it the noise that one silo adds."""
    with require_extra("plots", "a picture", "matplotlib"):
        from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 4.8), layout="constrained")
    curves, bars = figure.subplots(1, 2, width_ratios=[3, 1.2])
    _curves(curves, played)
    _bars(bars, played)
    figure.suptitle(f"The same training three ways, at epsilon = {epsilon:g}", fontsize=12)
    caption = f"Data: {played[0].result.source}; accuracy {played[0].result.evaluation}."
    figure.supxlabel(textwrap.fill(caption, 130), fontsize=8, color="#333333")
    return figure


def _curves(axes: Axes, played: Sequence[FinishedRun]) -> None:
    for (run, result, _), style in zip(played, ("--", "-", "-"), strict=True):
        rows = [row for row in result.history if row["accuracy"] is not None]
        rounds, values = [row["round"] for row in rows], [100 * row["accuracy"] for row in rows]
        label = f"{run.title}: {values[-1]:.1f} %"
        axes.plot(rounds, values, style, color=run.colour, linewidth=2, label=label)
    axes.set_xlabel("round")
    axes.locator_params(axis="x", integer=True)
    axes.set_ylabel("accuracy (%)")
    axes.set_ylim(0, 100)
    axes.legend(loc="lower right", frameon=False, title="accuracy at the end")
    axes.grid(alpha=0.25)


def _bars(axes: Axes, played: Sequence[FinishedRun]) -> None:
    names = [each.run.title.replace(" ", "\n") for each in played]
    heights, colours = [each.noise for each in played], [each.run.colour for each in played]
    drawn = axes.bar(names, heights, color=colours, width=0.6)
    axes.bar_label(drawn, [f"{height:.1f}" if height else "0" for height in heights], padding=2)
    axes.set_ylabel("noise of one silo (clips)")
    axes.margins(y=0.12)
    axes.set_axisbelow(True)
    axes.grid(alpha=0.25, axis="y")
