#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The figures that the papers print, as CSV beside the studies that run their tables again.

    lab/scripts/published.py [../shared/seeds] [--out FOLDER]

Parsed from the papers' text, so that no figure is typed by hand. A table that a study runs again is
``studies/NAME/paper.csv``, in the study's own labels: "Grad-only" of Table 10 is DP-FedGD, and a
line of Table 12 is the method "rho 0.01". Every other table is in ``papers``, with the
paper's own columns.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SEEDS = ROOT.parent / "shared/seeds"
LAB = ROOT / "lab"

NAIR, KROUKA, ADAMW = "000_257cf2a7f15f917a", "002_25d2d3e71ae41407", "004_5495dff468844afa"

Line = tuple[str, ...]
Read = Callable[[str], Iterable[Line]]
FIGURE = re.compile(r"(\d+\.\d+)±\\pm(\d+\.\d+)")
EPSILON = re.compile(r"ε=([\d.]+)\\varepsilon")
ABLATION = {
    "Grad-only (no EMA, no SM)": "DP-FedGD",
    "EMA-only (no SM)": "EMA-only",
    "DP-FedSOFIM (full)": "DP-FedSOFIM",
}


def after(text: str, caption: str) -> Iterator[str]:
    """The lines after a table's caption."""
    lines = iter(text.splitlines())
    next(line for line in lines if line.startswith(caption))
    return lines


# ------------------------------------------------------------------------------------- Nair et al.


def table(text: str, number: int) -> list[str]:
    """The lines of a table: from its caption to the first one that is neither head nor figures."""
    found: list[str] = []
    for line in after(text, f"Table {number}: "):
        if not (FIGURE.search(line) or EPSILON.match(line) or not found or _head(line)):
            return found
        found.append(line)
    return found


def _head(line: str) -> bool:
    return line.startswith(("Method", "10 20", "\u03c1", "CIFAR-10 PathMNIST"))


def _name(line: str) -> str:
    return line[: next(FIGURE.finditer(line)).start()].strip()


def by_round(number: int) -> Read:
    """Tables 3 to 6, 8, 9: a block for each epsilon, a line for each method, rounds across."""

    def read(text: str) -> Iterator[Line]:
        rounds: list[str] = []
        epsilon = ""
        for line in table(text, number):
            if line.startswith("10 20"):
                rounds = line.split()
            elif EPSILON.match(line):
                epsilon = EPSILON.findall(line)[0]
            elif figures := FIGURE.findall(line):
                for at, (mean, std) in zip(rounds, figures, strict=True):
                    yield epsilon, _name(line), at, mean, std

    return read


def ablation(number: int) -> Read:
    """Tables 10 and 11: a line for each method, a column for each epsilon, at round 70."""

    def read(text: str) -> Iterator[Line]:
        epsilons: list[str] = []
        for line in table(text, number):
            epsilons = epsilons or EPSILON.findall(line)
            if figures := FIGURE.findall(line):
                for epsilon, (mean, std) in zip(epsilons, figures, strict=True):
                    yield epsilon, ABLATION[_name(line)], "70", mean, std

    return read


def rho(first: int) -> Read:
    """Table 12: CIFAR-10 in columns 0 and 1, PathMNIST in 2 and 3; epsilon 1 and 5 of each."""

    def read(text: str) -> Iterator[Line]:
        for line in table(text, 12):
            if figures := FIGURE.findall(line):
                pair = figures[first : first + 2]
                for epsilon, (mean, std) in zip(("1", "5"), pair, strict=True):
                    yield epsilon, f"rho {float(_name(line)):g}", "70", mean, std

    return read


def runtime(text: str) -> Iterator[Line]:
    """Table 7: seconds per round; K local steps where the line says so."""
    group = ""
    for line in after(text, "Table 7: "):
        if line.startswith("DP-SCAFFOLD"):
            group = "DP-SCAFFOLD"
            continue
        figures = re.findall(r" (\d\.\d\d)(?= |$)", line)
        if len(figures) != 4:
            if group and not line.startswith("CIFAR"):
                return
            continue
        steps = re.search(r"K=(\d)K", line)
        epsilon = re.search(r"ε(=|)([\d.]+?)\\varepsilon", line)
        which = "" if epsilon is None else f"{epsilon[2]}" if epsilon[1] else f"from {epsilon[2]}"
        yield group or line.split()[0], which, steps[1] if steps else "1", *figures


def counts(number: int) -> Read:
    """Tables 13 and 14: a thin space sets the thousands apart, another one the columns."""

    def read(text: str) -> Iterator[Line]:
        for line in after(text, f"Table {number}: "):
            cells = line.replace("\u2009", "").split()
            if line.startswith("Client"):
                continue
            if not cells or not (cells[0] == "Total" or cells[0].isdigit()):
                return
            yield cells[0].lower(), *cells[1:]

    return read


MCNEMAR = re.compile(r"^(DP-\S+) (0\.\d+) (\d+) (\d+) ([\d.]+) (<<)?([\d.]+) (.+)$")
VERDICT = {"\\uparrow^{*}": "better", "{\\dagger}": "worse", "-": ""}


def mcnemar(number: int, backbones: Sequence[str] = ("ResNet-20", "VGG-16")) -> Read:
    """Tables 15 and 16: two halves, a block for each epsilon, a line for each baseline."""

    def read(text: str) -> Iterator[Line]:
        half, epsilon, own = -1, "", ""
        for line in after(text, f"Table {number}: "):
            if line.startswith("Baseline"):
                half += 1
            elif head := re.match(r"ε=([\d.]+)\\varepsilon.*SOFIM acc =(0\.\d+?)=", line):
                epsilon, own = head[1], head[2]
            elif row := MCNEMAR.match(line):
                name, accuracy, only, other, chi2, below, p, sign = row.groups()
                yield (
                    backbones[half],
                    epsilon,
                    name,
                    own,
                    accuracy,
                    only,
                    other,
                    chi2,
                    f"<{p}" if below else p,
                    VERDICT[sign],
                )
            else:
                return

    return read


# ----------------------------------------------------------------------------------- Krouka et al.

LONG = {
    "FFC": "DP-FedFC",
    "FGD": "DP-FedGD",
    "FN": "DP-FedNew",
    "FN-FC": "DP-FedNew-FC",
    "Scaffold": "DP-SCAFFOLD",
}


def by_clients(number: int) -> Read:
    """Tables 5, 8, 10, 11: clients, records each, method; a column for each epsilon; in percent."""

    def read(text: str) -> Iterator[Line]:
        epsilons: list[str] = []
        clients = size = ""
        for line in after(text, f"Table {number}: "):
            if not line.strip():
                if epsilons:
                    return
                continue
            cells = [cell.strip() for cell in line.split("\t")]
            epsilons = epsilons or re.findall(r"epsilon = ([\d.]+)", line)
            figures = [cell for cell in cells if re.fullmatch(r"0\.\d{3}", cell)]
            if not figures:
                continue
            clients, size = (cells[0] or clients), (cells[1] or size)
            name = re.sub(r"[$ ]", "", cells[2]).removeprefix("DP-")
            method = LONG.get(name, f"DP-{name}")
            for epsilon, figure in zip(epsilons, figures, strict=True):
                yield epsilon, clients, size, method, "70", f"{100 * float(figure):.1f}"

    return read


def ours(clients: str, kept: Sequence[str], methods: Sequence[str]) -> Read:
    """Table 8 in the columns of a study: one number of clients, some epsilons, some methods."""

    def read(text: str) -> Iterator[Line]:
        for epsilon, n, _, method, at, figure in by_clients(8)(text):
            if n == clients and epsilon in kept and method in methods:
                yield epsilon, method, at, figure

    return read


# ------------------------------------------------------------------------------------- DP-FedAdamW


def cells_of(text: str, number: int) -> Iterator[list[str]]:
    """The cells of a Markdown table, without its rule."""
    begun = False
    for line in after(text, f"Table {number}. "):
        if line.startswith("|"):
            begun = True
            if not line.startswith("|-"):
                yield [cell.strip() for cell in line.strip("|").split("|")]
        elif begun:
            return


PAIR = re.compile(r"([\d.]+) \\pm ([\d.]+)")


def spreads(number: int, columns: Sequence[tuple[str, ...]], labels: int = 1) -> Read:
    """A line for each method; each column is a cell with a mean and its spread."""

    def read(text: str) -> Iterator[Line]:
        for cells in cells_of(text, number):
            pairs = [PAIR.fullmatch(cell) for cell in cells[labels:]]
            found = [pair for pair in pairs if pair]
            for column, pair in zip(columns, found, strict=True) if found else ():
                yield *column, *cells[:labels], pair[1], pair[2]

    return read


def adadps(text: str) -> Iterator[Line]:
    """Table 12: two methods on two data sets, at two alphas."""
    columns = [(data, alpha) for data in ("CIFAR-100", "Tiny-ImageNet") for alpha in ("0.6", "0.1")]
    for name, *figures in cells_of(text, 12):
        if name != "Method":
            for column, figure in zip(columns, figures, strict=True):
                yield *column, name, figure


def overhead(text: str) -> Iterator[Line]:
    """Table 13: parameters in millions, blocks, kilobytes, the ratio of blocks to parameters."""
    for name, d, blocks, payload, ratio in cells_of(text, 13):
        if name != "Model":
            base, power = re.findall(r"([\d.]+) \\times 10\^\{(-\d)\}", ratio)[0]
            sizes = [re.findall(r"approx ([\d.]+)", cell)[0] for cell in (d, payload)]
            yield name, sizes[0], blocks, sizes[1], f"{base}e{power}"


def betas(text: str) -> Iterator[Line]:
    """Table 14: a line for each pair of betas, a column for each method."""
    for b1, b2, *figures in cells_of(text, 14):
        for name, cell in zip(("DP-LocalAdamW", "DP-FedAdamW"), figures, strict=True):
            if pair := PAIR.fullmatch(cell):
                yield b1, b2, name, pair[1], pair[2]


# ------------------------------------------------------------------------------------ what is made

ROUNDS = ("epsilon", "method", "round", "accuracy", "std")
CLIENTS = ("epsilon", "clients", "records", "method", "round", "accuracy")
PAIRED = (
    "backbone",
    "epsilon",
    "method",
    "sofim",
    "accuracy",
    "n10",
    "n01",
    "chi2",
    "p",
    "sofim is",
)
SEEN = ("DP-FedGD", "DP-FedFC", "DP-FedNew", "DP-FedNew-FC")
SWIN = [(model, alpha) for model in ("Swin-Tiny", "Swin-Base") for alpha in ("0.6", "0.1")]
SIGMA = [(alpha, sigma) for alpha in ("0.6", "0.1") for sigma in ("0.5", "1", "1.5", "2")]

STUDIED: dict[str, tuple[str, Line, Read]] = {
    "sofim-cifar10": (NAIR, ROUNDS, by_round(3)),
    "sofim-backbone": (NAIR, ROUNDS, by_round(5)),
    "sofim-cifar10-iid": (NAIR, ROUNDS, by_round(8)),
    "sofim-ablation": (NAIR, ROUNDS, ablation(10)),
    "sofim-rho": (NAIR, ROUNDS, rho(0)),
    "sofim-cifar10-resnet20": (NAIR, ROUNDS, by_round(3)),
    "sofim-cifar10-vgg16": (NAIR, ROUNDS, by_round(5)),
    "sofim-pathmnist-resnet20": (NAIR, ROUNDS, by_round(4)),
    "sofim-pathmnist-vgg16": (NAIR, ROUNDS, by_round(6)),
    "fednew-adult-sum": (
        KROUKA,
        ("epsilon", "method", "round", "accuracy"),
        ours("10", ("0.1", "1"), SEEN),
    ),
}
"""With a study: (paper, columns, reader) by its name."""

ALONE: dict[str, tuple[str, Line, Read]] = {
    "nair-table-7": (
        NAIR,
        (
            "method",
            "epsilon",
            "steps",
            "CIFAR-10, ResNet-20",
            "CIFAR-10, VGG-16",
            "PathMNIST, ResNet-20",
            "PathMNIST, VGG-16",
        ),
        runtime,
    ),
    "nair-table-9": (NAIR, ROUNDS, by_round(9)),
    "nair-table-11": (NAIR, ROUNDS, ablation(11)),
    "nair-table-12-pathmnist": (NAIR, ROUNDS, rho(2)),
    "nair-table-13": (NAIR, ("client", *map(str, range(9)), "total"), counts(13)),
    "nair-table-14": (NAIR, ("client", *map(str, range(10)), "total"), counts(14)),
    "nair-table-15": (NAIR, PAIRED, mcnemar(15)),
    "nair-table-16": (NAIR, PAIRED, mcnemar(16)),
    "krouka-table-5": (KROUKA, CLIENTS, by_clients(5)),
    "krouka-table-8": (KROUKA, CLIENTS, by_clients(8)),
    "krouka-table-10": (KROUKA, CLIENTS, by_clients(10)),
    "krouka-table-11": (KROUKA, CLIENTS, by_clients(11)),
    "fedadamw-table-10": (
        ADAMW,
        ("model", "alpha", "method", "accuracy", "std"),
        spreads(10, SWIN),
    ),
    "fedadamw-table-11": (
        ADAMW,
        ("alpha", "sigma", "method", "accuracy", "std"),
        spreads(11, SIGMA),
    ),
    "fedadamw-table-12": (ADAMW, ("data", "alpha", "method", "accuracy"), adadps),
    "fedadamw-table-13": (
        ADAMW,
        ("model", "parameters (M)", "blocks", "payload (KB)", "ratio"),
        overhead,
    ),
    "fedadamw-table-14": (ADAMW, ("beta1", "beta2", "method", "accuracy", "std"), betas),
}
"""Without one: the same by file."""


def tables(out: Path) -> Iterator[tuple[Path, str, Line, Read]]:
    """Every file, the paper that it is read from, its columns and its reader."""
    for name, made in STUDIED.items():
        yield out / "studies" / name / "paper.csv", *made
    for name, made in ALONE.items():
        yield out / "papers" / f"{name}.csv", *made


def lines_of(read: Read, columns: Line, text: str) -> list[Line]:
    """By epsilon where that is the first column, otherwise as the paper has them."""
    found = list(read(text))
    if {len(line) for line in found} != {len(columns)}:
        raise SystemExit(
            f"lines must have {len(columns)} cells: {', '.join(columns)}, got {found[:1]}"
        )
    return sorted(found, key=lambda line: float(line[0])) if columns[0] == "epsilon" else found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("seeds", type=Path, nargs="?", default=SEEDS)
    parser.add_argument("--out", type=Path, default=LAB)
    given = parser.parse_args()
    for path, paper, columns, read in tables(given.out):
        lines = lines_of(read, columns, (given.seeds / f"{paper}.txt").read_text(encoding="utf-8"))
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(lines)


if __name__ == "__main__":
    main()
