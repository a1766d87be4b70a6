# SPDX-License-Identifier: Apache-2.0
"""Questions about a table: their rows (rows.py), their model (model.py), their answers."""
