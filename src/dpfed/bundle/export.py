# SPDX-License-Identifier: Apache-2.0
"""A bundle as an ONNX model or a torch.export program: for use where there is no dpfed.

    ONNX    a table: one input [records, 1] per column, doubles for numbers and strings for words;
            arrays: one input x. Ranges, scales, words and constants are inside. Outputs: label (a
            word or a number) and probabilities; of a model of numbers: value
    .pt2    inputs numbers [records, columns] and codes [records, columns], the places of words in
            model.json, -1 for missing; or x. Output: probabilities, or the numbers

Guarantee: what was written is run beside the bundle on made-up records, and is left only if both
agree to 1e-5.

| edge case                                         | what happens                              |
|---------------------------------------------------|-------------------------------------------|
| a backbone or convolutions before the model       | the graph begins after them: x is features|
| a number that is missing                          | NaN                                       |
| a word that is missing or unknown                 | as the contract says; schema: as in data  |
| a word in another spelling (3.0 for 3)            | unknown: the graph knows model.json's     |
| a package that is missing                         | MissingExtra                              |
"""

from __future__ import annotations

import itertools
import logging
import math
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dpfed.bundle.description import (
    ArrayInput,
    Backbone,
    ColumnsInput,
    ContractInput,
    Convolutions,
    Description,
    Divide,
    Fill,
    LimitNorm,
    SetNorm,
    Step,
    Subtract,
)
from dpfed.bundle.modules import probabilities
from dpfed.bundle.trained import TrainedModel
from dpfed.core.errors import DataError
from dpfed.core.extras import require_extra
from dpfed.core.files import replace_file
from dpfed.data.contract import Column, Kind, Scale

TOLERANCE = 1e-5
_UNKNOWN, _MISSING = -1, -2
_PROBES = 24
"""Made-up records on which an export is tried."""


# --------------------------------------------------------------------------- columns in the graph


@dataclass(frozen=True, kw_only=True)
class NumberColumn:
    """A column of numbers: cut to its range, stretched to [-1, 1]; without a range, as it is."""

    name: str
    ends: tuple[float, float] | None = None
    log: bool = False
    fill: float = math.nan

    def features(self, values: torch.Tensor) -> torch.Tensor:
        """Float32 [records, 1] of doubles [records, 1]."""
        if self.ends is None:
            return values.float()
        low, high = self.ends
        known = torch.where(values.isnan(), self.fill, values)
        at = known.clamp(low, high)
        if self.log:
            low, high, at = math.log(low), math.log(high), at.log()
        return ((at - (low + high) / 2) / ((high - low) / 2)).clamp(-1, 1).float()


@dataclass(frozen=True, kw_only=True)
class WordColumn:
    """A column of words: one feature for each, or one in all for a flag."""

    name: str
    places: dict[str, int]
    count: int
    flag: bool = False
    fill: int | None = None
    """The place that stands in for a missing word; None is none of them."""

    def features(self, codes: torch.Tensor) -> torch.Tensor:
        """Float32 of whole numbers [records, 1]: -1 is unknown, -2 has no features (NaN)."""
        known = codes if self.fill is None else torch.where(codes < 0, self.fill, codes)
        if self.flag:
            return torch.where(known < 0, 0.0, 2.0 * known - 1.0).float()
        made = (known == torch.arange(self.count)).float()
        return torch.where(codes == _MISSING, math.nan, made)


GraphColumn = NumberColumn | WordColumn


def graph_columns(description: Description) -> list[GraphColumn]:
    """The columns of a model's table as the graph knows them; none if it takes arrays."""
    given = description.input
    if isinstance(given, ContractInput):
        return [_agreed(column) for column in given.contract.columns]
    if isinstance(given, ColumnsInput):
        return [NumberColumn(name=name) for name in given.columns]
    if isinstance(given, ArrayInput):
        return []
    return [_public(name, public) for name, public in given.columns.items()]


def _agreed(column: Column) -> GraphColumn:
    if column.kind is Kind.NUMBER:
        fill = column.fill
        return NumberColumn(
            name=column.name,
            ends=column.range,
            log=column.scale is Scale.LOG,
            fill=math.nan if fill is None else float(fill),
        )
    places = column.vocabulary
    return WordColumn(
        name=column.name,
        places=places,
        count=len(column.words) or 2,
        flag=column.kind is Kind.FLAG,
        fill=None if column.fill is None else int(column.fill),
    )


def _public(name: str, public: Sequence[Any]) -> GraphColumn:
    from dpfed.data.tables import absent_words, is_range, plain_word

    if is_range(public):
        return NumberColumn(name=name, ends=(float(public[0]), float(public[1])))
    places = {plain_word(each): place for place, each in enumerate(public)}
    missing = dict.fromkeys(sorted(absent_words() - places.keys()), _MISSING)
    return WordColumn(name=name, places={**missing, **places}, count=len(public))


# ---------------------------------------------------------------------------- the graph, in torch


class GraphModule(nn.Module):
    """Everything between cells and predictions, as torch computes it."""

    def __init__(self, model: TrainedModel) -> None:
        super().__init__()
        self.columns = graph_columns(model.description)
        self.steps = _graph_steps(model.description.steps)
        self.inner, self.output = model.module, model.description.output

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        """Probabilities or numbers, of (numbers, codes), one of them, or x."""
        x = self._table(given) if self.columns else given[0]
        for step in self.steps:
            x = _graph_step(step, x)
        return probabilities(self.output, self.inner(x))

    def _table(self, given: tuple[torch.Tensor, ...]) -> torch.Tensor:
        numbers, codes = given[0], given[-1]
        at, made = {NumberColumn: 0, WordColumn: 0}, []
        for column in self.columns:
            place = at[type(column)]
            part = (numbers if isinstance(column, NumberColumn) else codes)[:, place : place + 1]
            made.append(column.features(part))
            at[type(column)] += 1
        return torch.cat(made, dim=1)


def _graph_steps(steps: Sequence[Step]) -> list[Step]:
    """The steps after the last one that no graph has."""
    heavy = [at for at, step in enumerate(steps) if isinstance(step, Backbone | Convolutions)]
    return list(steps[heavy[-1] + 1 :]) if heavy else list(steps)


def _graph_step(step: Step, x: torch.Tensor) -> torch.Tensor:
    match step:
        case Subtract():
            return x - torch.tensor(step.values)
        case Divide():
            return x / torch.tensor(step.values)
        case Fill():
            return torch.where(x.isnan(), step.value, x)
        case SetNorm():
            norms = x.flatten(1).double().norm(dim=1, keepdim=True)
            return (x.flatten(1) * torch.where(norms > 0, step.norm / norms, 1.0)).float()
        case LimitNorm():
            radius = step.norm * (1 - 1e-6)
            norms = x.flatten(1).double().norm(dim=1, keepdim=True)
            return (x.flatten(1) * torch.where(norms > radius, radius / norms, 1.0)).float()
    raise TypeError(f"{type(step).__name__} is in no graph")


# ------------------------------------------------------------------------------- made-up records


@dataclass(frozen=True, eq=False)
class Probe:
    """Made-up records: cells by column, as the bundle takes them, or an array."""

    cells: dict[str, list[Any]]
    x: torch.Tensor | None = None


def probe(model: TrainedModel, records: int = _PROBES) -> Probe:
    """Records of every kind: the ends and beyond, each word, unknown ones, missing values.

    Args:
        model: what they are for.
        records: how many.
    """
    columns = graph_columns(model.description)
    if not columns:
        shape = _array_shape(model)
        made = torch.linspace(-2, 2, records * math.prod(shape)).view(records, *shape)
        return Probe({}, made[:, torch.randperm(made.shape[1], generator=_draw())])
    return Probe({c.name: list(_cells_of(c, records, at)) for at, c in enumerate(columns)})


def _draw() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _array_shape(model: TrainedModel) -> tuple[int, ...]:
    """Of what the graph takes: the model's own features, where a backbone makes them."""
    given = model.description.input
    if not isinstance(given, ArrayInput):
        return ()
    if len(_graph_steps(model.description.steps)) == len(model.description.steps):
        return tuple(given.shape)
    features = getattr(model.description.architecture, "features", None)
    if features is None:
        raise DataError(
            "a network behind a backbone cannot be exported, got one; export its module: "
            "dpfed.load(folder).module"
        )
    return (int(features),)


def _cells_of(column: GraphColumn, records: int, offset: int) -> Iterator[Any]:
    if isinstance(column, WordColumn):
        words = [*column.places, "no such word"]
        yield from itertools.islice(itertools.cycle(words[offset:] + words[:offset]), records)
        return
    low, high = column.ends or (-3.0, 3.0)
    wide, filled = high - low, not math.isnan(column.fill)
    for at in range(records):
        value = low + wide * (((at * 7 + offset * 3) % records) / records * 1.4 - 0.2)
        yield None if filled and at % 6 == 5 else value


def _tensors(model: TrainedModel, given: Probe) -> tuple[torch.Tensor, ...]:
    """What ``GraphModule`` takes: numbers and codes, one of them, or x."""
    if given.x is not None:
        return (given.x,)
    columns = graph_columns(model.description)
    numbers = [_doubles(given.cells[c.name]) for c in columns if isinstance(c, NumberColumn)]
    codes = [
        np.array([c.places.get(cell, _UNKNOWN) for cell in given.cells[c.name]], dtype=np.int64)
        for c in columns
        if isinstance(c, WordColumn)
    ]
    made = [torch.from_numpy(np.stack(part, axis=1)) for part in (numbers, codes) if part]
    return tuple(made)


def _doubles(cells: Sequence[Any]) -> Any:
    return np.array([math.nan if cell is None else cell for cell in cells], dtype=np.float64)


def _expected(model: TrainedModel, given: Probe) -> tuple[Any, Any]:
    """(which records are whole, their probabilities or numbers) by the bundle itself."""
    if given.x is not None:
        x = given.x
        for step in _graph_steps(model.description.steps):
            x = _graph_step(step, x)
        scores = model.scores(x)
        return np.ones(len(x), dtype=bool), probabilities(model.description.output, scores).numpy()
    whole, made, chances = model.score_table(given.cells)
    return whole, made.reshape(len(made), -1) if chances is None else chances


def _check(model: TrainedModel, given: Probe, found: Any, what: str) -> float:
    """The largest difference; refused above the tolerance."""
    whole, expected = _expected(model, given)
    apart = float(np.abs(np.asarray(found)[whole] - expected).max(initial=0.0))
    bound = TOLERANCE * max(1.0, float(np.abs(expected).max(initial=0.0)))
    if not apart <= bound:
        raise DataError(
            f"the {what} must agree with the bundle to {bound:g}, got a difference of {apart:g}; "
            f"nothing was written: use dpfed.load(folder).module"
        )
    return apart


# ----------------------------------------------------------------------------------- torch.export


def export_torch(model: TrainedModel, out: Path) -> float:
    """Write a torch.export program; the largest difference from the bundle on made-up records.

    Args:
        model: the trained model.
        out: the .pt2 to write.
    """
    made_up = probe(model)
    with _quiet():
        program = torch.export.export(
            GraphModule(model).eval(), _tensors(model, made_up), dynamic_shapes=_any_records(model)
        )
    with _quiet(), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt2"
        torch.export.save(program, path)
        again = torch.export.load(path).module()
        apart = _check(model, made_up, again(*_tensors(model, made_up)).detach(), "program")
        replace_file(out, path.read_bytes(), 0o644)
    return apart


def _any_records(model: TrainedModel) -> Any:
    records = torch.export.Dim("records", min=1)
    return {"given": tuple({0: records} for _ in _tensors(model, probe(model, 2)))}


# ------------------------------------------------------------------------------------------- ONNX


def export_onnx(model: TrainedModel, out: Path) -> float:
    """Write an ONNX model; the largest difference from the bundle on made-up records.

    Args:
        model: the trained model.
        out: the .onnx to write.
    """
    with require_extra("export", "an ONNX model", "onnx, onnxscript and onnxruntime"):
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401  (torch.onnx needs it)
    made_up = probe(model)
    whole = _joined(model, _core(model, made_up))
    onnx.checker.check_model(whole)
    content = whole.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    found = dict(
        zip(
            [each.name for each in session.get_outputs()],
            session.run(None, _feed(model, made_up)),
            strict=True,
        )
    )
    name = "value" if model.description.classes is None else "probabilities"
    apart = _check(model, made_up, found[output_name(model, name)], "ONNX model")
    replace_file(out, content, 0o644)
    return apart


def output_name(model: TrainedModel, name: str) -> str:
    """An output's name, which no column has.

    Args:
        model: what is exported.
        name: label, probabilities or value, if it is free.
    """
    taken = {column.name for column in graph_columns(model.description)}
    while name in taken:
        name = f"predicted_{name}"
    return name


def _core(model: TrainedModel, made_up: Probe) -> Any:
    """The torch part as ONNX: from numbers and codes to probabilities."""
    tensors = _tensors(model, made_up)
    with _quiet():
        program = torch.onnx.export(
            GraphModule(model).eval(),
            tensors,
            dynamo=True,
            dynamic_shapes=_any_records(model),
            input_names=_core_inputs(model),
            output_names=["found"],
            verbose=False,
        )
    assert program is not None  # noqa: S101  (None only where a file is named)
    return program.model_proto


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's words about packages that nobody asked for."""
    said = logging.getLogger("torch.onnx")
    before = said.level
    said.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        said.setLevel(before)


def _core_inputs(model: TrainedModel) -> list[str]:
    columns = graph_columns(model.description)
    if not columns:
        return ["x"]
    kinds = {type(column) for column in columns}
    return [n for n, k in (("numbers", NumberColumn), ("codes", WordColumn)) if k in kinds]


def _feed(model: TrainedModel, given: Probe) -> dict[str, Any]:
    """Made-up records as the ONNX model takes them."""
    if given.x is not None:
        return {"x": given.x.numpy()}
    return {
        c.name: _doubles(given.cells[c.name])[:, None]
        if isinstance(c, NumberColumn)
        else np.array(given.cells[c.name], dtype=object)[:, None]
        for c in graph_columns(model.description)
    }


def _joined(model: TrainedModel, core: Any) -> Any:
    """The core with columns before it and class words behind it, joined by ``onnx.compose``."""
    from onnx import compose, helper

    columns = graph_columns(model.description)
    inside = _free_prefix([column.name for column in columns])
    opsets = [helper.make_opsetid(each.domain, each.version) for each in core.opset_import]
    opsets = [each for each in opsets if each.domain != "ai.onnx.ml"]
    opsets.append(helper.make_opsetid("ai.onnx.ml", 3))
    del core.opset_import[:]
    core.opset_import.extend(opsets)
    core = compose.add_prefix(core, inside)
    if columns:
        before = _wrapped(_columns_graph(columns, inside), core, opsets)
        ends = [(name, f"{inside}{name}") for name in _core_inputs(model)]
        core = compose.merge_models(before, core, io_map=[(f"{inside}in/{a}", b) for a, b in ends])
    else:
        _rename_input(core, f"{inside}x", "x")
    after = _wrapped(_classes_graph(model, inside), core, opsets)
    whole = compose.merge_models(core, after, io_map=[(f"{inside}found", f"{inside}out/found")])
    whole.producer_name, whole.doc_string = "dpfed", model.guarantee.sentence
    return whole


def _free_prefix(names: Sequence[str]) -> str:
    prefix = "dpfed/"
    while any(name.startswith(prefix) for name in names):
        prefix = f"_{prefix}"
    return prefix


def _wrapped(graph: Any, core: Any, opsets: Any) -> Any:
    from onnx import helper

    return helper.make_model(graph, opset_imports=opsets, ir_version=core.ir_version)


def _columns_graph(columns: Sequence[GraphColumn], inside: str) -> Any:
    """Columns side by side: numbers as they are, words as their places."""
    from onnx import TensorProto, helper

    inputs, nodes, outputs = [], [], []
    sides: dict[str, list[str]] = {"numbers": [], "codes": []}
    for at, column in enumerate(columns):
        words = isinstance(column, WordColumn)
        kind = TensorProto.STRING if words else TensorProto.DOUBLE
        inputs.append(helper.make_tensor_value_info(column.name, kind, ["records", 1]))
        if not isinstance(column, WordColumn):
            sides["numbers"].append(column.name)
            continue
        code = f"{inside}code/{at}"
        nodes.append(
            helper.make_node(
                "LabelEncoder",
                [column.name],
                [code],
                domain="ai.onnx.ml",
                keys_strings=list(column.places),
                values_int64s=list(column.places.values()),
                default_int64=_UNKNOWN,
            )
        )
        sides["codes"].append(code)
    kinds = {"numbers": TensorProto.DOUBLE, "codes": TensorProto.INT64}
    for name, parts in sides.items():
        if parts:
            joined = f"{inside}in/{name}"
            nodes.append(helper.make_node("Concat", parts, [joined], axis=1))
            shape: list[str | int | None] = ["records", len(parts)]
            outputs.append(helper.make_tensor_value_info(joined, kinds[name], shape))
    return helper.make_graph(nodes, "columns", inputs, outputs)


def _classes_graph(model: TrainedModel, inside: str) -> Any:
    """Probabilities and the class with the largest; or the number."""
    from onnx import TensorProto, helper

    classes = model.description.classes
    found = f"{inside}out/found"
    width = None if classes is None else len(classes)
    given = helper.make_tensor_value_info(found, TensorProto.FLOAT, ["records", width])
    name = output_name(model, "value" if classes is None else "probabilities")
    made = helper.make_tensor_value_info(name, TensorProto.FLOAT, ["records", width])
    nodes = [helper.make_node("Identity", [found], [name])]
    if classes is None:
        return helper.make_graph(nodes, "numbers", [given], [made])
    place = f"{inside}out/place"
    nodes.append(helper.make_node("ArgMax", [found], [place], axis=1, keepdims=0))
    words = isinstance(classes[0], str)
    named: dict[str, Any] = (
        {"values_strings": list(classes)} if words else {"values_int64s": list(classes)}
    )
    nodes.append(
        helper.make_node(
            "LabelEncoder",
            [place],
            [output_name(model, "label")],
            domain="ai.onnx.ml",
            keys_int64s=list(range(len(classes))),
            **named,
        )
    )
    kind = TensorProto.STRING if words else TensorProto.INT64
    label = helper.make_tensor_value_info(output_name(model, "label"), kind, ["records"])
    return helper.make_graph(nodes, "classes", [given], [label, made])


def _rename_input(core: Any, old: str, new: str) -> None:
    """Give an input of the whole graph the name that callers use."""
    for each in core.graph.input:
        if each.name == old:
            each.name = new
    for node in core.graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
