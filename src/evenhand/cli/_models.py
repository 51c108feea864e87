"""The models that ``evenhand run`` offers, sized to fit the data."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, TypeAlias

from tyro.conf import arg

from evenhand import models
from evenhand.data import FederatedDataset
from evenhand.errors import EvenhandError, whole_number
from evenhand.types import Model

__all__ = ["MODELS", "Choice", "ModelOptions"]

Name: TypeAlias = Literal[
    "softmax", "linear", "svm", "mlp", "cnn_femnist", "cnn_femnist_dropout", "cnn_cifar", "lstm"
]

_DEFAULT = "(default: softmax; linear for real labels, lstm for tokens)"


class Choice(NamedTuple):
    """A model by name.

    Attributes:
      name: what ``--model`` takes.
      line: what it is.
      paper: where it comes from.
      build: ``(data, hidden) -> Model``.
    """

    name: Name
    line: str
    paper: str
    build: Callable[[FederatedDataset, int], Model]


@dataclass(frozen=True)
class ModelOptions:
    """What is trained."""

    model: Annotated[Name | None, arg(metavar="NAME", help_behavior_hint=_DEFAULT)] = None
    """softmax, linear, svm, mlp, cnn_femnist, cnn_femnist_dropout, cnn_cifar, lstm; see `evenhand list`"""
    hidden: int = 128
    """width of the hidden layer of mlp"""

    def build(self, data: FederatedDataset) -> Model:
        """The model, with inputs and outputs that fit the data.

        Raises:
          EvenhandError: the model and the data do not fit together.
        """
        name = _default(data) if self.model is None else self.model
        model = next(choice for choice in MODELS if choice.name == name).build(data, self.hidden)
        target = None if data.features is None else data.features.target
        if target is None:
            return model
        return models.standardized(model, mean=target.mean, deviation=target.deviation)


def _default(data: FederatedDataset) -> Name:
    if data.num_classes is None:
        return "linear"
    return "lstm" if data.train.x.dtype.kind == "i" and len(data.feature_shape) == 1 else "softmax"


def _features(data: FederatedDataset) -> int:
    return math.prod(data.feature_shape)


def _classes(data: FederatedDataset, name: Name) -> int:
    if data.num_classes is None:
        raise EvenhandError(
            f"--model {name} needs classes, but {data.name} has real-valued labels: use --model linear."
        )
    return max(2, data.num_classes)


def _linear(data: FederatedDataset, hidden: int) -> Model:
    if data.num_classes is not None:
        raise EvenhandError(
            f"--model linear needs real-valued labels, but {data.name} has classes: use --model softmax, "
            "or --regression if its labels are numbers to be predicted."
        )
    return models.linear_regression(_features(data), outputs=math.prod(data.train.y.shape[1:]))


def _svm(data: FederatedDataset, hidden: int) -> Model:
    if _classes(data, "svm") > 2:
        raise EvenhandError(
            f"--model svm is for two classes, but {data.name} has {data.num_classes}: use --model softmax."
        )
    return models.svm(_features(data))


def _mlp(data: FederatedDataset, hidden: int) -> Model:
    whole_number("hidden", hidden, 1)
    return models.mlp(_features(data), classes=_classes(data, "mlp"), hidden=(hidden,))


def _lstm(data: FederatedDataset, hidden: int) -> Model:
    x = data.train.x
    if x.dtype.kind != "i" or x.ndim != 2:
        raise EvenhandError(
            f"--model lstm reads whole-number tokens, but an example of {data.name} is {x.dtype} of shape "
            f"{data.feature_shape}: use --model softmax, or add --text if the examples are text."
        )
    tokens = 1 + max(int(split.x.max(initial=0)) for split in (data.train, data.valid, data.test))
    return models.lstm(max(tokens, _classes(data, "lstm")))


_FEMNIST = "28 × 28 grey pixels"

MODELS: tuple[Choice, ...] = (
    Choice(
        "softmax",
        "Softmax (logistic) regression; for classes.",
        "",
        lambda data, hidden: models.softmax_regression(_features(data), classes=_classes(data, "softmax")),
    ),
    Choice("linear", "Linear regression, squared error; for real-valued labels.", "", _linear),
    Choice("svm", "Linear SVM, hinge loss; for two classes.", "Li et al., ICLR 2020", _svm),
    Choice("mlp", "One hidden layer of --hidden ReLUs.", "", _mlp),
    Choice(
        "cnn_femnist",
        f"Two convolutions, {_FEMNIST}; 1.7 million parameters.",
        "McMahan et al., AISTATS 2017",
        lambda data, hidden: models.cnn_femnist(_classes(data, "cnn_femnist")),
    ),
    Choice(
        "cnn_femnist_dropout",
        f"Two convolutions and dropout, {_FEMNIST}; 1.2 million parameters.",
        "Reddi et al., ICLR 2021",
        lambda data, hidden: models.cnn_femnist_dropout(_classes(data, "cnn_femnist_dropout")),
    ),
    Choice(
        "cnn_cifar",
        "The same for 32 × 32 colour pixels; 1.6 million parameters.",
        "Reddi et al., ICLR 2021",
        lambda data, hidden: models.cnn_cifar(_classes(data, "cnn_cifar")),
    ),
    Choice("lstm", "Two LSTM layers that predict the next character.", "Caldas et al., 2018", _lstm),
)
