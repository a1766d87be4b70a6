# SPDX-License-Identifier: Apache-2.0
"""``dpfed new``: a Flower app of one's own, from the templates beside this file.

    templates/app       what the next two share: the server
    templates/rows      each record: a model and data of one's own, rows by the library
    templates/clients   each client: a train function of one's own, as it is
    templates/recipe    no code: a recipe, and dpfed's own apps
    templates/gated     data behind its owners' gates: terms, and a relay
    templates/licence   what all of these but the last have
    templates/nvflare   the same under NVIDIA FLARE: a job, and a page for each site's admin

Guarantee: an app is written into a new folder only, with the templates' {{words}} filled in; a name
that would hide another module is refused.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path

from dpfed.core.checks import refuse
from dpfed.core.errors import RecipeError

PARTS = {
    "rows": ("licence", "app", "rows"),
    "clients": ("licence", "app", "clients"),
    "recipe": ("licence", "recipe"),
    "gated": ("licence", "gated"),
}
"""The kinds of app, and the folders of templates that each is made of."""
PRIVATE = {
    "rows": "your model, our rows: each record is protected; any torch module, or a linear model",
    "clients": "your train function as it is: each client; for many devices",
}
"""What ``dpfed new`` asks for."""
ENGINES = ("flower", "nvflare")
RECIPE = "recipe.toml"
"""What a gated training has under either engine, from one template."""
ENDING = ".template"


def write_app(folder: Path, kind: str = "rows", engine: str = "flower") -> list[Path]:
    """Write the app; returns its files, in order.

    Args:
        folder: the app's, which must not exist yet.
        kind: one of PARTS.
        engine: one of ENGINES; another than flower only for a gated training.
    """
    if kind not in PARTS:
        raise refuse("kind", " or ".join(PARTS), kind)
    if engine not in ENGINES or (engine != "flower" and kind != "gated"):
        bound = f"one of {ENGINES}, and flower without --gated: data is behind gates elsewhere"
        raise refuse("engine", bound, engine, "add --gated, or leave it out")
    folder = folder.expanduser()
    if folder.exists():
        raise RecipeError(f"{str(folder)!r} already exists and was not changed; give a new folder")
    package = package_name(folder.resolve().name)
    words = {
        "package": package,
        "project": package.replace("_", "-"),
        "folder": _portable(folder.resolve()),
    }
    texts = dict(each for part in PARTS[kind] for each in templates(_home(part)))
    if engine != "flower":
        texts = {RECIPE: texts[RECIPE], **dict(templates(_home(engine)))}
    made = {folder / name.replace("PACKAGE", package): text for name, text in texts.items()}
    for path, text in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(fill(text, words), encoding="utf-8")
    return sorted(made)


def _portable(folder: Path) -> str:
    """The folder's path as it holds for whoever runs the app: from the home folder, if it is there.

    An app may be published; a path from the root of its author's disk holds nowhere else.
    """
    home = Path.home()
    return (
        f"~/{folder.relative_to(home).as_posix()}" if home in folder.parents else folder.as_posix()
    )


def _home(name: str) -> Traversable:
    return resources.files("dpfed.cli") / "templates" / name


def package_name(name: str) -> str:
    """A folder's name as the name of a Python package."""
    package = re.sub(r"[^0-9a-z]+", "_", name.lower()).strip("_")
    if not package.isidentifier() or keyword.iskeyword(package):
        way_out = "use a-z, 0-9 and -, with one of a-z first, and no keyword of Python's"
        raise refuse("the folder's name", "one for a Python package", name, way_out)
    if find_spec(package) is not None:
        raise RecipeError(
            f"an app called {package!r} would hide the module of that name; give the folder "
            f"another name"
        )
    return package


def templates(folder: Traversable, inside: str = "") -> Iterator[tuple[str, str]]:
    """(path, text) of all templates under a folder."""
    for each in folder.iterdir():
        if each.is_dir():
            yield from templates(each, f"{inside}{each.name}/")
        elif each.name.endswith(ENDING):
            name = each.name.removesuffix(ENDING)
            yield f"{inside}{name}", each.read_text(encoding="utf-8")


def fill(text: str, words: dict[str, str]) -> str:
    """The template with its {{words}} filled in."""
    for name, value in words.items():
        text = text.replace(f"{{{{{name}}}}}", value)
    return text
