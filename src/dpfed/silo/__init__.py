# SPDX-License-Identifier: Apache-2.0
"""The data owner's side: a policy, approvals, and a process that alone reads the data."""
