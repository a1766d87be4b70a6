# SPDX-License-Identifier: Apache-2.0
"""Dropout whose masks follow from a record's own content, and from nothing else.

torch draws masks from one generator, by place in the batch: with one record less all records after
it get other masks, and their rows move (16 clips by one record among 300). Here each record has a
seed, a digest of its content and of the turn (the parameters that its gradient is taken at), as in
augment.py; a mask is a hash of that seed, of the number of the call, and of the place within the
record. So a row is a function of its record and of public numbers, whatever else is in the batch,
and the same for all samplers. Masks are new whenever the parameters are.

``drawn_by_content`` is entered around a module's forward pass; it takes the place of torch's
dropout functions, which nn.Dropout and the attention of transformers and peft call. Any other
random number cannot be had by content: ``draws_of`` finds it in a trial on made-up records, and the
model is refused.

| edge case                                          | what happens                               |
|----------------------------------------------------|--------------------------------------------|
| two records of the same content                    | have the same masks                        |
| the first axis of a dropout's input is not records | RecipeError in the trial                   |
| ... so in nn.MultiheadAttention, if it returns its | RecipeError in the trial                   |
| weights; nn.TransformerEncoderLayer does not       |                                            |
| alpha dropout, dropout of an LSTM, bernoulli, ...  | RecipeError in the trial                   |
| checkpointing, which runs a forward pass twice     | RecipeError in the trial                   |
| eval(), or a probability of 0                      | no seed is computed                        |
"""

from __future__ import annotations

import hashlib
import math
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from dpfed.core.errors import RecipeError
from dpfed.data.batches import SEEDS, Batch


def content_seeds(batch: Batch, turn: bytes) -> torch.Tensor:
    """One whole number per record: of names, types, shapes and bytes of its tensors, and the turn.

    Args:
        batch: the records.
        turn: public bytes that differ whenever masks shall differ.
    """
    named = {n: t.detach().cpu().contiguous() for n, t in batch.tensors().items() if n != SEEDS}
    heads = {n: f"{n} {t.dtype} {tuple(t.shape[1:])} ".encode() for n, t in named.items()}
    raw = {n: t.reshape(len(t), -1).view(torch.uint8).numpy() for n, t in named.items()}
    seeds = []
    for at in range(len(batch)):
        found = hashlib.blake2b(turn, digest_size=8)
        for name, head in heads.items():
            found.update(len(head).to_bytes(8, "big") + head + raw[name][at].tobytes())
        seeds.append(int.from_bytes(found.digest(), "big", signed=True))
    return torch.tensor(seeds, dtype=torch.int64)


# ------------------------------------------------------------------------------------------- masks


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


_GOLDEN, _FIRST, _SECOND = map(
    _signed, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def _mixed(word: torch.Tensor) -> torch.Tensor:
    """The finaliser of splitmix64 (Steele et al. 2014), in wrapping 64-bit integers."""
    word = (word ^ _right(word, 30)) * _FIRST
    word = (word ^ _right(word, 27)) * _SECOND
    return word ^ _right(word, 31)


def _right(word: torch.Tensor, by: int) -> torch.Tensor:
    """A logical right shift; torch's own repeats the sign."""
    return (word >> by) & ((1 << (64 - by)) - 1)


def keep_mask(seeds: torch.Tensor, call: int, shape: tuple[int, ...], p: float) -> torch.Tensor:
    """Which entries stay, each with probability 1 - p: bool [records, *shape].

    Args:
        seeds: one whole number per record, int64 [records].
        call: which dropout of the forward pass it is.
        shape: of one record's entries.
        p: the probability that an entry is left out, from 0 to 1.
    """
    mine = _mixed(_mixed(seeds) + _signed((call + 1) * 0xD1342543DE82EF95 % 2**64))
    places = torch.arange(1, math.prod(shape) + 1, device=seeds.device) * _GOLDEN
    words = _mixed(mine[:, None] + places)
    return (_right(words, 11) >= math.ceil(p * 2**53)).view(len(seeds), *shape)


class _Masks(TorchFunctionMode):
    """Takes the place of torch's dropout functions, with masks by seed."""

    def __init__(self, seeds: torch.Tensor) -> None:
        super().__init__()
        self.seeds, self.calls = seeds, 0

    def __torch_function__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        made = _KEYED.get(func)
        return func(*args, **kwargs) if made is None else made(self, *args, **kwargs)

    def scaled(self, x: torch.Tensor, p: float, axes: int, inplace: bool = False) -> torch.Tensor:
        """Dropout: entries are zero with probability p, the others divided by 1 - p.

        One draw for each entry of the first ``axes`` axes; all entries below it share it.
        """
        if x.shape[:1] != self.seeds.shape:
            raise RecipeError(
                f"the input of dropout must have one entry per record on its first axis, "
                f"{len(self.seeds)} of them, got shape {tuple(x.shape)}: masks follow from "
                f"records; call that layer's eval(), or set its dropout to 0"
            )
        shape = (*x.shape[1:axes], *[1] * len(x.shape[axes:]))
        kept = keep_mask(self.seeds.to(x.device), self.calls, shape, p).to(x.dtype)
        self.calls += 1
        factor = kept / (1 - p) if p < 1 else kept
        return x.mul_(factor) if inplace else x * factor


def _dropout(
    masks: _Masks, input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> torch.Tensor:
    if not training or p == 0:
        return input
    return masks.scaled(input, p, input.dim(), inplace)


def _channels(
    masks: _Masks, input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> torch.Tensor:
    """Whole channels, the second axis."""
    if not training or p == 0:
        return input
    return masks.scaled(input, p, 2, inplace)


def _attention(
    masks: _Masks,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """As torch defines it, with weights left out by seed."""
    if dropout_p == 0:
        return functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=attn_mask,
            is_causal=is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )
    if enable_gqa:
        key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
        value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
    weights = query @ key.mT * (1 / math.sqrt(query.size(-1)) if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(weights.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        weights = weights.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        weights = weights + attn_mask
    nowhere = (weights == -math.inf).all(dim=-1, keepdim=True)  # attends to nothing: gives zeros
    weights = torch.softmax(weights.masked_fill(nowhere, 0.0), dim=-1).masked_fill(nowhere, 0.0)
    return masks.scaled(weights, dropout_p, weights.dim()) @ value


_BODY = types.FunctionType(
    functional.multi_head_attention_forward.__code__,
    {**vars(functional), "has_torch_function": lambda _: False},
    argdefs=functional.multi_head_attention_forward.__defaults__,
)  # torch's own code, which here does not ask whether a mode overrides it


def _heads(masks: _Masks, *args: Any, **kwargs: Any) -> Any:
    """nn.MultiheadAttention: the functions that it calls are replaced, too."""
    with masks:
        return _BODY(*args, **kwargs)


_KEYED: dict[Any, Callable[..., Any]] = {
    functional.multi_head_attention_forward: _heads,
    functional.dropout: _dropout,
    torch.dropout: _dropout,
    functional.dropout1d: _channels,
    functional.dropout2d: _channels,
    functional.dropout3d: _channels,
    functional.scaled_dot_product_attention: _attention,
}


@contextmanager
def drawn_by_content(seeds: torch.Tensor | None) -> Iterator[_Masks | None]:
    """Around a forward pass: dropout's masks follow from the records' seeds.

    Args:
        seeds: one whole number per record, int64 [records]; None leaves torch's functions as is.
    """
    if seeds is None:
        yield None
        return
    with _Masks(seeds) as masks:
        yield masks


# ------------------------------------------------------------------------------------------- trial


class _Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the operations that draw random numbers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and _random(func, args, kwargs):
            self.names.append(str(func.overloadpacket).removeprefix("aten."))
        return func(*args, **kwargs)


def _random(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether it draws: attention has the tag, and draws only if a probability is above 0."""
    names = [each.name for each in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    chances = [given[n] for n in ("dropout_p", "p", "dropout") if given.get(n) is not None]
    trained = given.get("train", True) is not False and given.get("training", True) is not False
    drops = "dropout" in str(func) or "attention" in str(func)
    return bool(not drops or (trained and any(chances)))


def draws_of(losses: Callable[[], torch.Tensor], seeds: torch.Tensor) -> bool:
    """Whether a model draws masks; RecipeError if it draws what does not follow from a record.

    Args:
        losses: a forward pass on made-up records, with its gradients to be taken.
        seeds: those of the records.
    """
    with _Draws() as draws, torch.enable_grad():
        with drawn_by_content(seeds) as masks:
            found = losses()
        if found.requires_grad:
            torch.autograd.backward(found.sum())
    if draws.names:
        raise RecipeError(
            f"a network's random numbers must follow from each record alone, and this one draws "
            f"them by {draws.names[0]}, by place in the batch, so that one record would change the "
            f"rows of others; use nn.Dropout, or call eval()"
        )
    return masks is not None and masks.calls > 0
