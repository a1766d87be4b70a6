# SPDX-License-Identifier: Apache-2.0
"""A Flower quickstart app, not private yet."""
