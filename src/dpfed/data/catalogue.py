# SPDX-License-Identifier: Apache-2.0
"""Public data sets by name: where they are, under which terms, and how they become one .npz.

``dpfed data get NAME`` fetches a set's files (download.py), checks them, reads them without running
anything that is in them, checks the arrays, and writes the file that studies and recipes name:

    images/NAME.npz     x_train, y_train, x_test, y_test, all uint8
    tables/NAME.npz     as the studies read them

Checksums are those that others publish; each entry says who. An entry without one is checked by the
shapes, the classes and, where the arrays are known, the digest of its arrays. Left out, since there
is no stable public address or no clear way from it to the features that studies read: the malaria
and X-ray images, and the texts.
"""

from __future__ import annotations

import hashlib
import io
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dpfed.core.errors import DataError
from dpfed.core.files import locked_file
from dpfed.data.download import (
    Progress,
    RemoteFile,
    download,
    gunzip,
    read_bounded,
    tar_members,
    verify,
    writing,
    zip_members,
)

Arrays = dict[str, NDArray[Any]]
Layout = Mapping[str, tuple[str, tuple[int, ...]]]
"""The type and the shape of each array."""
DOWNLOADS = ".downloads"
"""Where files lie until they are checked and read."""


@dataclass(frozen=True)
class PublicSet:
    """A public data set, and what is known of it."""

    name: str
    about: str
    path: str
    """The file that is written, below a data folder."""
    files: tuple[RemoteFile, ...]
    read: Callable[[Sequence[Path], Layout], Arrays]
    layout: Layout
    classes: int
    rarest: float
    """The least fraction of a part's records that a class has."""
    licence: str
    citation: str
    checked: str
    """Who publishes the checksum, or what is checked instead."""
    digest: str | None = None
    """The digest of the arrays (``arrays_digest``), if the files have no published checksum."""

    @property
    def size(self) -> int:
        """Bytes to download."""
        return sum(file.size for file in self.files)


def get(
    entry: PublicSet, folder: Path, origin: str | None = None, progress: Progress | None = None
) -> Path:
    """Fetch a set and write its .npz below ``folder``; one that is there already stays.

    Args:
        entry: the set.
        folder: a data folder.
        origin: another address, a local file, or a folder of either, in the place of the
            published address. Sizes and checksums stay the same.
        progress: called with the bytes of the present file so far, and in all.

    Raises:
        DataError: what came is not the set, or cannot be had or written. Nothing is left but a
            ``.part`` file that the next call continues.
    """
    target = folder / entry.path
    if target.exists():
        return target
    work = folder / DOWNLOADS / entry.name
    with writing(work):
        try:
            with locked_file(work.with_suffix(".lock"), wait=False):
                _check_room(entry, folder)
                paths = [_obtain(file, work, progress) for file in located(entry, origin)]
                arrays = entry.read(paths, entry.layout)
                check(entry, arrays)
                _write(target, arrays)
                shutil.rmtree(work)
        except BlockingIOError as error:
            raise DataError(
                f"another process is fetching {entry.name} into {folder}; wait for it"
            ) from error
    return target


def located(entry: PublicSet, origin: str | None) -> list[RemoteFile]:
    """The files of a set at another address; a local one is an absolute path."""
    if origin is None:
        return list(entry.files)
    remote = "://" in origin
    base = origin if remote else str(Path(origin).expanduser().resolve())
    if (remote and base.endswith("/")) or (not remote and Path(base).is_dir()):
        return [replace(each, url=f"{base.rstrip('/')}/{each.name}") for each in entry.files]
    if len(entry.files) > 1:
        names = ", ".join(each.name for each in entry.files)
        raise DataError(
            f"{entry.name} has {len(entry.files)} files ({names}), and --from names one; give a "
            "folder, or an address that ends in /"
        )
    return [replace(entry.files[0], url=base)]


def check(entry: PublicSet, arrays: Arrays) -> None:
    """Refuse arrays that are not those of the set."""
    found = {name: (array.dtype.str, array.shape) for name, array in arrays.items()}
    due = {name: (np.dtype(kind).str, shape) for name, (kind, shape) in entry.layout.items()}
    if found != due:
        raise DataError(f"{entry.name} has the arrays {found}, but {due} are due; {_AGAIN}")
    for name in (each for each in arrays if each == "y" or each.startswith("y_")):
        counts = np.unique(arrays[name], return_counts=True)[1]
        if len(counts) != entry.classes or counts.min() < entry.rarest * arrays[name].size:
            raise DataError(
                f"{entry.name}: {name} has the class sizes {counts.tolist()[:20]}, but "
                f"{entry.classes} classes of at least {entry.rarest:.1%} are due; {_AGAIN}"
            )
    if entry.digest is not None and arrays_digest(arrays) != entry.digest:
        raise DataError(
            f"the arrays of {entry.name} have the digest {arrays_digest(arrays)}, but "
            f"{entry.digest} is due; {_AGAIN}"
        )


def arrays_digest(arrays: Arrays) -> str:
    """SHA-256 of the arrays' names, types, shapes and bytes, in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def name_of(source: str | Path) -> str | None:
    """The set that writes this file; None if none does."""
    parts = Path(source).parts
    for entry in CATALOGUE.values():
        ending = Path(entry.path).parts
        if parts[-len(ending) :] == ending:
            return entry.name
    return None


_AGAIN = "it is not used: fetch it again, or from elsewhere by --from"


def _obtain(file: RemoteFile, work: Path, progress: Progress | None) -> Path:
    if "://" in file.url:
        return download(file, work, progress)
    path = Path(file.url)
    if not path.is_file():
        raise DataError(f"{path} is no file; give --from a file, a folder or an https address")
    verify(file, path)
    return path


def _check_room(entry: PublicSet, folder: Path) -> None:
    arrays = sum(
        np.dtype(kind).itemsize * math.prod(shape) for kind, shape in entry.layout.values()
    )
    due, free = entry.size + arrays, shutil.disk_usage(folder).free
    if free < due:
        raise DataError(
            f"{entry.name} needs {due / 1e6:,.0f} MB, and {folder} has {free / 1e6:,.0f} MB free; "
            "make room, or give another folder by --to"
        )


def _write(target: Path, arrays: Arrays) -> None:
    """Write the file whole or not at all; without compression, since every run reads it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f"{target.name}.draft")
    try:
        with draft.open("wb") as file:
            np.savez(file, **cast("dict[str, Any]", arrays))
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


# ------------------------------------------------------------------------------------------ readers


def _exactly(content: bytes, size: int, name: str) -> NDArray[np.uint8]:
    if len(content) != size:
        raise DataError(f"{name} has {len(content):,} bytes, but {size:,} are due; {_AGAIN}")
    return np.frombuffer(content, np.uint8)


def read_idx(paths: Sequence[Path], layout: Layout) -> Arrays:
    """MNIST's files, gzipped: 00 00 08 <axes>, the big-endian sizes, then the bytes."""
    arrays: Arrays = {}
    for path, (name, (_, shape)) in zip(paths, layout.items(), strict=True):
        head = bytes([0, 0, 8, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape)
        size = len(head) + math.prod(shape)
        raw = _exactly(gunzip(path, size), size, path.name)
        if raw[: len(head)].tobytes() != head:
            raise DataError(f"{path.name} is no IDX file of {shape} bytes; {_AGAIN}")
        arrays[name] = raw[len(head) :].reshape(shape)
    return arrays


def cifar_reader(
    train: Sequence[str], test: Sequence[str], labels: int
) -> Callable[[Sequence[Path], Layout], Arrays]:
    """A reader of CIFAR's binary version: per image its labels, then 32x32 red, green, blue.

    Args:
        train: the members with the training images, of the same size.
        test: the members with the test images.
        labels: bytes before each image; the last of them is the class.
    """

    def read(paths: Sequence[Path], layout: Layout) -> Arrays:
        parts = {"train": train, "test": test}
        record = labels + 32 * 32 * 3
        sizes = {
            name: layout[f"y_{part}"][1][0] // len(names) * record
            for part, names in parts.items()
            for name in names
        }
        content = tar_members(paths[0], sizes)
        arrays: Arrays = {}
        for part, names in parts.items():
            rows = np.concatenate(
                [_exactly(content[n], sizes[n], n).reshape(-1, record) for n in names]
            )
            pixels = rows[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            arrays[f"x_{part}"] = np.ascontiguousarray(pixels)
            arrays[f"y_{part}"] = rows[:, labels - 1].copy()
        return arrays

    return read


def read_medmnist(paths: Sequence[Path], layout: Layout) -> Arrays:
    """MedMNIST's .npz: train_images, train_labels (of shape [n, 1]), val_..., test_..."""
    members = {
        name: f"{name[2:]}_{'images' if name[0] == 'x' else 'labels'}.npy" for name in layout
    }
    sizes = {members[name]: math.prod(shape) + 1024 for name, (_, shape) in layout.items()}
    content = zip_members(paths[0], sizes, paths[0].name)
    return {
        name: _npy(content[members[name]], shape, members[name])
        for name, (_, shape) in layout.items()
    }


def _npy(content: bytes, shape: tuple[int, ...], name: str) -> NDArray[np.uint8]:
    """An .npy of bytes; nothing is allocated for a shape that only its header claims."""
    stream = io.BytesIO(content)
    try:
        if np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError("another version")
        said, fortran, kind = np.lib.format.read_array_header_1_0(stream)
    except (ValueError, EOFError, SyntaxError) as error:
        raise DataError(f"{name} is no .npy file; {_AGAIN}") from error
    if kind != np.uint8 or fortran or said not in (shape, (*shape, 1)):
        raise DataError(f"{name} is {kind} of {said}, but uint8 of {shape} is due; {_AGAIN}")
    return _exactly(stream.read(), math.prod(shape), name).reshape(shape)


def _text(path: Path, limit: int) -> str:
    with path.open("rb") as stream:
        return _ascii(read_bounded(stream, limit, path.name), path.name)


def _ascii(content: bytes, name: str) -> str:
    try:
        return content.decode("ascii")
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is no plain text; {_AGAIN}") from error


def _numbers(text: str, name: str, sign: str | None = None) -> NDArray[np.float64]:
    """Rows of numbers; ``?`` is a missing one."""
    rows = [line.replace("?", "nan").split(sign) for line in text.splitlines() if line.strip()]
    try:
        return np.array(rows, dtype=np.float64).reshape(len(rows), -1)
    except ValueError as error:
        raise DataError(f"{name} is no table of numbers; {_AGAIN}") from error


def read_libsvm(paths: Sequence[Path], layout: Layout) -> Arrays:
    """LIBSVM's text, a record per line: a label, and the places of the ones, as ``7:1``."""
    arrays: Arrays = {}
    for path, part in zip(paths, ("train", "test"), strict=True):
        lines = _text(path, 1 << 24).splitlines()
        rows, columns = layout[f"x_{part}"][1]
        if len(lines) != rows:
            raise DataError(f"{path.name} has {len(lines):,} lines, but {rows:,} are due; {_AGAIN}")
        x, y = np.zeros((rows, columns), np.uint8), np.zeros(rows, np.int8)
        for row, line in enumerate(lines):
            label, *places = line.split()[: columns + 1]
            ones = [place.removesuffix(":1") for place in places]
            if label not in ("-1", "+1", "1") or not all(
                one.isdecimal() and 0 < int(one) <= columns for one in ones
            ):
                raise DataError(f"{path.name}, line {row + 1}, is not LIBSVM's; {_AGAIN}")
            y[row] = int(label)
            x[row, [int(one) - 1 for one in ones]] = 1
        arrays |= {f"x_{part}": x, f"y_{part}": y}
    return arrays


def read_credit(paths: Sequence[Path], layout: Layout) -> Arrays:
    """UCI's data.csv: ID, X1 to X23, Y."""
    head, _, rest = _text(paths[0], 1 << 24).partition("\n")
    due = ["ID", *(f"X{i + 1}" for i in range(len(CREDIT))), "Y"]
    table = _numbers(rest, paths[0].name, ",")
    if head.strip().split(",") != due or table.shape[1] != len(due):
        raise DataError(f"{paths[0].name} has the columns {head[:80]!r}; {_AGAIN}")
    x, y = table[:, 1:-1].astype(np.float32), table[:, -1].astype(np.int8)
    return {"x": x, "y": y, "columns": np.array(CREDIT, layout["columns"][0])}


def read_heart(paths: Sequence[Path], layout: Layout) -> Arrays:
    """UCI's zip: of each hospital a table with 13 columns and the diagnosis, 0 to 4."""
    members = {f"processed.{each}.data": 1 << 20 for each in HOSPITALS}
    content = zip_members(paths[0], members, paths[0].name)
    tables = [_numbers(_ascii(content[each], each), each, ",") for each in members]
    if any(table.shape[1] != len(HEART) + 1 for table in tables):
        raise DataError(f"{paths[0].name} has tables of other than 14 columns; {_AGAIN}")
    whole = np.concatenate(tables)
    return {
        "x": whole[:, :-1].astype(np.float32),
        "y": whole[:, -1].astype(np.int8),
        "group": np.repeat(np.arange(len(tables), dtype=np.uint8), [len(t) for t in tables]),
        "group_names": np.array(HOSPITALS, layout["group_names"][0]),
        "columns": np.array(HEART, layout["columns"][0]),
    }


def read_har(paths: Sequence[Path], layout: Layout) -> Arrays:
    """UCI's zip in a zip: windows of 128 readings of 9 signals, activities 1 to 6, subjects."""
    inner = "UCI HAR Dataset.zip"
    packed = zip_members(paths[0], {inner: 1 << 27}, paths[0].name)[inner]
    parts: list[Arrays] = []
    for place, part in enumerate(("train", "test")):
        folder = f"UCI HAR Dataset/{part}"
        signals = [f"{folder}/Inertial Signals/{each}_{part}.txt" for each in SIGNALS]
        y, group = f"{folder}/y_{part}.txt", f"{folder}/subject_{part}.txt"
        content = zip_members(packed, dict.fromkeys([*signals, y, group], 1 << 24), inner)
        numbers = {name: _numbers(_ascii(raw, name), name) for name, raw in content.items()}
        if len({len(each) for each in numbers.values()}) != 1:
            raise DataError(f"{inner}: the files of {part} differ in length; {_AGAIN}")
        parts.append(
            {
                "x": np.stack([numbers[each].astype(np.float16) for each in signals], axis=1),
                "y": (numbers[y][:, 0] - 1).astype(np.uint8),
                "group": (numbers[group][:, 0] - 1).astype(np.uint8),
                "split": np.full(len(numbers[y]), place, np.uint8),
            }
        )
    return {name: np.concatenate([part[name] for part in parts]) for name in layout}


# ------------------------------------------------------------------------------------ the catalogue

CREDIT = (
    "LIMIT_BAL",
    "SEX",
    "EDUCATION",
    "MARRIAGE",
    "AGE",
    "PAY_0",
    "PAY_2",
    "PAY_3",
    "PAY_4",
    "PAY_5",
    "PAY_6",
    *(f"BILL_AMT{i}" for i in range(1, 7)),
    *(f"PAY_AMT{i}" for i in range(1, 7)),
)
HEART = (
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
)
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
SIGNALS = tuple(
    f"{each}_{axis}" for each in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"
)


def _image_layout(shape: tuple[int, ...], train: int, test: int, val: int = 0) -> Layout:
    """Images and classes in parts, all of them bytes."""
    sizes = {"train": train, "val": val, "test": test}
    return {
        f"{kind}_{part}": ("u1", (size, *(shape if kind == "x" else ())))
        for part, size in sizes.items()
        if size
        for kind in "xy"
    }


def _idx_files(base: str, facts: Sequence[str]) -> tuple[RemoteFile, ...]:
    """Four files, each with its size and its SHA-256."""
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(
        RemoteFile(f"{base}/{name}-ubyte.gz", int(size), f"sha256:{digest}")
        for name, (size, digest) in zip(names, map(str.split, facts), strict=True)
    )


_TFDS = "SHA-256 as tensorflow-datasets publishes it"
_USERS = "SHA-256 as several users of UCI's file publish it"
_ARRAYS = "no checksum is published: its arrays are compared with those behind the results"
_MEDMNIST = "MD5 as the medmnist package publishes it"
_UCI = "https://archive.ics.uci.edu/static/public"
_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary"
_ZENODO = "https://zenodo.org/records/10519652/files"
_CIFAR = "none is stated; the author asks to cite the report"
_KRIZHEVSKY = "Krizhevsky 2009, Learning multiple layers of features from tiny images"
_YANG = "Yang et al. 2023, MedMNIST v2, Scientific Data 10:41"

CATALOGUE: dict[str, PublicSet] = {
    entry.name: entry
    for entry in (
        PublicSet(
            "cifar10",
            "60,000 colour images of 32x32, 10 classes",
            "images/cifar10.npz",
            (
                RemoteFile(
                    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                    170_052_171,
                    "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                ),
            ),
            read=cifar_reader(
                [f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)],
                ["cifar-10-batches-bin/test_batch.bin"],
                1,
            ),
            layout=_image_layout((32, 32, 3), 50_000, 10_000),
            classes=10,
            rarest=0.1,
            licence=_CIFAR,
            citation=_KRIZHEVSKY,
            checked=_TFDS,
        ),
        PublicSet(
            "cifar100",
            "60,000 colour images of 32x32, 100 classes",
            "images/cifar100.npz",
            (
                RemoteFile(
                    "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
                    168_513_733,
                    "sha256:58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
                ),
            ),
            read=cifar_reader(["cifar-100-binary/train.bin"], ["cifar-100-binary/test.bin"], 2),
            layout=_image_layout((32, 32, 3), 50_000, 10_000),
            classes=100,
            rarest=0.01,
            licence=_CIFAR,
            citation=_KRIZHEVSKY,
            checked=_TFDS,
        ),
        PublicSet(
            "fashion-mnist",
            "70,000 grey images of clothes, 28x28, 10 classes",
            "images/fashion-mnist.npz",
            _idx_files(
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/"
                "b2617bb6d3ffa2e429640350f613e3291e10b141/data/fashion",
                [
                    "26_421_880 3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                    "29_515 a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                    "4_422_102 346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                    "5_148 67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                ],
            ),
            read=read_idx,
            layout=_image_layout((28, 28), 60_000, 10_000),
            classes=10,
            rarest=0.1,
            licence="MIT",
            citation="Xiao, Rasul and Vollgraf 2017, Fashion-MNIST, arXiv:1708.07747",
            checked=_TFDS,
        ),
        PublicSet(
            "mnist",
            "70,000 grey images of digits, 28x28, 10 classes",
            "images/mnist.npz",
            _idx_files(
                "https://storage.googleapis.com/cvdf-datasets/mnist",
                [
                    "9_912_422 440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                    "28_881 3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                    "1_648_877 8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                    "4_542 f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                ],
            ),
            read=read_idx,
            layout=_image_layout((28, 28), 60_000, 10_000),
            classes=10,
            rarest=0.08,
            licence="CC BY-SA 3.0, as Keras states it",
            citation="LeCun, Bottou, Bengio and Haffner 1998, Proceedings of the IEEE 86:2278",
            checked=_TFDS,
        ),
        PublicSet(
            "pathmnist",
            "97,176 colour images of tissue, 28x28, 9 classes, without the validation part",
            "images/pathmnist.npz",
            (
                RemoteFile(
                    f"{_ZENODO}/pathmnist.npz?download=1",
                    205_615_438,
                    "md5:a8b06965200029087d5bd730944a56c1",
                ),
            ),
            read=read_medmnist,
            layout=_image_layout((28, 28, 3), 89_996, 7_180),
            classes=9,
            rarest=0.04,
            licence="CC BY 4.0",
            citation=f"{_YANG}; Kather et al. 2019, PLOS Medicine 16(1)",
            checked=_MEDMNIST,
        ),
        PublicSet(
            "pneumoniamnist",
            "5,856 grey X-rays, 28x28, 2 classes",
            "pneumoniamnist.npz",
            (
                RemoteFile(
                    f"{_ZENODO}/pneumoniamnist.npz?download=1",
                    4_200_000,
                    "md5:28209eda62fecd6e6a2d98b1501bb15f",
                    exact=False,
                ),
            ),
            read=read_medmnist,
            layout=_image_layout((28, 28), 4_708, 624, val=524),
            classes=2,
            rarest=0.2,
            licence="CC BY 4.0",
            citation=f"{_YANG}; Kermany et al. 2018, Cell 172:1122",
            checked=_MEDMNIST,
        ),
        PublicSet(
            "a9a",
            "Adult: 48,842 records, 123 binary features, income",
            "tables/a9a.npz",
            (
                RemoteFile(f"{_LIBSVM}/a9a", 2_330_000, exact=False),
                RemoteFile(f"{_LIBSVM}/a9a.t", 1_165_000, exact=False),
            ),
            read=read_libsvm,
            layout={
                "x_train": ("u1", (32_561, 123)),
                "y_train": ("i1", (32_561,)),
                "x_test": ("u1", (16_281, 123)),
                "y_test": ("i1", (16_281,)),
            },
            classes=2,
            rarest=0.2,
            licence="CC BY 4.0 (UCI)",
            citation="Becker and Kohavi 1996, Adult, UCI; Chang and Lin 2011, LIBSVM",
            checked=_ARRAYS,
            digest="16de15530d3c2e05e9f7797b04357277fbbbbd61b3216756b4c612c5a94e5a39",
        ),
        PublicSet(
            "credit-default",
            "30,000 credit card clients, 23 features, default",
            "tables/credit-default.npz",
            (
                RemoteFile(
                    f"{_UCI}/350/data.csv",
                    2_897_080,
                    "sha256:45bcf4df62ff2e237a74eb155cabfb4bbbc171219a0637daef44fdad07503dd0",
                ),
            ),
            read=read_credit,
            layout={"x": ("f4", (30_000, 23)), "y": ("i1", (30_000,)), "columns": ("U9", (23,))},
            classes=2,
            rarest=0.2,
            licence="CC BY 4.0",
            citation="Yeh and Lien 2009, Expert Systems with Applications 36:2473",
            checked=_USERS,
        ),
        PublicSet(
            "heart-disease",
            "920 patients of 4 hospitals, 13 features, diagnosis 0 to 4",
            "tables/heart-disease.npz",
            (
                RemoteFile(
                    f"{_UCI}/45/heart+disease.zip",
                    127_000,
                    "sha256:b17cd273da9ce1caa4710fce80227ea454d4dbf9fcbc8e6a9121672751563adc",
                    exact=False,
                ),
            ),
            read=read_heart,
            layout={
                "x": ("f4", (920, 13)),
                "y": ("i1", (920,)),
                "group": ("u1", (920,)),
                "group_names": ("U11", (4,)),
                "columns": ("U8", (13,)),
            },
            classes=5,
            rarest=0.03,
            licence="CC BY 4.0",
            citation="Janosi, Steinbrunn, Pfisterer and Detrano 1989, UCI",
            checked=_USERS,
        ),
        PublicSet(
            "har",
            "10,299 windows of 9 signals by 30 subjects, 6 activities",
            "tables/har.npz",
            (
                RemoteFile(
                    f"{_UCI}/240/human+activity+recognition+using+smartphones.zip",
                    61_005_872,
                    "sha256:c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031",
                ),
            ),
            read=read_har,
            layout={
                "x": ("f2", (10_299, 9, 128)),
                "y": ("u1", (10_299,)),
                "group": ("u1", (10_299,)),
                "split": ("u1", (10_299,)),
            },
            classes=6,
            rarest=0.1,
            licence="CC BY 4.0 (UCI); the archive's own text forbids commercial use",
            citation="Anguita, Ghio, Oneto, Parra and Reyes-Ortiz 2013, ESANN",
            checked=_USERS,
        ),
    )
}
"""The sets by name."""
