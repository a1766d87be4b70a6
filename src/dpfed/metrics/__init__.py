# SPDX-License-Identifier: Apache-2.0
"""Metrics that clients release with noise. One per file.

The file's name is the plug-in's name: ``auc.py`` has the function ``auc``, which returns a
``Metric`` (core/metric.py). core/registry.py finds plug-ins, and docs/your-own-optimizer.md says
how other packages add theirs.
"""
