# SPDX-License-Identifier: Apache-2.0
"""Sums, step 3 of a round: each turns the clients' releases into a total. One per file.

The file's name is the plug-in's name: ``plain.py`` has the function ``plain``, which returns a
``Sum`` (core/sum_protocol.py). core/registry.py finds plug-ins, and docs/your-own-optimizer.md
says how other packages add theirs.
"""
