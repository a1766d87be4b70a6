# SPDX-License-Identifier: Apache-2.0
"""STATION 1: client algorithms make rows. One algorithm per file, named after the file."""
