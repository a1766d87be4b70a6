# SPDX-License-Identifier: Apache-2.0
"""The picture of an app's README: accuracy and epsilon by round, from the metrics that its run left.

python examples/hub/picture.py ~/private-tables/out examples/hub/private-tables/picture.png
"""

import csv
import sys
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt


def draw(metrics: Path, picture: Path, what: str = "accuracy on test records") -> None:
    """Two lines over the rounds: accuracy on the left axis, epsilon spent on the right one."""
    with metrics.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row.get("accuracy")]
    rounds = [int(row["round"]) for row in rows]
    figure, left = plt.subplots(figsize=(6, 3), layout="constrained")
    right = left.twinx()
    left.plot(rounds, [100 * float(row["accuracy"]) for row in rows], color="tab:blue")
    right.plot(rounds, [float(row["epsilon"]) for row in rows], color="tab:orange", linestyle="--")
    left.set(xlabel="round", ylabel=f"{what}, % (solid)", ylim=(0, 102))
    left.xaxis.get_major_locator().set_params(integer=True)
    right.set(ylabel="epsilon spent (dashed)")
    right.set_ylim(bottom=0)
    figure.savefig(picture, dpi=80, metadata={"Software": None})


if __name__ == "__main__":
    draw(Path(sys.argv[1]).expanduser() / "metrics.csv", Path(sys.argv[2]), *sys.argv[3:])
