# SPDX-License-Identifier: Apache-2.0
"""A plan and its rounds; transports carry the bytes."""
