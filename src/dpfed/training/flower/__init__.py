# SPDX-License-Identifier: Apache-2.0
"""The path over Flower: one code, in simulation and in deployment."""
