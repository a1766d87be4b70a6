# SPDX-License-Identifier: Apache-2.0
"""The command line: one file per group of commands, and what the first hour needs."""
