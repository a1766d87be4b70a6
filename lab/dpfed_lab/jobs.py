# SPDX-License-Identifier: Apache-2.0
"""Many runs over a pool of processes; each is stored when it ends, so that a killed batch resumes.

A job is a resolved recipe with labels. Its key is a digest of both and of what is stored, so that
no run is made twice under one name. ``runs.jsonl`` has one line per finished run; a line that a
kill cut short is skipped, and its run is made again. Published results keep their runs in
``runs.jsonl.gz``: it is read first, and never written here.
"""

from __future__ import annotations

import datetime as dt
import gzip
import hashlib
import json
import math
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from dpfed.core.errors import DpfedError, RecipeError
from dpfed.core.files import json_line, replace_file
from dpfed.recipes import schema as recipes
from dpfed.recipes.schema import Recipe

Labels = dict[str, Any]
Row = dict[str, Any]
Progress = Callable[[int, int, Row], None]
"""Called with (done, all, the run that ended)."""
Begin = Callable[[int, int], None]
"""Called with (done by an earlier process, all) before the first run."""

DIVERGED = 20.0
"""Nats: a classifier whose mean cross-entropy ends above this has diverged. The right class then
has a probability of e^-20 on average; its accuracy is a figure about a model that nobody would use.
"""


@dataclass(frozen=True)
class Job:
    """One run: its labels in a study's tables, and its recipe."""

    labels: Labels
    recipe: Recipe
    root: str | None = None
    keep: tuple[str, ...] = ()
    """What else to store: "correct", one bit per test record, for paired tests."""
    brief: bool = False
    """Store only the figures by which a setting is judged."""

    @property
    def key(self) -> str:
        """A digest of the recipe, the labels and what is stored."""
        named = (self.recipe, self.labels, self.keep, self.brief)
        facts = msgspec.json.encode(named, order="sorted")
        return hashlib.sha256(facts).hexdigest()[:24]


def make_job(
    base: Mapping[str, Any],
    labels: Labels,
    changes: Mapping[str, Any],
    root: Path | None = None,
    keep: tuple[str, ...] = (),
    brief: bool = False,
) -> Job:
    """The base recipe with changes by dotted key, as ``--set`` takes them.

    Args:
        base: the recipe's tables.
        labels: what the run is called in the tables of a study.
        changes: dotted keys with values, which override those of ``base``.
        root: the folder that relative data paths refer to; None means the working folder.
        keep: what else to store of the run; see ``Job.keep``.
        brief: store only what a setting is judged by.
    """
    overrides = [f"{key}={_literal(value)}" for key, value in changes.items()]
    where = None if root is None else str(root)
    return Job(
        labels=labels,
        recipe=recipes.load_recipe(base, overrides),
        root=where,
        keep=keep,
        brief=brief,
    )


def _literal(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_literal(v)}" for key, v in value.items()) + "}"
    return repr(value)


# ------------------------------------------------------------------------------------- the store


@dataclass(frozen=True)
class Store:
    """Finished runs by key, in a file that only grows."""

    path: Path
    rows: dict[str, Row] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path) -> Store:
        """Read the file's rows, and those of its compressed copy (``runs.jsonl.gz``)."""
        path.parent.mkdir(parents=True, exist_ok=True)
        store, kept = cls(path), path.with_name(f"{path.name}.gz")
        text = gzip.decompress(kept.read_bytes()).decode() if kept.exists() else ""
        text += path.read_text(encoding="utf-8") if path.exists() else ""
        for line in text.splitlines():
            try:
                row = json.loads(line)
                store.rows[row["key"]] = row
            except (ValueError, KeyError):  # cut short by a kill
                continue
        return store

    def add(self, row: Row) -> None:
        """Append a finished run; it is on disk before the next one starts."""
        self.rows[row["key"]] = row
        with self.path.open("a", encoding="utf-8") as file:
            if file.tell() and not self._ends_well():
                file.write("\n")
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _ends_well(self) -> bool:
        with self.path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"


class ProgressFile:
    """Writes how far a study is to progress.json, for readers outside of this process.

    Args:
        folder: the study's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._path, self._since, self._before = folder / "progress.json", 0.0, -1

    def begin(self, done: int) -> None:
        """A stage begins now: the pace is counted from here.

        Args:
            done: runs that an earlier process has made, which do not count for the pace.
        """
        self._since, self._before = time.monotonic(), done

    def write(self, done: int, total: int, last: str) -> int | None:
        """Write the progress after a run; returns the seconds left, None if not known yet.

        Args:
            done: finished runs of this stage.
            total: all runs of this stage.
            last: the run that ended, in words.
        """
        now = time.monotonic()
        if not 0 <= self._before < done:  # a stage has begun, and nobody said so
            self.begin(done)
        each = (now - self._since) / max(1, done - self._before)
        left = round(each * (total - done)) if done > self._before else None
        facts = {
            "done": done,
            "of": total,
            "seconds_left": left,
            "last": last,
            "at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        }
        replace_file(self._path, json_line(facts).encode(), 0o644)
        return left


def run_jobs(
    jobs: Sequence[Job],
    store: Store,
    workers: int | None = None,
    watch: Progress | None = None,
    begin: Begin | None = None,
) -> list[Row]:
    """The rows of all jobs, in their order; those in the store are not run again.

    Args:
        jobs: what to run.
        store: the runs that are finished; new ones are added.
        workers: how many processes run jobs; None is one per CPU, and 1 runs them in this process.
        watch: called with (done, all, the row) after each run.
        begin: called with (done, all) before the first run.
    """
    missing = {job.key: job for job in jobs if job.key not in store.rows}
    done = len({job.key for job in jobs}) - len(missing)
    total = done + len(missing)
    if begin:
        begin(done, total)
    for row in _finished(list(missing.values()), workers or os.cpu_count() or 1):
        store.add(row)
        done += 1
        if watch:
            watch(done, total, row)
    return [{**store.rows[job.key], **job.labels} for job in jobs]


def _finished(jobs: list[Job], workers: int) -> Iterable[Row]:
    if workers == 1 or len(jobs) <= 1:
        yield from map(run_one, jobs)
        return
    with job_pool(min(workers, len(jobs))) as pool:
        yield from _as_they_end(pool, jobs, 2 * workers)


def job_pool(workers: int) -> ProcessPoolExecutor:
    """Processes that run jobs; spawned, since torch's threads do not survive a fork."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, context, initializer=_follow, initargs=(os.getpid(),))


def _follow(parent: int) -> None:
    """End this worker when its parent is gone: a killed sweep would leave it waiting for ever."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class Queue:
    """Single jobs, asked for by several threads: run in the pool, or taken from the store."""

    def __init__(
        self, pool: ProcessPoolExecutor, store: Store, total: int, watch: Progress | None
    ) -> None:
        self._pool, self._store, self._total, self._watch = pool, store, total, watch
        self._lock, self._done = threading.Lock(), 0

    def run(self, job: Job) -> Row:
        """The row of a job, when it has ended."""
        row = self._store.rows.get(job.key)
        known = row is not None
        if row is None:
            row = self._pool.submit(run_one, job).result()
        with self._lock:
            self._done += 1
            if not known:
                self._store.add(row)
            if self._watch:
                self._watch(self._done, self._total, row)
        return {**row, **job.labels}


def _as_they_end(pool: ProcessPoolExecutor, jobs: list[Job], ahead: int) -> Iterable[Row]:
    """A few jobs are queued at a time, so that a stop does not wait for all of them."""
    waiting, running = iter(jobs), set[Future[Row]]()
    try:
        while True:
            for job in waiting:
                running.add(pool.submit(run_one, job))
                if len(running) >= ahead:
                    break
            if not running:
                return
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                yield future.result()
    finally:
        for future in running:
            future.cancel()


# --------------------------------------------------------------------------------------- one run


def run_one(job: Job) -> Row:
    """Train, and return all that a table may need as one flat row."""
    import torch

    from dpfed.recipes.run import run_session
    from dpfed.recipes.session import prepare
    from dpfed_lab.simulated_secure_sum import without_masks

    torch.set_num_threads(1)
    silos = _silos(_data_facts(job.recipe), job.root)
    try:
        prepared = prepare(job.recipe, None if job.root is None else Path(job.root), silos)
        result = run_session(without_masks(prepared))
    except DpfedError as error:
        if job.brief and isinstance(error, RecipeError):  # a search may try an invalid setting
            return _refused(job, error)
        raise type(error)(f"{job.labels}: {error}") from error
    last = result.history[-1]
    judged_by = "loss" if last["accuracy"] is None else "accuracy"
    measured = {str(r["round"]): r[judged_by] for r in result.history if r[judged_by] is not None}
    seconds = round(sum(r["seconds"] or 0.0 for r in result.history), 3)
    judged = {"key": job.key, **job.labels, "accuracy": last["accuracy"], "loss": last["loss"]}
    if job.brief:
        return {**judged, "seconds": seconds}
    row = {
        **judged,
        "worst_silo": last["worst_silo"],
        "by_round": measured,
        "epsilon_server": result.guarantee.claims[0].epsilon,
        "epsilon_others": result.guarantee.claims[-1].epsilon,
        "guarantee": result.guarantee.sentence,
        "data": result.source,
        "evaluation": result.evaluation,
        "seconds": seconds,
        "rounds": last["round"],
    }
    return {**row, **_kept(job, silos, result)}


def _refused(job: Job, error: RecipeError) -> Row:
    """The row of a setting that the method refuses: judged as the worst, with the reason."""
    judged = {"key": job.key, **job.labels, "accuracy": None, "loss": None}
    return {**judged, "refused": str(error), "seconds": 0.0}


def _kept(job: Job, silos: Any, result: Any) -> Row:
    if "correct" not in job.keep or silos.test is None:
        return {}
    import numpy as np

    correct, _ = result.model.judge(result.params, silos.test)
    return {"correct": np.packbits(correct.numpy() > 0.5).tobytes().hex(), "tested": len(correct)}


def _data_facts(recipe: Recipe) -> str:
    """What determines the clients and the model: runs that share it load it once per process."""
    facts = (recipe.data, recipe.model, recipe.evaluation, recipe.seed)
    return msgspec.json.encode(facts).decode()


@lru_cache(maxsize=8)  # more data sets than a study has seeds, since jobs alternate between seeds
def _silos(facts: str, root: str | None) -> Any:
    from dpfed.recipes.federation import federation

    data, model, evaluation, seed = json.loads(facts)
    recipe = recipes.parse({"data": data, "model": model, "evaluation": evaluation, "seed": seed})
    return federation(recipe, None if root is None else Path(root))


def diverged(row: Mapping[str, Any]) -> bool:
    """Whether a run ended without accuracy and loss, or as a classifier with loss above DIVERGED.

    Args:
        row: a stored run, or its line of final.csv, in which a missing figure is an empty text.
    """
    accuracy, loss = (_number(row.get(name)) for name in ("accuracy", "loss"))
    if accuracy is None:
        return loss is None
    return loss is None or loss > DIVERGED


def _number(raw: Any) -> float | None:
    return None if raw in (None, "") or not math.isfinite(float(raw)) else float(raw)
