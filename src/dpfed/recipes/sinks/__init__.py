# SPDX-License-Identifier: Apache-2.0
"""Where the rows of a run go during the run. One file per sink; its name is ``--sink NAME``."""
