# SPDX-License-Identifier: Apache-2.0
"""The papers' bounds beside what is measured; ``scripts/theory`` runs it."""
