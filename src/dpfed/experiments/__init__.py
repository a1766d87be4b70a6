# SPDX-License-Identifier: Apache-2.0
"""Recipes become runs, and runs become files that people use."""
