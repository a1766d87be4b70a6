# SPDX-License-Identifier: Apache-2.0
"""(j) The clipped sum of records' gradients, beside every way that the field has for it.

LeNet, a small ResNet with GroupNorm, an MLP, and LoRA on a transformer of MiniLM-L3's shape. The
ways: Opacus' hooks, its ghost clipping and its fast gradient clipping, torch.func, and the step
that is not private. All take the records in batches of 64 and must give the same sum before
anything is timed. What is held to a target is ours over the fastest of the four: at most 1.

Times are medians of CPU seconds of one thread, each way in turn with the others: of 512 records of
LeNet and the MLP, 128 of the ResNet and 64 of the transformer.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from dpfed.core.types import Unit, Vector
from dpfed.data.batches import Batch, tensor_batches
from dpfed.data.modules import Network
from dpfed.data.networks import mlp
from dpfed_lab.benchmarks._measure import Result, Task, compare, interleaved, threads

MEASURES = (
    "dpfed.core.ghost",
    "dpfed.data.layer_hooks",
    "dpfed.data.modules",
)

CLIP, BATCH, REPEATS, TOLERANCE = 1.0, 64, 5, 1e-3
Inputs = torch.Tensor | dict[str, torch.Tensor]
Sum = Callable[[], Vector]


class Case(NamedTuple):
    """A network, its records, and what one step of ours may take of a step that is not private."""

    make: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]
    records: int
    against_plain: float | None = None


class Block(nn.Module):
    """Two convolutions with GroupNorm and a way around them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.GroupNorm(4, after) for _ in range(2))
        around = nn.Conv2d(before, after, 1, stride, bias=False)
        self.around = nn.Identity() if before == after else around

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's scores."""
        made = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(made)) + self.around(x))


def resnet(widths: Sequence[int] = (16, 32, 64)) -> nn.Module:
    """Three stages of these many channels, one block each."""
    a, b, c = widths
    blocks = (Block(a, a, 1), Block(a, b, 2), Block(b, c, 2))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 10))
    first = (nn.Conv2d(3, a, 3, 1, 1, bias=False), nn.GroupNorm(4, a), nn.ReLU())
    return nn.Sequential(*first, *blocks, *head)


def lenet() -> nn.Module:
    """LeNet-5 with ReLU and max-pooling, for images of 28 x 28."""
    maps = (nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2))
    more = (nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    head = (nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))
    return nn.Sequential(*maps, *more, *head)


def minilm() -> nn.Module:
    """A BERT of MiniLM-L3's shape with random weights; LoRA of rank 8 on queries and values."""
    peft, library = (import_module(name) for name in ("peft", "transformers"))
    config = library.BertConfig(
        vocab_size=2000,
        hidden_size=384,
        num_hidden_layers=3,
        num_attention_heads=12,
        intermediate_size=1536,
        num_labels=2,
    )
    lora = peft.LoraConfig(r=8, target_modules=["query", "value"], task_type="SEQ_CLS")
    module: nn.Module = peft.get_peft_model(library.BertForSequenceClassification(config), lora)
    return module.eval()


CASES = {
    "LeNet": Case(lenet, lambda: torch.randn(512, 1, 28, 28), 512, 2.5),
    "ResNet": Case(resnet, lambda: torch.randn(128, 3, 32, 32), 128),
    "MLP": Case(lambda: mlp(123), lambda: torch.randn(512, 123), 512),
    "MiniLM, LoRA": Case(
        minilm, lambda: {"input_ids": torch.randint(1, 2000, (64, 64))}, 64, against_plain=1.6
    ),
}


def run() -> list[Result]:
    """All networks, ours against each other way, and against the best of them."""
    with threads(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [line for name in CASES for line in _lines(name)]


def _lines(name: str) -> list[Result]:
    case = CASES[name]
    ways = _ways(case)
    _must_agree(ways)
    calls = -(-512 // (16 * case.records))
    tasks = {way: Task(sum_, calls=calls) for way, sum_ in ways.items()}
    timings = interleaved(tasks, REPEATS, warmup=1, clock=time.process_time)
    best = min(WAYS, key=lambda way: timings[way].median)
    lines = []
    for way in (*WAYS, "plain"):
        target = 1.0 if way == best else case.against_plain if way == "plain" else None
        what = "a step that is not private" if way == "plain" else way
        what += ", the fastest" if way == best else ""
        line = compare(f"rows of {name}", timings["ours"], timings[way], target, what)
        lines.append(line)
    return lines


# ---------------------------------------------------------------------------------------- the ways


def _ways(case: Case) -> dict[str, Sum]:
    """Each on a module of its own, with the same weights and records."""
    torch.manual_seed(1)
    inputs, targets = case.inputs(), torch.arange(case.records) % 2
    ways: dict[str, Any] = {"ours": _ours, **WAYS, "plain": _plain}
    made = {}
    for name, way in ways.items():
        torch.manual_seed(0)
        made[name] = way(case.make(), inputs, targets)
    return made


def _batches(inputs: Inputs, targets: torch.Tensor) -> list[Batch]:
    whole = Batch(inputs, targets)
    return [whole[at : at + BATCH] for at in range(0, len(targets), BATCH)]


def _losses(module: nn.Module, batch: Batch) -> torch.Tensor:
    x = batch.inputs
    scores = module(**x).logits if isinstance(x, dict) else module(x)
    return functional.cross_entropy(scores, batch.targets, reduction="none")


def _flat(module: nn.Module, attribute: str) -> Vector:
    trained = [p for p in module.parameters() if p.requires_grad]
    return torch.cat([getattr(p, attribute).reshape(-1) for p in trained])


def _ours(module: nn.Module, inputs: Inputs, targets: torch.Tensor) -> Sum:
    model = Network(module, chunk=BATCH)
    problem, params = model.problem(tensor_batches(inputs, targets)), model.initial(0)
    return lambda: problem.rows(params, Unit.RECORD).clipped_sum(CLIP).vector


def _plain(module: nn.Module, inputs: Inputs, targets: torch.Tensor) -> Sum:
    batches = _batches(inputs, targets)

    def step() -> Vector:
        module.zero_grad()
        for batch in batches:
            torch.autograd.backward(_losses(module, batch).sum())
        return _flat(module, "grad")

    return step


def _hooks(module: nn.Module, inputs: Inputs, targets: torch.Tensor) -> Sum:
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    hooked, batches = (
        GradSampleModule(_awake(module), loss_reduction="sum"),
        _batches(inputs, targets),
    )
    sgd = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.0)
    optimizer = DPOptimizer(
        sgd,
        noise_multiplier=0.0,
        max_grad_norm=CLIP,
        expected_batch_size=None,
        loss_reduction="sum",
    )

    def step() -> Vector:
        for each in optimizer.params:
            each.summed_grad = None
        for batch in batches:
            for each in optimizer.params:
                each.grad_sample = None
            torch.autograd.backward(_losses(hooked, batch).sum())
            optimizer.clip_and_accumulate()
        return _flat(module, "summed_grad")

    return step


def _two_passes(ghost: bool) -> Callable[[nn.Module, Inputs, torch.Tensor], Sum]:
    """Opacus' norms in one backward pass, and the sum of scaled losses in a second one."""

    def way(module: nn.Module, inputs: Inputs, targets: torch.Tensor) -> Sum:
        from opacus.grad_sample import GradSampleModuleFastGradientClipping

        hooked: Any = GradSampleModuleFastGradientClipping(
            _awake(module), max_grad_norm=CLIP, use_ghost_clipping=ghost, loss_reduction="sum"
        )
        batches = _batches(inputs, targets)
        trained = [p for p in module.parameters() if p.requires_grad]

        def step() -> Vector:
            total: list[torch.Tensor] = [torch.zeros_like(p) for p in trained]
            for batch in batches:
                hooked.zero_grad()
                hooked.enable_hooks()
                losses = _losses(hooked, batch)
                torch.autograd.backward(losses.sum(), retain_graph=True)
                factors = hooked.get_clipping_coef().detach()
                hooked.zero_grad()
                hooked.disable_hooks()
                torch.autograd.backward((losses * factors).sum())
                for part, parameter in zip(total, trained, strict=True):
                    if parameter.grad is not None:
                        part.add_(parameter.grad)
            return torch.cat([part.reshape(-1) for part in total])

        return step

    return way


def _awake(module: nn.Module) -> nn.Module:
    """Opacus' hooks see layers in train() only; dropout stays off."""
    module.train()
    for layer in module.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    return module


def _func(module: nn.Module, inputs: Inputs, targets: torch.Tensor) -> Sum:
    trained = {n: p.detach() for n, p in module.named_parameters() if p.requires_grad}
    batches = _batches(inputs, targets)

    def loss(params: dict[str, torch.Tensor], x: Any, y: torch.Tensor) -> torch.Tensor:
        one = {n: t[None] for n, t in x.items()} if isinstance(x, dict) else x[None]
        called: Any = ((), one) if isinstance(one, dict) else ((one,), {})
        found = torch.func.functional_call(module, params, *called)
        scores = found.logits if isinstance(x, dict) else found
        return functional.cross_entropy(scores, y[None])

    rows = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))

    def step() -> Vector:
        total = torch.zeros(sum(p.numel() for p in trained.values()))
        for batch in batches:
            made = rows(trained, batch.inputs, batch.targets)
            flat = [each.flatten(1) for each in made.values()]
            norms = torch.stack([each.norm(dim=1) for each in flat]).norm(dim=0)
            factors = (CLIP / norms).clamp(max=1.0)
            total += torch.cat([factors @ each for each in flat])
        return total

    return step


WAYS: dict[str, Callable[[nn.Module, Inputs, torch.Tensor], Sum]] = {
    "Opacus' hooks": _hooks,
    "Opacus' ghost clipping": _two_passes(ghost=True),
    "Opacus' fast clipping": _two_passes(ghost=False),
    "torch.func": _func,
}


def _must_agree(ways: dict[str, Sum]) -> None:
    """No way is timed that gives another sum; the step that is not private gives another."""
    sums = {name: way().detach().double().clone() for name, way in ways.items() if name != "plain"}
    scale = float(sums["ours"].norm())
    for name, vector in sums.items():
        apart = float((vector - sums["ours"]).norm()) / scale
        assert apart < TOLERANCE, f"{name} is {apart:.2g} from ours, above {TOLERANCE}"
