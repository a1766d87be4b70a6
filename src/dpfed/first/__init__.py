# SPDX-License-Identifier: Apache-2.0
"""For the first hour, and for those who read a result: demo, new, doctor and explain."""
