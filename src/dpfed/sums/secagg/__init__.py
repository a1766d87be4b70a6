# SPDX-License-Identifier: Apache-2.0
"""What the secure sum is made of: key agreement, masks, shares, a graph of neighbours."""
