#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""DP-FedSOFIM beside its control, DP-FedGD at the rate eta / rho, in every cell with a searched rho.

    DPFED_DATA=data lab/studies/sofim-control/sofim_control.py --out lab/studies/sofim-control/results

For each cell of the studies below, DP-FedSOFIM runs at the setting that its study chose, and
DP-FedGD at the same clip and seeds with the rate eta / rho: what the preconditioned step is where
the rank-one term is small against rho. Writes control.csv (one line per run) and control.md.
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import statistics
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dpfed.recipes.federation import Federation, federation
from dpfed.recipes.run import run_session
from dpfed.recipes.session import prepare
from dpfed_lab import study as studies
from dpfed_lab.jobs import make_job
from dpfed_lab.scores import cell_words
from dpfed_lab.sweep import settings_for, stored_settings

STUDIES = (
    "sofim-cifar10",
    "sofim-cifar10-iid",
    "sofim-wide",
    "sofim-trust",
    "sofim-ablation",
    "sofim-fashion",
    "sofim-medical",
)
METHOD, EARLY = "DP-FedSOFIM", 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/sofim-control"))
    parser.add_argument("--only", nargs="*", default=STUDIES, help="studies; all by default")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    rows = [row for name in asked.only for row in compared(name)]
    with (asked.out / "control.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    (asked.out / "control.md").write_text(table(rows), encoding="utf-8")


def compared(name: str) -> list[dict[str, Any]]:
    """Both methods in every cell of a study, seed by seed."""
    study = studies.load_study(name)
    settings = stored_settings(name, study)
    method = next(each for each in study.methods if each.label == METHOD)
    found = []
    for cell, changes in studies.cells(study):
        chosen = settings_for(study, settings, cell, METHOD)
        if "server.0.rho" not in chosen:
            continue
        sofim = {**changes, **method.set, **chosen}
        rho, rate = chosen["server.0.rho"], chosen["server.1.rate"]
        rest = {key: value for key, value in chosen.items() if not key.startswith("server.")}
        control = {**changes, "method": "dp-fedgd", **rest, "server.0.rate": rate / rho}
        silos: Federation | None = None
        for seed in study.final.seeds:
            row: dict[str, Any] = {
                "study": name,
                "cell": cell_words(cell),
                "seed": seed,
                "rho": rho,
                "rate": rate,
            }
            silos = None
            for label, setting in (("sofim", sofim), ("control", control)):
                recipe = make_job(study.base, {}, {**setting, "seed": seed}).recipe
                silos = silos or federation(recipe)
                history = run_session(prepare(recipe, None, silos)).history
                by_round = {each["round"]: each["accuracy"] for each in history}
                row[f"{label}_{EARLY}"] = 100 * by_round[EARLY]
                row[f"{label}_last"] = 100 * by_round[max(by_round)]
            found.append(row)
        print(
            name,
            cell_words(cell),
            f"{found[-1]['sofim_last'] - found[-1]['control_last']:+.3f}",
            flush=True,
        )
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """Means over seeds, and their differences."""
    lines = [
        "# DP-FedSOFIM beside DP-FedGD at the rate eta / rho",
        "",
        "Test accuracy (%), means over seeds 0, 1, 2; both methods at the same clip, data and noise seed, so that",
        "differences are paired. Settings are those that each study chose for DP-FedSOFIM (or borrowed).",
        f"Command: `DPFED_DATA=data lab/studies/sofim-control/sofim_control.py`, {datetime.now(UTC):%Y-%m-%d}, "
        f"{platform.machine()}, {os.cpu_count()} cores.",
        "",
        f"| study | cell | rho | eta | SOFIM, round {EARLY} | control, round {EARLY} | difference | SOFIM, last | control, last | difference |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        cells.setdefault((row["study"], row["cell"]), []).append(row)
    early, last = [], []
    for (study, cell), each in cells.items():
        mean = {
            key: statistics.fmean(row[key] for row in each)
            for key in each[0]
            if key.startswith(("sofim", "control"))
        }
        early.append(mean[f"sofim_{EARLY}"] - mean[f"control_{EARLY}"])
        last.append(mean["sofim_last"] - mean["control_last"])
        lines.append(
            f"| {study} | {cell} | {each[0]['rho']:.3g} | {each[0]['rate']:.3g} | "
            f"{mean[f'sofim_{EARLY}']:.2f} | {mean[f'control_{EARLY}']:.2f} | {early[-1]:+.2f} | "
            f"{mean['sofim_last']:.2f} | {mean['control_last']:.2f} | {last[-1]:+.2f} |"
        )
    lines += ["", summary("last round", last), summary(f"round {EARLY}", early)]
    return "\n".join(lines) + "\n"


def summary(name: str, apart: list[float]) -> str:
    sizes = sorted(abs(each) for each in apart)
    near = sum(each <= 0.05 for each in sizes)
    return (
        f"- {name}: {len(sizes)} cells, at most {sizes[-1]:.2f} points apart, {near} of them at "
        f"most 0.05, median {statistics.median(sizes):.2f}."
    )


if __name__ == "__main__":
    main()
