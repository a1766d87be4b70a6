# SPDX-License-Identifier: Apache-2.0
"""Four models of one's own, each record protected."""
