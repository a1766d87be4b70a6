# SPDX-License-Identifier: Apache-2.0
"""Each set's format in miniature: read, checked and written, whatever a hostile file says."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed.core import environment
from dpfed.core.errors import DataError
from dpfed.core.files import locked_file
from dpfed.data import catalogue, datasets, download, places
from dpfed.data.catalogue import CATALOGUE, PublicSet, arrays_digest, get, name_of
from dpfed.data.download import RemoteFile
from tests.helpers.file_server import serving

DRAW = np.random.default_rng(0)
ROWS = {"train": 20, "val": 10, "test": 10}


def miniature(name: str, rows: dict[str, int] = ROWS) -> PublicSet:
    """The set with few records: 20 for training, 10 for tests, or 40 in one part."""
    entry = CATALOGUE[name]
    layout = {}
    for key, (kind, shape) in entry.layout.items():
        part = key.partition("_")[2]
        first = shape[0] if key in ("columns", "group_names") else rows.get(part, 40)
        layout[key] = (kind, (first, *shape[1:]))
    return replace(entry, layout=layout, digest=None, classes=min(entry.classes, 10), rarest=0.01)


def labels(entry: PublicSet, size: int) -> np.ndarray:
    return (np.arange(size) % entry.classes).astype(np.uint8)


def image_arrays(entry: PublicSet) -> dict[str, np.ndarray]:
    return {
        key: DRAW.integers(0, 256, shape, np.uint8) if key[0] == "x" else labels(entry, shape[0])
        for key, (_, shape) in entry.layout.items()
    }


def make_idx(entry: PublicSet, folder: Path) -> dict[str, np.ndarray]:
    arrays = image_arrays(entry)
    for file, array in zip(entry.files, arrays.values(), strict=True):
        head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
        (folder / file.name).write_bytes(gzip.compress(head + array.tobytes()))
    return arrays


def make_cifar(entry: PublicSet, folder: Path) -> dict[str, np.ndarray]:
    arrays = image_arrays(entry)
    coarse = entry.name == "cifar100"
    base = "cifar-100-binary" if coarse else "cifar-10-batches-bin"
    names = (
        {"train": ["train"], "test": ["test"]}
        if coarse
        else {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
    )
    with tarfile.open(folder / entry.files[0].name, "w:gz", format=tarfile.GNU_FORMAT) as out:
        top = tarfile.TarInfo(base)
        top.type = tarfile.DIRTYPE
        out.addfile(top)
        for part, members in names.items():
            x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
            planes = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
            before = [np.full((len(y), 1), 7, np.uint8)] if coarse else []
            records = np.concatenate([*before, y[:, None], planes], axis=1).astype(np.uint8)
            for name, rows in zip(members, np.split(records, len(members)), strict=True):
                info = tarfile.TarInfo(f"{base}/{name}.bin")
                info.size = rows.nbytes
                out.addfile(info, io.BytesIO(rows.tobytes()))
    return arrays


def make_medmnist(entry: PublicSet, folder: Path) -> dict[str, np.ndarray]:
    arrays = image_arrays(entry)
    named = {
        f"{key[2:]}_{'images' if key[0] == 'x' else 'labels'}": a if key[0] == "x" else a[:, None]
        for key, a in arrays.items()
    }
    named.setdefault("val_images", np.zeros(3))  # is there, and read only if it is asked for
    with (folder / entry.files[0].name).open("wb") as file:
        np.savez(file, **named)
    return arrays


def make_libsvm(entry: PublicSet, folder: Path) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for file, part in zip(entry.files, ("train", "test"), strict=True):
        rows, columns = entry.layout[f"x_{part}"][1]
        x = (DRAW.random((rows, columns)) < 0.1).astype(np.uint8)
        y = (2 * (np.arange(rows) % 2) - 1).astype(np.int8)
        lines = [
            f"{label:+d} " + " ".join(f"{place + 1}:1" for place in np.flatnonzero(row)) + " \n"
            for row, label in zip(x, y, strict=True)
        ]
        (folder / file.name).write_text("".join(lines))
        arrays |= {f"x_{part}": x, f"y_{part}": y}
    return arrays


def make_credit(entry: PublicSet, folder: Path) -> dict[str, np.ndarray]:
    x, y = DRAW.integers(-9, 10**6, (40, 23)), np.arange(40) % 2
    head = ",".join(["ID", *(f"X{i}" for i in range(1, 24)), "Y"])
    lines = [f"{i},{','.join(map(str, row))},{y[i]}" for i, row in enumerate(x.tolist())]
    (folder / entry.files[0].name).write_bytes("\r\n".join([head, *lines, ""]).encode())
    columns = np.array(catalogue.CREDIT, "U9")
    return {"x": x.astype(np.float32), "y": y.astype(np.int8), "columns": columns}


def make_heart(entry: PublicSet, folder: Path) -> dict[str, np.ndarray]:
    x = DRAW.integers(0, 99, (40, 13)).astype(np.float32)
    x[3, 4] = np.nan
    y = np.arange(40) % 5
    with zipfile.ZipFile(folder / entry.files[0].name, "w") as out:
        for i, hospital in enumerate(catalogue.HOSPITALS):
            rows = [
                ",".join("?" if np.isnan(v) else str(v) for v in x[r]) + f",{y[r]}\n"
                for r in range(10 * i, 10 * i + 10)
            ]
            out.writestr(f"processed.{hospital}.data", "".join(rows))
        out.writestr("costs/", "")
    return {
        "x": x,
        "y": y.astype(np.int8),
        "group": np.repeat(np.arange(4, dtype=np.uint8), 10),
        "group_names": np.array(catalogue.HOSPITALS, "U11"),
        "columns": np.array(catalogue.HEART, "U8"),
    }


def make_har(entry: PublicSet, folder: Path) -> dict[str, np.ndarray]:
    x = DRAW.normal(size=(40, 9, 128)).astype(np.float16)
    y, group = np.arange(40) % 6, np.arange(40) % 30
    split = np.repeat([0, 1], [30, 10])
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w", zipfile.ZIP_DEFLATED) as out:
        for place, part in enumerate(("train", "test")):
            rows, top = split == place, f"UCI HAR Dataset/{part}"
            for i, signal in enumerate(catalogue.SIGNALS):
                text = io.StringIO()
                np.savetxt(text, x[rows, i].astype(float), fmt=" %.7e")
                out.writestr(f"{top}/Inertial Signals/{signal}_{part}.txt", text.getvalue())
            for name, values in (("y", y), ("subject", group)):
                text = "".join(f"{v + 1}\n" for v in values[rows])
                out.writestr(f"{top}/{name}_{part}.txt", text)
    with zipfile.ZipFile(folder / entry.files[0].name, "w") as out:
        out.writestr("UCI HAR Dataset.names", "words")
        out.writestr("UCI HAR Dataset.zip", inner.getvalue())
    return {"x": x} | {
        key: value.astype(np.uint8) for key, value in (("y", y), ("group", group), ("split", split))
    }


MAKERS: dict[str, Callable[[PublicSet, Path], dict[str, np.ndarray]]] = {
    "cifar10": make_cifar,
    "cifar100": make_cifar,
    "fashion-mnist": make_idx,
    "mnist": make_idx,
    "pathmnist": make_medmnist,
    "pneumoniamnist": make_medmnist,
    "a9a": make_libsvm,
    "credit-default": make_credit,
    "heart-disease": make_heart,
    "har": make_har,
}


def prepared(name: str, folder: Path) -> tuple[PublicSet, dict[str, np.ndarray]]:
    """A miniature, its files in ``folder``, and the sizes and checksums of these."""
    entry = miniature(name)
    folder.mkdir(exist_ok=True)
    arrays = MAKERS[name](entry, folder)
    files = []
    for file in entry.files:
        raw = (folder / file.name).read_bytes()
        digest = f"sha256:{hashlib.sha256(raw).hexdigest()}"
        files.append(RemoteFile(file.url, len(raw), digest))
    return replace(entry, files=tuple(files)), arrays


# ------------------------------------------------------------------------------------------ reading


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_set_becomes_the_file_that_studies_read(name: str, tmp_path: Path) -> None:
    entry, arrays = prepared(name, tmp_path / "files")
    path = get(entry, tmp_path / "data", str(tmp_path / "files"))
    assert path == tmp_path / "data" / entry.path
    with np.load(path) as written:
        assert set(written.files) == set(arrays)
        for key, array in arrays.items():
            np.testing.assert_array_equal(written[key], array, strict=True)
    left = {each.name for each in (tmp_path / "data").rglob("*") if each.is_file()}
    assert left == {path.name, f"{name}.lock"}
    read = datasets.load(path)
    assert len(read.train) >= 20
    assert read.classes is not None


def test_every_format_has_a_miniature_here() -> None:
    assert set(MAKERS) == set(CATALOGUE)


def test_it_is_downloaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "RETRY_PAUSE_S", 0.0)
    entry, _ = prepared("credit-default", tmp_path / "files")
    with serving() as server:
        server.content = (tmp_path / "files" / "data.csv").read_bytes()
        server.cut = [500]
        seen: list[int] = []
        where = server.url.replace("set.bin", "data.csv")
        path = get(entry, tmp_path, where, lambda done, _: seen.append(done))
        assert seen[-1] == len(server.content)
        assert get(entry, tmp_path, where) == path
        assert len(server.seen) == 2  # the second continued the first
    assert not (tmp_path / catalogue.DOWNLOADS / entry.name).exists()


def test_a_wrong_checksum_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, _ = prepared("cifar10", tmp_path / "files")
    bad = replace(entry.files[0], digest=f"sha256:{'0' * 64}")

    def never(*_: Any) -> Any:
        raise AssertionError("it was read")

    with pytest.raises(DataError, match=f"but {'0' * 64} is due"):
        get(replace(entry, files=(bad,), read=never), tmp_path / "data", str(tmp_path / "files"))
    assert not (tmp_path / "data" / entry.path).exists()


def test_arrays_of_another_set_are_refused(tmp_path: Path) -> None:
    entry, arrays = prepared("a9a", tmp_path / "files")
    catalogue.check(replace(entry, digest=arrays_digest(arrays)), arrays)
    other = arrays | {"x_train": 1 - arrays["x_train"]}
    with pytest.raises(DataError, match="have the digest"):
        catalogue.check(replace(entry, digest=arrays_digest(arrays)), other)
    with pytest.raises(DataError, match=r"class sizes \[20\], but 2 classes"):
        catalogue.check(entry, arrays | {"y_train": np.ones(20, np.int8)})
    with pytest.raises(DataError, match="has the arrays"):
        catalogue.check(entry, arrays | {"x_train": arrays["x_train"][1:]})


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_truncated_file_is_refused(name: str, tmp_path: Path) -> None:
    """Also if its checksum were right."""
    entry, _ = prepared(name, tmp_path / "files")
    paths = [tmp_path / "files" / file.name for file in entry.files]
    raw = paths[-1].read_bytes()
    paths[-1].write_bytes(raw[: len(raw) * 2 // 3])
    with pytest.raises(DataError):
        catalogue.check(entry, entry.read(paths, entry.layout))


@pytest.mark.parametrize("name", sorted(set(CATALOGUE) - {"har"}))
@given(edits=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4))
def test_any_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str, edits: list[tuple[int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    entry, _ = prepared(name, folder)
    paths = [folder / file.name for file in entry.files]
    raw = bytearray(paths[0].read_bytes())
    for place, byte in edits:
        raw[place % len(raw)] = byte
    paths[0].write_bytes(bytes(raw))
    try:
        arrays = entry.read(paths, entry.layout)
    except DataError:
        return
    if edits == []:
        catalogue.check(entry, arrays)


def test_an_idx_of_another_shape_is_refused(tmp_path: Path) -> None:
    entry, _ = prepared("mnist", tmp_path / "files")
    path = tmp_path / "files" / entry.files[0].name
    raw = bytearray(gzip.decompress(path.read_bytes()))
    raw[8:12], raw[12:16] = (14).to_bytes(4, "big"), (56).to_bytes(4, "big")
    path.write_bytes(gzip.compress(bytes(raw)))
    with pytest.raises(DataError, match=r"is no IDX file of \(20, 28, 28\) bytes"):
        entry.read([tmp_path / "files" / file.name for file in entry.files], entry.layout)


def test_an_npy_may_claim_any_size(tmp_path: Path) -> None:
    entry, _ = prepared("pathmnist", tmp_path / "files")
    claim = io.BytesIO()
    fields = {"descr": "|u1", "fortran_order": False, "shape": (10**15,)}
    np.lib.format.write_array_header_1_0(claim, fields)
    path = tmp_path / "files" / entry.files[0].name
    with zipfile.ZipFile(path, "w") as out:
        for part in ("train", "test"):
            for kind in ("images", "labels"):
                out.writestr(f"{part}_{kind}.npy", claim.getvalue())
    with pytest.raises(DataError, match=r"is uint8 of \(1000000000000000,\)"):
        entry.read([path], entry.layout)


def test_a_pickle_in_an_npz_is_not_run(tmp_path: Path) -> None:
    entry, _ = prepared("pathmnist", tmp_path / "files")
    path = tmp_path / "files" / entry.files[0].name
    with path.open("wb") as file:
        np.savez(
            file,
            allow_pickle=True,
            **{
                f"{part}_{kind}": np.array([print], dtype=object)
                for part in ("train", "test")
                for kind in ("images", "labels")
            },
        )
    with pytest.raises(DataError, match="is object of"):
        entry.read([path], entry.layout)


# ------------------------------------------------------------------------------------------ writing


def test_a_full_disk_leaves_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, _ = prepared("mnist", tmp_path / "files")

    def full(file: Any, **_: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(DataError, match="is full"):
        get(entry, tmp_path / "data", str(tmp_path / "files"))
    assert {each.name for each in (tmp_path / "data" / "images").iterdir()} == set()


def test_too_little_room_is_said_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 5_000_000})
    monkeypatch.setattr(catalogue.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(DataError, match=r"cifar10 needs 354 MB, and .* has 5 MB free"):
        get(CATALOGUE["cifar10"], tmp_path)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    entry, _ = prepared("mnist", tmp_path / "files")
    (tmp_path / catalogue.DOWNLOADS).mkdir()
    with (
        locked_file(tmp_path / catalogue.DOWNLOADS / "mnist.lock"),
        pytest.raises(DataError, match="another process is fetching"),
    ):
        get(entry, tmp_path, str(tmp_path / "files"))


def test_several_files_need_a_folder(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"")
    with pytest.raises(DataError, match=r"mnist has 4 files .* give a folder"):
        get(CATALOGUE["mnist"], tmp_path / "data", str(tmp_path / "one"))
    at = [each.url for each in catalogue.located(CATALOGUE["a9a"], "https://mirror.example/d/")]
    assert at == ["https://mirror.example/d/a9a", "https://mirror.example/d/a9a.t"]


# ---------------------------------------------------------------------------------------- the list


@pytest.mark.parametrize("entry", CATALOGUE.values(), ids=list(CATALOGUE))
def test_an_entry_says_what_is_checked(entry: PublicSet) -> None:
    assert all(file.url.startswith("https://") for file in entry.files)
    for file in entry.files:
        kind, _, digest = (file.digest or "").partition(":")
        assert len(digest) == {"sha256": 64, "md5": 32, "": 0}[kind]
    unchecked = any(file.digest is None for file in entry.files)
    assert unchecked == ("no checksum is published" in entry.checked)
    assert not unchecked or entry.digest is not None
    assert entry.licence
    assert entry.citation


def test_what_a_study_lacks_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPFED_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="fetch it by 'dpfed data get cifar10', set DPFED_DATA or"):
        datasets.load("images/cifar10.npz")
    with pytest.raises(DataError) as error:
        datasets.load("features/cifar10.npz")
    assert "data get" not in str(error.value)
    assert name_of("/srv/data/tables/har.npz") == "har"
    assert name_of("har.npz") is None


def test_the_users_folder_is_looked_in_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPFED_DATA", str(tmp_path / "one"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "home"))
    (tmp_path / "home/dpfed/images").mkdir(parents=True)
    there = tmp_path / "home/dpfed/images/mnist.npz"
    there.touch()
    assert places.find_file("images/mnist.npz") == there
    (tmp_path / "one/images").mkdir(parents=True)
    (tmp_path / "one/images/mnist.npz").touch()
    assert places.find_file("images/mnist.npz") == tmp_path / "one/images/mnist.npz"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")  # which the standard says to ignore
    monkeypatch.setenv("LOCALAPPDATA", "relative")
    assert environment.user_data_folder() == Path.home() / ".local/share/dpfed"
