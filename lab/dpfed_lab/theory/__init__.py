# SPDX-License-Identifier: Apache-2.0
"""The papers' bounds beside what is measured; ``python -m dpfed_lab.theory`` runs it."""
