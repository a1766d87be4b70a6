# SPDX-License-Identifier: Apache-2.0
"""A trained model on the Hugging Face hub: what goes there, and nothing else of a run's folder.

    a bundle     model.json, model.safetensors, README.md (the card)
    an adapter   adapter_config.json, adapter_model.safetensors, README.md

Each file is read once, checked, and that content is sent: no other file of the folder is opened, so
neither a history of rounds nor a ledger can go along. Paths of this machine become names, and cards
are written anew. A repository is private unless somebody asks for a public one.

| edge case                                      | what happens                                  |
|------------------------------------------------|-----------------------------------------------|
| a run's folder                                 | its model/ is pushed, or its adapter/         |
| a bundle that does not fit its own digest      | DataError, nothing is sent                    |
| a model that was trained in clear              | RecipeError: nothing protects its records     |
| an adapter without its run's guarantee.json    | DataError: nobody knows what it guarantees    |
| a file beside them, a link, a pipe             | is not looked at; or DataError                |
| no token, no rights, no network                | the hub's own sentence, in ours               |
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from dpfed.accounting.guarantee import Guarantee
from dpfed.bundle.card import model_card, prose, quoted
from dpfed.bundle.description import MAX_BYTES, Description, decode, encode
from dpfed.bundle.folder import (
    CARD_FILE,
    DESCRIPTION_FILE,
    PARAMETERS_FILE,
    read_bounded,
    read_bundle,
)
from dpfed.core.errors import DataError, DpfedError, RecipeError, first_sentence
from dpfed.core.extras import require_extra

ADAPTER_CONFIG, ADAPTER_PARAMETERS = "adapter_config.json", "adapter_model.safetensors"
MAX_ADAPTER_BYTES = 1 << 33
_GUARANTEE = "guarantee.json"
_PATH = re.compile(r"(?<![\w/\\.])(?:~|[A-Za-z]:|\.{1,2})?[/\\][^\s'\",;()]*")
"""A path from a root, a home or a folder, anywhere in a text."""

Files = Mapping[str, bytes]


def files_to_push(folder: Path, *, adapter: bool = False) -> Files:
    """What ``push`` sends, by name: checked, and without paths of this machine.

    Args:
        folder: a bundle, an adapter, or a run's folder with either.
        adapter: of a run's folder, take the adapter instead of the bundle.
    """
    inside = folder / ("adapter" if adapter else "model")
    if (folder / ADAPTER_CONFIG).exists() or adapter:
        return _adapter(folder if (folder / ADAPTER_CONFIG).exists() else inside)
    where = inside if (inside / DESCRIPTION_FILE).exists() else folder
    description, _ = read_bundle(where)  # digest, names, shapes, finite numbers
    _refuse_in_clear(description.stated)
    raw = read_bounded(where / PARAMETERS_FILE, 4 * description.size + (1 << 24))
    if description.sha256 and hashlib.sha256(raw).hexdigest() != description.sha256:
        raise DataError(f"{where / PARAMETERS_FILE} has changed while it was read; push it again")
    plain = decode(encode(_without_paths(description)))
    card = model_card(plain).encode()
    return {DESCRIPTION_FILE: encode(plain), PARAMETERS_FILE: raw, CARD_FILE: card}


def _without_paths(description: Description) -> Description:
    """The description, in whose free texts each path of a machine is the name at its end."""
    training = description.training
    return msgspec.structs.replace(
        description,
        name=_plain(description.name),
        data=_plain(description.data),
        training=msgspec.structs.replace(training, stopped=_plain(training.stopped)),
    )


def _plain(text: str) -> str:
    return _PATH.sub(lambda found: re.split(r"[/\\]", found[0].rstrip("/\\"))[-1], text)


def _refuse_in_clear(guarantee: Guarantee) -> None:
    if not math.isfinite(guarantee.epsilon):
        raise RecipeError(
            "a model that was trained in clear is not pushed, since nothing protects its records; "
            "train it with a budget, or upload it by hand if the records are public"
        )


def _adapter(folder: Path) -> Files:
    """An adapter's two files, and a card that states the guarantee of its run."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    config = _read(folder, ADAPTER_CONFIG, MAX_BYTES)
    raw = _read(folder, ADAPTER_PARAMETERS, MAX_ADAPTER_BYTES)
    said = _read(folder.resolve().parent, _GUARANTEE, MAX_BYTES)
    try:
        settings = json.loads(config)
        base = _plain(str(settings.get("base_model_name_or_path") or "an unnamed model"))
        guarantee = msgspec.convert(json.loads(said), Guarantee, strict=False)
        finite = all(bool(each.isfinite().all()) for each in load(raw).values())
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise DataError(
            f"{folder} is not an adapter as dpfed writes one ({first_sentence(error)}); give the "
            f"run's folder"
        ) from error
    if not finite:
        raise DataError(
            f"{folder / ADAPTER_PARAMETERS} has numbers that are not finite; train it again"
        )
    _refuse_in_clear(guarantee)
    card = "\n".join(
        [
            "---",
            "library_name: peft",
            "tags: [differential-privacy, federated-learning, dpfed]",
            "---",
            f"# An adapter of {quoted(base)}",
            "",
            prose(guarantee.sentence),
            "",
        ]
    )
    settings_text = (
        json.dumps({**settings, "base_model_name_or_path": base}, indent=2, sort_keys=True) + "\n"
    )
    return {
        ADAPTER_CONFIG: settings_text.encode(),
        ADAPTER_PARAMETERS: raw,
        CARD_FILE: card.encode(),
    }


def _read(folder: Path, name: str, most: int) -> bytes:
    if not (folder / name).exists():
        raise DataError(
            f"{str(folder)!r} has no {name}; give a run's folder, such as runs/NAME, as the run "
            f"left it"
        )
    return read_bounded(folder / name, most)


def push(files: Files, repo: str, *, public: bool = False, message: str = "") -> str:
    """Send files to a repository on the hub, which is made if need be, in one commit.

    Args:
        files: as ``files_to_push`` gives them.
        repo: OWNER/NAME.
        public: make the repository a public one; one that is there stays as it is.
        message: the commit's; "" says which dpfed pushed.

    Returns:
        the commit's address.
    """
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # read when the hub is imported
    with require_extra("push", "dpfed push", "huggingface_hub"):
        from huggingface_hub import CommitOperationAdd, HfApi
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, library_name="dpfed")
    try:
        api.create_repo(repo, private=not public, exist_ok=True)
        made = api.create_commit(
            repo,
            [CommitOperationAdd(name, content) for name, content in files.items()],
            commit_message=message or "Push a model trained with differential privacy by dpfed",
        )
    except Exception as error:  # of the hub, of requests below it, of its check of names
        raise DpfedError(
            f"{repo!r} was not pushed ({first_sentence(error)}); check the name, the token "
            f"(hf auth login, or HF_TOKEN) and the network"
        ) from error
    return str(made.commit_url)
