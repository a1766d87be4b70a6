# SPDX-License-Identifier: Apache-2.0
"""A Flower app that trains with differential privacy."""
