# SPDX-License-Identifier: Apache-2.0
"""A CNN on images, each image protected, through Opacus."""
