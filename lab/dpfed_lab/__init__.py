# SPDX-License-Identifier: Apache-2.0
"""Studies: many runs over methods, cells and seeds, and the tables and figures made of them."""
