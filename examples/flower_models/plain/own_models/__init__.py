# SPDX-License-Identifier: Apache-2.0
"""The same four models, not private yet."""
