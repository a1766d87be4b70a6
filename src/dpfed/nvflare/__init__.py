# SPDX-License-Identifier: Apache-2.0
"""Under NVIDIA FLARE: the same training, carried by NVFlare's tasks. Nothing of Flower's runs.

    server   controller.TermsController   terms, the result's folder, a checkpoint: no module
             grid.TaskGrid                orders as tasks: what DPStrategy needs of a Grid
    silo     relay.GateRelay              passes bytes to the owner's gate; it has no arguments

Only the gated form is supported: under NVFlare a lead may be allowed to send any Python to a site,
and a site sends its error log to the server unless its admin forbids it. What a gate's user alone
can read neither reaches. docs/nvflare.md has the settings of a site.
"""
