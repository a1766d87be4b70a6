# SPDX-License-Identifier: Apache-2.0
"""The secure sum against the number of clients: seconds and bytes per client, and the server's.

Up to 64 clients all are tied to all; beyond, to k neighbours. The limit of each line is the bare
cryptography of the round. ``python -m dpfed_lab.benchmarks.secure_scale FOLDER`` writes
secure-scale.csv and secure-scale.png, with what 1,000 clients would cost: not measured, counted
from the graph's degree and the cost per neighbour at 500.
"""

from __future__ import annotations

import csv
import statistics
import sys
from pathlib import Path
from typing import Any

from dpfed.sums.secagg.graph import design
from dpfed_lab.benchmarks._measure import Result, Task, compare, interleaved
from dpfed_lab.benchmarks._secure import Table, primitives

MEASURES = (
    "dpfed.sums.secure",
    "dpfed.sums.secagg.client",
    "dpfed.sums.secagg.server",
    "dpfed.sums.secagg.masks",
    "dpfed.sums.secagg.keys",
    "dpfed.sums.secagg.shamir",
    "dpfed.sums.secagg.graph",
)

SIZE = 650
MEASURED = (5, 10, 20, 50, 100, 200, 500)
COUNTED = 1000
COLLUDING = 0.05
"""The part of the clients that may side with the server."""


def _table(clients: int) -> Table:
    return Table(clients, SIZE, colluders=max(1, round(COLLUDING * clients)))


def run() -> list[Result]:
    """A few of the sizes, each against the bare cryptography."""
    return [_line(clients) for clients in (20, 100, 500)]


def _line(clients: int) -> Result:
    table = _table(clients)
    table.play()
    tasks = {
        "secure": Task(table.play),
        "primitives": Task(lambda: primitives(clients, SIZE, table.graph)),
    }
    timings = interleaved(tasks, repeats=5, warmup=1)
    name = f"secure sum, {clients} clients"
    detail = {"degree": table.graph.degree, "bytes_per_client": table.sent // clients}
    against = "the bare cryptography of the round"
    return compare(name, timings["secure"], timings["primitives"], 3.0, against, **detail)


def measured(clients: int, repeats: int = 5) -> dict[str, Any]:
    """One row of the file: the first round with its keys, then the median of later ones."""
    table = _table(clients)
    first = interleaved({"first": Task(table.play)}, repeats=2, warmup=0)["first"]
    seconds, work = [], []
    for _ in range(repeats):
        seconds.append(interleaved({"one": Task(table.play)}, 2, 0)["one"].median)
        work.append(table.client_seconds / clients)
    return {
        "clients": clients,
        "measured": "yes",
        "degree": table.graph.degree,
        "threshold": table.graph.threshold,
        "first_round_s": first.high,
        "round_s": statistics.median(seconds),
        "client_ms": 1e3 * statistics.median(work),
        "server_ms": 1e3 * (statistics.median(seconds) - clients * statistics.median(work)),
        "sent_bytes": table.sent / clients,
        "received_bytes": table.got / clients,
        "plain_bytes": 8 * SIZE,
    }


def counted(clients: int, like: dict[str, Any]) -> dict[str, Any]:
    """What more clients would cost: per neighbour as in ``like``, the vector itself apart."""
    least = _table(clients).sum.least(clients)
    graph = design(clients, least, round(COLLUDING * clients))
    ratio = graph.degree / like["degree"]
    rest = like["sent_bytes"] - like["plain_bytes"]
    return {
        **like,
        "clients": clients,
        "measured": "no",
        "degree": graph.degree,
        "threshold": graph.threshold,
        "first_round_s": like["first_round_s"] * ratio * clients / like["clients"],
        "round_s": like["round_s"] * ratio * clients / like["clients"],
        "client_ms": like["client_ms"] * ratio,
        "server_ms": like["server_ms"] * ratio * clients / like["clients"],
        "sent_bytes": like["plain_bytes"] + rest * ratio,
        "received_bytes": like["received_bytes"] * ratio,
    }


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Two pictures: time per client and on the server, bytes per client."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    _draw(left, rows, {"client_ms": "each client", "server_ms": "the server"})
    _draw(right, rows, {"sent_bytes": "sent", "received_bytes": "received, besides the model"})
    left.set(ylabel="ms per round", title=f"{SIZE} parameters, in one process", xlabel="clients")
    right.set(ylabel="bytes per client and round", xlabel="clients", title="○ counted")
    right.axhline(8 * SIZE, color="#999999", ls="--", lw=0.8)
    right.annotate(
        "the vector itself",
        (1100, 8 * SIZE * 0.97),
        ha="right",
        va="top",
        color="#666666",
        fontsize=8,
    )
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _draw(axes: Any, rows: list[dict[str, Any]], lines: dict[str, str]) -> None:
    seen = [row for row in rows if row["measured"] == "yes"]
    last = rows[len(seen) - 1 :]
    for (name, label), color in zip(lines.items(), ("#0072b2", "#d55e00"), strict=True):
        axes.plot([r["clients"] for r in last], [r[name] for r in last], ":", color=color)
        axes.plot(last[-1]["clients"], last[-1][name], "o", color=color, mfc="white")
        axes.plot(
            [r["clients"] for r in seen], [r[name] for r in seen], "o-", color=color, label=label
        )
    axes.set(xscale="log", yscale="log")
    axes.axvline(64, color="#999999", lw=0.8)
    axes.annotate(
        " k neighbours", (64, 0.02), xycoords=("data", "axes fraction"), fontsize=8, color="#666666"
    )
    axes.annotate(
        "all to all ",
        (64, 0.02),
        xycoords=("data", "axes fraction"),
        fontsize=8,
        color="#666666",
        ha="right",
    )
    axes.legend(frameon=False, fontsize=9)


def main() -> None:
    """Measure, write the file, draw the picture."""
    folder = Path(sys.argv[1])
    rows = [measured(clients) for clients in MEASURED]
    rows.append(counted(COUNTED, rows[-1]))
    with (folder / "secure-scale.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows([{k: _short(v) for k, v in row.items()} for row in rows])
    plot(rows, folder / "secure-scale.png")


def _short(value: Any) -> Any:
    return f"{value:.4g}" if isinstance(value, float) else value


if __name__ == "__main__":
    main()
