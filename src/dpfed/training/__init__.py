# SPDX-License-Identifier: Apache-2.0
"""A plan and its rounds; transports exchange the bytes."""
