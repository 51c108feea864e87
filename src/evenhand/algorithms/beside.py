"""A personal model beside any method, which it listens to and never influences."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from evenhand import tree
from evenhand.errors import EvenhandError, expect, real_number
from evenhand.local import Work, check_work, in_turn, step_per_row
from evenhand.streams import root_key
from evenhand.text import measured
from evenhand.types import Algorithm, ClientData, Effort, Key, Model, Params, Phase, Privacy, PyTree

__all__ = ["beside", "check_method", "check_same", "non_negative", "uncovered"]


class _State(NamedTuple):
    """What a client keeps: the wrapped method's state, and its personal one."""

    inner: PyTree
    personal: PyTree


def beside(
    method: Algorithm,
    *,
    train: Callable[[PyTree, Params, ClientData, Key], PyTree],
    effort: Callable[[ClientData], Effort],
    name: str,
    begin: Callable[[Params], PyTree] = lambda params: params,
    serve: Callable[[PyTree], Params] = lambda personal: personal,
) -> Algorithm:
    r"""Any method, while each client that takes part also trains a personal model, which never reaches the server.

    .. math:: v_k \leftarrow \texttt{train}(v_k, w^t)

    in the last exchange of each round that client ``k`` takes part in, after its work for the method.  Ditto, its
    dynamic form and FedTilt have this shape.

    Args:
      method: any method.  Its messages, uploads and server states stay the same to the bit.
      train: ``(personal, received, data, key) -> personal``, one round of the client's own training: from the personal
        state that it kept, given the global model :math:`w^t` that it received, its examples, and the key of its work
        for the method.  Use that key to see the same batches again, and
        ``eh.streams.stream(key, eh.streams.Purpose.PERSONAL)`` to draw others.
      effort: ``data -> Effort`` of ``train``, such as ``work.effort``.
      name: of the result, as users see it.
      begin: ``params -> personal``, the state of a client that has not taken part yet, any tree of arrays; by default
        the initial model.
      serve: ``personal -> params``, the model that the client uses; by default the state itself.

    Raises:
      EvenhandError: ``method`` is no method, or its ``received`` does not return the global model.

    Edge cases: a client that never took part is served the global model.  Finetuning that was put around ``method`` is
    left out: put it around the result.  A privacy guarantee stays, and says that it does not cover personal models.
    Around a method with personal models, clients train both, with the same key, and are served those of ``beside``: the
    same to the bit as around the method without its own.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=10)
      >>> work = eh.local.sgd(eh.models.softmax_regression(features=64, classes=10), 0.1, epochs=1, batch_size=10)
      >>> def train(personal, received, data, key):
      ...     midway = eh.tree.mix(0.5, personal, received)
      ...     return work.solve(midway, data, key, eh.local.proximal(0.1, received))[0]
      >>> method = beside(eh.algorithms.fedavg(work), train=train, effort=work.effort, name="midway")
      >>> run = eh.simulate(method, data, rounds=4, cohort=5)
      >>> run.personal_params(0)["kernel"].shape
      (64, 10)
    """
    expect("method", method, Algorithm, "eh.algorithms.fedavg(work)")
    not_pooled(name, method)
    _check_received(name, method)

    def wrap(phase: Phase, *, last: bool) -> Phase:
        def work(message: PyTree, state: _State, data: ClientData, key: Key) -> tuple[PyTree, _State]:
            delta, inner = phase.work(message, state.inner, data, key)
            personal = train(state.personal, method.received(message), data, key) if last else state.personal
            return delta, _State(inner, personal)

        return phase._replace(
            report=lambda message, state, data: phase.report(message, state.inner, data),
            work=work,
            effort=in_turn(phase.effort or step_per_row, effort) if last else phase.effort,
        )

    *before, final = method.phases
    return method._replace(
        name=name,
        phases=(*(wrap(phase, last=False) for phase in before), wrap(final, last=True)),
        init_client=lambda params: _State(method.init_client(params), begin(params)),
        personal_params=lambda server, state: serve(state.personal),
        adapt=None,
        privacy=uncovered(method.privacy),
    )


def not_pooled(name: str, method: Algorithm) -> None:
    """Checks that clients train by themselves under ``method``, as the method called ``name`` around it needs."""
    if method.pooled is not None:
        raise EvenhandError(
            f"{name} needs clients that train by themselves, and {method.name} trains on the examples of all clients "
            "together: give a federated method, such as fedavg()."
        )


def _check_received(name: str, method: Algorithm) -> None:
    """Checks that ``received`` makes the global model of the last broadcast of ``method``."""
    params = jax.eval_shape(method.model.init, root_key(0))
    broadcast = method.phases[-1].broadcast
    try:
        message = jax.eval_shape(lambda like: broadcast(method.init(like, 1), jnp.int32(0)), params)
    except EvenhandError:
        return  # not of a single client: the run, which has their number, begins with the same call
    try:
        received = jax.eval_shape(method.received, message)
    except (AttributeError, KeyError, IndexError, TypeError) as error:
        problem = f"fails: {error}"
    else:
        if tree.form(received) == tree.form(params):
            return
        problem = "gives something else"
    raise EvenhandError(
        f"{name:.80} needs the global model that clients receive, and received= of {method.name or 'the method'} "
        f"{problem}: give Algorithm(received=) a function of the last phase's broadcast that returns the global "
        "parameters, e.g. received=lambda message: message if the broadcast is the parameters."
    )


def uncovered(promise: Privacy | None) -> Privacy | None:
    """The guarantee of a method around which clients train personal models."""
    if promise is None:
        return None
    own = "personal models, which their own clients alone may see"
    return promise._replace(unprotected=(own, *promise.unprotected))


def check_method(factory: str, method: Algorithm, work: Work, *, keeps: bool = False) -> None:
    """Checks that ``method`` is a method and ``work`` local work on the same model; ``keeps`` as in ``check_work``."""
    expect("method", method, Algorithm, "eh.algorithms.fedavg(work)")
    private = f"{factory}(fedavg(dp_sgd(...)), eh.local.sgd(model, ...))"
    objection = (
        "it would train personal models, which the guarantee for the examples does not cover, as they use the same "
        f"examples again: give it to the method inside, as in {private}, and ordinary work for the personal models"
    )
    check_work(work, keeps=keeps, statistics_stay=True, objection=objection)
    several = any(metric != measured(metric) for metric in method.model.metrics)  # side by side
    if several and work.model != method.model:
        cure = f"put {factory}() around one with a single model, such as delta_fl(theta=0.5)"
        if not method.levels:
            cure = f"put {factory}() around each of its methods instead"
        raise EvenhandError(
            f"{factory}() takes a method with one model, and {method.name:.80} trains several: {cure}."
        )
    check_same(f"{factory}() got a method and work", method.model, work.model)


def check_same(call: str, model: Model, other: Model) -> None:
    """Checks that two models are one; ``call`` says what has them."""
    if model != other:
        raise EvenhandError(f"{call} with different models: make both with the same one.")


def non_negative(factory: str, name: str, value: float, *, infinite: bool = False) -> None:
    """Checks that a weight is a number >= 0."""
    number = real_number(value)
    if not (number >= 0.0 and (infinite or number < float("inf"))):
        kind = "a number >= 0, or infinite" if infinite else "a finite number >= 0"
        raise EvenhandError(f"{factory}({name}={value}): give {kind}.")
