"""Models: parameters, a forward pass, and one loss per example.

To make a model of your own use :func:`from_flax`, :func:`from_torch`, :func:`from_equinox` or :func:`from_functions`;
the losses and metrics here fit all.  :func:`with_loss` gives any model another loss, such as one of
:mod:`evenhand.models.losses`; :func:`freeze` trains a part of its parameters only, and :func:`lora` low-rank
changes of them.
"""

from __future__ import annotations

from evenhand.models import losses
from evenhand.models._adapters import from_functions, standardized, with_loss
from evenhand.models._equinox import from_equinox, to_equinox
from evenhand.models._factors import (
    Reconstruction,
    autoencoder,
    matrix_factorisation,
    on_orthonormal,
    orthonormal,
    pca,
)
from evenhand.models._flax import from_flax
from evenhand.models._frozen import freeze, thaw
from evenhand.models._images import cnn_batch_norm, lenet, resnet20, resnet32
from evenhand.models._linear import Margin, linear_regression, softmax_regression, svm
from evenhand.models._lora import lora
from evenhand.models._networks import (
    cnn_cifar,
    cnn_femnist,
    cnn_femnist_dropout,
    embedded,
    lstm,
    lstm_classifier,
    mlp,
)
from evenhand.models._sequences import gru, transformer
from evenhand.models._torch import from_torch, to_torch
from evenhand.models.losses import (
    absolute_error,
    accuracy,
    binary_accuracy,
    cross_entropy,
    hinge,
    logistic,
    squared_error,
)

__all__ = [
    "Margin",
    "Reconstruction",
    "absolute_error",
    "accuracy",
    "autoencoder",
    "binary_accuracy",
    "cnn_batch_norm",
    "cnn_cifar",
    "cnn_femnist",
    "cnn_femnist_dropout",
    "cross_entropy",
    "embedded",
    "freeze",
    "from_equinox",
    "from_flax",
    "from_functions",
    "from_torch",
    "gru",
    "hinge",
    "lenet",
    "linear_regression",
    "logistic",
    "lora",
    "losses",
    "lstm",
    "lstm_classifier",
    "matrix_factorisation",
    "mlp",
    "on_orthonormal",
    "orthonormal",
    "pca",
    "resnet20",
    "resnet32",
    "softmax_regression",
    "squared_error",
    "standardized",
    "svm",
    "thaw",
    "to_equinox",
    "to_torch",
    "transformer",
    "with_loss",
]
