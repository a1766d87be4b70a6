# SPDX-License-Identifier: Apache-2.0
"""The papers' bounds compared with measurements; ``python -m dpfed_lab.theory`` runs it."""
