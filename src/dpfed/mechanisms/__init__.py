# SPDX-License-Identifier: Apache-2.0
"""STATION 2: mechanisms turn rows into a release, and account for it. One per file."""
