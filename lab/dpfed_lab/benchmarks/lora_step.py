# SPDX-License-Identifier: Apache-2.0
"""(i) One private step of a transformer with adapters, against the step that is not private.

A BERT of 6 layers, 384 wide, 16 records of 64 tokens, LoRA on its linear layers: once with rank
8, as one fine-tunes, and once with 3 million trained parameters, where made rows are long. None
is padded: torch.func cannot go through that. Measured is the clipped sum of a batch: reading,
forward, backward, norms, sums in double precision.

Limits: the non-private step (forward and backward of the mean loss), 1.6 times its time and 1.5
times its memory; rows that are made by torch.func, 0.4 of the time and 0.25 of the memory at 3
million; Opacus' own ghost clipping (two backward passes, single precision) is stated beside it.
Times are medians of CPU seconds, each in turn with its limit; memory is the high-water mark of a
fresh process above what it was before the step.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from dpfed.core.types import Unit
from dpfed.data.batches import Batches, tensor_batches
from dpfed.data.modules import Network
from dpfed_lab.benchmarks._measure import RETURN_FREED, Result, peak_above, threads

MEASURES = (
    "dpfed.core.ghost",
    "dpfed.data.modules",
    "dpfed.data.samplers",
)

RECORDS, LENGTH, WORDS, CLIP = 16, 64, 2000, 1.0
RANKS = {"rank 8": 8, "3 M parameters": 74}
REPEATS = 7
Way = Callable[[], object]


def run() -> list[Result]:
    """Time and memory of all ways, at both ranks."""
    return [line for name, rank in RANKS.items() for line in _lines(name, rank)]


def _lines(name: str, rank: int) -> list[Result]:
    seconds = _seconds(rank)
    memory = {way: _peak(rank, way) for way in WAYS}
    lines = []
    for limit, (slower, larger) in _targets(rank).items():
        what = WAYS[limit].__doc__ or limit
        times = (f"LoRA step, {name}, CPU time", seconds["ghost"], seconds[limit], "s")
        lines.append(Result(*times, target=slower, against=what))
        peaks = (memory["ghost"] / 2**20, memory[limit] / 2**20, "MiB")
        lines.append(Result(f"LoRA step, {name}, memory", *peaks, target=larger, against=what))
    return lines


def _targets(rank: int) -> dict[str, tuple[float | None, float | None]]:
    """Of time and of memory, by what they are held against."""
    func = (0.4, 0.25) if rank > 8 else (None, None)
    return {"plain": (1.6, 1.5), "func": func, "opacus": (None, None)}


def _seconds(rank: int) -> dict[str, float]:
    """CPU seconds of each way, in turn."""
    with threads(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ways = {name: make(*_set_up(rank)) for name, make in WAYS.items()}
        found: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(REPEATS + 1):
            for name, way in ways.items():
                begin = time.process_time()
                way()
                if turn:  # the first one warms up
                    found[name].append(time.process_time() - begin)
    return {name: median(each) for name, each in found.items()}


def _peak(rank: int, way: str) -> int:
    """Bytes at the peak of one step, in a process of its own."""
    asked = [sys.executable, "-m", "dpfed_lab.benchmarks.lora_step", str(rank), way]
    done = subprocess.run(
        asked, env=os.environ | RETURN_FREED, capture_output=True, text=True, check=True
    )
    return int(json.loads(done.stdout.splitlines()[-1]))


def _set_up(rank: int) -> tuple[nn.Module, Batches]:
    peft, library = (import_module(name) for name in ("peft", "transformers"))
    torch.manual_seed(0)
    config = library.BertConfig(
        vocab_size=WORDS,
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=6,
        intermediate_size=1536,
        num_labels=2,
    )
    targets = ["query", "key", "value", "dense"]
    lora = peft.LoraConfig(r=rank, target_modules=targets, task_type="SEQ_CLS")
    module = peft.get_peft_model(library.BertForSequenceClassification(config), lora).eval()
    ids = torch.randint(1, WORDS, (RECORDS, LENGTH))
    return module, tensor_batches({"input_ids": ids}, torch.arange(RECORDS) % 2)


def _ours(sampler: str, module: nn.Module, batches: Batches) -> Way:
    model = Network(module, chunk=RECORDS, sampler=sampler)
    problem, params = model.problem(batches), model.initial(0)
    problem.rows(params, Unit.RECORD)  # what is tried once per model is tried here
    return lambda: problem.rows(params, Unit.RECORD).clipped_sum(CLIP)


def _ghost(module: nn.Module, batches: Batches) -> Way:
    """Rows that are clipped unmade."""
    return _ours("ghost", module, batches)


def _func(module: nn.Module, batches: Batches) -> Way:
    """Rows that torch.func makes."""
    return _ours("func", module, batches)


def _plain(module: nn.Module, batches: Batches) -> Way:
    """The step that is not private."""
    batch: Any = batches.read(torch.arange(RECORDS))
    trained = [p for p in module.parameters() if p.requires_grad]

    def step() -> object:
        loss = functional.cross_entropy(module(**batch.inputs).logits, batch.targets)
        return torch.autograd.grad(loss, trained)

    return step


def _opacus(module: nn.Module, batches: Batches) -> Way:
    """Opacus' own ghost clipping, in single precision."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    hooked: Any = GradSampleModuleFastGradientClipping(
        module.train(), max_grad_norm=CLIP, loss_reduction="sum"
    )
    batch: Any = batches.read(torch.arange(RECORDS))

    def step() -> object:
        hooked.zero_grad()
        hooked.enable_hooks()
        scores = hooked(**batch.inputs).logits
        losses = functional.cross_entropy(scores, batch.targets, reduction="none")
        torch.autograd.backward(losses.sum(), retain_graph=True)
        factors = hooked.get_clipping_coef().detach()
        hooked.zero_grad()
        hooked.disable_hooks()
        torch.autograd.backward((losses * factors).sum())
        return [p.grad for p in hooked.parameters() if p.requires_grad]

    return step


WAYS: dict[str, Callable[[nn.Module, Batches], Way]] = {
    "ghost": _ghost,
    "plain": _plain,
    "func": _func,
    "opacus": _opacus,
}


def _main(rank: str, way: str) -> None:
    with threads(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step = WAYS[way](*_set_up(int(rank)))
        peak, _ = peak_above(step)
    sys.stdout.write(f"{json.dumps(peak)}\n")


if __name__ == "__main__":
    _main(*sys.argv[1:])
