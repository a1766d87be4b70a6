# SPDX-License-Identifier: Apache-2.0
"""STATION 3: sums turn releases into a total. One per file."""
