#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""A Flower app and a LoRA app, made private by dpfed and by Opacus inside of Flower's client.

    DPFED_DATA=FOLDER lab/studies/quickstart-private/quickstart.py OUT [--seeds 3] [--cells NAME]

apps/ has each app as it was, and what was changed in it as diffs, which are applied here. Two
silos; each adds its own noise, for (8, 1e-5)-DP of each record (add-or-remove) over all rounds.
Every way has the same number of trials over its rate and nothing else, judged on the silos' own
held-out records, which no guarantee covers; then SEEDS runs judged on test records. The apps'
files run in this process (in_process.py); docs/models.md says that engines agree in bits.

Writes OUT/runs.csv (a killed run goes on) and OUT/table.md. Needs images/cifar10.npz,
images/fashion-mnist.npz (lab/scripts/fetch_images.py), text/minilm-l3-v8k, text/sst2_*.tsv.gz.
"""

from __future__ import annotations

import argparse
import csv
import logging
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import MetricRecord

sys.path.insert(0, str(Path(__file__).parent))
from in_process import app_of, run_app

APPS = Path(__file__).parent / "apps"
NODES = 2
FIELDS = ["cell", "way", "kind", "rate", "seed", "accuracy", "cpu_seconds"]
Row = dict[str, Any]


@dataclass(frozen=True)
class Way:
    """One way to make an app private: its diff, its configuration, and the rates of its trials."""

    diff: str
    config: dict[str, Any]
    rates: tuple[float, ...]


def _ways(
    app: str, adam: tuple[float, ...], opacus: tuple[float, ...], plain: tuple[float, ...]
) -> dict[str, Way]:
    steps = {"local-steps": 10, "num-server-rounds": 5}
    single = {"local-steps": 1, "num-server-rounds": 50}
    return {
        "dpfed, rows, Adam": Way(f"{app}-rows", {"num-server-rounds": 50}, adam),
        "Opacus, an epoch per round": Way(f"{app}-opacus", steps, opacus),
        "dpfed, DP-FedAvg": Way(f"{app}-local", steps, plain),
        "Opacus, a step per round": Way(f"{app}-opacus", single, opacus),
    }


CNN = _ways(
    "cnn",
    adam=(0.001, 0.003, 0.01, 0.03),
    opacus=(0.03, 0.1, 0.3, 1.0),
    plain=(0.3, 1.0, 3.0, 10.0),
)
LORA = _ways(
    "lora",
    adam=(0.001, 0.003, 0.01, 0.03),
    opacus=(0.001, 0.003, 0.01, 0.03),
    plain=(0.3, 1.0, 3.0, 10.0),
)
CELLS: dict[str, tuple[str, str, dict[str, Way]]] = {
    "Fashion-MNIST, CNN": ("cnn", "fashion-mnist.npz", CNN),
    "CIFAR-10, CNN": ("cnn", "cifar10.npz", CNN),
    "SST-2, LoRA": ("lora", "", LORA),
}
"""App, file of images, ways."""
PACKAGES = {"cnn": "pytorchexample", "lora": "loraexample"}


def subset(name: str, work: Path) -> Path:
    """2,500 training and 2,000 test images, drawn once; grey ones padded to 32 x 32, three times."""
    path = work / name
    if not path.exists():
        found = np.load(Path(os.environ["DPFED_DATA"]) / "images" / name)
        rng = np.random.default_rng(39)
        arrays: dict[str, Any] = {}
        for part, count in (("train", 2500), ("test", 2000)):
            x, y = found[f"x_{part}"], found[f"y_{part}"]
            drawn = rng.permutation(len(x))[:count]
            arrays[f"x_{part}"], arrays[f"y_{part}"] = _colour(x[drawn]), y[drawn]
        np.savez(path, **arrays)
    return path


def _colour(x: np.ndarray) -> np.ndarray:
    if x.ndim == 4:
        return x
    padded = np.pad(x, ((0, 0), (2, 2), (2, 2)))
    coloured: np.ndarray = np.repeat(padded[..., None], 3, axis=-1)
    return coloured


def changed(app: str, diff: str, work: Path) -> Path:
    """The app's folder with a diff applied."""
    folder = work / diff
    if not folder.exists():
        shutil.copytree(APPS / app, folder)
        patch = APPS / f"{diff}.diff"
        subprocess.run(["git", "apply", str(patch)], cwd=folder, check=True)
    return folder


def run(cell: str, way: str, rate: float, seed: int, work: Path, kind: str) -> Row:
    """One training, judged on held-out training records ("tune") or test records ("final")."""
    app, _, ways = CELLS[cell]
    chosen = ways[way]
    config = {"learning-rate": rate, "fraction-evaluate": 0.0, "batch-size": 100, **chosen.config}
    with app_of(changed(app, chosen.diff, work), PACKAGES[app]) as (task, client, server):
        server.global_evaluate = lambda *_: MetricRecord({"judged": 0.0})  # once, at the end
        torch.manual_seed(seed)
        began = time.process_time()
        run_app(client, server, NODES, config)
        took = time.process_time() - began
        model = trained(task)
        if kind == "tune":
            loaders = [task.load_data(i, NODES, 100)[1] for i in range(NODES)]
        else:
            loaders = [task.load_centralized_dataset()]
        right = sum(task.test(model, each, "cpu")[1] * len(each.dataset) for each in loaders)
        accuracy = right / sum(len(each.dataset) for each in loaders)
    found = (cell, way, kind, rate, seed, round(accuracy, 4), round(took, 1))
    return dict(zip(FIELDS, found, strict=True))


def trained(task: Any) -> torch.nn.Module:
    """The model that the app's server has left in the working folder."""
    model: torch.nn.Module
    if hasattr(task, "Net"):
        model = task.Net()
        model.load_state_dict(torch.load("final_model.pt"))
    else:
        model = task.make_model()
        task.set_adapter(model, torch.load("final_adapter.pt"))
    return model


class Runs:
    """The runs of OUT/runs.csv: one that is there is not made again."""

    def __init__(self, path: Path, work: Path) -> None:
        self.path, self.work = path, work
        self.rows: list[Row] = []
        if path.exists():
            with path.open(newline="", encoding="utf-8") as file:
                self.rows = [_typed(row) for row in csv.DictReader(file)]

    def get(self, cell: str, way: str, kind: str, rate: float, seed: int) -> Row:
        for row in self.rows:
            if (cell, way, kind, rate, seed) == tuple(row[name] for name in FIELDS[:5]):
                return row
        row = run(cell, way, rate, seed, self.work, kind)
        print(row, flush=True)
        new = not self.path.exists()
        with self.path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, FIELDS)
            if new:
                writer.writeheader()
            writer.writerow(row)
        self.rows.append(row)
        return row


def _typed(row: dict[str, str]) -> Row:
    numbers = {name: float(row[name]) for name in ("rate", "accuracy", "cpu_seconds")}
    return {**row, **numbers, "seed": int(row["seed"])}


def study(runs: Runs, cells: list[str], seeds: int) -> str:
    """All trials and runs, and the table."""
    lines = [
        "| cell | way | rates tried | chosen | test accuracy, % | CPU s |",
        "|---|---|---|---:|---:|---:|",
    ]
    for cell in cells:
        app, images, ways = CELLS[cell]
        if app == "cnn":
            os.environ["IMAGES"] = str(subset(images, runs.work))
        for name, way in ways.items():
            tries = [runs.get(cell, name, "tune", rate, 1000) for rate in way.rates]
            best = max(tries, key=lambda row: row["accuracy"])["rate"]
            final = [runs.get(cell, name, "final", best, seed) for seed in range(seeds)]
            lines.append(_line(cell, name, way, best, final))
    return "\n".join(lines) + "\n"


def _line(cell: str, name: str, way: Way, best: float, final: list[Row]) -> str:
    figures = [100 * row["accuracy"] for row in final]
    spread = statistics.stdev(figures) if len(figures) > 1 else math.nan
    rates = ", ".join(f"{rate:g}" for rate in way.rates)
    cpu = statistics.fmean(row["cpu_seconds"] for row in final)
    mean = statistics.fmean(figures)
    return f"| {cell} | {name} | {rates} | {best:g} | {mean:.1f} ± {spread:.1f} | {cpu:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cells", nargs="*", default=list(CELLS))
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    path = (asked.out / "runs.csv").resolve()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="quickstart-") as work:
        os.chdir(work)  # where an app leaves its model
        table = study(Runs(path, Path(work)), asked.cells, asked.seeds)
    path.with_name("table.md").write_text(table)
    print(table)


if __name__ == "__main__":
    main()
