"""Softmax regression on the toy clients, in float64 NumPy, sharing no code with the library.

With p = softmax(X W + b) and Y one-hot: F_k = -mean(log p_y), grad_W F_k = X'(p - Y) / n_k, grad_b F_k = mean(p - Y).
"""

from typing import Any

import numpy as np

import evenhand as eh

MODEL = eh.testing.toy_model()
DATA = eh.testing.toy_data()
SIZES = DATA.train.sizes


def _probabilities(w, k, rows):
    x, y = (part[rows] for part in DATA.train.client(k))
    logits = x.astype(np.float64) @ w["w"] + w["b"]
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return x, y, p / p.sum(axis=1, keepdims=True)


def loss(w, k, rows: Any = slice(None)):
    """The mean loss of client k, on all its examples or some."""
    _, y, p = _probabilities(w, k, rows)
    return -np.mean(np.log(p[np.arange(len(y)), y]))


def accuracy(w, k, rows: Any = slice(None)):
    """The share of them that the model gets right."""
    _, y, p = _probabilities(w, k, rows)
    return np.mean(p.argmax(axis=1) == y)


def gradient(w, k, rows: Any = slice(None)):
    """The gradient of that loss."""
    x, y, p = _probabilities(w, k, rows)
    p[np.arange(len(y)), y] -= 1
    return {"w": x.T @ p / len(y), "b": p.mean(axis=0)}


def combine(function, *trees):
    return {name: function(*(t[name] for t in trees)) for name in ("w", "b")}


def average(trees, weights):
    share = np.asarray(weights, np.float64) / np.sum(weights)
    return combine(lambda *leaves: sum(s * leaf for s, leaf in zip(share, leaves, strict=True)), *trees)
