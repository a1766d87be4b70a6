# SPDX-License-Identifier: Apache-2.0
"""Server optimizers, step 4 of a round: each turns the private mean into a step. One per file.

The file's name is the plug-in's name: ``sofim.py`` has the function ``sofim``, which returns a
``ServerOptimizer`` (core/types.py). Its ``init`` and ``update`` are required. ``update_`` is
optional: the same update, but it may overwrite its arguments to save memory. core/registry.py finds
plug-ins, and docs/your-own-optimizer.md shows how to write one.
"""
