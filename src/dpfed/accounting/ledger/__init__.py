# SPDX-License-Identifier: Apache-2.0
"""What the releases of a data set have cost: rows on the owner's disk, and their sums."""
