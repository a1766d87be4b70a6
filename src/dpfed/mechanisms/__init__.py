# SPDX-License-Identifier: Apache-2.0
"""STATION 2: mechanisms turn rows into a release, and price it. One per file."""
