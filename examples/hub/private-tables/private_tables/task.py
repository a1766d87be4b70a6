"""What is yours: the model, the records, and the plan that both sides agree on."""

import torch
from dpfed import Plan
from dpfed.flower import Records, Standardised, make_plan, read_records
from flwr.app import Context

FEATURES, CLASSES = 20, 4

FILE = ""  # YOUR FILE, such as "visits.csv", in the folder that DPFED_DATA names on each host;
# a node that keeps its file elsewhere is started with --node-config 'data-path="/srv/visits.csv"'
CONTRACT = {  # what its columns mean, agreed on by all silos (docs: The data contract)
    "row": "one visit",
    "columns": [  # 1 + 2 features, so FEATURES = 3
        {"name": "age", "kind": "number", "range": [18, 100]},
        {"name": "sex", "kind": "category", "words": ["f", "m"]},
    ],
    "label": {"column": "ill", "words": ["no", "yes"]},  # so CLASSES = 2
    "person": "patient",  # whom unit "group" protects
}
ABOUT = {"contract": CONTRACT} if FILE else {"classes": ["north", "east", "south", "west"]}
"""What the trained model's folder says: the contract; or YOUR CLASSES, in the labels' order."""

MODEL = Standardised("softmax", FEATURES, CLASSES)
"""YOUR MODEL: a linear one that standardises its inputs needs no tuning. What you know of the
features in public helps: ``center`` and ``radius``, from the ranges that they may have. For a
PyTorch module of your own write ``Network(make_model())``, and give ``plan`` a server: README.md.
"""


def load_data(context: Context) -> Records:
    """YOUR RECORDS: those of this client, read from its own disk. Without a file: generated ones.

    Or make them yourself: x is float32 [records, ...], y is int64 (classes) or float32 (targets).
    """
    if file := str(context.node_config.get("data-path", FILE)):
        return read_records(source=file, contract=CONTRACT)
    return generated(1 + int(context.node_config["partition-id"]), count=3000)


def load_test() -> Records:
    """YOUR TEST RECORDS: public, or the server's own. They are not protected."""
    return generated(seed=0, count=1000)


def plan(context: Context) -> Plan:
    """The guarantee: each unit, epsilon and delta of the run_config, over all rounds."""
    config = context.run_config
    privacy = {key: config[key] for key in ("epsilon", "delta", "unit", "trust")}
    return make_plan(
        clients=[float(size) for size in str(config["sizes"]).split()],
        layout=MODEL.layout,
        rounds=config["num-server-rounds"],
        privacy={**privacy, "spare_attempts": config["spare-attempts"]},
        sum={"name": "secure" if config["trust"] == "distributed" else "plain"},
    )


def generated(seed: int, count: int) -> Records:
    """Clusters around one point per class: delete this once you have records of your own."""
    centres = 2 * torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(7)).sign()
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (count,), generator=draw)
    return Records(0.5 * centres[y] + torch.randn(count, FEATURES, generator=draw), y)
