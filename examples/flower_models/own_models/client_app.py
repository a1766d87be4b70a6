# SPDX-License-Identifier: Apache-2.0
"""The client: its records and the model. Noise is added before anything leaves the client."""

from dpfed.flower import client_app
from own_models.task import network, plan, records


def problem(context):
    """This client's records with the model."""
    return network(context).problem(records(context, context.node_config["partition-id"]))


app = client_app(problem, plan)
