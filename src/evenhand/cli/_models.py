"""The models that ``evenhand run`` offers, sized to fit the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from tyro.conf import arg

from evenhand import models
from evenhand.data import FederatedDataset, Target
from evenhand.errors import EvenhandError, whole_number
from evenhand.types import Model

__all__ = ["MODELS", "Choice", "Form", "ModelOptions"]

Name: TypeAlias = Literal[
    "softmax", "linear", "svm", "mlp", "cnn_femnist", "cnn_femnist_dropout", "cnn_cifar", "lstm"
]

_DEFAULT = "(default: softmax; linear for real labels, lstm for tokens)"


class Form(NamedTuple):
    """The form of examples and labels, which decides the sizes of a model; ``config.json`` keeps it.

    Attributes:
      name: what the data are called.
      shape: of one example.
      dtype: of examples, ``"float32"``, or ``"int32"`` for tokens.
      classes: how many there are; None: labels are real numbers.
      names: of the classes; None where they are only numbered.
      targets: numbers in one label.
      tokens: one more than the largest token; 0 where examples are no tokens.
      target: the scale by which real labels are standardised; None where they are not.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    classes: int | None
    names: tuple[str, ...] | None
    targets: int
    tokens: int
    target: Target | None = None

    @staticmethod
    def of(data: FederatedDataset) -> Form:
        """The form of a data set."""
        splits, is_tokens = (data.train, data.valid, data.test), data.train.x.dtype.kind == "i"
        return Form(
            name=data.name,
            shape=data.feature_shape,
            dtype=str(data.train.x.dtype),
            classes=data.num_classes,
            names=data.classes,
            targets=math.prod(data.train.y.shape[1:]),
            tokens=1 + max(int(split.x.max(initial=0)) for split in splits) if is_tokens else 0,
            target=None if data.features is None else data.features.target,
        )

    def to_json(self) -> dict[str, Any]:
        """What ``config.json`` holds; :meth:`from_json` reads it back."""
        return {**self._asdict(), "target": None if self.target is None else self.target._asdict()}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Form:
        """The inverse of :meth:`to_json`.

        Raises:
          KeyError, TypeError, ValueError: ``value`` is something else.
        """
        names, classes, target = value["names"], value["classes"], value["target"]
        return Form(
            name=str(value["name"]),
            shape=tuple(int(size) for size in value["shape"]),
            dtype={"float32": "float32", "int32": "int32"}[value["dtype"]],
            classes=None if classes is None else int(classes),
            names=None if names is None else tuple(str(name) for name in names),
            targets=int(value["targets"]),
            tokens=int(value["tokens"]),
            target=None
            if target is None
            else Target(str(target["name"]), float(target["mean"]), float(target["deviation"])),
        )


class Choice(NamedTuple):
    """A model by name.

    Attributes:
      name: what ``--model`` takes.
      line: what it is.
      paper: where it comes from.
      build: ``(form, hidden) -> Model``.
      gives: what its outputs are: a logit for each class, the ``"margin"`` of the second of two, or a ``"value"``.
    """

    name: Name
    line: str
    paper: str
    build: Callable[[Form, int], Model]
    gives: Literal["logits", "margin", "value"] = "logits"


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
        return self.rebuilt(Form.of(data))

    def rebuilt(self, form: Form) -> Model:
        """The model for data of this form, which need not be at hand."""
        model = self.choice(form).build(form, self.hidden)
        if form.target is None:
            return model
        return models.standardized(model, mean=form.target.mean, deviation=form.target.deviation)

    def choice(self, form: Form) -> Choice:
        """Which model it is."""
        name = _default(form) if self.model is None else self.model
        return next(choice for choice in MODELS if choice.name == name)


def _default(form: Form) -> Name:
    if form.classes is None:
        return "linear"
    return "lstm" if form.dtype == "int32" and len(form.shape) == 1 else "softmax"


def _features(form: Form) -> int:
    return math.prod(form.shape)


def _classes(form: Form, name: Name) -> int:
    if form.classes is None:
        raise EvenhandError(
            f"--model {name} needs classes, but {form.name} has real-valued labels: use --model linear."
        )
    return max(2, form.classes)


def _linear(form: Form, hidden: int) -> Model:
    if form.classes is not None:
        raise EvenhandError(
            f"--model linear needs real-valued labels, but {form.name} has classes: use --model softmax, "
            "or --regression if its labels are numbers to be predicted."
        )
    return models.linear_regression(_features(form), outputs=form.targets)


def _svm(form: Form, hidden: int) -> Model:
    if _classes(form, "svm") > 2:
        raise EvenhandError(
            f"--model svm is for two classes, but {form.name} has {form.classes}: use --model softmax."
        )
    return models.svm(_features(form))


def _mlp(form: Form, hidden: int) -> Model:
    whole_number("hidden", hidden, 1)
    return models.mlp(_features(form), classes=_classes(form, "mlp"), hidden=(hidden,))


def _lstm(form: Form, hidden: int) -> Model:
    if form.dtype != "int32" or len(form.shape) != 1:
        raise EvenhandError(
            f"--model lstm reads whole-number tokens, but an example of {form.name} is {form.dtype} of shape "
            f"{form.shape}: use --model softmax, or add --text if the examples are text."
        )
    return models.lstm(max(form.tokens, _classes(form, "lstm")))


_FEMNIST = "28 × 28 grey pixels"

MODELS: tuple[Choice, ...] = (
    Choice(
        "softmax",
        "Softmax (logistic) regression; for classes.",
        "",
        lambda form, hidden: models.softmax_regression(_features(form), classes=_classes(form, "softmax")),
    ),
    Choice("linear", "Linear regression, squared error; for real-valued labels.", "", _linear, "value"),
    Choice("svm", "Linear SVM, hinge loss; for two classes.", "Li et al., ICLR 2020", _svm, "margin"),
    Choice("mlp", "One hidden layer of --hidden ReLUs.", "", _mlp),
    Choice(
        "cnn_femnist",
        f"Two convolutions, {_FEMNIST}; 1.7 million parameters.",
        "McMahan et al., AISTATS 2017",
        lambda form, hidden: models.cnn_femnist(_classes(form, "cnn_femnist")),
    ),
    Choice(
        "cnn_femnist_dropout",
        f"Two convolutions and dropout, {_FEMNIST}; 1.2 million parameters.",
        "Reddi et al., ICLR 2021",
        lambda form, hidden: models.cnn_femnist_dropout(_classes(form, "cnn_femnist_dropout")),
    ),
    Choice(
        "cnn_cifar",
        "The same for 32 × 32 colour pixels; 1.6 million parameters.",
        "Reddi et al., ICLR 2021",
        lambda form, hidden: models.cnn_cifar(_classes(form, "cnn_cifar")),
    ),
    Choice("lstm", "Two LSTM layers that predict the next character.", "Caldas et al., 2018", _lstm),
)
