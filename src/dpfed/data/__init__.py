# SPDX-License-Identifier: Apache-2.0
"""Data sets, partitions into clients, frozen public backbones, and problems (data with a model)."""
