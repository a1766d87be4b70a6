# SPDX-License-Identifier: Apache-2.0
"""What both sides agree on: the model, the data, and the plan with its guarantee."""

from flwr.app import Context

from dpfed import Plan
from dpfed.data.datasets import load
from dpfed.data.partitions import iid
from dpfed.flower import Linear, Records, make_plan

RECORDS, FEATURES, CLASSES = 6000, 40, 10
MODEL = Linear("softmax", FEATURES, CLASSES)
SERVERS = {
    "dp-fedsofim": [{"name": "sofim", "rho": "auto"}],
    "dp-fedadam": [{"name": "adam", "rate": 0.05, "beta1": 0.8, "beta2": 0.8, "eps": 0.1}],
    "ema-only": [{"name": "ema"}, {"name": "scale", "rate": 0.3}],
    "dp-fedgd": [{"name": "scale", "rate": 0.3}],
}
"""What the server does with the noisy sum. docs/choose.md: which when."""


def plan(context: Context) -> Plan:
    """The guarantee: each record, epsilon and delta of the run_config, over all rounds."""
    config = context.run_config
    clients = int(config["num-clients"])
    return make_plan(
        clients=[RECORDS // clients] * clients,
        layout=MODEL.layout,
        rounds=config["num-server-rounds"],
        privacy={key: config[key] for key in ("epsilon", "delta", "clip")},
        server=SERVERS[str(config["method"])],
    )


def data(context: Context) -> tuple[Records, Records]:
    """A client's own records, and test records. Put your data set here."""
    dataset = load("synthetic", records=RECORDS, features=FEATURES, classes=CLASSES)
    parts = iid(dataset.train, int(context.run_config["num-clients"]), seed=0)
    mine = int(context.node_config.get("partition-id", 0))
    return dataset.train.take(parts[mine]), dataset.test
