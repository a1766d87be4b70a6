# SPDX-License-Identifier: Apache-2.0
"""What the secure sum is made of: shared seeds, a graph of neighbours, pads, sealed letters."""
