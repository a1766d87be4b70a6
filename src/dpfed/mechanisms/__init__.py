# SPDX-License-Identifier: Apache-2.0
"""Mechanisms, step 2 of a round: each makes a release of rows and states its cost. One per file.

The file's name is the plug-in's name: ``gaussian.py`` has the function ``gaussian``, which takes
``Facts`` and returns a ``Mechanism`` (both in core/types.py). core/registry.py finds plug-ins, and
docs/your-own-optimizer.md says how other packages add theirs.
"""
