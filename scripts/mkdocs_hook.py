# SPDX-License-Identifier: Apache-2.0
"""Links that leave docs/: pictures and reports are copied into the site, all else points to the
repository.

A page in docs/ is read in the repository, too, so its links stay relative there. A target that does
not exist is a warning, and the build is strict.
"""

from __future__ import annotations

import logging
import posixpath
import re
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

LOG = logging.getLogger("mkdocs.hooks.outside")
OUTSIDE = re.compile(
    r"""(?:(?<=\]\()|(?<=src="))\.\./(?P<path>[^)#\s"]+)(?P<anchor>#[^)\s"]+)?(?=[)"])"""
)
TAKEN = (".png", ".svg", ".html")


def _root(config: Any) -> Path:
    return Path(config.docs_dir).parent


def on_config(config: Any) -> Any:
    """Where the repository is: pyproject.toml alone says it."""
    text = (_root(config) / "pyproject.toml").read_text(encoding="utf-8")
    config.repo_url = tomllib.loads(text)["project"]["urls"]["Repository"]
    config.repo_name = "Source"
    return config


def on_files(files: Files, config: Any) -> Files:
    """Take the files along that pages show from elsewhere."""
    for page in [file for file in files if file.is_documentation_page()]:
        for found in OUTSIDE.finditer(page.content_string):
            source = _root(config) / found["path"]
            if source.suffix in TAKEN and source.exists():
                name = f"outside/{found['path']}"
                if files.get_file_from_path(name) is None:
                    files.append(File.generated(config, name, abs_src_path=str(source)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Rewrite the links."""

    def target(found: re.Match[str]) -> str:
        path, anchor = found["path"], found["anchor"] or ""
        if not (_root(config) / path).exists():
            LOG.warning("%s links to %s, which does not exist", page.file.src_path, path)
        if Path(path).suffix in TAKEN:
            return posixpath.join("outside", path)
        return f"{config.repo_url.rstrip('/')}/blob/main/{path}{anchor}"

    return OUTSIDE.sub(target, markdown)
