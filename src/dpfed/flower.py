# SPDX-License-Identifier: Apache-2.0
"""What Flower users import: a private strategy, a private ClientApp, and a mod."""

from dpfed.engines.flower.client import client_app, enrolment, private
from dpfed.engines.flower.strategy import DPResult, DPStrategy

__all__ = ["DPResult", "DPStrategy", "client_app", "enrolment", "private"]
