# SPDX-License-Identifier: Apache-2.0
"""Pages of the documentation, and scripts as modules."""

from __future__ import annotations

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]


DOCS = REPOSITORY / "docs"


def load_script(name: str) -> Any:
    loader = SourceFileLoader(name, str(REPOSITORY / "scripts" / f"{name}.py"))
    spec = spec_from_loader(loader.name, loader)
    assert spec
    module = module_from_spec(spec)
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    loader.exec_module(module)
    sys.dont_write_bytecode = before
    return module


pages = load_script("run_page")
