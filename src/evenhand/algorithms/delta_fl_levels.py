"""Delta-FL at several levels in one federation, a model for each level."""

from __future__ import annotations

import optax

from evenhand.algorithms.delta_fl import delta_fl, shown_options
from evenhand.algorithms.side_by_side import side_by_side
from evenhand.errors import EvenhandError, expect, real_number
from evenhand.local import Work, check_work
from evenhand.sampling import uniform
from evenhand.text import call_text
from evenhand.types import Algorithm, Sampling

__all__ = ["check_levels", "delta_fl_levels"]


def delta_fl_levels(
    work: Work,
    *,
    theta: tuple[float, ...] = (0.3, 0.5, 0.8),
    nu: float = 0.0,
    filtered: bool = False,
    strict: bool = True,
    server_opt: optax.GradientTransformation = optax.sgd(1.0),
    sampling: Sampling = uniform(),
    keep_partial: bool = False,
) -> Algorithm:
    r"""Delta-FL at several levels: each cohort trains one model per level, and each client is served its best.

    .. math::
        \min_{w_j} \mathbb S_{\theta_j}\big( F_1(w_j), \dots, F_N(w_j) \big), \qquad j = 1, \dots, r, \qquad
        j(k) = \arg\max_j \mathrm{accuracy}_k^{\mathrm{valid}}(w_j)

    with the update of :func:`evenhand.algorithms.delta_fl` for each :math:`w_j`, in one cohort :math:`S_t` a round;
    client ``k`` is served :math:`w_{j(k)}`.

    Args:
      work: local work, as in ``fedavg``; a client does it once for each level.
      theta: the tail fractions :math:`\theta_j` in (0, 1], all different; 1 is FedAvg.
      nu, filtered, strict: as in ``delta_fl``, at all levels.
      server_opt, sampling, keep_partial: as in ``fedavg``.

    A run's parameters are a tuple with the models in the order of decreasing ``theta``, in whatever order ``theta`` has
    them.

    Raises:
      EvenhandError: ``theta`` is not a tuple of different numbers in (0, 1], or an argument that ``delta_fl`` refuses.

    Edge cases: each model is that of ``delta_fl`` run alone with the same seed, up to rounding.  Computation and
    communication are ``r`` times those of one level.  Of equally good levels, and at a client without validation
    examples, the largest is served; a client that took no part in the training then chooses on its training examples.
    Without classes, the loss takes the place of the accuracy.  Validation numbers of the served models are too good,
    for the same examples choose the level.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.synthetic(alpha=1.0, beta=1.0, clients=8, seed=0, max_size=80, valid_fraction=0.2)
      >>> model = eh.models.softmax_regression(features=60, classes=10)
      >>> work = eh.local.sgd(model, 0.05, epochs=1, batch_size=10)
      >>> run = eh.simulate(delta_fl_levels(work, theta=(0.3, 0.8)), data, rounds=10, cohort=4)
      >>> len(run.params), run.level.shape
      (2, (8,))
      >>> valid = run.client_metrics("valid")
      >>> bool((valid["accuracy"] >= valid["accuracy (theta=0.3)"]).all())
      True

    Source: Pillutla et al., *Federated Learning with Superquantile Aggregation for Heterogeneous Data*, Machine
    Learning 2023, figure 1 and section 4.1.
    """
    levels = check_levels("delta_fl_levels", theta)
    check_work(work, keeps=True)  # delta_fl alone also takes statistics that stay with their client
    methods = {
        f"theta={level:g}": delta_fl(
            work,
            theta=level,
            nu=nu,
            filtered=filtered,
            strict=strict,
            server_opt=server_opt,
            sampling=sampling,
            keep_partial=keep_partial,
        )
        for level in levels
    }
    shown = ", ".join(f"{level:g}" for level in levels)
    name = call_text("delta_fl_levels", f"theta={shown}", shown_options(nu, filtered, strict))
    return side_by_side(methods, by_level=True)._replace(name=name)


def check_levels(factory: str, theta: tuple[float, ...]) -> tuple[float, ...]:
    """The levels in decreasing order, so that equally good ones leave a client with the least reweighted model."""
    expect("theta", theta, tuple, "(0.3, 0.5, 0.8)")
    for level in theta:
        expect("theta", level, int | float, "(0.3, 0.5, 0.8)")
    in_range = all(0.0 < real_number(level) <= 1.0 for level in theta)
    if not theta or not in_range or len({f"{level:g}" for level in theta}) < len(theta):
        raise EvenhandError(f"{factory}(theta={theta}): give one or more different levels in (0, 1].")
    return tuple(sorted((float(level) for level in theta), reverse=True))
