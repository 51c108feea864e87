"""The synthetic federations of FedProx and q-FFL."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from evenhand.data._dataset import FederatedDataset, PooledRows, build
from evenhand.data._validation import NDArray, Splitting, generator
from evenhand.errors import EvenhandError, real_number, truth_value, whole_number

_FEATURES = 60
_CLASSES = 10
_LEAST_ROWS = 50
_MOST_ROWS = 50_000_000


def synthetic(
    alpha: float = 1.0,
    beta: float = 1.0,
    *,
    clients: int = 30,
    seed: int = 0,
    iid: bool = False,
    iid_clients: int = 0,
    size_sigma: float = 2.0,
    max_size: int | None = None,
    test_fraction: float = 0.2,
    valid_fraction: float = 0.0,
) -> FederatedDataset:
    r"""Synthetic(alpha, beta): every client labels Gaussian examples by its own linear softmax model.

    Drawn in this order, with :math:`N(\cdot, \sigma)` given by its *standard deviation* and :math:`j` from 1
    to 60:

    .. math::
        n_k &= \lfloor\mathrm{LogNormal}(4, \sigma_n)\rfloor + 50, \qquad
        u_k \sim N(0, \alpha), \qquad B_k \sim N(0, \beta), \qquad v_{k,j} \sim N(B_k, 1), \\
        W_k &\in \mathbb R^{60\times10} \sim N(u_k, 1), \qquad b_k \in \mathbb R^{10} \sim N(u_k, 1), \\
        x &\sim N(v_k, \Sigma),\ \Sigma_{jj} = j^{-1.2} \text{ (variance)}, \qquad
        y = \arg\max(x^\top W_k + b_k).

    An IID client has :math:`v_k = 0` and shares one :math:`W, b \sim N(0, 1)` with all other IID clients.

    Three things that are easily misread:

    * ``alpha`` and ``beta`` are standard deviations, as in the authors' code, though the text reads like
      variances.
    * ``alpha`` changes nothing.  :math:`u_k` is added to every entry of :math:`W_k` and :math:`b_k`, so it
      moves all ten scores of an example alike and never the arg-max: data sets that differ only in ``alpha`` are
      the same.  Clients label differently because each draws its own :math:`W_k, b_k`, and do so at
      ``alpha=0``.
    * ``Synthetic(0, 0)`` is therefore far from IID; ``iid=True`` is.

    Differs from the authors' scripts: their generator was not seeded, so their exact data cannot be drawn
    again; they split 90/10 where the paper says 80/20, the default here.

    Args:
      alpha: standard deviation of the clients' common shift of their models, >= 0.
      beta: standard deviation of the clients' feature means, >= 0.
      clients: how many clients; 30 in FedProx, 100 in q-FFL.
      seed: of all draws.
      iid: all clients are IID; ``alpha`` and ``beta`` have no effect.
      iid_clients: how many clients, the first ones, are IID; the others are Synthetic(alpha, beta).  50 of 100 is
        the "hybrid" set of q-FFL.
      size_sigma: :math:`\sigma_n`; 2 in FedProx.  q-FFL's tables (127 examples per client, deviation 73) need 1.
      max_size: cap on :math:`n_k`, at least 1; None: no cap.
      test_fraction: as in :func:`evenhand.data.from_arrays`.
      valid_fraction: likewise; q-FFL uses 0.1 for both.

    Raises:
      EvenhandError: an argument is out of range.

    Source: Li et al., *Federated Optimization in Heterogeneous Networks*, MLSys 2020, section 5.1; Li et al.,
    *Fair Resource Allocation in Federated Learning*, ICLR 2020, appendix D.

    Example:
      >>> from evenhand.data import synthetic
      >>> data = synthetic(1.0, 1.0, clients=5, seed=0, max_size=200)
      >>> data.num_clients, data.num_classes, data.feature_shape
      (5, 10, (60,))
      >>> bool((synthetic(0.0, 1.0, clients=5, max_size=200).train.y == data.train.y).all())
      True
    """
    iid = truth_value("iid", iid)
    shared = clients if iid else iid_clients
    _check(alpha, beta, clients, shared, size_sigma, max_size)
    random = generator(seed, "synthetic")
    sizes = np.floor(random.lognormal(4.0, size_sigma, clients)) + _LEAST_ROWS
    sizes = np.minimum(sizes, np.inf if max_size is None else max_size)
    if sizes.sum() > _MOST_ROWS:
        raise EvenhandError(
            f"size_sigma={size_sigma} draws {sizes.sum():.3g} examples: lower it, or give max_size."
        )
    sizes = sizes.astype(np.int64)
    x, y = _draw_rows(random, sizes, alpha, beta, shared)
    return build(
        [PooledRows(x, y, np.repeat(np.arange(clients), sizes))],
        Splitting(test_fraction, valid_fraction, seed),
        name="synthetic-iid" if shared == clients else f"synthetic({alpha:g}, {beta:g})",
        classes=tuple(str(label) for label in range(_CLASSES)),
    )


def is_synthetic(source: str) -> bool:
    """Whether a source is the name of a synthetic federation, as ``"synthetic:1,1"`` is."""
    return source.startswith("synthetic:") or (source == "synthetic" and not Path(source).exists())


def synthetic_of(name: str, clients: int | None, splitting: Splitting) -> FederatedDataset:
    """The synthetic federation of a name.

    Args:
      name: ``"synthetic:ALPHA,BETA"`` or ``"synthetic:iid"``.
      clients: how many; None: as many as :func:`synthetic` draws by default.
      splitting: how each client's examples are divided; its seed is that of all draws.

    Raises:
      EvenhandError: the name has other parameters, or some are out of range.
    """
    _, _, parameters = name.partition(":")
    iid = parameters == "iid"
    try:
        alpha, beta = (1.0, 1.0) if iid or not parameters else map(float, parameters.split(","))
    except ValueError:
        raise EvenhandError(
            f"{name:.60} is not understood: write synthetic:ALPHA,BETA, e.g. synthetic:1,1, or synthetic:iid."
        ) from None
    count = {} if clients is None else {"clients": clients}
    return synthetic(alpha, beta, iid=iid, **count, **splitting._asdict())


class _Means(NamedTuple):
    """What makes clients differ: ``model`` is ``u_k``, ``feature`` ``v_k``; IID clients have zeros."""

    model: NDArray
    feature: NDArray


def _draw_means(random: np.random.Generator, clients: int, alpha: float, beta: float, shared: int) -> _Means:
    unlike = clients - shared
    u = alpha * random.standard_normal(unlike)
    centre = beta * random.standard_normal(unlike)
    v = centre[:, None] + random.standard_normal((unlike, _FEATURES))
    return _Means(np.concatenate([np.zeros(shared), u]), np.concatenate([np.zeros((shared, _FEATURES)), v]))


def _draw_model(random: np.random.Generator, mean: float) -> tuple[NDArray, NDArray]:
    return mean + random.standard_normal((_FEATURES, _CLASSES)), mean + random.standard_normal(_CLASSES)


def _labels(x: NDArray, w: NDArray, b: NDArray) -> NDArray:
    return np.argmax(x @ w + b, axis=1).astype(np.int32)


def _draw_rows(
    random: np.random.Generator, sizes: NDArray, alpha: float, beta: float, shared: int
) -> tuple[NDArray, NDArray]:
    scale = np.arange(1, _FEATURES + 1) ** -0.6
    means = _draw_means(random, len(sizes), alpha, beta, shared)
    common = _draw_model(random, 0.0) if shared else None
    x: list[NDArray] = []
    y: list[NDArray] = []
    for k, size in enumerate(sizes.tolist()):
        w, b = common if common is not None and k < shared else _draw_model(random, means.model[k].item())
        rows = means.feature[k] + scale * random.standard_normal((size, _FEATURES))
        x.append(rows.astype(np.float32))
        y.append(_labels(rows, w, b))
    return np.concatenate(x), np.concatenate(y)


def _check(
    alpha: float, beta: float, clients: int, shared: int, size_sigma: float, max_size: int | None
) -> None:
    for name, value in (("alpha", alpha), ("beta", beta), ("size_sigma", size_sigma)):
        if not 0.0 <= real_number(value) < math.inf:
            raise EvenhandError(f"{name} must be finite and at least 0, not {value!r:.40}.")
    clients = whole_number("clients", clients, 1)
    if whole_number("iid_clients", shared, 0) > clients:
        raise EvenhandError(f"iid_clients must be between 0 and the {clients} clients, not {shared}.")
    if max_size is not None:
        whole_number("max_size", max_size, 1)
