# SPDX-License-Identifier: Apache-2.0
"""The networks of the public backbones, in PyTorch alone: they load published weights."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own convention)

from dpfed.core.errors import DataError, first_sentence
from dpfed.data._checks import bad_option
from dpfed.data.readers import load_npz

if TYPE_CHECKING:
    from collections.abc import Mapping


# ------------------------------------------------------------------------------------- CIFAR ResNet


class _Block(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        # A new stage begins where the width changes: only there the map is halved.
        stride = 1 if before == after else 2
        self.c1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.b1 = nn.BatchNorm2d(after)
        self.c2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.b2 = nn.BatchNorm2d(after)
        self.sc = nn.Sequential()
        if stride == 2:
            short = nn.Conv2d(before, after, 1, stride, bias=False)
            self.sc = nn.Sequential(short, nn.BatchNorm2d(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = F.relu(self.b1(self.c1(x)))
        return F.relu(self.b2(self.c2(out)) + self.sc(x))


class ResNet(nn.Module):
    """The CIFAR ResNet of He et al. (2016), section 4.2, with 1x1-convolution shortcuts.

    ``forward`` gives the 64 features: the mean over the last map. ``fc`` is there for the logits.
    """

    def __init__(self, depth: int) -> None:
        super().__init__()
        widths = [16] + [width for width in (16, 32, 64) for _ in range((depth - 2) // 6)]
        self.c0 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.b0 = nn.BatchNorm2d(16)
        self.L = nn.Sequential(*(_Block(*pair) for pair in pairwise(widths)))
        self.fc = nn.Linear(64, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalised images [m, 3, H, W] to features [m, 64]."""
        out: torch.Tensor = self.L(F.relu(self.b0(self.c0(x))))
        return out.mean(dim=(2, 3))


def resnet(depth: int) -> ResNet:
    """A CIFAR ResNet of 14, 20 or 32 layers, with random weights."""
    if depth not in (14, 20, 32):
        raise bad_option("depth", "14, 20 or 32", depth, "use the depth of the weights")
    return ResNet(depth)


_VGG16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)
"""Widths of its 13 convolutions; 0 halves the map."""


class Vgg16(nn.Module):
    """VGG-16 (Simonyan and Zisserman, 2015) as it is used on 32 x 32 images.

    Batch norm after each convolution, and one linear layer in place of the three that need 224
    pixels. ``forward`` gives the 512 features: the mean over the last map. ``fc`` is there for the
    logits.
    """

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for width in _VGG16:
            if width:
                conv = nn.Conv2d(before, width, 3, padding=1, bias=False)
                layers += [conv, nn.BatchNorm2d(width), nn.ReLU()]
                before = width
            else:
                layers.append(nn.MaxPool2d(2))
        self.L = nn.Sequential(*layers)
        self.fc = nn.Linear(512, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalised images [m, 3, H, W], H and W at least 32, to features [m, 512]."""
        out: torch.Tensor = self.L(x)
        return out.mean(dim=(2, 3))


def load_npz_weights(model: nn.Module, path: Path) -> nn.Module:
    """``model`` with the weights of an .npz whose array names are its parameters' names."""
    state = {key: torch.from_numpy(array) for key, array in load_npz(Path(path)).items()}
    return load_state(model, state, Path(path).name)


def load_state(model: nn.Module, state: Mapping[str, Any], file: str) -> nn.Module:
    """The model with these weights, or a refusal that names what does not fit.

    Args:
        model: the network, whose weights are replaced.
        state: its parameters and buffers by name; batch counters may be absent.
        file: where they come from, for the error.
    """
    # Exported weights often lack this counter, which evaluation never reads.
    counters = {k: v for k, v in model.state_dict().items() if k.endswith("num_batches_tracked")}
    try:
        model.load_state_dict({**counters, **state})
    except (RuntimeError, TypeError, AttributeError) as error:
        name = type(model).__name__
        raise DataError(
            f"the weights in {file!r} do not fit {name} ({first_sentence(error)}); "
            "give the weights of this network"
        ) from error
    return model


# ------------------------------------------------------------------------------ EfficientNet-Lite0


class _SameConv(nn.Conv2d):
    """A convolution padded as in TensorFlow: the odd pixel goes to the right and the bottom."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        vertical, horizontal = (self._margin(x.shape[axis], axis - 2) for axis in (2, 3))
        return super().forward(F.pad(x, (*horizontal, *vertical)))

    def _margin(self, length: int, axis: int) -> tuple[int, int]:
        stride, kernel = self.stride[axis], self.kernel_size[axis]
        total = max((-(-length // stride) - 1) * stride + kernel - length, 0)
        return total // 2, total - total // 2


def _norm(width: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(width, eps=1e-3)


class _InvertedResidual(nn.Module):
    """Expand (1x1), filter each channel (k x k), project (1x1); a skip where shapes agree."""

    def __init__(self, before: int, after: int, kernel: int, stride: int, expand: int) -> None:
        super().__init__()
        wide = before * expand
        self.skip = stride == 1 and before == after
        self.expands = expand != 1
        if self.expands:
            self._expand_conv = nn.Conv2d(before, wide, 1, bias=False)
            self._bn0 = _norm(wide)
        self._depthwise_conv = _SameConv(wide, wide, kernel, stride, groups=wide, bias=False)
        self._bn1 = _norm(wide)
        self._project_conv = nn.Conv2d(wide, after, 1, bias=False)
        self._bn2 = _norm(after)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = F.relu6(self._bn0(self._expand_conv(x))) if self.expands else x
        wide = F.relu6(self._bn1(self._depthwise_conv(wide)))
        out: torch.Tensor = self._bn2(self._project_conv(wide))
        return out + x if self.skip else out


_LITE0 = (  # repeats, kernel, stride, expansion, width
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


class EfficientNetLite0(nn.Module):
    """EfficientNet-B0 (Tan and Le, 2019) without squeeze-and-excitation and with ReLU6.

    Parameters are named as in the published state dict. ``forward`` gives the 1280 features.
    """

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem = _SameConv(3, 32, 3, 2, bias=False)
        self._bn0 = _norm(32)
        blocks, before = [], 32
        for repeats, kernel, stride, expand, after in _LITE0:
            for i in range(repeats):
                blocks.append(_InvertedResidual(before, after, kernel, 1 if i else stride, expand))
                before = after
        self._blocks = nn.Sequential(*blocks)
        self._conv_head = nn.Conv2d(320, 1280, 1, bias=False)
        self._bn1 = _norm(1280)
        self._fc = nn.Linear(1280, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalised images [m, 3, H, W] to features [m, 1280]."""
        out = self._blocks(F.relu6(self._bn0(self._conv_stem(x))))
        return F.relu6(self._bn1(self._conv_head(out))).mean(dim=(2, 3))
