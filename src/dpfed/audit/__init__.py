# SPDX-License-Identifier: Apache-2.0
"""Audits: tests that try to refute what a run claims. One audit is one file; see docs/audit.md."""
