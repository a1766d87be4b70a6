# SPDX-License-Identifier: Apache-2.0
"""Metrics that clients release with noise, one per file: the file's name is the metric's."""
