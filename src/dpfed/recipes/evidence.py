# SPDX-License-Identifier: Apache-2.0
"""A training's evidence, as a folder to hand over: ``OUT/evidence``, for ``dpfed verify``.

    index.json         what is here: each file's SHA-256, the training, its committed rounds, and
                       the order of the model's parameters
    terms.toml         what the silos approved
    roster.json        names and keys of the silos; with roster.sig and ca.crt if a CA signed it
    statements.jsonl   what each silo states, signed; receipts.jsonl: of each round
    rounds.jsonl       who was asked in each attempt
    guarantee.json     the guarantee; history.jsonl: the rounds' rows; audit.json, if there is one
    sbom.json          what the server ran: CycloneDX 1.6, by the packages' own metadata

Guarantee: nothing is written here that the run's other files do not say, but what silos signed for
it, and names and versions of packages.

| edge case                                       | what happens                                   |
|-------------------------------------------------|------------------------------------------------|
| no CA's roster on the server                    | one of the keys that nodes said; whoever       |
|                                                 | verifies compares them with the silos' own     |
| a silo whose key nobody has said                | a name in the roster, and a key of nobody      |
| a draw of clients that is secret                | no committed rounds, no receipts               |
| no silo has a key                               | no folder                                      |
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, NamedTuple

from dpfed._version import VERSION
from dpfed.core.dsse import canonical_json
from dpfed.core.environment import IDENTITY, variable
from dpfed.core.files import replace_file
from dpfed.core.log import log
from dpfed.recipes.result import EVIDENCE_FOLDER
from dpfed.sums.secagg.identity import CA, ROSTER, SIGNATURE, dump_roster
from dpfed.training.checkpoint import CommittedRound
from dpfed.training.flower.evidence import KEYS, RECEIPTS, ROUNDS, STATEMENTS
from dpfed.training.plan import Plan
from dpfed.training.wire.evidence import gives_receipts

FOLDER, INDEX, TERMS, SBOM = EVIDENCE_FOLDER, "index.json", "terms.toml", "sbom.json"
GUARANTEE, HISTORY, AUDIT = "guarantee.json", "history.jsonl", "audit.json"
FILES = (
    TERMS,
    ROSTER,
    SIGNATURE,
    CA,
    STATEMENTS,
    RECEIPTS,
    ROUNDS,
    GUARANTEE,
    HISTORY,
    AUDIT,
    SBOM,
)
"""What an evidence folder may have, besides its index."""
MOST_PACKAGES = 5000
_MOST_WORDS = 200


class Trained(NamedTuple):
    """What a run knows of a training that has ended."""

    plan: Plan
    training: str
    terms: str
    """Their text; "" of an app without terms."""
    layout: Sequence[str]
    """The names of the model's parameters, in their order."""
    committed: Sequence[CommittedRound]


def write_evidence(out: Path, trained: Trained) -> Path | None:
    """Complete the evidence of a run; None if no silo has signed anything.

    Args:
        out: the run's folder, with guarantee.json and metrics.jsonl, and what silos have signed in
            its folder ``evidence``.
        trained: the rest.
    """
    folder = out / FOLDER
    found = folder / KEYS
    keys: dict[str, str] = json.loads(found.read_bytes()) if found.exists() else {}
    if not keys:
        shutil.rmtree(folder, ignore_errors=True)
        return None
    files = {
        TERMS: trained.terms.encode(),
        GUARANTEE: (out / "guarantee.json").read_bytes(),
        HISTORY: (out / "metrics.jsonl").read_bytes(),
        SBOM: canonical_json(software_bill()),
        **_roster(len(trained.plan.nominal), keys),
    }
    if (out / AUDIT).is_file():
        files[AUDIT] = (out / AUDIT).read_bytes()
    told = gives_receipts(trained.plan)
    for name in (STATEMENTS, RECEIPTS, ROUNDS):
        kept = folder / name
        if kept.exists() and (told or name == STATEMENTS):
            files[name] = kept.read_bytes()
    for name, content in files.items():
        replace_file(folder / name, content, 0o644)
    index = {
        "version": 1,
        "training": trained.training,
        "layout": list(trained.layout),
        "committed": [
            {"round": each.round, "attempt": each.attempt, "clients": sorted(each.clients)}
            for each in (trained.committed if told else ())
        ],
        "files": {name: hashlib.sha256(files[name]).hexdigest() for name in sorted(files)},
    }
    replace_file(folder / INDEX, canonical_json(index), 0o644)
    found.unlink()
    log.info("the evidence of this training is in %s: dpfed verify %s", folder, out)
    return folder


def _roster(clients: int, keys: dict[str, str]) -> dict[str, bytes]:
    """The server's own roster with its CA's signature; else one of the keys that nodes said."""
    home = Path(variable(IDENTITY) or "")
    names = (ROSTER, SIGNATURE, CA)
    if variable(IDENTITY) and all((home / name).is_file() for name in names):
        return {name: (home / name).read_bytes() for name in names}
    known = [keys.get(str(client)) for client in range(clients)]
    raw = [
        bytes.fromhex(key) if key else hashlib.sha256(b"nobody's key %d" % client).digest()
        for client, key in enumerate(known)
    ]
    called = [f"{'silo' if key else 'unknown'}-{client}" for client, key in enumerate(known)]
    return {ROSTER: dump_roster(called, raw)}


def software_bill() -> dict[str, Any]:
    """The packages that are installed here, as a CycloneDX bill of materials.

    >>> bill = software_bill()
    >>> bill["bomFormat"], any(each["name"] == "numpy" for each in bill["components"])
    ('CycloneDX', True)
    """
    found: dict[str, dict[str, Any]] = {}
    for each in distributions():
        name, version = str(each.metadata["Name"] or ""), str(each.version or "")
        plain = re.sub(r"[-_.]+", "-", name).lower()
        if not plain or len(found) >= MOST_PACKAGES:
            continue
        part: dict[str, Any] = {
            "type": "library",
            "name": name[:_MOST_WORDS],
            "version": version[:_MOST_WORDS],
            "purl": f"pkg:pypi/{plain}@{version}"[:_MOST_WORDS],
        }
        if "License-Expression" in each.metadata:
            licence = str(each.metadata["License-Expression"])
            part["licenses"] = [{"expression": licence[:_MOST_WORDS]}]
        found.setdefault(plain, part)
    main = {"type": "application", "name": "dpfed", "version": VERSION}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": main},
        "components": [found[name] for name in sorted(found)],
    }
