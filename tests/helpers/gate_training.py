# SPDX-License-Identifier: Apache-2.0
"""The training that gates must equal, in one process."""

from __future__ import annotations

from pathlib import Path

import torch

from dpfed.data.datasets import Records
from dpfed.training.inprocess import rounds
from tests.silo.gates import read, records


def in_one_process(terms_path: Path, silos: int) -> torch.Tensor:
    terms = read(terms_path)
    problems = [terms.model.problem(Records(*records(i))) for i in range(silos)]
    *_, (step, _) = rounds(terms.plan, problems, terms.initial)
    return step.params
