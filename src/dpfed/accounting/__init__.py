# SPDX-License-Identifier: Apache-2.0
"""What a run costs: an upper bound as a number, and the guarantee as a sentence."""
