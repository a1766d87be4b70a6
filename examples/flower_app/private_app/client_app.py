# SPDX-License-Identifier: Apache-2.0
"""The client: its data and the model. Noise is added before anything leaves the client."""

from dpfed.flower import client_app
from private_app.task import MODEL, data, plan


def problem(context):
    """This client's records with the model: gradients are taken, clipped and noised for you."""
    mine, _ = data(context)
    return MODEL.problem(mine)


app = client_app(problem, plan)
