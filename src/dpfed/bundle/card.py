# SPDX-License-Identifier: Apache-2.0
"""The model card: Markdown with Hugging Face's front matter, which a person reads in a minute.

Words in it come from others. Each is one line of plain characters in a code span, in which Markdown
and HTML mean nothing; the signs that could end it are replaced by others that look alike. What was
written is in model.json.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

from dpfed.accounting.guarantee import round_up
from dpfed.bundle.description import (
    ArrayInput,
    Backbone,
    ContractInput,
    Description,
    Divide,
    Fill,
    Input,
    LimitNorm,
    LinearModel,
    Metric,
    PretrainedModel,
    SchemaInput,
    SetNorm,
    StandardisedModel,
    Subtract,
)
from dpfed.bundle.inputs import columns_of
from dpfed.core.log import shown
from dpfed.data.contract import Column, Kind

_ALIKE = str.maketrans({"`": "'", "|": "\u00a6", "<": "\u2039", ">": "\u203a", "\\": "\u2216"})
_MOST_COLUMNS = 40
"""Rows of a table of columns; the rest is counted."""


def quoted(word: object, most: int = 60) -> str:
    """A word of somebody else's as a code span that nothing in it can end.

    Args:
        word: as it came.
        most: how many characters of it are shown.
    """
    return f"`{shown(str(word), most).translate(_ALIKE) or ' '}`"


def prose(text: str, most: int = 3000) -> str:
    """A sentence of somebody else's, in which no Markdown and no HTML is left."""
    plain = shown(text, most).translate(_ALIKE)
    plain = "".join(f"&#{ord(sign)};" if sign in "*_[]#!&~$" else sign for sign in plain)
    return plain.replace("://", "&#58;//").replace("www.", "www&#46;")  # else they become links


def model_card(description: Description) -> str:
    """The card's text.

    Args:
        description: of the bundle.
    """
    parts = (_front, _head, _use, _privacy, _quality, _origin)
    return "\n".join(line for part in parts for line in part(description)) + "\n"


def _front(found: Description) -> Iterator[str]:
    """YAML: each value in the spelling of JSON, which YAML reads as it is."""
    classify = found.classes is not None
    task = "tabular-classification" if classify else "tabular-regression"
    task = "text-generation" if _causal(found) else task
    yield "---"
    yield "library_name: dpfed"
    yield f"tags: {json.dumps(['differential-privacy', 'federated-learning', task])}"
    yield f"model_name: {json.dumps(shown(found.name))}"
    if found.metrics:
        yield "model-index:"
        yield f"  - name: {json.dumps(shown(found.name))}"
        yield "    results:"
        yield f"      - task: {{type: {task}}}"
        data = json.dumps(shown(found.data))
        yield f"        dataset: {{name: {data}, type: {json.dumps('private')}}}"
        yield "        metrics:"
        for each in found.metrics:
            kind = json.dumps(shown(each.name))
            yield f"          - {{type: {kind}, value: {each.value:.6g}}}"
    yield "---"


def _head(found: Description) -> Iterator[str]:
    yield f"# {quoted(found.name)}"
    yield ""
    what = f"{_kind(found)}, trained by `dpfed` on {quoted(found.data, 120)}"
    yield f"{what}{f', {quoted(found.date)}' if found.date else ''}."
    yield ""
    if found.classes is not None:
        yield f"It predicts {_target(found)}one of {_listed(found.classes)}."
        if isinstance(found.classes[0], int):
            yield "Classes are numbers, in the order of the training labels: nobody declared words."
    elif _causal(found):
        yield "It predicts each token of a text from those before it."
    else:
        yield f"It predicts {_target(found)}a number."
    yield ""


def _causal(found: Description) -> bool:
    """Whether it is a language model, which writes on."""
    given = found.architecture
    return isinstance(given, PretrainedModel) and given.options.get("task") == "causal"


def _kind(found: Description) -> str:
    given = found.architecture
    if isinstance(given, LinearModel | StandardisedModel):
        inside = " that standardises its inputs" if isinstance(given, StandardisedModel) else ""
        return f"A linear model ({given.link}){inside}, {found.size:,} parameters"
    if isinstance(given, PretrainedModel):
        return f"What was trained on top of {quoted(given.source)}, {found.size:,} parameters"
    return f"A network, {found.size:,} parameters"


def _target(found: Description) -> str:
    return f"{quoted(found.target)}: " if found.target else ""


def _listed(words: Sequence[object], most: int = 20) -> str:
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(quoted(word) for word in words[:most]) + more


def _use(found: Description) -> Iterator[str]:
    yield "## Use it"
    yield ""
    if _causal(found):
        yield "In Python, `dpfed.load(FOLDER, base=BASE).module` gives the scores of each token's"
        yield "successors. FOLDER is where this file lies, BASE the folder of the model beneath."
        yield "An `adapter` beside FOLDER is in peft's own format."
        yield ""
        if isinstance(found.input, ArrayInput):
            length = " x ".join(map(str, found.input.shape))
            yield f"It takes texts of {length} tokens, as numbers of BASE's tokenizer."
            yield ""
        return
    yield "    dpfed predict FOLDER new.csv --out scored.csv"
    yield ""
    yield "or in Python: `dpfed.load(FOLDER).predict(table)`. FOLDER is where this file lies."
    yield ""
    yield from _takes(found)
    if found.steps:
        said = ", then ".join(step_words(step) for step in found.steps)
        yield f"Features are prepared by dpfed, record by record: {said}."
        yield ""


def _takes(found: Description) -> Iterator[str]:
    given = found.input
    if isinstance(given, ContractInput):
        yield f"A row is {quoted(given.contract.row)}; what means missing is in `model.json`."
        yield ""
    if isinstance(given, ArrayInput):
        shape = " x ".join(map(str, given.shape))
        note = f": {prose(given.note)}" if given.note else ""
        yield f"It takes arrays of {shape} numbers per record{note}."
        yield ""
        return
    names = columns_of(given)
    yield f"It takes a table with these {len(names)} columns, in any order:"
    yield ""
    yield "| column | holds |"
    yield "|---|---|"
    for name in names[:_MOST_COLUMNS]:
        yield f"| {quoted(name)} | {_holds(given, name)} |"
    if len(names) > _MOST_COLUMNS:
        yield f"| and {len(names) - _MOST_COLUMNS} more | see model.json |"
    yield ""


def _holds(given: Input, name: str) -> str:
    if isinstance(given, SchemaInput):
        return schema_words(given.columns[name])
    if isinstance(given, ContractInput):
        return column_words(given.contract.column(name))
    return "a number"


def column_words(column: Column) -> str:
    """What a column of a contract holds, in words."""
    if column.kind is Kind.NUMBER:
        low, high = column.range or (-1.0, 1.0)
        unit = f" {quoted(column.unit)}" if column.unit else ""
        return f"a number from {low:g} to {high:g}{unit}"
    return f"one of {_listed(column.words or (0, 1), 12)}"


def schema_words(public: Sequence[Any]) -> str:
    """What a column of a schema holds, in words."""
    if len(public) == 2 and not any(isinstance(each, str) for each in public):
        return f"a number from {public[0]:g} to {public[1]:g}"
    return f"one of {_listed(public, 12)}"


def step_words(step: object) -> str:
    """A step of the preparation, in words."""
    match step:
        case Subtract():
            return "constants are subtracted"
        case Divide():
            return "constants divide them"
        case Fill():
            return f"a missing value becomes {step.value:g}"
        case SetNorm():
            return f"each row gets the norm {step.norm:g}"
        case LimitNorm():
            return f"longer rows get the norm {step.norm:g}"
        case Backbone():
            return f"images of {step.size} pixels become features of {quoted(step.name)}"
    return f"{getattr(step, 'count', 0)} random convolutions"


def _privacy(found: Description) -> Iterator[str]:
    stated = found.stated
    yield "## What is guaranteed"
    yield ""
    yield prose(stated.sentence)
    yield ""
    if not math.isinf(stated.epsilon):
        factor = round_up(math.exp(min(stated.epsilon, 700.0)))
        yield (
            f"In words: one {stated.unit} changes the odds of any model by a factor of at most "
            f"{factor} (exp of epsilon), but for a chance of about delta. Smaller is better. "
            "Records that the model is used on are not covered."
        )
        yield ""


def _quality(found: Description) -> Iterator[str]:
    yield "## How good it is"
    yield ""
    if not found.metrics:
        yield "No figure is stated here: measure it on your own records before it decides anything."
        yield ""
        return
    yield "| figure | value | 95 % interval | measured |"
    yield "|---|---:|---|---|"
    for each in found.metrics:
        records = "" if each.records is None else f"{each.records:,.0f} records, "
        measured = f"{prose(each.on)} ({records}round {each.round})"
        yield f"| {quoted(each.name)} | {each.value:.4g} | {interval_words(each)} | {measured} |"
    yield ""


def interval_words(metric: Metric) -> str:
    """A metric's interval in words."""
    if metric.low is None or metric.high is None:
        return "not known"
    return f"{metric.low:.4g} to {metric.high:.4g}"


def _origin(found: Description) -> Iterator[str]:
    made = found.training
    yield "## Where it comes from"
    yield ""
    method = f"Method {quoted(made.method)}, " if made.method else ""
    ended = f" It ended early: {prose(made.stopped)}." if made.stopped else ""
    yield f"{method}{made.rounds} of {made.planned} rounds.{ended}"
    versions = ", ".join(f"{quoted(name)} {quoted(what)}" for name, what in found.versions.items())
    yield ""
    yield f"Versions: {versions}. All of this, exactly: `model.json`."
