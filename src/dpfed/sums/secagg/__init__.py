# SPDX-License-Identifier: Apache-2.0
"""The parts of the secure sum: key agreement, masks, shares, a graph of neighbours."""
