"""The model that a run, a study or a fit trains: its options, its size, which fits the data, and the list of models."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from tyro.conf import arg

from evenhand import local, models
from evenhand.cli._arguments import WholeNumbers
from evenhand.data import Form
from evenhand.errors import EvenhandError, whole_number
from evenhand.expressions import parse
from evenhand.models.losses import Loss
from evenhand.types import Model

ModelName: TypeAlias = Literal[
    "softmax",
    "linear",
    "svm",
    "mlp",
    "cnn_femnist",
    "cnn_femnist_small",
    "cnn_femnist_dropout",
    "cnn_cifar",
    "cnn_batch_norm",
    "lenet",
    "resnet20",
    "resnet32",
    "lstm",
    "gru",
    "transformer",
    "lstm_classifier",
    "factors",
]

_DEFAULT_MODEL = "(default: softmax; linear for real labels, lstm for tokens)"


@dataclass(frozen=True)
class ModelOptions:
    """The model to train."""

    model: Annotated[ModelName | None, arg(metavar="NAME", help_behavior_hint=_DEFAULT_MODEL)] = None
    """softmax, linear, svm, mlp, cnn_femnist, cnn_cifar, lenet, resnet20, lstm, ...; see `evenhand list models`"""
    hidden: Annotated[int | str, arg(metavar="INT,..."), WholeNumbers] = 128
    """widths of the hidden layers of mlp, as in 300,100"""
    bias: bool = True
    """softmax: add a bias to each class"""
    loss: Annotated[str | None, arg(metavar="LOSS", help_behavior_hint="(default: the model's own)")] = None
    """loss to use instead of the model's own, such as 'focal(gamma=2)'; see `evenhand list losses`"""

    def row_loss(self, model: Model) -> Loss | None:
        """The loss that takes the place of the model's own, read where ``model`` is trained."""
        if self.loss is None:
            return None
        return parse(self.loss, Loss, model, lambda: local.sgd(model, 0.1, epochs=1))

    def build(self, form: Form) -> Model:
        """The model, with inputs and outputs that fit data of this form, which need not be at hand.

        Raises:
          EvenhandError: the model and the data do not fit together.
        """
        model = _model(self.model, form, _widths(self.hidden), bias=self.bias)
        if (loss := self.row_loss(model)) is not None:
            model = models.with_loss(model, loss)
        if form.target is None:
            return model
        return models.standardized(model, mean=form.target.mean, deviation=form.target.deviation)


def _widths(hidden: int | str) -> tuple[int, ...]:
    """The widths in ``--hidden``, which config.json may have in any form."""
    try:
        return tuple(int(width) for width in str(hidden).split(","))
    except ValueError:
        raise EvenhandError(
            f"--hidden {hidden!r:.40} is not understood: give the widths of the hidden layers, as in 300,100."
        ) from None


_GREY, _COLOUR = (28, 28, 1), (32, 32, 3)

_PIXELS: Mapping[ModelName, tuple[int, int, int]] = {
    "cnn_femnist": _GREY,
    "cnn_femnist_small": _GREY,
    "cnn_femnist_dropout": _GREY,
    "cnn_cifar": _COLOUR,
    "cnn_batch_norm": _GREY,
    "lenet": _GREY,
    "resnet20": _COLOUR,
    "resnet32": _COLOUR,
}
"""Height, width and channels of the images that a model is for."""


def _model(name: ModelName | None, form: Form, hidden: tuple[int, ...], *, bias: bool) -> Model:
    """The model of this name; None: the usual one for such data."""
    has_tokens = form.dtype == "int32" and len(form.shape) == 1
    if name is None:
        name = "linear" if form.classes is None else "lstm" if has_tokens else "softmax"
    if name == "mlp":
        for width in hidden:
            whole_number("hidden", width, 1)
    _check_sequences(name, form)
    if name in ("lstm", "gru", "transformer") and not has_tokens:
        raise EvenhandError(
            f"--model {name} reads whole-number tokens, but an example of {form.name} is {form.dtype} of shape "
            f"{form.shape}: use --model softmax, or add --text if the examples are text."
        )
    if name == "linear" and form.classes is not None:
        raise EvenhandError(
            f"--model linear needs real-valued labels, but {form.name} has classes: use --model softmax, "
            "or --regression if its labels are numbers to be predicted."
        )
    if name not in ("linear", "factors") and form.classes is None:
        raise EvenhandError(
            f"--model {name} needs classes, but {form.name} has real-valued labels: use --model linear."
        )
    features, classes = math.prod(form.shape), max(2, form.classes or 0)
    if name == "svm" and classes > 2:
        raise EvenhandError(
            f"--model svm is for two classes, but {form.name} has {form.classes}: use --model softmax."
        )
    pixels = _PIXELS.get(name)
    if pixels is not None and features != math.prod(pixels):
        height, width, channels = pixels
        raise EvenhandError(
            f"--model {name} needs {height} × {width} {'colour' if channels == 3 else 'grey'} images, that is "
            f"{math.prod(pixels)} numbers, but an example of {form.name} has shape {form.shape}: use --model mlp."
        )
    factories: Mapping[ModelName, Callable[[], Model]] = {
        "softmax": lambda: models.softmax_regression(features, classes=classes, bias=bias),
        "linear": lambda: models.linear_regression(features, outputs=form.targets),
        "svm": lambda: models.svm(features),
        "mlp": lambda: models.mlp(features, classes=classes, hidden=hidden),
        "cnn_femnist": lambda: models.cnn_femnist(classes),
        "cnn_femnist_small": lambda: models.cnn_femnist(classes, hidden=0),
        "cnn_femnist_dropout": lambda: models.cnn_femnist_dropout(classes),
        "cnn_cifar": lambda: models.cnn_cifar(classes),
        "cnn_batch_norm": lambda: models.cnn_batch_norm(classes),
        "lenet": lambda: models.lenet(classes),
        "resnet20": lambda: models.resnet20(classes),
        "resnet32": lambda: models.resnet32(classes),
        "lstm": lambda: models.lstm(max(form.tokens, classes)),
        "gru": lambda: models.gru(max(form.tokens, classes)),
        "transformer": lambda: models.transformer(max(form.tokens, classes), length=form.shape[0]),
        "lstm_classifier": lambda: models.lstm_classifier(form.shape[-1], classes=classes),
        "factors": lambda: models.matrix_factorisation(form.tokens, form.tokens),
    }
    return factories[name]()


def _check_sequences(name: ModelName, form: Form) -> None:
    """Checks that examples are what a model of sequences or of pairs reads."""
    if name == "lstm_classifier" and (form.dtype != "float32" or len(form.shape) != 2):
        raise EvenhandError(
            f"--model lstm_classifier reads sequences of vectors, but an example of {form.name} is {form.dtype} of "
            f"shape {form.shape}: give --vectors FILE if the examples are text."
        )
    if name == "factors" and (form.dtype != "int32" or form.shape != (2,) or form.classes is not None):
        raise EvenhandError(
            f"--model factors reads pairs of a user and an item and predicts real-valued ratings, which {form.name} "
            "does not have: use --model softmax or linear."
        )


_FEMNIST, _REDDI = "28 × 28 grey pixels", "Reddi et al., ICLR 2021"
_PILLUTLA, _LI = "Pillutla et al., 2023", "Li et al., MLSys 2020"
_RESIDUAL, _HE = "ResNet of {} layers, group normalisation, 32 × 32 colour pixels", "He et al., CVPR 2016"

MODELS = (
    ("softmax", "Softmax (logistic) regression; for classes.", ""),
    ("linear", "Linear regression, squared error; for real-valued labels.", ""),
    ("svm", "Linear SVM, hinge loss; for two classes.", "Li et al., ICLR 2020"),
    ("mlp", "Multilayer perceptron with ReLUs; --hidden sets the widths of its hidden layers.", ""),
    ("cnn_femnist", f"Two convolutions, {_FEMNIST}; 1.7 million parameters.", "McMahan et al., AISTATS 2017"),
    ("cnn_femnist_small", "The same without padding or hidden layer; 0.12 million parameters.", _PILLUTLA),
    ("cnn_femnist_dropout", f"Two convolutions and dropout, {_FEMNIST}; 1.2 million parameters.", _REDDI),
    ("cnn_cifar", "The same for 32 × 32 colour pixels; 1.6 million parameters.", _REDDI),
    (
        "cnn_batch_norm",
        f"Three convolutions, batch normalisation, {_FEMNIST}; 0.9 million parameters.",
        "Li et al., ICLR 2021",
    ),
    ("lenet", f"Three convolutions, {_FEMNIST}; 0.17 million parameters.", "Li et al., JMLR 2023"),
    ("resnet20", f"{_RESIDUAL.format(20)}; 0.27 million parameters.", _HE),
    ("resnet32", f"{_RESIDUAL.format(32)}; 0.46 million parameters.", _HE),
    ("lstm", "Two LSTM layers that predict the next character.", "Caldas et al., 2018"),
    ("gru", "Two GRU layers that predict the next character.", "Cho et al., EMNLP 2014"),
    (
        "transformer",
        "Two blocks of causal attention that predict the next character.",
        "Vaswani et al., NeurIPS 2017",
    ),
    ("lstm_classifier", "Two LSTM layers that read word vectors; for texts with --vectors.", _LI),
    ("factors", "Matrix factorisation of ratings, with 100 dimensions.", "Li et al., ICLR 2023"),
)
"""Name, what it is, source."""
