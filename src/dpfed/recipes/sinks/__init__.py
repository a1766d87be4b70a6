# SPDX-License-Identifier: Apache-2.0
"""Where the rows of a run go while it goes on. One file per sink; its name is ``--sink NAME``."""
