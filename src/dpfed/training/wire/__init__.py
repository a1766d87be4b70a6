# SPDX-License-Identifier: Apache-2.0
"""What server and clients say to each other, as Flower's records, whichever engine carries them."""
