"""The client: its records and the model. What it sends is clipped and noised first."""

from dpfed.flower import client_app
from dpfed.core.types import Problem
from flwr.app import Context

from private_images.task import MODEL, load_data, plan


def problem(context: Context) -> Problem:
    """This client's records with the model: gradients are taken, clipped and noised for you."""
    return MODEL.problem(load_data(context))


app = client_app(problem, plan)
