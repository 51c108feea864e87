"""Heterogeneity of clients, exactness of their local work, and how far one upload moves an aggregate."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax

from evenhand import local, tree
from evenhand.aggregators import aggregate
from evenhand.data import Split
from evenhand.errors import EvenhandError, real_number, whole_number
from evenhand.evaluation._evaluate import Prepared, prepare
from evenhand.types import Aggregator, Array, ClientData, Model, Params


class Dissimilarity(NamedTuple):
    """The dissimilarity of the clients' gradients at one point; see :func:`dissimilarity`.

    Attributes:
      B: the dissimilarity, from 1 (all gradients equal) to infinity.
      gradient_variance: ``V``, with weights ``n_k / n``.
      uniform_variance: the same with equal weights in the outer mean, though not in the global gradient.
      gradient_norms: norm of each client's gradient, ``(K,)``; NaN for a client without examples.
      global_gradient_norm: norm of the gradient of the global objective.
    """

    B: float
    gradient_variance: float
    uniform_variance: float
    gradient_norms: npt.NDArray[np.float64]
    global_gradient_norm: float


def dissimilarity(model: Model, params: Params, rows: Split | Prepared) -> Dissimilarity:
    r"""Measures heterogeneity: the dissimilarity of the clients' full gradients at ``params``.

    With ``F_k`` the mean loss of client ``k``, ``p_k = n_k / n`` and ``f = sum_k p_k F_k``:

    .. math::
       V(w) = \sum_k p_k \|\nabla F_k(w) - \nabla f(w)\|^2, \qquad
       B(w) = \sqrt{\frac{\sum_k p_k \|\nabla F_k(w)\|^2}{\|\nabla f(w)\|^2}}
            = \sqrt{1 + \frac{V(w)}{\|\nabla f(w)\|^2}}

    ``B`` is 1 where all gradients vanish together, and infinite where only their mean does.  ``V`` is
    computed from the deviations, not as a difference of squares, so ``B >= 1`` holds in floating point too.

    The gradients are computed one client at a time: memory does not grow with the number of clients.

    Args:
      model: gives the losses.
      params: the point ``w``.
      rows: the examples, usually the training split; :func:`~evenhand.evaluation.prepare` it once for repeated use.

    Differs from the paper: ``uniform_variance`` is what its published experiments plot, the equally weighted mean
    over clients of the squared distance to the ``n_k``-weighted global gradient.

    Example:
      >>> model = Model(
      ...     init=lambda key: jnp.float32(0.0),
      ...     apply=lambda w, x: x[:, 0] / 2 * (w - x[:, 1]) ** 2,
      ...     losses=lambda outputs, y: outputs,
      ...     metrics={},
      ... )
      >>> x = np.array([[1.0, 0.0], [3.0, 1.0]], np.float32)  # F_1 = w^2 / 2 and F_2 = 3 (w - 1)^2 / 2
      >>> at_two = dissimilarity(model, jnp.float32(2.0), Split(x, np.zeros(2), np.array([0, 1, 2])))
      >>> round(at_two.B, 7), at_two.gradient_variance, at_two.gradient_norms.tolist()
      (1.0198039, 0.25, [2.0, 3.0])

    Source: Li et al., *Federated Optimization in Heterogeneous Networks*, MLSys 2020, Definition 3.
    """
    rows = prepare(rows) if isinstance(rows, Split) else rows
    sizes = rows.sizes
    if not sizes.any():
        nan = float("nan")
        return Dissimilarity(nan, nan, nan, np.full(len(sizes), nan), nan)
    windows = (rows.offsets[:-1].astype(np.int32), sizes.astype(np.int32))
    clients = _Clients(model.apply, model.losses, int(sizes.max()))
    total, norms, deviations = _gradients(params, rows.x, rows.y, windows, clients)
    norm, present = float(total), sizes > 0
    deviation = np.asarray(deviations, np.float64)[present] ** 2
    variance = float(np.average(deviation, weights=sizes[present]))
    return Dissimilarity(
        B=_ratio(math.hypot(math.sqrt(variance), norm), norm, zero_over_zero=1.0),
        gradient_variance=variance,
        uniform_variance=float(np.mean(deviation)),
        gradient_norms=np.where(present, np.asarray(norms, np.float64), np.nan),
        global_gradient_norm=norm,
    )


def inexactness(
    model: Model, start: Params, end: Params, rows: Split | Prepared, client: int, *, mu: float = 0.0
) -> float:
    r"""How inexactly a client solved its local problem: 0 is a stationary point, 1 is no progress.

    The local problem is to minimise :math:`h_k(w) = F_k(w) + \frac{\mu}{2} \|w - w^t\|^2`, and

    .. math:: \gamma_k^t = \frac{\|\nabla h_k(w_k)\|}{\|\nabla h_k(w^t)\|}
                         = \frac{\|\nabla F_k(w_k) + \mu (w_k - w^t)\|}{\|\nabla F_k(w^t)\|}

    where 0 / 0 is 0.  Infinite if the local work left a stationary point; above 1 if it led away from one.  NaN for a
    client without examples.

    Args:
      model: gives the losses.
      start: the broadcast parameters ``w^t``.
      end: the client's parameters ``w_k`` after its local work.
      rows: the examples, usually the training split; :func:`~evenhand.evaluation.prepare` it once for repeated use.
      client: the client's position ``k``.
      mu: strength of the proximal term; 0 for FedAvg.

    Raises:
      EvenhandError: there is no such client, or ``mu`` is no finite number from 0.

    Source: Li et al., *Federated Optimization in Heterogeneous Networks*, MLSys 2020, Definition 2.
    """
    rows = prepare(rows) if isinstance(rows, Split) else rows
    client = whole_number("client", client, 0, len(rows.sizes) - 1)
    if not 0.0 <= real_number(mu) < math.inf:
        raise EvenhandError(f"mu={mu!r:.40}: give the proximal weight, a finite number from 0.")
    if not rows.sizes[client]:
        return math.nan
    window = (np.int32(rows.offsets[client]), np.int32(rows.sizes[client]))
    clients = _Clients(model.apply, model.losses, int(rows.sizes.max()))
    after, before = _residuals(start, end, np.float32(mu), rows.x, rows.y, window, clients)
    return _ratio(float(after), float(before), zero_over_zero=0.0)


class _Clients(NamedTuple):
    """What compiled gradients of clients depend on: hashable, as a model is not, whose metrics are a dict."""

    apply: Callable[[Params, Array], Any]
    losses: Callable[[Any, Array], Array]
    capacity: int

    def gradient(self, params: Params, x: Array, y: Array, window: tuple[Array, Array]) -> Params:
        """That of one client's mean loss; ``window``: its first row, and how many it has."""
        data = ClientData(x, y, *window, progress=jnp.float32(1.0), capacity=self.capacity)
        return local.full_gradient(Model(lambda key: (), self.apply, self.losses, {}), params, data)


@partial(jax.jit, static_argnums=4)
def _gradients(
    params: Params, x: Array, y: Array, windows: tuple[Array, Array], clients: _Clients
) -> tuple[Array, Array, Array]:
    """Norm of the global gradient; for each client, its gradient's norm and distance from the global one."""
    everything = (jnp.int32(0), jnp.int32(x.shape[0]))
    overall = clients._replace(capacity=x.shape[0]).gradient(params, x, y, everything)

    def client(window: tuple[Array, Array]) -> tuple[Array, Array]:
        gradient = clients.gradient(params, x, y, window)
        return tree.norm(gradient), tree.norm(tree.subtract(gradient, overall))

    return tree.norm(overall), *lax.map(client, windows)


@partial(jax.jit, static_argnums=6)
def _residuals(
    start: Params, end: Params, mu: Array, x: Array, y: Array, window: tuple[Array, Array], clients: _Clients
) -> tuple[Array, Array]:
    """Norms of the local problem's gradient after and before the local work."""
    pull = tree.scale(mu, tree.subtract(end, start))
    after = tree.add(clients.gradient(end, x, y, window), pull)
    return tree.norm(after), tree.norm(clients.gradient(start, x, y, window))


def _ratio(over: float, under: float, *, zero_over_zero: float) -> float:
    if under == 0:
        return zero_over_zero if over == 0 else float("inf")
    return over / under


_UPLOADS, _HUGE, _BOUND = 10, 1e4, 100.0


def follows_one_upload(aggregator: Aggregator) -> bool:
    """Whether one upload can move the direction as far as it likes, as that of a mean.

    It is tried: of ten uploads near ``(1, 1, 1)`` one is 10,000 times as long, and the direction counts as moved if it
    is more than 100 long.  False for aggregators that are set to a number of malicious clients
    (:attr:`evenhand.types.Sum.needs`), and for those that take no such uploads.

    Example:
      >>> from evenhand.aggregators import geometric_median, mean
      >>> follows_one_upload(mean()), follows_one_upload(geometric_median())
      (True, False)
    """
    if aggregator.needs:
        return False
    lengths = np.linspace(0.9, 1.1, _UPLOADS)
    lengths[0] = _HUGE
    uploads = jnp.asarray(np.outer(lengths, np.ones(3)), jnp.float32)
    try:
        direction = aggregate(aggregator, uploads, losses=np.ones(_UPLOADS))
    except Exception:  # of a method's own, for uploads of another structure
        return False
    return not float(tree.norm(direction)) <= _BOUND
