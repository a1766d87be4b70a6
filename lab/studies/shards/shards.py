#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Train functions in shards: what the defaults were fitted on, and how they do elsewhere.

    DPFED_DATA=FOLDER lab/studies/shards/shards.py development lab/studies/shards/results
    DPFED_DATA=FOLDER lab/studies/shards/shards.py unseen lab/studies/shards/results
    DPFED_DATA=FOLDER lab/studies/shards/shards.py apps lab/studies/shards/results
    DPFED_DATA=FOLDER lab/studies/shards/shards.py cnn lab/studies/shards/results
    DPFED_DATA=FOLDER lab/studies/shards/shards.py flower lab/studies/shards/results
    lab/studies/shards/shards.py tables lab/studies/shards/results

development: accuracy on held-out training records of CIFAR-10's features and Adult by the records of
a shard, with the defaults' clip and step. unseen: on three sets that no constant was chosen on, the
defaults beside the best of a search over the records of a shard and a fixed clip, which was made for
each cell on held-out training records. apps: two apps with functions of their own beside the plain
app, client level and row by row. cnn: the network of Flower's quickstart, where shards end. flower:
the two apps by ``flwr run`` (flower_app.py), with a process for each shard and no simulated one. Each
writes one CSV file; a line that is there is not computed again. tables: all of it as tables.md.
cnn needs images/cifar10.npz (lab/scripts/fetch_images.py).
"""

from __future__ import annotations

import csv
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.linear_model import SGDClassifier

sys.path.insert(0, str(Path(__file__).parent))
import flower_app
import train_functions
from simulated_shards import Function, Setting, Shards, accuracy, cut, noise_copies, train

from dpfed.accounting.gdp import mu_for
from dpfed.core.types import Trust
from dpfed.recipes import shard_rule
from dpfed.recipes.federation import Federation, federation
from dpfed.recipes.methods import markdown_table
from dpfed.recipes.simulation import run_apps
from dpfed_lab.jobs import Store, make_job, run_jobs

SILOS, TUNING_SEED, SEEDS = 10, 1000, range(5)
CELLS = [(trust, epsilon) for trust in ("local", "distributed") for epsilon in (1.0, 3.0, 8.0)]
CENTER = {"center": "features/cifar100-test.npz"}
CREDIT_SHIFT = [5e5, 1.5, 2.0, 1.5, 50.0, *[3.0] * 6, *[1e5] * 6, *[25e3] * 6]
CREDIT_SCALE = [5e5, 0.5, 1.0, 0.5, 30.0, *[5.0] * 6, *[1e5] * 6, *[25e3] * 6]
SETS: dict[str, dict[str, Any]] = {
    "CIFAR-10": {"source": "features/cifar10.npz", **CENTER},
    "Adult": {"source": "tables/a9a.npz"},
    "Fashion-MNIST": {"source": "features/fashion-mnist.npz", **CENTER},
    "credit default": {
        "source": "tables/credit-default.npz",
        "holdout": 0.2,
        "shift": CREDIT_SHIFT,
        "scale": CREDIT_SCALE,
    },
    "malaria": {
        "source": "features/malaria.npz",
        "holdout": 0.2,
        "by_group": True,
        **CENTER,
    },
}
HEAD = Function(epochs=5, batch=32, rate=0.1, momentum=0.9)
"""Flower's quickstart-pytorch on a linear head; its own setting is one epoch."""
PLAIN_STEPS = HEAD._replace(momentum=0.0)
SGD = Function(epochs=1, batch=1, rate=0.01, loss="logistic")
"""SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.01), one partial_fit."""


class Data(NamedTuple):
    """Ten silos' features and classes, and what a model is judged on."""

    silos: list[tuple[torch.Tensor, torch.Tensor]]
    test: tuple[torch.Tensor, torch.Tensor]
    classes: int

    @property
    def sizes(self) -> list[int]:
        return [len(y) for _, y in self.silos]


def base(name: str) -> dict[str, Any]:
    partition = {"name": "iid", "clients": SILOS}
    privacy = {"epsilon": 1.0, "delta": 1e-5, "noise": "keyed"}
    return {"data": {**SETS[name], "partition": partition}, "privacy": privacy}


@cache
def load(name: str, seed: int, validation: float = 0.0, part: float = 1.0) -> Data:
    """Records divided at random over the silos, of which each keeps a part."""
    how = {"method": "dp-fedgd", "rounds": 10, "seed": seed, "data.validation": validation}
    recipe = make_job(base(name), {}, how).recipe
    found: Federation = federation(recipe, Path(os.environ["DPFED_DATA"]))
    generator = torch.Generator().manual_seed(seed)
    silos = []
    for records in found.clients:
        kept = torch.randperm(len(records.y), generator=generator)
        kept = kept[: round(part * len(records.y))]
        silos.append((records.x[kept].float(), records.y[kept].long()))
    if found.test is None:
        raise SystemExit(f"{name} has no test records; give data.holdout")
    test = (found.test.x.float(), found.test.y.long())
    return Data(silos, test, 1 + max(int(y.max()) for _, y in silos))


def outputs(data: Data, function: Function) -> int:
    return 1 if function.loss == "logistic" and data.classes == 2 else data.classes


@lru_cache(maxsize=2)
def shards_of(data_key: tuple[Any, ...], counts: tuple[int, ...], columns: int) -> Shards:
    return cut(load(*data_key).silos, counts, columns)


def counts_at(data: Data, records: float) -> tuple[int, ...]:
    return tuple(max(1, round(size / records)) for size in data.sizes)


def default_counts(data: Data, columns: int, trust: str, epsilon: float) -> tuple[int, ...]:
    """What the library's rule says for each silo."""
    parameters = (data.silos[0][0].shape[1] + 1) * columns
    return tuple(
        shard_rule.default_shards(size, epsilon, Trust(trust), silos=SILOS, parameters=parameters)
        for size in data.sizes
    )


def by_default(trust: str, epsilon: float) -> Setting:
    """The library's defaults for clip and step."""
    adaptive = shard_rule.DEFAULT_ADAPTIVE
    return Setting(
        epsilon,
        trust,
        shard_rule.DEFAULT_CLIP,
        quantile=adaptive["quantile"],
        clip_rate=adaptive["rate"],
        share=adaptive["share"],
        momentum=shard_rule.DEFAULT_MOMENTUM,
    )


def trial(
    key: tuple[Any, ...],
    counts: tuple[int, ...],
    function: Function,
    setting: Setting,
) -> float:
    data = load(*key)
    made = shards_of(key, counts, outputs(data, function))
    generator = torch.Generator().manual_seed(key[1] + 7)
    return accuracy(train(made, function, setting, generator), *data.test)


Line = tuple[dict[str, Any], Callable[[], float]]
"""What a line of a file is called, and what computes its accuracy."""

# ------------------------------------------------------------------------------------ development

RECORDS = (2, 3, 5, 10, 25, 50)
PARTS = (("CIFAR-10", 0.1), ("CIFAR-10", 0.4), ("Adult", 0.2), ("Adult", 1.0))
FUNCTIONS = {"momentum": HEAD, "plain steps": PLAIN_STEPS}


def development() -> Iterator[Line]:
    """Records a shard, on held-out training records; clip and step by default."""
    for name, part in PARTS:
        key = (name, TUNING_SEED, 0.1, part)
        for records in RECORDS:
            counts = counts_at(load(*key), records)
            for (label, function), (trust, epsilon) in product(FUNCTIONS.items(), CELLS):
                labels = {"data": name, "part": part, "records": records, "function": label}
                labels |= {"trust": trust, "epsilon": epsilon}
                yield labels, partial(trial, key, counts, function, by_default(trust, epsilon))


# ----------------------------------------------------------------------------------------- unseen

UNSEEN = {"Fashion-MNIST": 0.4, "credit default": 1.0, "malaria": 1.0}
"""Sets, and the part of each silo's records that is used."""
SEARCHED_RECORDS, SEARCHED_CLIPS = (3, 5, 10, 25, 50), (0.1, 0.3, 1.0, 3.0)


def searched(trust: str, epsilon: float, clip: float) -> Setting:
    """The default's step, with a clip that stays."""
    return Setting(epsilon, trust, clip, momentum=shard_rule.DEFAULT_MOMENTUM)


def search() -> Iterator[Line]:
    """Records of a shard and clip, on held-out training records of one seed."""
    for name, part in UNSEEN.items():
        key = (name, TUNING_SEED, 0.1, part)
        for records in SEARCHED_RECORDS:
            counts = counts_at(load(*key), records)
            for (trust, epsilon), clip in product(CELLS, SEARCHED_CLIPS):
                labels = {
                    "data": name,
                    "trust": trust,
                    "epsilon": epsilon,
                    "records": records,
                    "clip": clip,
                }
                yield labels, partial(trial, key, counts, HEAD, searched(trust, epsilon, clip))


def judged(found: Mapping[tuple[str, ...], tuple[int, float]]) -> Iterator[Line]:
    """The defaults and what the search chose, on test records."""
    for (name, part), seed in product(UNSEEN.items(), SEEDS):
        key = (name, seed, 0.0, part)
        data = load(*key)
        for trust, epsilon in CELLS:
            labels = {"data": name, "trust": trust, "epsilon": epsilon, "seed": seed}
            records, clip = found[name, trust, str(epsilon)]
            default = default_counts(data, outputs(data, HEAD), trust, epsilon)
            yield (
                labels | {"method": "default", "records": data.sizes[0] / default[0], "clip": ""},
                partial(trial, key, default, HEAD, by_default(trust, epsilon)),
            )
            yield (
                labels | {"method": "searched", "records": records, "clip": clip},
                partial(trial, key, counts_at(data, records), HEAD, searched(trust, epsilon, clip)),
            )


def chosen(lines: Iterable[Mapping[str, str]]) -> dict[tuple[str, ...], tuple[int, float]]:
    """The best setting of the search in each cell."""
    best: dict[tuple[str, ...], tuple[float, int, float]] = {}
    for line in lines:
        cell = (line["data"], line["trust"], line["epsilon"])
        this = (float(line["accuracy"]), int(line["records"]), float(line["clip"]))
        best[cell] = max(best.get(cell, this), this)
    return {cell: (records, clip) for cell, (_, records, clip) in best.items()}


# ------------------------------------------------------------------------------------------- apps

APPS = {"PyTorch head": "CIFAR-10", "scikit-learn": "Adult"}
"""The app, and what it is run on."""
ROUNDS, DELTA, APP_CLIP = 10, 1e-5, 1.0
"""Of the plain app, and of the client level as the README has it."""


def apps() -> Iterator[Line]:
    """Each app plain, with its clients protected, in shards by default, and row by row."""
    for seed, (app, name) in product(SEEDS, APPS.items()):
        key = (name, seed, 0.0, 1.0)
        ways = _ways(app, key)
        yield (
            {"app": app, "way": "plain", "trust": "", "epsilon": "", "seed": seed},
            partial(plain, app, key),
        )
        for (trust, epsilon), (way, run) in product(CELLS, ways.items()):
            labels = {"app": app, "way": way, "trust": trust, "epsilon": epsilon, "seed": seed}
            yield labels, partial(run, trust, epsilon)


def _ways(app: str, key: tuple[Any, ...]) -> dict[str, Callable[[str, float], float]]:
    found: dict[str, Callable[[str, float], float]] = {
        "client level": partial(client_level, app, key),
        "row by row": partial(row_by_row, key),
    }
    if app == "scikit-learn":
        passes = partial(in_shards, SGD._replace(epochs=5), key)
        return found | {"shards": partial(in_shards, SGD, key), "shards, 5 epochs": passes}
    once = partial(in_shards, HEAD._replace(epochs=1), key)
    found["your module, row by row"] = partial(own_module, key)
    return found | {"shards": once, "shards, 5 epochs": partial(in_shards, HEAD, key)}


def in_shards(function: Function, key: tuple[Any, ...], trust: str, epsilon: float) -> float:
    """By the defaults for shards, clip and step."""
    data = load(*key)
    counts = default_counts(data, outputs(data, function), trust, epsilon)
    return trial(key, counts, function, by_default(trust, epsilon))


def plain(app: str, key: tuple[Any, ...]) -> float:
    """The app as it is: the mean of the silos' models, weighted alike."""
    return _whole_updates(app, key, lambda rows: rows.mean(0))


def client_level(app: str, key: tuple[Any, ...], trust: str, epsilon: float) -> float:
    """Each silo's whole update is one row, with the README's clip and step."""
    generator = torch.Generator().manual_seed(key[1] + 7)
    copies = noise_copies(trust, SILOS)
    std = 2 * APP_CLIP * math.sqrt(ROUNDS * copies) / mu_for(epsilon, DELTA) / SILOS

    def step(rows: torch.Tensor) -> torch.Tensor:
        clipped = rows * (APP_CLIP / rows.norm(dim=1, keepdim=True).clamp(min=APP_CLIP))
        noise: torch.Tensor = std * torch.randn(rows.shape[1], generator=generator)
        made: torch.Tensor = clipped.mean(0) + noise
        return made

    return _whole_updates(app, key, step)


def _whole_updates(
    app: str, key: tuple[Any, ...], step: Callable[[torch.Tensor], torch.Tensor]
) -> float:
    """Rounds of the app's own function on each whole silo; ``step`` makes one step of the updates."""
    data = load(*key)
    torch.manual_seed(key[1])
    W = torch.zeros(data.silos[0][0].shape[1] + 1, 1 if app == "scikit-learn" else data.classes)
    for _ in range(ROUNDS):
        if app == "scikit-learn":
            after = torch.stack([after_training(app, W, silo, key[1]) for silo in data.silos])
        else:
            after = heads_after(W, data.silos, HEAD._replace(epochs=1))
        W = W + step((after - W).flatten(1)).reshape(W.shape)
    return accuracy(W, *data.test)


def heads_after(
    W: torch.Tensor, silos: list[tuple[torch.Tensor, torch.Tensor]], function: Function
) -> torch.Tensor:
    """The PyTorch head after training on each of several silos of one size, all at once.

    Args:
        W: the parameters.
        silos: features and classes.
        function: epochs, batch, rate and momentum.
    """
    size = len(silos[0][1])
    heads = W.expand(len(silos), *W.shape).clone()
    velocity = torch.zeros_like(heads)
    for _ in range(function.epochs):
        orders = [torch.randperm(size) for _ in silos]
        x = torch.stack([x[order] for (x, _), order in zip(silos, orders, strict=True)])
        x = torch.cat([x, torch.ones(*x.shape[:2], 1)], 2)
        y = torch.stack([y[order] for (_, y), order in zip(silos, orders, strict=True)])
        goal = torch.nn.functional.one_hot(y, W.shape[1]).float()
        both = (torch.split(each, function.batch, 1) for each in (x, goal))
        for batch, wanted in zip(*both, strict=True):
            wrong = torch.softmax(batch @ heads, -1) - wanted
            gradient = batch.transpose(1, 2) @ wrong / batch.shape[1]
            velocity = function.momentum * velocity + gradient
            heads = heads - function.rate * velocity
    return heads


def after_training(
    app: str,
    W: torch.Tensor,
    records: tuple[torch.Tensor, torch.Tensor],
    seed: int,
    epochs: int = 1,
) -> torch.Tensor:
    """The parameters after the app's train function, as it is, on some records."""
    x, y = records
    if app == "scikit-learn":
        model = SGDClassifier(
            loss="log_loss", learning_rate="constant", eta0=0.01, random_state=seed
        )
        model.coef_, model.intercept_ = W[:-1].T.double().numpy(), W[-1].double().numpy()
        train_functions.fit(model, x.double().numpy(), y.numpy(), 2)
        return torch.from_numpy(np.vstack([model.coef_.T, model.intercept_])).float()
    net = torch.nn.Linear(len(W) - 1, W.shape[1])
    net.load_state_dict({"weight": W[:-1].T, "bias": W[-1]})
    order = torch.split(torch.randperm(len(y)), 32)
    batches = [(x[each], y[each]) for each in order]  # what a DataLoader gives, ten times as fast
    train_functions.train(net, batches, epochs, 0.1, torch.device("cpu"))
    return torch.cat([net.weight.detach().T, net.bias.detach()[None]])


ROW_BY_ROW = {
    "CIFAR-10": {},
    "Adult": {"model.name": "logistic", "data.low": 0.0, "data.high": 1.0},
}


def row_by_row(key: tuple[Any, ...], trust: str, epsilon: float) -> float:
    """The library's default method on the same records: dp-fedauto, untuned."""
    return _by_recipe(key, trust, epsilon, {"method": "dp-fedauto", **ROW_BY_ROW[key[0]]})


OWN_CLIP, OWN_SERVER = 1.0, [{"name": "adam", "rate": 0.2, "eps": 0.01}]
"""The README's diff: the best of seven settings at epsilon 1, on held-out training records of one
seed; no guarantee covers the search."""


def own_module(key: tuple[Any, ...], trust: str, epsilon: float) -> float:
    """The app's own linear layer as a torch module like any other, by rows of the library's."""
    data = load(*key)
    sides = {"in_features": data.silos[0][0].shape[1], "out_features": data.classes}
    changes: dict[str, Any] = {
        "model.name": "network",
        "model.factory": "torch.nn:Linear",
        "model.options": sides,
    }
    changes |= {"rounds": ROUNDS, "privacy.clip": OWN_CLIP, "server": OWN_SERVER}
    return _by_recipe(key, trust, epsilon, changes)


def _by_recipe(key: tuple[Any, ...], trust: str, epsilon: float, changes: dict[str, Any]) -> float:
    """The accuracy of a recipe on the same records."""
    name, seed = key[:2]
    changes = {"seed": seed, **changes, "privacy.epsilon": epsilon, "evaluation.every": 20}
    if trust == "distributed":
        changes |= {"privacy.trust": trust, "sum.name": "secure"}
    job = make_job(base(name), {"seed": seed}, changes, root=Path(os.environ["DPFED_DATA"]))
    with tempfile.TemporaryDirectory() as folder:
        (row,) = run_jobs([job], Store.open(Path(folder) / "runs.jsonl"), workers=1)
    return 100 * float(row["accuracy"])


# ----------------------------------------------------------------------------------------- flower


def flower() -> Iterator[Line]:
    """Both apps in Flower's simulation, where a round has fewest processes: at epsilon 8."""
    for app in APPS:
        labels = {
            "app": app,
            "way": "shards, 5 epochs",
            "trust": "local",
            "epsilon": 8.0,
            "seed": 0,
        }
        yield labels, partial(by_flower, app)


def by_flower(app: str) -> float:
    """Ten SuperNodes, each of which runs the app's function once for each shard of its records."""
    told = {"app": app, "trust": "local", "epsilon": 8.0, "epochs": 5, "seed": 0}
    os.environ[flower_app.SETTING] = json.dumps(told)
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / flower_app.ANSWER
        apps = ("flower_app:server", "flower_app:client")
        run_apps(
            *apps, Path(folder), clients=SILOS, finished=lambda _: answer.exists(), timeout=36e3
        )
        found = json.loads(answer.read_text(encoding="utf-8"))
    if found["rounds"] != ROUNDS or any(int(row["clients"]) != SILOS for row in found["history"]):
        raise SystemExit(f"{app}: not all rounds have all silos, got {found['history']}")
    return float(found["accuracy"])


# -------------------------------------------------------------------------------------------- cnn

IMAGES = 5000
"""A tenth of CIFAR-10, 500 in each silo: what two busy cores can do."""
CNN_RATE, CNN_MOMENTUM = 0.1, 0.9


def network(seed: int) -> torch.nn.Module:
    """The network of Flower's quickstart-pytorch, 62,006 parameters."""
    torch.manual_seed(seed)
    nn = torch.nn
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84)),
        *(nn.ReLU(), nn.Linear(84, 10)),
    )


@cache
def images() -> tuple[torch.Tensor, ...]:
    """Training and test images of CIFAR-10, from -1 to 1, with their classes."""
    found = np.load(Path(os.environ["DPFED_DATA"]) / "images" / "cifar10.npz")

    def scaled(x: Any) -> torch.Tensor:
        return torch.from_numpy(x).permute(0, 3, 1, 2).float() / 127.5 - 1

    order = np.random.default_rng(0).permutation(len(found["y_train"]))[:IMAGES]
    train_part = (scaled(found["x_train"][order]), torch.from_numpy(found["y_train"][order]).long())
    return *train_part, scaled(found["x_test"]), torch.from_numpy(found["y_test"]).long()


def cnn() -> Iterator[Line]:
    """The network plain, in shards without noise or clip, and in shards with the least noise."""
    for seed in SEEDS:
        yield {"way": "plain", "trust": "", "epsilon": "", "seed": seed}, partial(cnn_plain, seed)
        labels = {"way": "shards, no noise, no clip", "trust": "", "epsilon": "", "seed": seed}
        yield labels, partial(cnn_in_shards, seed, None)
        labels = {"way": "shards", "trust": "distributed", "epsilon": 8.0, "seed": seed}
        yield labels, partial(cnn_in_shards, seed, 8.0)


def cnn_plain(seed: int) -> float:
    x, y, *_ = images()
    net = network(seed)
    start = {name: each.clone() for name, each in net.state_dict().items()}
    for _ in range(ROUNDS):
        models = []
        for silo in torch.arange(IMAGES).chunk(SILOS):
            net.load_state_dict(start)
            order = torch.split(silo[torch.randperm(len(silo))], 32)
            batches = [(x[each], y[each]) for each in order]
            train_functions.train(net, batches, 1, CNN_RATE, torch.device("cpu"))
            models.append({name: each.clone() for name, each in net.state_dict().items()})
        start = {name: torch.stack([m[name] for m in models]).mean(0) for name in start}
    net.load_state_dict(start)
    return _judged_network(net)


def cnn_in_shards(seed: int, epsilon: float | None) -> float:
    """One epoch of the quickstart's function on a shard is one step, so that its update is one gradient.

    Without noise and clip the mean over equal shards is the gradient of all images.
    """
    x, y, *_ = images()
    net = network(seed)
    params = {name: each.detach() for name, each in net.named_parameters()}
    size = sum(each.numel() for each in params.values())
    setting = by_default("distributed", epsilon or 8.0)
    k = shard_rule.default_shards(
        IMAGES / SILOS, setting.epsilon, Trust.DISTRIBUTED, silos=SILOS, parameters=size
    )
    records = IMAGES // (k * SILOS)
    shards = torch.arange(records * k * SILOS).reshape(-1, records)

    def loss(p: dict[str, torch.Tensor], a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(torch.func.functional_call(net, p, (a,)), b)

    each_gradient = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
    generator, clip = torch.Generator().manual_seed(seed + 7), setting.clip
    copies = noise_copies("distributed", SILOS)
    std = 2 * math.sqrt(ROUNDS * copies) / mu_for(setting.epsilon, DELTA) / len(shards)
    velocity = torch.zeros(size)
    for _ in range(ROUNDS):
        total, within = torch.zeros(size), 0.0
        for index in torch.split(shards, 100):
            if epsilon is None:
                made = torch.func.grad(loss)(params, x[index.flatten()], y[index.flatten()])
                total -= CNN_RATE * len(index) * torch.cat([g.flatten() for g in made.values()])
                continue
            made = each_gradient(params, x[index], y[index])
            rows = -CNN_RATE * torch.cat([g.flatten(1) for g in made.values()], 1)
            norms = rows.norm(dim=1)
            within += float((norms <= clip).sum())
            total += (rows * (clip / norms.clamp(min=clip))[:, None]).sum(0)
        mean = total / len(shards)
        if epsilon is not None:
            mean += (
                clip * std / math.sqrt(1 - setting.share) * torch.randn(size, generator=generator)
            )
            off = float(torch.randn(1, generator=generator)) * std / 2 / math.sqrt(setting.share)
            counted = min(1.0, max(0.0, within / len(shards) + off))
            clip *= math.exp(-setting.clip_rate * (counted - (setting.quantile or 0.0)))
        velocity = setting.momentum * velocity + mean
        params = _moved(params, velocity)
    net.load_state_dict(params)
    return _judged_network(net)


def _moved(params: dict[str, torch.Tensor], step: torch.Tensor) -> dict[str, torch.Tensor]:
    parts = torch.split(step, [each.numel() for each in params.values()])
    pairs = zip(params.items(), parts, strict=True)
    return {name: each + part.reshape(each.shape) for (name, each), part in pairs}


def _judged_network(net: torch.nn.Module) -> float:
    *_, x, y = images()
    with torch.no_grad():
        found = torch.cat([net(part).argmax(1) for part in torch.split(x, 500)])
    return 100 * float((found == y).float().mean())


# ----------------------------------------------------------------------------------------- tables

BUDGETS = [(trust, str(epsilon)) for trust, epsilon in CELLS]


def shown(rows: Iterable[Mapping[str, str]], **labels: str) -> str:
    """Mean and standard deviation over seeds of the rows with these labels."""
    found = [
        float(row["accuracy"])
        for row in rows
        if all(row[name] == value for name, value in labels.items())
    ]
    if not found:
        return "-"
    spread = f" ± {statistics.stdev(found):.1f}" if len(found) > 1 else ""
    return f"{statistics.fmean(found):.1f}{spread}"


def page(folder: Path) -> str:
    """All files of a folder as tables."""
    heads = [f"{trust}, {float(epsilon):g}" for trust, epsilon in BUDGETS]
    cells = [{"trust": trust, "epsilon": epsilon} for trust, epsilon in BUDGETS]
    rows, found = [], read(folder / "apps.csv")
    for app, way in dict.fromkeys((row["app"], row["way"]) for row in found):
        here = [row for row in found if (row["app"], row["way"]) == (app, way)]
        values = [shown(here)] * len(cells) if way == "plain" else [shown(here, **c) for c in cells]
        rows.append([app, way, *values])
    parts = ["## Apps", "", *markdown_table(["app", "way", *heads], rows)]
    rows, found = [], read(folder / "unseen.csv")
    for name, method in dict.fromkeys((row["data"], row["method"]) for row in found):
        rows.append([name, method, *(shown(found, data=name, method=method, **c) for c in cells)])
    parts += ["", "## Unseen sets", "", *markdown_table(["records", "setting", *heads], rows)]
    rows, found = [], read(folder / "development.csv")
    for key in dict.fromkeys((r["data"], r["part"], r["function"], r["records"]) for r in found):
        labels = dict(zip(("data", "part", "function", "records"), key, strict=True))
        rows.append([*key, *(shown(found, **labels, **cell) for cell in cells)])
    named = ["records", "part", "function", "a shard", *heads]
    parts += ["", "## Development sets", "", *markdown_table(named, rows)]
    rows, found = [], read(folder / "cnn.csv")
    for way in dict.fromkeys(row["way"] for row in found):
        rows.append([way, shown(found, way=way), str(sum(row["way"] == way for row in found))])
    parts += ["", "## The quickstart's network", "", *markdown_table(["way", "%", "seeds"], rows)]
    return "\n".join([*parts, ""])


# ------------------------------------------------------------------------------------------ files


def write(path: Path, lines: Iterable[Line]) -> list[dict[str, str]]:
    """Append what is not there yet; all lines of the file."""
    done = read(path)
    seen = {tuple(row.values())[:-1] for row in done}
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        for labels, run in lines:
            if not file.tell():
                writer.writerow([*labels, "accuracy"])
            if tuple(map(str, labels.values())) not in seen:
                writer.writerow([*labels.values(), round(run(), 3)])
                file.flush()
    return read(path)


def read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def main(part: str, folder: Path) -> None:
    torch.set_num_threads(1)
    if part == "development":
        write(folder / "development.csv", development())
    elif part == "unseen":
        found = chosen(write(folder / "search.csv", search()))
        write(folder / "unseen.csv", judged(found))
    elif part == "apps":
        write(folder / "apps.csv", apps())
    elif part == "cnn":
        write(folder / "cnn.csv", cnn())
    elif part == "flower":
        write(folder / "flower.csv", flower())
    elif part == "tables":
        (folder / "tables.md").write_text(page(folder), encoding="utf-8")
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(sys.argv[1], Path(sys.argv[2]))
