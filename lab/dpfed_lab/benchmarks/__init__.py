# SPDX-License-Identifier: Apache-2.0
"""Speed and memory, each against its limit, measured in the same run: ``scripts/bench``."""
