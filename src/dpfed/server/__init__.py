# SPDX-License-Identifier: Apache-2.0
"""STATION 4: server optimizers turn the aggregate into a step. One per file."""
