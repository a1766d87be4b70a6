# SPDX-License-Identifier: Apache-2.0
"""From a recipe to a run and its files: in this process, or as a Flower app."""
