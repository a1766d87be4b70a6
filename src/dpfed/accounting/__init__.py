# SPDX-License-Identifier: Apache-2.0
"""Beside the path: what a run costs, as a number that is an upper bound, and as a sentence."""
