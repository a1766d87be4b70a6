# SPDX-License-Identifier: Apache-2.0
"""What carries messages between server and clients. The round itself is in round.py."""
