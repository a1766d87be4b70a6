# SPDX-License-Identifier: Apache-2.0
"""Settings that were searched before: where they are, who lends them, and that none is missing."""

from __future__ import annotations

import json
from pathlib import Path

from dpfed.core.errors import RecipeError
from dpfed.experiments import study as studies
from dpfed.experiments.study import Study
from dpfed.experiments.sweep import SETTINGS, Settings, entries_of, label_of


def stored(name: str, study: Study, out: Path | None = None) -> Settings:
    """Settings that were searched into a folder before, or that come along, or are lent."""
    searched = [] if out is None else [out / SETTINGS]
    for path in (*searched, _settings_of(name)):
        if path.exists():
            found: Settings = json.loads(path.read_text(encoding="utf-8"))
            return found
    return _lent(study)


def _settings_of(name: str) -> Path:
    return studies.STUDIES / f"{name}.settings.json"


def _lent(study: Study) -> Settings:
    """Those of the study that this one is like: each cell takes them from the cell nearest to it.

    Nothing was tried on this study's own records, so nothing is counted as tried.
    """
    if not study.like or not _settings_of(study.like).exists():
        return {}
    lender: Settings = json.loads(_settings_of(study.like).read_text(encoding="utf-8"))
    like = studies.load(study.like)
    lent: Settings = {}
    for cell, _, method in entries_of(study):
        shared = {axis.label: cell[axis.label] for axis in like.axes if axis.label in cell}
        if len(shared) == len(like.axes):
            key = label_of(studies.tuned_cell(like, shared), method.label)
            if key in lender:
                found = {"set": lender[key]["set"], "lent": study.like}
                lent[label_of(cell, method.label)] = found
    return lent


def check(study: Study, settings: Settings, name: str) -> None:
    """Methods that are to be tuned would otherwise run at the plug-ins' defaults, and look bad."""
    for cell, _, method in entries_of(study):
        known = label_of(cell, method.label) in settings or method.label in study.settings
        if (method.coarse or method.space) and not known:
            raise RecipeError(
                f"no settings are known for {label_of(cell, method.label)!r}; search them first: "
                f"dpfed sweep {name}"
            )
