# SPDX-License-Identifier: Apache-2.0
"""The ground that every other room stands on: the nouns of one round, and arithmetic."""
