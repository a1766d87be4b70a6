# SPDX-License-Identifier: Apache-2.0
"""``dpfed doctor``: checks one by one what a machine needs for dpfed.

Guarantee: nothing is installed, downloaded or kept; files that are written to try a folder are
removed. A check that fails in an unforeseen way is reported as a problem, without a traceback.

| what is checked                   | problem                        | warning                     |
|-----------------------------------|--------------------------------|-----------------------------|
| packages                          | missing, or another version    | an optional one is missing, |
|                                   |                                | or Flower is a newer one,   |
|                                   |                                | or one for simulations only |
| ports of Flower's local SuperLink | taken by another program       |                             |
| folders, data, identity, ledger   | not writable, missing, unsound | readable by others          |
| silo: its policy, users and files | what 'dpfed silo check' finds  | what it warns of            |
| telemetry                         |                                | on                          |
"""

from __future__ import annotations

import os
import socket
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from dpfed.core.environment import (
    IDENTITY,
    STATE,
    data_folders,
    ledger_path,
    state_folder,
    variable,
)
from dpfed.core.errors import DpfedError


class Health(StrEnum):
    """How a check went."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Line(NamedTuple):
    """What was checked, how it went, and the way out."""

    verdict: Health
    what: str
    said: str


OK, WARNING, PROBLEM = Health.OK, Health.WARNING, Health.PROBLEM


def check_all() -> Iterator[Line]:
    """All checks, one after the other."""
    for what, check in CHECKS.items():
        try:
            yield from check()
        except Exception as error:
            said = f"could not be checked ({type(error).__name__}: {error}); please report this"
            yield Line(PROBLEM, what, said)


# ---------------------------------------------------------------------------------------- versions

REQUIRED_PACKAGES = ("torch", "flwr", "dp-accounting", "cryptography")
DEPLOYMENT_VERSIONS = ">=1.40"
"""The SuperNodes of an older Flower do not speak HTTP, which the scripts of a deployment use."""
OPTIONAL = {
    "matplotlib": ("pictures of runs, audits and studies", "plots"),
    "pyarrow": ("data in .csv and .parquet files", "tables"),
    "pillow": ("data in folders of images", "images"),
    "opacus": ("per-record gradients by its samplers", "opacus"),
    "ray": ("Flower's simulation", "simulation"),
}


def packages() -> Iterator[Line]:
    """What dpfed is built on, compared with its own requirements."""
    bounds = requirements()
    for name in REQUIRED_PACKAGES:
        yield package(name, bounds.get(name, ""))
    for name, (use, extra) in OPTIONAL.items():
        if _version(name) is None:
            way_out = f"pip install 'dpfed[{extra}]'"
            yield Line(WARNING, name, f"missing, needed only for {use}; {way_out}")
        else:
            yield package(name, bounds.get(name, ""))


def package(name: str, bounds: str) -> Line:
    """One package that must be there."""
    from packaging.specifiers import SpecifierSet

    version, wanted = _version(name), f"{name}{bounds}"
    if version is None:
        return Line(PROBLEM, name, f"missing; pip install '{wanted}'")
    if not SpecifierSet(bounds).contains(version, prereleases=True):
        return Line(PROBLEM, name, f"must be {bounds}, got {version}; pip install '{wanted}'")
    if name == "flwr" and (said := simulations_only()):
        return Line(WARNING, name, said)
    return Line(OK, name, version)


def simulations_only() -> str:
    """Why this version of Flower cannot run across hosts, and what to install; "" if it can."""
    from packaging.specifiers import SpecifierSet

    version = _version("flwr")
    if version is None or SpecifierSet(DEPLOYMENT_VERSIONS).contains(version, prereleases=True):
        return ""
    return (
        f"flwr must be {DEPLOYMENT_VERSIONS} to run across hosts, got {version}, which is enough "
        f"for simulations; pip install 'flwr{DEPLOYMENT_VERSIONS}'"
    )


def requirements() -> dict[str, str]:
    """Package -> the versions that dpfed's own metadata ask for."""
    from packaging.requirements import Requirement

    found: dict[str, str] = {}
    for text in metadata.requires("dpfed") or ():
        needed = Requirement(text)
        found.setdefault(needed.name.lower(), str(needed.specifier))
    return found


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


# ------------------------------------------------------------------------------------------- ports

PORTS = {"FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": "39091", "FLWR_LOCAL_CONTROL_API_PORT": "39093"}
"""Flower's own: the environment variable of each port of the local SuperLink, and its default."""


def ports() -> Iterator[Line]:
    """Are the ports free that 'flwr run .' would take, or held by Flower itself?"""
    first, *_ = PORTS
    if is_superlink(os.environ.get(first, PORTS[first])):
        yield Line(OK, "ports", "a local SuperLink is running: 'flwr run' will use it")
        return
    for name, usual in PORTS.items():
        text = os.environ.get(name, usual)
        if not text.isdigit() or not 0 < int(text) < 65536:
            said = f"{name} must be between 1 and 65535, got {text!r}; unset it"
            yield Line(PROBLEM, "ports", said)
        elif not is_free(int(text)):
            said = (
                f"127.0.0.1:{text} is in use, and 'flwr run .' needs it; end what holds it, or "
                f"export {name}=PORT with a free one between 1024 and 65535"
            )
            yield Line(PROBLEM, "ports", said)
        else:
            yield Line(OK, "ports", f"127.0.0.1:{text} is free for Flower's local SuperLink")


def is_free(port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def is_superlink(port: str) -> bool:
    """Whether a SuperLink listens on a local port; no proxy is used."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}/health", timeout=1) as reply:
            return bool(reply.status == 200)
    except (OSError, ValueError):
        return False


# ------------------------------------------------------------------------------------------- files


def folders() -> Iterator[Line]:
    """Where a client keeps its state, and where results go."""
    yield _writable("state", state_folder(), STATE)
    yield _writable("folder", Path.cwd(), "")


def _writable(what: str, folder: Path, variable: str) -> Line:
    way_out = f"export {variable}=FOLDER" if variable else "go to one, or give --out"
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        said = f"{folder} cannot be written to ({error.strerror}); {way_out} that can"
        return Line(PROBLEM, what, said)
    if variable and folder.exists() and folder.stat().st_mode & 0o077:
        return Line(
            WARNING, what, f"{folder} is open to others on this machine; chmod 700 {folder}"
        )
    return Line(OK, what, f"{folder}{'' if folder.exists() else ' (will be made)'}")


def data() -> Iterator[Line]:
    """The folders of $DPFED_DATA."""
    if not data_folders():
        yield Line(OK, "data", "DPFED_DATA is not set: recipes name their data by path")
    for each in data_folders():
        if each.is_dir():
            yield Line(OK, "data", str(each))
        else:
            said = f"DPFED_DATA must name folders, got {str(each)!r}; correct it, or leave it out"
            yield Line(PROBLEM, "data", said)


def identity_key() -> Iterator[Line]:
    """The folder of $DPFED_IDENTITY, which a silo of a secure sum signs with."""
    from dpfed.sums.secagg import identity as identities

    value = variable(IDENTITY) or ""
    if not value:
        yield Line(OK, "identity", f"{IDENTITY} is not set: only silos need it")
    elif value == identities.SIMULATED:
        said = "simulated: keys that anyone can make, for one machine only; unset it on a silo"
        yield Line(WARNING, "identity", said)
    else:
        try:
            found = identities.load_identity(Path(value))
        except DpfedError as error:
            yield Line(PROBLEM, "identity", str(error))
            return
        name = found.roster.names[found.client]
        yield Line(OK, "identity", f"{name!r}, client {found.client} of {len(found.roster.keys)}")


def ledger() -> Iterator[Line]:
    """Does the ledger verify, if there is one?"""
    path = ledger_path()
    if not path.exists():
        yield Line(OK, "ledger", f"none at {path}")
        return
    from dpfed.accounting.ledger.ledger import Ledger

    try:
        wrong = Ledger(path, create=False).verify()
    except DpfedError as error:
        wrong = [str(error)]
    if wrong:
        way_out = "restore it from a backup, and see docs/ledger.md"
        yield Line(PROBLEM, "ledger", f"{path}: {wrong[0].rstrip('.')}; {way_out}")
    else:
        yield Line(OK, "ledger", f"{path}: all rows in order")


def silo() -> Iterator[Line]:
    """Is a data owner's gate installed here, and closed to others?"""
    from dpfed.cli.silo import DEFAULT

    try:
        DEFAULT.open("rb").close()
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        yield Line(OK, "silo", "no policy" if missing else f"{DEFAULT} is not yours to read")
        return
    from dpfed.cli.silo_check import check_silo

    try:
        lines = list(check_silo(DEFAULT))
    except DpfedError as error:
        yield Line(PROBLEM, "silo", str(error))
        return
    warnings = [line.removeprefix("warning: ") for line in lines if line.startswith("warning:")]
    said = warnings[0] if warnings else f"{len(lines)} checks passed: see 'dpfed silo check'"
    yield Line(WARNING if warnings else OK, "silo", said)


def telemetry() -> Iterator[Line]:
    """Does Flower report how it is used?"""
    if os.environ.get("FLWR_TELEMETRY_ENABLED", "1") == "1":
        said = "Flower sends usage data to its makers; export FLWR_TELEMETRY_ENABLED=0 to stop it"
        yield Line(WARNING, "telemetry", said)
    else:
        yield Line(OK, "telemetry", "off")


CHECKS: dict[str, Callable[[], Iterator[Line]]] = {
    "packages": packages,
    "ports": ports,
    "folders": folders,
    "data": data,
    "identity": identity_key,
    "ledger": ledger,
    "silo": silo,
    "telemetry": telemetry,
}
