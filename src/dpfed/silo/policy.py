# SPDX-License-Identifier: Apache-2.0
"""``silo.toml``: what a data owner allows. Nothing that a server sends can change a word of it.

    [gate]
    socket = "/run/dpfed/gate.sock"
    state = "/var/lib/dpfed"           # ledger, approvals, what a training keeps
    relay_users = ["flower"]           # who may connect

    [data.sepsis]
    client = 0                         # this silo's place in every roster
    load = {source = "/srv/sepsis.csv", options = {y = "died"}}
    shape = [24]                       # numbers per record
    classes = 2
    epsilon = 2.0                      # the budget of all trainings together
    methods = ["dp-fedgd", "dp-fedadam"]

Nothing here imports torch until there are terms: an owner's ``status`` needs the tables alone.
``permit`` holds terms against it, key by key; each refusal names its key. It looks at no record,
and loads nothing of a model: what terms do not say of one is looked at after their approval.

| edge case                                            | what happens                            |
|------------------------------------------------------|-----------------------------------------|
| no key ``mechanisms``                                | those of the methods; exact noise, too, |
|                                                      | wherever Gaussian noise is allowed      |
| an option of a model that the policy does not list   | UnsoundPlan                             |
| ``trust_remote_code`` in terms, or in a policy       | refused, whatever its value             |
| a model's folder that is not as the terms pin it     | UnsoundPlan, with each order            |
| a factory beside another ``model.name`` than network | UnsoundPlan                             |
| noise that takes over 10 s of the processor's time   | UnsoundPlan                             |
| terms with another contract than the owner's, or     | UnsoundPlan, with the first difference  |
| with one where the owner has none, or without        |                                         |
| blocks in terms or in the policy, and not in both    | UnsoundPlan                             |
| a query that names features otherwise, or in another | UnsoundPlan                             |
| order, than the owner's load.options.x               |                                         |
"""

from __future__ import annotations

import datetime as dt
import hashlib
import math
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dpfed._version import VERSION
from dpfed.accounting.ledger.balance import Budget
from dpfed.accounting.ledger.blocks import BEFORE
from dpfed.accounting.ledger.conversions import LedgerKey, Server
from dpfed.core.checks import refuse
from dpfed.core.dsse import canonical_json
from dpfed.core.errors import RecipeError, UnsoundPlan
from dpfed.core.registry import names, own_names
from dpfed.core.types import Adjacency, NoiseSource, Trust, Unit
from dpfed.data.contract import Contract, differences
from dpfed.data.folder_digest import folder_digest
from dpfed.recipes.methods import method_tables
from dpfed.recipes.schema import (
    NAME,
    PRETRAINED,
    DataRecipe,
    Recipe,
    with_contract,
)
from dpfed.silo.approvals import Price
from dpfed.silo.blocks import BlockRule, Every
from dpfed.sums.secagg.identity import ROSTER

if TYPE_CHECKING:
    from dpfed.data.readers import Public
    from dpfed.recipes.terms import Terms

EXACT_ALTERNATIVE = {"gaussian": "discrete_gaussian"}
"""Noise of the same size in exact integers: allowed wherever the first is."""
FORBIDDEN_OPTIONS = ("trust_remote_code", "code_revision")
"""Options of a model that no policy can allow: they run code of the model's folder."""
CALIBRATION_CPU_S = 10.0
"""Seconds of the processor's time in which the noise of terms must be found."""


class Mode(StrEnum):
    """Who approves a training."""

    BY_HAND = "by-hand"
    WITHIN_POLICY = "within-policy"


class _Table(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    pass


class GatePolicy(_Table, frozen=True):
    """The process, and who may ask it."""

    socket: str
    """The socket where the gate listens."""
    state: str
    """The folder of ledger, approvals and stored replies."""
    relay_users: list[str]
    """Users that may connect: the SuperNode's."""
    identity: str = ""
    """The folder of the silo's key and roster, for secure sums; without one the gate makes a key
    in the state's folder."""
    answer_after: float = 0.0
    """Seconds after which every reply leaves, of zero rows if it took over half; 0: when done."""
    longest: float = 600.0
    """The maximum seconds for a reply, beyond which it has zero rows; and for loading the data."""
    most_bytes: int = 1 << 26
    """The maximum size of a request."""
    per_minute: int = 600
    """Requests per minute; more have to wait."""
    events: str = ""
    """A file that gets one JSON line for each event."""
    metrics: str = ""
    """A file of metrics for Prometheus, rewritten after each event."""
    page: str = ""
    """The officer's HTML page, rewritten after each event."""


class PretrainedPolicy(_Table, frozen=True):
    """A pretrained model that terms may name as ``model.options.source``."""

    folder: str = ""
    """Where it is on this machine; terms pin its digest. None for an architecture of timm's."""
    options: dict[str, list[Any]] = {}
    """Allowed options, nested ones with a dot, with [least, most] or the words for each."""


class BlocksPolicy(_Table, frozen=True):
    """Data that arrives: each block of it has an account of its own (docs/blocks.md)."""

    column: str
    """The column of arrival dates, written as 2026-03-31."""
    every: Every = Every.MONTH
    """month, quarter or year."""
    sizes: dict[str, float] = {}
    """The public number of units of each block that terms may name; empty: as the terms say."""


class DataPolicy(_Table, frozen=True):
    """One data set: where it is, and what may be done with it."""

    client: int
    """The silo's position in the federation, from 0."""
    load: DataRecipe
    """Where the records are, with the keys of a recipe's [data]."""
    shape: list[int]
    """The public shape of a record's features."""
    epsilon: float
    """The budget of all trainings together."""
    methods: list[str]
    """Allowed methods."""
    mechanisms: list[str] | None = None
    """Allowed noise; only discrete_gaussian is exact. Unset: the methods' own, or exact noise."""
    classes: int | None = None
    """The number of classes; unset if labels are numbers."""
    delta: float = 1e-5
    """The budget's delta."""
    unit: Unit = Unit.RECORD
    """What the budget protects; a training must protect at least as much."""
    adjacency: Adjacency = Adjacency.REPLACE_ONE
    """The budget's adjacency."""
    against: Server = Server.CURIOUS
    """The budget's adversary: outsiders, server or malicious."""
    colluders: int = 1
    """How many clients may collude with it."""
    size: float | None = None
    """The public number of units; required under add-remove, otherwise from the terms."""
    trust: tuple[Trust, ...] = (Trust.LOCAL,)
    """Allowed kinds of trust."""
    least_silos: int = 2
    """The minimum number of silos under distributed trust."""
    models: tuple[str, ...] = ("softmax", "logistic", "poisson")
    """Allowed built-in models, and transformers or timm for those of ``pretrained``."""
    pretrained: dict[str, PretrainedPolicy] = {}
    """Pretrained models by the source that terms name: their folder, and allowed options."""
    factories: dict[str, dict[str, list[Any]]] = {}
    """Allowed ``package.module:function``, with [least, most] or the words for each option."""
    most_rounds: int = 100
    """The maximum of rounds and spare attempts of a training."""
    largest_model: int = 1_000_000
    """The maximum number of parameters."""
    since: dt.date | None = None
    """The first day on which trainings may run."""
    until: dt.date | None = None
    """The last day."""
    approve: Mode = Mode.BY_HAND
    """by-hand, or within-policy: by rule, within the next two ceilings."""
    most_epsilon: float | None = None
    """The maximum for one training."""
    week_epsilon: float | None = None
    """The maximum that rules approve in seven days."""
    approval_days: float = 30.0
    """After how many days an approval ends."""
    blocks: BlocksPolicy | None = None
    """Data that arrives: a budget for each month, quarter or year of it."""
    keyed_noise: bool = False
    """Allow noise that the seed reproduces: for tests."""

    def key(self, dataset: str) -> LedgerKey:
        """What the budget is stated for."""
        return LedgerKey(
            dataset=dataset,
            unit=self.unit,
            adjacency=self.adjacency,
            adversary=self.against,
            colluders=self.colluders,
        )

    @property
    def budget(self) -> Budget:
        """What all trainings together may cost."""
        return Budget(self.epsilon, self.delta)

    @property
    def public(self) -> Public:
        """How labels are to be read: by what is written here, and not by what the records hold."""
        from dpfed.data.readers import Public  # torch

        if self.load.positive_above is not None:  # then classes are made of numbers
            return Public()
        if isinstance(self.load.contract, Contract):
            return Public(self.load.contract.classes)
        given = self.classes or self.load.options.get("classes")
        return Public(given if isinstance(given, int) and given > 1 else None)

    @property
    def reading(self) -> str:
        """A digest of how the file is read: which one, by which contract and mapping; "" if none.

        It depends on no record.
        """
        load = self.load
        if not isinstance(load.contract, Contract):
            return ""
        read = [load.source, load.contract.digest, load.mapping, load.options]
        made = canonical_json(msgspec.to_builtins(read))
        return hashlib.sha256(b"dpfed reading 1\n" + made).hexdigest()

    @property
    def block_rule(self) -> BlockRule | None:
        """How records become blocks; None if the data has none."""
        if self.blocks is None:
            return None
        contract = self.load.contract
        own = contract.person if isinstance(contract, Contract) else None
        ids = own or self.load.options.get("groups")
        return BlockRule(self.blocks.column, self.blocks.every, str(ids or ""))

    def cost(self, terms: Terms) -> float:
        """What a training costs of that budget, whatever the terms state theirs in: epsilon."""
        from dpfed.training.account import whole_cost  # torch

        return whole_cost(terms.plan, self.key(terms.pins.dataset), self.budget)

    def price(self, terms: Terms) -> Price:
        """The same with the data set, and the budget's terms that it is stated in."""
        dataset = terms.pins.dataset
        return Price(dataset, f"{self.key(dataset)} {self.budget}", self.cost(terms))


class Policy(_Table, frozen=True):
    """The whole file."""

    gate: GatePolicy
    """The process, and who may ask it."""
    data: dict[str, DataPolicy]
    """Each data set by its name."""


def load_policy(path: Path) -> Policy:
    """Read the owner's file; refuses, by name, what it cannot have."""
    return read_policy(path)[0]


def read_policy(path: Path) -> tuple[Policy, str]:
    """The owner's policy, and the digest of the very bytes that it was parsed from.

    Args:
        path: the policy's file, which may change at any time.
    """
    try:
        content = path.read_bytes()
        found = msgspec.toml.decode(content, type=Policy)
    except OSError as error:
        raise RecipeError(
            f"the policy {str(path)!r} cannot be read ({error.strerror}); write one with 'dpfed "
            f"silo init'"
        ) from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise RecipeError(f"the policy {path.name!r} is not valid ({error}); correct it") from error
    found = msgspec.structs.replace(
        found, data={name: _with_contract(name, data) for name, data in found.data.items()}
    )
    _check(found)
    return found, hashlib.sha256(content).hexdigest()


def _with_contract(name: str, data: DataPolicy) -> DataPolicy:
    """The data set with its contract, if that is a file of its own."""
    given = data.load.contract
    if isinstance(given, str) and not Path(given).is_absolute():
        raise refuse(f"data.{name}.load.contract", "a table, or an absolute path", given)
    load = with_contract(data.load, None)
    if data.blocks is not None:
        options = {**load.options, "arrival": data.blocks.column}
        load = msgspec.structs.replace(load, options=options)
    return msgspec.structs.replace(data, load=load)


def _check(policy: Policy) -> None:
    gate = policy.gate
    for label in ("socket", "state", "events", "metrics", "page"):
        value = getattr(gate, label)
        if not Path(value).is_absolute() and (value or label in ("socket", "state")):
            raise refuse(f"gate.{label}", "an absolute path", value)
    if not gate.relay_users:
        raise refuse("gate.relay_users", "one or more users", gate.relay_users)
    if not (0 <= gate.answer_after < gate.longest <= 86_400):
        raise refuse("gate.answer_after", "at least 0 and below gate.longest", gate.answer_after)
    if gate.most_bytes < 1024 or gate.per_minute < 1:
        raise refuse(
            "gate.most_bytes and gate.per_minute",
            "at least 1024 and 1",
            (gate.most_bytes, gate.per_minute),
        )
    if not policy.data:
        raise refuse("data", "one or more data sets", "none", "add a table [data.NAME]")
    for name, data in policy.data.items():
        _check_data(name, data)


def _check_data(name: str, data: DataPolicy) -> None:
    if not NAME.fullmatch(name):
        raise refuse("a data set's name", "1 to 64 of A-Z a-z 0-9 - _ .", name)
    _check_bounds(name, data)
    if data.adjacency is Adjacency.ADD_REMOVE and data.size is None:
        raise refuse(f"data.{name}.size", "set under add-remove, as the true one is private", None)
    if data.approve is Mode.WITHIN_POLICY and None in (data.most_epsilon, data.week_epsilon):
        raise refuse(
            f"data.{name}.approve",
            "by-hand, without most_epsilon and week_epsilon",
            str(data.approve),
            "set both ceilings",
        )
    for method in data.methods:
        method_tables(method)  # refuses what it does not know
    _check_noise_and_models(name, data)
    _check_contract(name, data)
    _check_blocks(name, data)


def _check_blocks(name: str, data: DataPolicy) -> None:
    """Units that stay in one block: by an id, under replace-one, and none that is held out."""
    rule, blocks = data.block_rule, data.blocks
    if rule is None or blocks is None:
        return
    key = f"data.{name}.blocks"
    if not rule.ids:
        bound = "beside load.options.groups, or a contract's person: ids keep their first block"
        raise refuse(key, bound, "none")
    if data.unit is Unit.CLIENT or data.adjacency is not Adjacency.REPLACE_ONE:
        got = f"{data.unit}, {data.adjacency}"
        raise refuse(key, "beside unit record or group, and adjacency replace-one", got)
    if data.load.holdout or data.load.validation or data.size is not None:
        bound = "without load.holdout, load.validation and size: a unit's place would follow others"
        raise refuse(key, bound, "one of them", "declare sizes by block: blocks.sizes")
    for block, size in blocks.sizes.items():
        if not rule.every.has(block) or not 1 <= size < 1e12:
            bound = f"names such as {rule.every.name_of(dt.date(2026, 3, 1))!r} with numbers from 1"
            raise refuse(f"{key}.sizes", bound, f"{block!r} with {size:g}")


def _check_contract(name: str, data: DataPolicy) -> None:
    """Shape and classes are the contract's, and the mapping is about its columns."""
    contract = data.load.contract
    if not isinstance(contract, Contract):
        return
    if data.shape != [contract.width] or data.classes != contract.classes:
        bound = f"[{contract.width}] and {contract.classes}, as data.{name}.load.contract has them"
        got = (data.shape, data.classes)
        raise refuse(f"data.{name}.shape and classes", bound, got, "correct them")
    if data.load.mapping is not None:
        data.load.mapping.check(contract)


def _check_noise_and_models(name: str, data: DataPolicy) -> None:
    for mechanism in data.mechanisms or ():
        known = [each for each in names("mechanisms") if each != "clear"]
        if mechanism not in known:
            raise refuse(f"data.{name}.mechanisms", f"some of {known}", mechanism, "correct it")
    for source, model in data.pretrained.items():
        key = f"data.{name}.pretrained.{source}"
        if model.folder and not Path(model.folder).is_absolute():
            raise refuse(f"{key}.folder", "an absolute path", model.folder, "correct it")
        _refuse_code(f"{key}.options", model.options)
    for factory, options in data.factories.items():
        _refuse_code(f"data.{name}.factories.{factory}", options)


def _refuse_code(key: str, options: Mapping[str, Any]) -> None:
    """No policy lets terms choose that a model's folder runs code."""
    for option in options:
        if option.rpartition(".")[2] in FORBIDDEN_OPTIONS:
            raise refuse(key, f"without {', '.join(FORBIDDEN_OPTIONS)}", option, "leave it out")


def _check_bounds(name: str, data: DataPolicy) -> None:
    least = {
        "client": (data.client, 0),
        "colluders": (data.colluders, 1),
        "least_silos": (data.least_silos, 1),
        "most_rounds": (data.most_rounds, 1),
        "largest_model": (data.largest_model, 1),
        "shape": (min(data.shape, default=0), 1),
    }
    for key, (value, bound) in least.items():
        if value < bound:
            raise refuse(f"data.{name}.{key}", f"at least {bound}", value)
    for key in ("epsilon", "most_epsilon", "week_epsilon", "size", "approval_days"):
        value = getattr(data, key)
        if value is not None and not 0 < value < 1e9:
            raise refuse(f"data.{name}.{key}", "a number above 0", value)
    if not 0 < data.delta < 1:
        raise refuse(f"data.{name}.delta", "above 0 and below 1", data.delta)


# ------------------------------------------------------------------------------- terms against it


def permit(policy: Policy, terms: Terms, today: dt.date) -> DataPolicy:
    """The data set's policy, if the terms are within all of it; each refusal names its key.

    Args:
        policy: the owner's.
        terms: what a server asks for.
        today: for ``since`` and ``until``.
    """
    from dpfed.recipes.terms import check_numbers  # torch; loaded already, by what made the terms

    data = policy.data.get(terms.pins.dataset)
    if data is None:
        raise _violation("data", f"a table for {terms.pins.dataset!r}", "none")
    check_numbers(terms)
    _permit_pins(policy, data, terms, today)
    _permit_privacy(data, terms)
    _permit_code(data, terms)
    if (data.since and today < data.since) or (data.until and today > data.until):
        raise _violation("since and until", f"a day from {data.since} to {data.until}", today)
    spare = terms.recipe.privacy.spare_attempts or 0  # each may get a reply, as a round does
    if terms.recipe.rounds + spare > data.most_rounds:
        raise _violation("most_rounds", f"at most {data.most_rounds}", terms.recipe.rounds + spare)
    epsilon = _permit_size(data, terms)
    _permit_mechanisms(data, terms)
    if data.most_epsilon is not None and not epsilon <= data.most_epsilon:
        raise _violation("most_epsilon", f"at most {data.most_epsilon:g}", f"{epsilon:.4g}")
    if not math.isfinite(epsilon):
        bound = f"a cost that has a bound for each {data.unit} under {data.adjacency}"
        raise _violation("epsilon", bound, "none")
    return data


def _permit_size(data: DataPolicy, terms: Terms) -> float:
    """What the training costs, if its model is not too large, and its noise is found in time."""
    pinned = terms.pins.layout
    if pinned is not None:  # before anything is computed for it
        _permit_numbers(data, sum(math.prod(shape) for _, shape in pinned))
    if not terms.described:
        raise _violation(
            "approval before a model is loaded", "terms.layout, its parameters", "none"
        )
    with limited_time(CALIBRATION_CPU_S):
        layout = terms.layout or terms.model.layout
        epsilon = data.cost(terms)
    _permit_numbers(data, layout.size)
    return epsilon


def _permit_numbers(data: DataPolicy, size: int) -> None:
    if size > data.largest_model:
        raise _violation("largest_model", f"at most {data.largest_model}", size)


class _CalibrationTimeout(BaseException):
    """A BaseException, so that no ``except Exception`` on its way catches it."""


@contextmanager
def limited_time(seconds: float) -> Iterator[None]:
    """Refuse a search for noise that takes more than ``seconds`` of this process's CPU time."""
    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
        yield
        return

    def stop(*_: object) -> None:
        raise _CalibrationTimeout

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    except (_CalibrationTimeout, MemoryError) as error:
        raise UnsoundPlan(
            f"the noise of terms must be found in {seconds:g} s of processor time, and was not; "
            f"state privacy.std_over_clip in the place of epsilon, or draw more units at a time"
        ) from error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def _violation(key: str, bound: str, got: object) -> UnsoundPlan:
    return UnsoundPlan(
        f"the silo's policy has {key}: {bound}, got {str(got)[:80]!r} in the terms; change the "
        f"terms, or ask the owner to change the policy"
    )


def _permit_pins(policy: Policy, data: DataPolicy, terms: Terms, today: dt.date) -> None:
    pins = terms.pins
    if pins.dpfed != VERSION:
        raise _violation("dpfed (installed)", VERSION, pins.dpfed)
    if pins.shape != data.shape or pins.classes != (data.classes or 1):
        raise _violation(
            "shape and classes", f"{data.shape}, {data.classes}", (pins.shape, pins.classes)
        )
    _permit_contract(data, terms)
    _permit_blocks(data, terms, today)
    if data.client >= len(pins.sizes):
        raise _violation("client", f"{data.client}, a place in terms.sizes", len(pins.sizes))
    if data.size is not None and pins.sizes[data.client] != data.size:
        raise _violation("size", f"{data.size:g} at place {data.client}", pins.sizes[data.client])
    if terms.recipe.privacy.trust is Trust.DISTRIBUTED:
        _permit_roster(policy, data, terms)
    for name, digest in pins.packages.items():
        _permit_package(data, name, digest)


def _permit_contract(data: DataPolicy, terms: Terms) -> None:
    """The owner's file is read by the owner's contract: the terms must mean the same."""
    mine, asked = data.load.contract, terms.pins.contract
    if not isinstance(mine, Contract) or not isinstance(asked, Contract):
        if isinstance(mine, Contract) or isinstance(asked, Contract):
            held = "this contract" if isinstance(mine, Contract) else "no contract"
            got = "one" if isinstance(asked, Contract) else "none"
            raise _violation("load.contract", f"{held} for this data", got)
        _permit_columns(data, terms)
        return
    if mine.digest != asked.digest:
        said = next(differences(mine, asked), "their digests differ")
        raise _violation("load.contract", f"the same contract, and {said}", asked.digest[:16])


def _permit_blocks(data: DataPolicy, terms: Terms, today: dt.date) -> None:
    """Terms name blocks if the data has any: by names that it can have, with the owner's sizes."""
    rule, asked = data.block_rule, terms.pins.blocks
    if rule is None or asked is None:
        if rule is not None or asked is not None:
            held = "blocks" if rule else "no blocks"
            got = "none" if asked is None else "some"
            raise _violation("blocks", f"{held} for this data", got)
        return
    sizes = data.blocks.sizes if data.blocks else {}
    for block, declared in asked.items():
        if not rule.every.has(block):
            raise _violation("blocks", f"names of a {rule.every}, or 'before'", block)
        if block != BEFORE and block > rule.every.name_of(today):
            raise _violation("blocks", f"none after {rule.every.name_of(today)!r}", block)
        if sizes and (data.client >= len(declared) or sizes.get(block) != declared[data.client]):
            raise _violation("blocks.sizes", f"{sizes.get(block)} for {block!r}", declared)


def _permit_columns(data: DataPolicy, terms: Terms) -> None:
    """Without a contract a query says which feature a column is: the owner's names must agree."""
    x, asked = data.load.options.get("x"), terms.recipe.client.get("columns")
    if not isinstance(x, list) or not isinstance(asked, dict):
        return
    for name, column in asked.items():
        at = column.get("at") if isinstance(column, dict) else None
        if isinstance(at, int) and 0 <= at < len(x) and x[at] != name:
            raise _violation("load.options.x", f"{x[at]!r} at place {at}", name)


def _permit_package(data: DataPolicy, name: str, digest: str) -> None:
    from dpfed.recipes.terms import package_digest  # torch; loaded already

    if name not in map(_package, data.factories):  # else terms choose what the gate reads
        raise _violation("factories", f"nothing of package {name!r}", "a pin of it")
    if package_digest(name) != digest:
        raise _violation("packages (installed)", f"{name} as the terms pin it", digest)


def _permit_roster(policy: Policy, data: DataPolicy, terms: Terms) -> None:
    silos = len(terms.pins.sizes)
    if silos < data.least_silos:
        raise _violation("least_silos", f"at least {data.least_silos}", silos)
    if terms.pins.roster != roster_digest(policy.gate.identity):
        raise _violation("identity", "the roster that the owner pinned", terms.pins.roster)


def roster_digest(identity: str) -> str:
    """The digest of the roster in the silo's folder."""
    path = Path(identity) / ROSTER
    if not identity or not path.is_file():
        raise _violation("identity", f"a folder with {ROSTER}, for distributed trust", identity)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _permit_privacy(data: DataPolicy, terms: Terms) -> None:
    recipe, privacy = terms.recipe, terms.recipe.privacy
    if privacy.trust not in data.trust:
        raise _violation("trust", f"one of {[str(t) for t in data.trust]}", str(privacy.trust))
    if privacy.mechanism == "clear":
        raise _violation("methods", "noise in every release", "clear")
    if privacy.noise is NoiseSource.KEYED and not data.keyed_noise:
        raise _violation("keyed_noise", "noise from the operating system", str(privacy.noise))
    if recipe.evaluation.kind.in_clear:
        raise _violation("evaluation", "test, federated or off", str(recipe.evaluation.kind))


def _permit_code(data: DataPolicy, terms: Terms) -> None:
    recipe = terms.recipe
    allowed = [method_tables(name) for name in data.methods]
    if recipe.client["name"] not in {table["client"]["name"] for table in allowed}:
        raise _violation("methods", f"an algorithm of {data.methods}", recipe.client["name"])
    _permit_noise(data, recipe, {table["mechanism"] for table in allowed})
    _permit_metrics(recipe)
    _permit_own("server", [each.get("name") for each in recipe.server])
    _permit_own("sums", [recipe.sum.get("name")])
    _permit_model(data, terms)


def _permit_noise(data: DataPolicy, recipe: Recipe, methods: set[str]) -> None:
    """The owner's list, if there is one; else the methods' own noise, and exact noise for it."""
    for option in ("std", "replace_bound"):
        if option in recipe.privacy.options:  # the plan decides them, so these would do nothing
            raise _violation("privacy.options", "options of the mechanism's own", option)
    if data.mechanisms is not None and recipe.privacy.mechanism not in data.mechanisms:
        raise _violation("mechanisms", f"one of {data.mechanisms}", recipe.privacy.mechanism)
    own = methods | {EXACT_ALTERNATIVE[name] for name in methods if name in EXACT_ALTERNATIVE}
    if data.mechanisms is None and recipe.privacy.mechanism not in own:
        raise _violation("methods", f"a mechanism of {data.methods}", recipe.privacy.mechanism)


def _permit_model(data: DataPolicy, terms: Terms) -> None:
    recipe = terms.recipe
    if recipe.model.factory is not None:
        _permit_factory(data, terms)
        return
    if recipe.model.name not in data.models:
        raise _violation("models", f"one of {data.models}", recipe.model.name)
    if recipe.model.name in PRETRAINED:
        _permit_pretrained(data, terms)
    elif recipe.model.options:
        raise _violation("models", f"no options of {recipe.model.name}", list(recipe.model.options))


def _permit_mechanisms(data: DataPolicy, terms: Terms) -> None:
    """The noise of each channel, which is not always the one that the terms name."""
    for channel, mechanism in terms.plan.channels.items():
        same = type(mechanism) is type(terms.plan.update)
        module = type(mechanism).__module__.rpartition(".")[2]  # the plug-in's name
        found = terms.recipe.privacy.mechanism if same else module
        if data.mechanisms is not None and found not in data.mechanisms:
            got = f"{found} on channel {channel}"
            raise _violation("mechanisms", f"one of {data.mechanisms}", got)


def _permit_metrics(recipe: Recipe) -> None:
    """Rows are made of the owner's records by code: by dpfed's own, not another package's."""
    given = recipe.evaluation.metrics
    for each in given or []:
        name = each if isinstance(each, str) else each.get("name")
        if name not in own_names("metrics"):
            raise _violation("evaluation.metrics", f"some of {list(own_names('metrics'))}", name)


def _permit_own(kind: str, given: list[Any]) -> None:
    """No key lists optimizers and sums, so that they are dpfed's own, and no other is imported."""
    for name in given:
        if name not in own_names(kind):
            raise _violation(kind, f"some of {list(own_names(kind))}, dpfed's own", name)


def _permit_factory(data: DataPolicy, terms: Terms) -> None:
    model = terms.recipe.model
    options = data.factories.get(str(model.factory))
    if options is None:
        raise _violation("factories", f"one of {sorted(data.factories)}", model.factory)
    if model.name != "network":
        raise _violation("factories", "model.name 'network' beside a factory", model.name)
    _require_pin("factories", str(model.factory), terms)
    for name, value in model.options.items():
        if name not in options or not _fits(value, options[name]):
            raise _violation(f"factories.{name}", f"within {options.get(name)}", value)


def _permit_pretrained(data: DataPolicy, terms: Terms) -> None:
    """The source and each option by the owner's list, and the folder by the digest of the terms."""
    given = dict(terms.recipe.model.options)
    source = given.pop("source", None)
    allowed = data.pretrained.get(source) if isinstance(source, str) else None
    if allowed is None:
        raise _violation("pretrained", f"one of {sorted(data.pretrained)}", source)
    for name, value in _dotted(given):
        if name not in allowed.options or not _fits(value, allowed.options[name]):
            raise _violation(
                f"pretrained.options.{name}", f"within {allowed.options.get(name)}", value
            )
    if not allowed.folder:
        if terms.recipe.model.name != "timm":
            raise _violation("pretrained.folder", "a folder for a model of transformers", "none")
        return
    if terms.pins.model != folder_digest(allowed.folder):
        raise _violation("pretrained.folder", f"{source} as terms.model pins it", terms.pins.model)


def _dotted(options: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Each value of nested options by its name with dots; each element of a list by the list's."""
    for name, value in options.items():
        if "." in name:  # else it could pass for a nested one
            raise _violation("pretrained.options", "names without a dot", name)
        if isinstance(value, dict):
            yield from _dotted(value, f"{above}{name}.")
            if not value:
                yield f"{above}{name}", value
        elif isinstance(value, list) and value:
            yield from ((f"{above}{name}", each) for each in value)
        else:
            yield f"{above}{name}", value


def _require_pin(key: str, where: str, terms: Terms) -> None:
    package = _package(where)
    if package not in terms.pins.packages:
        raise _violation(key, f"a pin of package {package!r} in terms.packages", "none")


def _package(factory: str) -> str:
    return factory.partition(":")[0].partition(".")[0]


def _fits(value: Any, allowed: list[Any]) -> bool:
    """A word or switch of the list, or a number of the bounds' own type between them."""
    if isinstance(value, str | bool):
        return any(type(each) is type(value) and each == value for each in allowed)
    bounds = len(allowed) == 2 and not any(isinstance(each, str | bool) for each in allowed)
    return bounds and type(value) is type(allowed[0]) and bool(allowed[0] <= value <= allowed[1])
