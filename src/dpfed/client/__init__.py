# SPDX-License-Identifier: Apache-2.0
"""Client algorithms: what a client computes from its data in a round. One per file.

The file's name is the plug-in's name: ``fedavg.py`` has the function ``fedavg``, which returns a
``ClientAlgorithm`` (core/types.py). core/registry.py finds plug-ins, and docs/your-own-optimizer.md
shows how to write one.
"""
