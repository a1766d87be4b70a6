# SPDX-License-Identifier: Apache-2.0
"""Hooks that capture the factors of per-record gradients: each trained layer's input and gradient.

One forward and one backward pass: hooks keep each trained layer's input, and autograd is asked for
the gradients by the layers' outputs alone, so that no gradient of a parameter is ever made. What
rows are made of them is in core/ghost.py.

Layers: Linear, Conv1d, Conv2d, Conv3d, their transposes, Embedding, LayerNorm, RMSNorm, GroupNorm,
InstanceNorm, PReLU, the transformers library's Conv1D; hence LoRA of any of them that is made of
Linear. All else, and any frozen layer, may be between them: dropout and train() are as the module
has them, and frozen weights may be tied.

| edge case                                          | what happens                              |
|----------------------------------------------------|-------------------------------------------|
| a trained parameter of another kind of layer       | ``Unsupported``: other rows are used      |
| a trained parameter that is used twice, or by other| ``Unsupported``                           |
| code than its own layer's                          |                                           |
| a layer whose input has not one entry per record   | ``Unsupported``                           |
| a layer's input that is overwritten afterwards     | ``Unsupported``                           |
| a trained layer that a record does not reach       | its gradient is zero                      |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.grad import conv1d_weight, conv2d_weight

from dpfed.core.ghost import Layer, Lookups, Made, products, worth_making
from dpfed.core.types import Vector
from dpfed.data.batches import Batch
from dpfed.data.samplers import ScoredNetwork


class Unsupported(Exception):
    """A module that ghost clipping does not support; the message says why."""


Found = dict[str, list[Layer]]
"""A layer's parameters, each of one factor, or of several that lie one after the other."""

Split = Callable[[Any, torch.Tensor, torch.Tensor], Found]
"""(layer, its input [k, ...], the loss's gradient by its output [k, ...]) -> factors."""


def _last(tensor: torch.Tensor) -> torch.Tensor:
    """[k, ..., width] as [k, width, T]: positions last."""
    return tensor.reshape(len(tensor), -1, tensor.shape[-1]).mT


def _sums(terms: torch.Tensor) -> list[Layer]:
    """The sum over positions of terms [k, width, T]."""
    whole = terms.float()
    return [Made(whole[:, :, 0] if whole.shape[2] == 1 else whole.sum(dim=2))]


def _bias(layer: Any, left: torch.Tensor) -> Found:
    return {} if layer.bias is None else {"bias": _sums(left)}


def _linear(layer: nn.Linear, a: torch.Tensor, b: torch.Tensor) -> Found:
    left, right = _last(b), _last(a)
    return {"weight": [products(left, right)], **_bias(layer, left)}


def _linear_across(_: nn.Module, a: torch.Tensor, b: torch.Tensor) -> Found:
    """The transformers library's Conv1D: a linear layer whose weight is [inputs, outputs]."""
    left, right = _last(a), _last(b)
    return {"weight": [products(left, right)], "bias": _sums(right)}


def _convolution(layer: Any, a: torch.Tensor, b: torch.Tensor) -> Found:
    """A convolution is a linear layer of the patches under its window."""
    left, groups = b.flatten(2), layer.groups
    p, q = left.shape[1] // groups, layer.weight[0].numel()
    if worth_making(p, q, left.shape[2]):
        rows = _each_weight(layer, a.float(), b.float())
        return {"weight": [Made(rows)], **_bias(layer, left)}
    a, padding = _padded(layer, a)
    window, dilation, stride = layer.kernel_size, layer.dilation, layer.stride
    if a.dim() == 3:  # one axis: an image of height 1
        a, padding = a[:, :, None], (0, *padding)
        window, dilation, stride = ((1, *each) for each in (window, dilation, stride))
    patches = functional.unfold(a, window, dilation, padding, stride)
    pairs = zip(left.chunk(groups, 1), patches.chunk(groups, 1), strict=True)
    return {"weight": [products(*pair) for pair in pairs], **_bias(layer, left)}


def _padded(layer: Any, a: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
    """The input with the padding that has still to be added, all zeros and on both sides alike."""
    if layer.padding_mode == "zeros" and not isinstance(layer.padding, str):
        return a, layer.padding
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    wide = functional.pad(a, layer._reversed_padding_repeated_twice, mode=mode)
    return wide, (0,) * len(layer.kernel_size)


def _each_weight(layer: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Each record's gradient of the weight, by one convolution with groups for each record.

    No patches are made: up to eight times as fast.
    """
    k, (a, padding) = len(a), _padded(layer, a)
    gradient: Callable[..., torch.Tensor] = conv1d_weight if a.dim() == 3 else conv2d_weight
    made = gradient(
        a.flatten(0, 1)[None],
        (k * layer.weight.shape[0], *layer.weight.shape[1:]),
        b.flatten(0, 1)[None],
        layer.stride,
        padding,
        layer.dilation,
        k * layer.groups,
    )
    return made.view(k, -1)


def _convolution_3d(layer: nn.Conv3d, a: torch.Tensor, b: torch.Tensor) -> Found:
    """The same of volumes, for which torch has no unfold."""
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    a = functional.pad(a, layer._reversed_padding_repeated_twice, mode=mode)
    patches, left = _patches(a, layer), b.flatten(2)
    pairs = zip(left.chunk(layer.groups, 1), patches.chunk(layer.groups, 1), strict=True)
    return {"weight": [products(*pair) for pair in pairs], **_bias(layer, left)}


def _transposed(layer: Any, a: torch.Tensor, b: torch.Tensor) -> Found:
    """A transposed convolution is a convolution from its output to its input."""
    ends = [end for each in reversed(layer.padding) for end in (each, each)]
    left = a.flatten(2)
    patches = _patches(functional.pad(b, ends), layer, a.shape[2:])
    pairs = zip(left.chunk(layer.groups, 1), patches.chunk(layer.groups, 1), strict=True)
    return {"weight": [products(*pair) for pair in pairs], **_bias(layer, b.flatten(2))}


def _patches(x: torch.Tensor, layer: Any, places: Sequence[int] | None = None) -> torch.Tensor:
    """What is under a layer's window at each place, [k, channels x window, places].

    Args:
        x: padded, [k, channels, ...].
        layer: has the window, its dilation and its stride.
        places: how many there are along each axis; None is as many as fit.
    """
    axes = len(layer.kernel_size)
    for axis in range(axes):
        step, gap = layer.stride[axis], layer.dilation[axis]
        x = x.unfold(2 + axis, (layer.kernel_size[axis] - 1) * gap + 1, step)[..., ::gap]
        if places is not None:
            x = x.narrow(2 + axis, 0, places[axis])
    return x.movedim(1, 1 + axes).flatten(1 + axes).flatten(1, axes).mT


def _embedding(layer: nn.Embedding, a: torch.Tensor, b: torch.Tensor) -> Found:
    ids = a.reshape(len(a), -1)
    left = b.reshape(*ids.shape, -1)
    if layer.padding_idx is not None:
        left = torch.where((ids == layer.padding_idx)[:, :, None], 0.0, left)
    return {"weight": [Lookups(ids, left, layer.num_embeddings)]}


def _layer_norm(layer: nn.LayerNorm, a: torch.Tensor, b: torch.Tensor) -> Found:
    normal = functional.layer_norm(a, layer.normalized_shape, eps=layer.eps)
    return _by_number(layer, normal, b)


def _rms_norm(layer: nn.RMSNorm, a: torch.Tensor, b: torch.Tensor) -> Found:
    normal = functional.rms_norm(a, layer.normalized_shape, eps=layer.eps)
    return _by_number(layer, normal, b)


def _by_number(layer: Any, normal: torch.Tensor, b: torch.Tensor) -> Found:
    shape = (len(b), -1, layer.weight.numel())
    left = b.reshape(shape).float()
    scaled = left * normal.reshape(shape).float()
    return {"weight": [Made(scaled.sum(dim=1))], "bias": [Made(left.sum(dim=1))]}


def _group_norm(layer: nn.GroupNorm, a: torch.Tensor, b: torch.Tensor) -> Found:
    normal = functional.group_norm(a, layer.num_groups, eps=layer.eps)
    left, right = (each.flatten(2).float() for each in (b, normal))
    return {"weight": _sums(left * right), "bias": _sums(left)}


def _instance_norm(layer: Any, a: torch.Tensor, b: torch.Tensor) -> Found:
    if layer.track_running_stats:
        raise Unsupported("an InstanceNorm has statistics of its own")
    normal = functional.instance_norm(a, eps=layer.eps)
    left, right = (each.flatten(2).float() for each in (b, normal))
    return {"weight": _sums(left * right), "bias": _sums(left)}


def _prelu(layer: nn.PReLU, a: torch.Tensor, b: torch.Tensor) -> Found:
    """The slope of negative inputs, one for all channels or one for each."""
    shape = (len(a), layer.num_parameters, -1)
    left, right = (each.reshape(shape).float() for each in (b, a.clamp(max=0.0)))
    return {"weight": _sums(left * right)}


SPLITS: dict[str, Split] = {
    "torch.nn.modules.linear.Linear": _linear,
    "torch.nn.modules.conv.Conv1d": _convolution,
    "torch.nn.modules.conv.Conv2d": _convolution,
    "torch.nn.modules.conv.Conv3d": _convolution_3d,
    "torch.nn.modules.conv.ConvTranspose1d": _transposed,
    "torch.nn.modules.conv.ConvTranspose2d": _transposed,
    "torch.nn.modules.conv.ConvTranspose3d": _transposed,
    "torch.nn.modules.instancenorm.InstanceNorm1d": _instance_norm,
    "torch.nn.modules.instancenorm.InstanceNorm2d": _instance_norm,
    "torch.nn.modules.instancenorm.InstanceNorm3d": _instance_norm,
    "torch.nn.modules.activation.PReLU": _prelu,
    "torch.nn.modules.sparse.Embedding": _embedding,
    "torch.nn.modules.normalization.LayerNorm": _layer_norm,
    "torch.nn.modules.normalization.RMSNorm": _rms_norm,
    "torch.nn.modules.normalization.GroupNorm": _group_norm,
    "transformers.pytorch_utils.Conv1D": _linear_across,
}
"""By exact class: a subclass may compute something else."""


def _class_of(layer: nn.Module) -> str:
    return f"{type(layer).__module__}.{type(layer).__qualname__}"


def trained_layers(module: nn.Module) -> dict[str, nn.Module]:
    """The layers that own trained parameters, by name; ``Unsupported`` if one is of another kind.

    A parameter that two layers own is used twice: also unsupported.
    """
    found, owned = dict[str, nn.Module](), Counter[int]()
    for name, layer in module.named_modules():
        mine = [p for p in layer.parameters(recurse=False) if p.requires_grad]
        if not mine:
            continue
        owned.update(map(id, mine))
        kind, odd = (
            _class_of(layer),
            isinstance(layer, nn.Embedding)
            and (layer.max_norm is not None or layer.scale_grad_by_freq),
        )
        if kind not in SPLITS or odd:
            raise Unsupported(f"layer {name!r} is a {kind}, whose factors are not known")
        found[name] = layer
    if any(count > 1 for count in owned.values()):
        raise Unsupported("a trained parameter belongs to two layers")
    if not found:
        raise Unsupported("no layer is trained")
    return found


@dataclass(eq=False)
class LayerHook:
    """A forward hook that keeps what one layer was called with, once."""

    name: str
    layer: nn.Module
    inputs: list[torch.Tensor] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    edges: list[Any] = field(default_factory=list)

    def __call__(self, _: nn.Module, given: Sequence[Any], output: torch.Tensor) -> None:
        """Keep the layer's input, and where its output is in autograd's graph."""
        if len(given) != 1 or not output.requires_grad:
            raise Unsupported(f"layer {self.name!r} is called in a way that is not known")
        self.inputs.append(given[0].detach())
        self.versions.append(given[0]._version)
        self.edges.append(torch.autograd.graph.get_gradient_edge(output))

    def check(self, records: int) -> None:
        """Refuse a call from which no record's factors can be read."""
        if len(self.inputs) > 1:
            raise Unsupported(f"layer {self.name!r} is used {len(self.inputs)} times")
        for given, version in zip(self.inputs, self.versions, strict=True):
            if given._version != version:
                raise Unsupported(f"the input of layer {self.name!r} is overwritten")
            if len(given) != records:
                raise Unsupported(f"layer {self.name!r} is not called with one entry per record")


@contextmanager
def _hooked(layers: dict[str, nn.Module]) -> Iterator[list[LayerHook]]:
    hooks = [LayerHook(name, layer) for name, layer in layers.items()]
    handles = [hook.layer.register_forward_hook(hook) for hook in hooks]
    try:
        yield hooks
    finally:
        for handle in handles:
            handle.remove()


LayerFactors = Callable[[Batch], list[Layer]]
"""A batch of k records -> the layers of the flat vector, in its order."""


def factors_of(model: ScoredNetwork, params: Vector) -> LayerFactors:
    """The factors of records' gradients at these parameters; ``Unsupported`` if there are none."""
    layers, flat = trained_layers(model.module), model.placed(params).detach()
    here = {n: p.requires_grad_() for n, p in _leaves(model, flat).items()}

    def factors(batch: Batch) -> list[Layer]:
        with _hooked(layers) as hooks, torch.enable_grad():
            losses = model.losses_at(here, batch)
        for hook in hooks:
            hook.check(len(batch))
        _used_once(losses, here)
        return _ordered(model, hooks, losses.sum())

    return factors


def _leaves(model: ScoredNetwork, flat: Vector) -> dict[str, torch.Tensor]:
    return {name: part.detach() for name, part in model.layout.unflatten(flat).items()}


def _used_once(losses: torch.Tensor, params: dict[str, torch.Tensor]) -> None:
    """Refuse a parameter that the graph reaches twice: by its layer, and by other code."""
    names = {id(each): name for name, each in params.items()}
    uses, seen, ahead = Counter[str](), set[Any](), [losses.grad_fn]
    while ahead:
        node = ahead.pop()
        for following, _ in node.next_functions if node is not None else ():
            variable = getattr(following, "variable", None)
            if variable is not None:
                uses[names.get(id(variable), "")] += 1
            elif following is not None and following not in seen:
                seen.add(following)
                ahead.append(following)
    twice = [name for name, count in uses.items() if name and count > 1]
    if twice:
        raise Unsupported(f"parameter {twice[0]!r} is used {uses[twice[0]]} times")


def _ordered(model: ScoredNetwork, hooks: list[LayerHook], loss: torch.Tensor) -> list[Layer]:
    """One backward pass, to the layers' outputs; then each parameter's factors."""
    reached = [hook for hook in hooks if hook.inputs]
    edges = [hook.edges[0] for hook in reached]
    gradients = torch.autograd.grad(loss, edges, allow_unused=True)
    found = dict[str, list[Layer]]()
    for hook, b in zip(reached, gradients, strict=True):
        if b is not None:
            split = SPLITS[_class_of(hook.layer)](
                hook.layer, _single(hook.inputs[0]), _single(b.detach())
            )
            prefix = f"{hook.name}." if hook.name else ""
            found.update({prefix + name: parts for name, parts in split.items()})
    records, device = reached[0].inputs[0].shape[0], loss.device
    return [
        part
        for name, shape in model.layout.shapes.items()
        for part in found.get(name) or [_nothing(records, shape, device)]
    ]


def _single(captured: torch.Tensor) -> torch.Tensor:
    """Doubles in single precision: norms and sums, both made of these, never leave a double.

    Squares of doubles do. A row whose norm came out as 0 was not clipped (879 clips).
    """
    return captured.float() if captured.dtype == torch.float64 else captured


def _nothing(records: int, shape: tuple[int, ...], device: torch.device) -> Layer:
    """The zero gradient of a parameter that the loss does not depend on."""
    zero = torch.zeros((), device=device)
    return Made(zero.expand(records, torch.Size(shape).numel()))
