# SPDX-License-Identifier: Apache-2.0
"""A data set is its files: every way to name one twice is seen, and files apart stay apart."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpfed.silo.sources import Files, files_of, nested


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a/1.csv", "a/2.csv", "a/deep/3.csv", "b/1.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"x,y\n{name},1\n")
    return tmp_path


def common(first: str | list[str], second: str | list[str]) -> str:
    one, other = files_of(first), files_of(second)
    assert bool(one.common(other)) == bool(other.common(one))
    return one.common(other)


def aliases(folder: Path) -> dict[str, str | list[str]]:
    """Other names of a/1.csv, or of what holds it."""
    one = folder / "a/1.csv"
    (folder / "link.csv").symlink_to(one)
    (folder / "way").symlink_to(folder / "a")
    (folder / "links").mkdir()
    (folder / "links/inside").symlink_to(folder / "a")
    os.link(one, folder / "hard.csv")
    (folder / "holds").mkdir()
    os.link(one, folder / "holds/again.csv")
    return {
        "itself": str(one),
        "a symlink": str(folder / "link.csv"),
        "a hard link": str(folder / "hard.csv"),
        "a folder's link": str(folder / "way/1.csv"),
        "dots": f"{folder}/b/../a/1.csv",
        "slashes": f"{folder}//a///1.csv/.".removesuffix("/."),
        "the folder": str(folder / "a"),
        "a slash at its end": f"{folder}/a/",
        "a folder above": str(folder),
        "a link to the folder": str(folder / "way"),
        "a link inside of a folder": str(folder / "links"),
        "a pattern": f"{folder}/a/*.csv",
        "a pattern of folders": f"{folder}/*/1.csv",
        "a list": [f"{folder}/b/1.csv", str(one)],
        "a folder with a hard link": str(folder / "holds"),
        "hf: as a path": f"hf:{folder}/a",
        "hf: with a configuration": f"hf:{folder}/a:default",
    }


def test_every_name_of_a_file_is_seen(folder: Path) -> None:
    for what, alias in aliases(folder).items():
        assert common(str(folder / "a/1.csv"), alias), what


def test_a_relative_name_and_one_under_the_data_folder_are_seen(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder / "b")
    assert common("../a/1.csv", str(folder / "a/1.csv"))
    monkeypatch.chdir("/")
    monkeypatch.setenv("DPFED_DATA", str(folder))
    assert common("a/1.csv", str(folder / "a/1.csv"))
    monkeypatch.setenv("HOME", str(folder))
    assert common("~/a/1.csv", str(folder / "a/1.csv"))


def test_files_apart_stay_apart(folder: Path) -> None:
    assert not common(str(folder / "a/1.csv"), str(folder / "a/2.csv"))
    assert not common(str(folder / "a"), str(folder / "b"))
    assert not common(f"{folder}/a/1*.csv", f"{folder}/a/2*.csv")
    assert not common("synthetic", "synthetic")
    assert not common("hf:org/one", "hf:org/two")
    (folder / "ab").mkdir()
    assert not nested(folder / "a", folder / "ab")


def test_a_name_on_the_hub_counts_without_its_configuration_and_case() -> None:
    assert common("hf:Org/Name", "hf:org/name:small") == "org/name"
    assert common("hf:mnist", "hf:ylecun/mnist")  # the hub's own names of old sets
    assert not common("hf:one/mnist", "hf:two/mnist")


def test_a_folder_counts_with_what_may_come_to_lie_in_it(folder: Path) -> None:
    assert common(str(folder / "a"), str(folder / "a/new/4.csv"))
    assert common(str(folder / "gone"), f"{folder}/gone/")


def test_links_in_a_circle_end(folder: Path) -> None:
    (folder / "a/deep/up").symlink_to(folder)
    (folder / "a/nowhere").symlink_to(folder / "none")
    assert common(str(folder / "a/deep"), str(folder / "b"))  # the link leads there


@pytest.mark.slow
def test_a_bind_mount_is_seen(folder: Path) -> None:
    """Other paths, and no link: device and inode are the same."""
    (folder / "mnt").mkdir()
    looks = (
        f"from dpfed.silo.sources import files_of as f; "
        f"print('common:', f('{folder}/a').common(f('{folder}/mnt/3.csv')))"
    )
    code = f'mount --bind {folder}/a/deep {folder}/mnt && {sys.executable} -c "{looks}"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", code], capture_output=True, text=True, check=False
    )
    if "common:" not in done.stdout:
        pytest.skip("this machine gives no mount namespaces")
    assert "3.csv" in done.stdout


def test_nothing_is_in_common_with_nothing() -> None:
    assert Files().common(Files()) == ""
