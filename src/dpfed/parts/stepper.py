# SPDX-License-Identifier: Apache-2.0
"""A server optimizer on plain tensors: a pure function, and a stepper in torch.optim's form.

A server optimizer turns a private mean into the next parameters: post-processing, at no cost. What
it may want to know of the mean, besides the mean itself, is public: the known noise in it
(``std``), the clip, and how many rounds there will be. ``sofim(rho="auto")`` reads all three.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, overload

import torch

from dpfed.core.checks import refuse
from dpfed.core.types import Aggregate, ServerOptimizer, State, Vector
from dpfed.training.state_tree import join_state, split_state


def server_step(
    optimizer: ServerOptimizer,
    params: Vector,
    mean: Vector,
    state: State = None,
    *,
    round: int = 0,
    rounds: int = 0,
    std: float = math.nan,
    clip: float = math.nan,
    clients: float = 1,
) -> tuple[Vector, State]:
    """One step of a server optimizer: parameters and state in, parameters and state out.

    Args:
        optimizer: such as ``dpfed.server.sofim.sofim()``.
        params: the flat parameters; they are not changed.
        mean: the private mean of gradients, of the same length; it is not changed.
        state: what the step before returned; None begins.
        round: the step, from 0.
        rounds: how many steps there will be; 0 if it is not known.
        std: the known noise of each coordinate of ``mean``; NaN if it is not known.
        clip: the norm bound of a row in ``mean``; NaN if there is none.
        clients: how many clients are in the mean.

    Returns:
        the new parameters, and the state for the next step.

    >>> from dpfed.server.sofim import sofim
    >>> params, state = server_step(sofim(rho=1.0), torch.zeros(2), torch.tensor([1.0, 0.0]))
    >>> round(float(params[0]), 3), state.t
    (-0.099, 1)
    """
    if params.dim() != 1 or params.shape != mean.shape:
        bound = f"one flat vector like params, {tuple(params.shape)}"
        raise refuse("mean", bound, mean.shape, "flatten both")
    seen = Aggregate(
        round=round,
        params=params,
        mean=mean,
        std=std,
        clients=clients,
        enrolled=math.ceil(clients),
        rounds=rounds,
        planned_std=std,
        clip=clip,
    )
    state = optimizer.init(params) if state is None else state
    direction, state = optimizer.update(mean.clone(), state, seen)
    return params - direction, state


class ServerStepper(torch.optim.Optimizer):
    """A server optimizer in torch.optim's form: a ``step`` takes the private mean from ``.grad``.

    ``lr`` is one more factor on the step, for torch's schedulers. A gradient that is no private
    mean makes a step that is not private: ``dpfed.parts.NoisySum`` makes one that is.

    Args:
        params: the parameters, as torch.optim takes them.
        optimizer: such as ``dpfed.server.sofim.sofim("auto")``.
        rounds: how many steps there will be; 0 if it is not known.
        std: the known noise of each coordinate of the mean; NaN if it is not known.
        clip: the norm bound of a row in the mean; NaN if there is none.
        lr: a factor on each step.

    >>> from dpfed.server.ema import ema
    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> stepper = ServerStepper([weight], ema(beta=0.5))
    >>> weight.grad = torch.tensor([2.0, 0.0])
    >>> stepper.step()
    >>> weight.tolist()
    [-1.0, 0.0]
    """

    def __init__(
        self,
        params: Iterable[torch.nn.Parameter],
        optimizer: ServerOptimizer,
        *,
        rounds: int = 0,
        std: float = math.nan,
        clip: float = math.nan,
        lr: float = 1.0,
    ) -> None:
        self._optimizer = optimizer
        self._step = partial(server_step, optimizer, rounds=rounds, std=std, clip=clip)
        self._round = 0
        self._state: State = None
        super().__init__(params, {"lr": lr})
        if len(self.param_groups) > 1:
            raise refuse("params", "one group", len(self.param_groups), "give one list")

    @property
    def _params(self) -> list[torch.nn.Parameter]:
        found: list[torch.nn.Parameter] = self.param_groups[0]["params"]
        return found

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step against the means in ``.grad``; a parameter without one has a mean of 0."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        flat = torch.cat([each.reshape(-1) for each in self._params])
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._params]
        mean = torch.cat([each.reshape(-1) for each in grads])
        after, self._state = self._step(flat, mean, self._state, round=self._round)
        moved = (after - flat) * self.param_groups[0]["lr"]
        parts = moved.split([each.numel() for each in self._params])
        for param, part in zip(self._params, parts, strict=True):
            param.add_(part.view_as(param))
        self._round += 1
        return loss

    def state_dict(self) -> dict[str, Any]:
        """All that ``load_state_dict`` needs to go on: tensors and numbers, for torch.save."""
        kept = None if self._state is None else split_state(self._state)
        return {**super().state_dict(), "server": {"round": self._round, "state": kept}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what ``state_dict`` gave, of the same parameters and optimizer."""
        kept = state_dict["server"]
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "server"})
        flat = torch.cat([each.detach().reshape(-1) for each in self._params])
        self._round, found = kept["round"], kept["state"]
        template = self._optimizer.init(flat)
        self._state = None if found is None else join_state(template, *found)
