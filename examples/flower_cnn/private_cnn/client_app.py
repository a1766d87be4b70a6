# SPDX-License-Identifier: Apache-2.0
"""The client: its images and the CNN. Noise is added before anything leaves the client."""

from dpfed.flower import client_app
from private_cnn.task import images, network, parts, plan


def problem(context):
    """This client's images with the model."""
    dataset = images(context)
    mine = parts(context, dataset)[context.node_config["partition-id"]]
    return network(dataset).problem(dataset.train.take(mine))


app = client_app(problem, plan)
