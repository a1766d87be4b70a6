# SPDX-License-Identifier: Apache-2.0
"""A Flower federation across hosts: certificates, node keys, identities and start scripts."""
