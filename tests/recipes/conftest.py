# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of recipes."""

from tests.helpers.simulations import play  # noqa: F401
