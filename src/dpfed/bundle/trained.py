# SPDX-License-Identifier: Apache-2.0
"""A model that was trained, ready to be used: ``dpfed.load``.

Scores are computed on training's own path (``LinearProblem.scores`` and its like), in whole blocks:
a record's prediction depends on no other record, and is the one by which a run counted its own
accuracy.

| edge case                                       | what happens                                   |
|-------------------------------------------------|------------------------------------------------|
| a record with a missing value that nothing fills| DataError; ``score_table`` leaves it empty     |
| no record at all                                | an empty result                                |
| a table beside a mapping                        | the file's names, units and words are mapped   |
| an array beside a mapping                       | as it is: its numbers are features already     |
| ``predict_proba`` of a model of numbers         | AttributeError, as scikit-learn does           |
| ``fit``                                         | DataError: training is what dpfed run does     |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dpfed.accounting.guarantee import Guarantee
from dpfed.bundle.description import SIGMOID, SOFTMAX, ArrayInput, ContractInput, Description
from dpfed.bundle.folder import read_bundle
from dpfed.bundle.inputs import Cells, Preparation, as_table, columns_of
from dpfed.bundle.modules import chosen, model_of, plain_module, probabilities
from dpfed.core.errors import DataError
from dpfed.core.log import shown
from dpfed.core.types import Vector
from dpfed.data.datasets import Records
from dpfed.data.mapping import FileMapping, mapping_of, read_mapping
from dpfed.data.modules import Network


class TrainedModel:
    """A trained model with its guarantee; it predicts as a fitted scikit-learn estimator does.

    ``dpfed.load`` makes it. ``predict`` and ``predict_proba`` take a table (pandas, polars,
    pyarrow, a mapping of columns, a list of rows) by the names of its columns, or an array of
    features in the model's own order. ``classes_`` are the classes in the order of the
    probabilities: words if the training declared words, else numbers.

    ``guarantee`` states what the training guarantees, ``module`` is the plain torch module from
    prepared features to scores, ``features`` prepares them, and ``description`` is all that
    model.json says.

    >>> import tempfile
    >>> import dpfed
    >>> made_up = {"records": 60, "features": 3, "classes": 2}
    >>> data = {"options": made_up, "partition": {"clients": 2}}
    >>> with tempfile.TemporaryDirectory() as out:
    ...     _ = dpfed.run(data=data, privacy={"epsilon": 1.0}, rounds=4, out=out)
    ...     model = load(f"{out}/model")
    >>> model.predict_proba([[0.5, 0.1, -0.3]]).shape, model.classes_.tolist()
    ((1, 2), [0, 1])
    """

    def __init__(
        self,
        description: Description,
        params: Vector,
        module: nn.Module | None = None,
        base: str | Path | None = None,
        weights: str | Path | None = None,
        mapping: FileMapping | None = None,
    ) -> None:
        self.description = description
        self.mapping = _checked(mapping, description)
        self._params = params
        self._model = model_of(description, module, base)
        self._given = None if weights is None else Path(weights)

    def __repr__(self) -> str:
        found = self.description
        what = "numbers" if found.classes is None else f"{len(found.classes)} classes"
        return f"TrainedModel({shown(found.name)!r}, {self.n_features_in_} features, {what})"

    # ----------------------------------------------------------------------- what it says of itself

    @property
    def guarantee(self) -> Guarantee:
        """What the training guarantees, as model.json states it."""
        return self.description.stated

    @cached_property
    def module(self) -> nn.Module:
        """The plain torch module, in eval(): from ``features`` to scores."""
        return plain_module(self._model, self._params, self.description)

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes, in the order of the probabilities."""
        if self.description.classes is None:
            raise AttributeError("this model predicts numbers, so it has no classes_")
        return np.asarray(self.description.classes)

    @property
    def n_features_in_(self) -> int:
        """How many columns it takes, or numbers of an array."""
        given = self.description.input
        return math.prod(given.shape) if isinstance(given, ArrayInput) else len(columns_of(given))

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        """The columns that it takes, in their order."""
        names = columns_of(self.description.input)
        if not names:
            raise AttributeError("this model takes arrays, so it has no feature_names_in_")
        return np.asarray(names, dtype=object)

    # ---------------------------------------------------------------------------------- predictions

    @cached_property
    def _preparation(self) -> Preparation:
        return Preparation(self.description, self._given)

    def features(self, records: Any) -> torch.Tensor:
        """What ``module`` takes, float32: records after every step that training took.

        Args:
            records: a table, or an array, as ``predict`` takes it.
        """
        table = as_table(records)
        if table is None:
            return self._preparation.of_array(records)
        if self.mapping is not None and isinstance(self.description.input, ContractInput):
            table = self.mapping.table(self.description.input.contract, table)
        return self._preparation.of_table(table)

    def scores(self, features: torch.Tensor) -> torch.Tensor:
        """The module's scores of prepared features, on training's own path.

        Args:
            features: as ``features`` makes them.
        """
        if isinstance(self._model, Network):
            return self._fitting(self._model.scores_of(self._params, features))
        labels = torch.zeros(len(features), dtype=torch.int64)
        problem: Any = self._model.problem(Records(features, labels))
        scores: torch.Tensor = problem.scores(self._params)
        return scores

    def _fitting(self, scores: torch.Tensor) -> torch.Tensor:
        """The scores of a network, if there is one for each class that model.json has."""
        found = self.description
        wanted = {SIGMOID: 1, SOFTMAX: len(found.classes or ())}.get(found.output)
        if wanted is not None and (scores.ndim != 2 or scores.shape[1] != wanted):
            raise DataError(
                f"the module must make {wanted} scores for each record, got shape "
                f"{tuple(scores.shape)}; get the bundle again, or give the module that was trained"
            )
        return scores

    def predict(self, records: Any) -> NDArray[Any]:
        """The class of each record, or the number.

        Args:
            records: a table with the model's columns, or an array of its features.
        """
        scores = self.scores(self._whole(records))
        if self.description.classes is None:
            return self._numbers(scores)
        return np.asarray(self.classes_[chosen(self.description.output, scores).numpy()])

    @property
    def predict_proba(self) -> Callable[[Any], NDArray[np.float32]]:
        """A function of records: the probability of each class, [records, classes]."""
        if self.description.classes is None:
            raise AttributeError("this model predicts numbers, so it has no predict_proba")

        def predict_proba(
            records: Any,
        ) -> NDArray[np.float32]:  # by this name scikit-learn knows it
            scores = self.scores(self._whole(records))
            made: NDArray[np.float32] = probabilities(self.description.output, scores).numpy()
            return made

        return predict_proba

    def _numbers(self, scores: torch.Tensor) -> NDArray[Any]:
        made = probabilities(self.description.output, scores).numpy()
        return np.asarray(made[:, 0] if made.ndim == 2 and made.shape[1] == 1 else made)

    def _whole(self, records: Any) -> torch.Tensor:
        features = self.features(records)
        whole = features.flatten(1).isfinite().all(dim=1)
        if not bool(whole.all()):
            first = int((~whole).nonzero()[0])
            raise DataError(
                f"records must have no missing value, got {int((~whole).sum())} with one, the "
                f"first at row {first}; fill it, or leave such rows out"
            )
        return features

    def score_table(self, table: Cells, where: str = "the table") -> tuple[Any, Any, Any]:
        """(which records are whole, predictions, probabilities or None): of a part of a file.

        Args:
            table: by the model's name of a column, one cell for each record; mapped, if need be.
            where: what an error calls it.
        """
        return self._scored(self._preparation.of_table(table, where))

    def score_array(self, records: Any) -> tuple[Any, Any, Any]:
        """The same of an array.

        Args:
            records: in the model's own shape.
        """
        return self._scored(self._preparation.of_array(records))

    def _scored(self, features: torch.Tensor) -> tuple[Any, Any, Any]:
        whole = features.flatten(1).isfinite().all(dim=1)
        scores, output = self.scores(features[whole]), self.description.output
        if self.description.classes is None:
            return whole.numpy(), self._numbers(scores), None
        places = chosen(output, scores).numpy()
        return whole.numpy(), places, probabilities(output, scores).numpy()

    # -------------------------------------------------------------- the conventions of scikit-learn

    @property
    def _estimator_type(self) -> str:
        return "regressor" if self.description.classes is None else "classifier"

    def fit(self, records: Any, y: Any = None) -> Self:
        """Refused: fitting anew would leave the guarantee behind.

        Args:
            records: not read.
            y: not read.
        """
        del records, y
        raise DataError(
            "a trained model is not fitted again, since that would void its guarantee; train with "
            "dpfed.run, and leave fit out of the pipeline"
        )

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """No settings, as scikit-learn asks for them.

        Args:
            deep: not used.
        """
        del deep
        return {}

    def set_params(self) -> Self:
        """Nothing can be set."""
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, RegressorTags, Tags, TargetTags

        classify = self.description.classes is not None
        return Tags(
            estimator_type=self._estimator_type,
            target_tags=TargetTags(required=False),
            classifier_tags=ClassifierTags() if classify else None,
            regressor_tags=None if classify else RegressorTags(),
        )


def load(
    folder: str | Path,
    *,
    module: nn.Module | None = None,
    base: str | Path | None = None,
    weights: str | Path | None = None,
    mapping: str | Path | Mapping[str, Any] | FileMapping | None = None,
) -> TrainedModel:
    """A trained model from its folder, which a run leaves as out/model.

    Nothing in the folder is run: no pickle, no code, no name that is imported or downloaded.

    Args:
        folder: the folder with model.json.
        module: your own torch module, for a model that is one: its trained parameters are replaced.
        base: the folder, or the name on the hub, of the pretrained model that it was trained on.
        weights: the file of a frozen backbone's weights; None looks where training looked.
        mapping: how your tables say what the model's contract means, with the keys of an owner's
            ``load.mapping`` (rename, factor, offset, words, decimal): a TOML file, or a mapping.

    Returns:
        the model, which predicts as a fitted scikit-learn estimator does.

    Raises:
        DataError: if the folder is no bundle, is not whole, or needs what was not given.

    >>> import tempfile
    >>> import dpfed
    >>> made_up = {"records": 60, "features": 3, "classes": 2}
    >>> data = {"options": made_up, "partition": {"clients": 2}}
    >>> with tempfile.TemporaryDirectory() as out:
    ...     _ = dpfed.run(data=data, privacy={"epsilon": 1.0}, rounds=4, out=out)
    ...     model = load(f"{out}/model")
    >>> len(model.predict([[0.5, 0.1, -0.3], [1.0, 0.0, 0.0]]))
    2
    """
    description, tensors = read_bundle(Path(folder))
    flat = [tensors[name].reshape(-1) for name, _ in description.parameters]
    params = torch.cat(flat) if flat else torch.zeros(0)
    own = mapping
    if isinstance(own, str | Path):
        own = read_mapping(Path(own))
    elif own is not None and not isinstance(own, FileMapping):
        own = mapping_of(own)
    return TrainedModel(description, params, module, base, weights, own)


def _checked(mapping: FileMapping | None, description: Description) -> FileMapping | None:
    """The mapping, if the model has a contract that it is about."""
    if mapping is None:
        return None
    if not isinstance(description.input, ContractInput):
        raise DataError(
            "a mapping needs a model with a contract, and this one has none; rename the columns of "
            "the file itself"
        )
    mapping.check(description.input.contract)
    return mapping
