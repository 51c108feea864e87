"""What goes around an attack: whose it is, in which rounds, and a second attack by the same clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from evenhand.errors import EvenhandError, array_of, expect, real_number, whole_number
from evenhand.types import Attack

__all__ = ["both", "by_clients", "by_examples", "during"]


def by_clients(attack: Attack, clients: tuple[int | str, ...]) -> Attack:
    """The same attack by given clients, instead of a random share.

    Args:
      attack: what they do.
      clients: their ids as text, or their positions among all clients, from 0, as whole numbers.  With
        none, nobody is malicious, as with a ``fraction`` of 0.

    A run raises an ``EvenhandError`` for a client that its data do not have.

    Example:
      >>> from evenhand.attacks import zero
      >>> by_clients(zero(), ("north", 3)).clients
      ('north', 3)
    """
    _check(attack)
    if isinstance(clients, str):  # else each letter would be a client
        raise EvenhandError(f"by_clients(clients={clients!r:.40}): give several, such as ({clients!r:.40},).")
    expect("by_clients(clients=)", clients, Iterable, '("north", 3)')
    return attack._replace(fraction=0.0, clients=tuple(clients))


def by_examples(attack: Attack, share: float, sizes: tuple[int, ...], *, seed: int = 0) -> Attack:
    r"""The same attack by clients that have a share of all training examples, instead of a share of the clients.

    .. math:: \{\pi_1, \dots, \pi_j\}, \qquad
        j = \min \Big\{ j : \sum_{i \le j} n_{\pi_i} \ge \rho \sum_k n_k \Big\}, \quad \pi \text{ a random order}

    Args:
      attack: what they do.
      share: :math:`\rho`, from 0, with which nobody is malicious, to 1.
      sizes: :math:`n_k`, of all clients in the order of the data, such as ``tuple(data.train.sizes)``.
      seed: of the order.

    Raises:
      EvenhandError: a share outside [0, 1], or sizes that are no numbers of examples.

    Edge cases: the share is just exceeded, so that of few large clients it may be well above what was asked for.

    Example:
      >>> from evenhand.attacks import zero
      >>> by_examples(zero(), 0.25, (100, 100, 100, 100)).clients
      (2,)

    Source: the code of Pillutla, Kakade and Harchaoui, *Robust Aggregation for Federated Learning*, 2022.
    """
    if not 0.0 <= real_number(share) <= 1.0:
        raise EvenhandError(f"by_examples(share={share!r:.40}): give a share from 0 to 1.")
    counts = array_of(sizes)
    if counts.ndim != 1 or not np.issubdtype(counts.dtype, np.integer) or (counts < 0).any():
        raise EvenhandError(
            f"by_examples(sizes={sizes!r:.40}): give each client's number of examples, as in tuple(data.train.sizes)."
        )
    order = np.random.default_rng(whole_number("by_examples(seed=)", seed, 0)).permutation(len(counts))
    before = np.cumsum(counts[order]) - counts[order]
    # Less 1e-9: 0.29 of 100 is 28.999999999999996.
    chosen = order[before < share * counts.sum() - 1e-9]
    return by_clients(attack, tuple(sorted(chosen.tolist())))


def during(attack: Attack, *, first: int = 1, last: int | None = None) -> Attack:
    """The same attack in some rounds only; examples that are poisoned before the run stay poisoned throughout.

    Args:
      attack: what malicious clients do.
      first: the first round, from 1.
      last: the last round; None: that of the run.

    Example:
      >>> from evenhand.attacks import zero
      >>> during(zero(0.2), first=10, last=20).last
      20
    """
    _check(attack)
    return attack._replace(first=first, last=last)


def both(attack: Attack, then: Attack) -> Attack:
    """Combines two attacks by the same clients, such as wrong labels and boosted uploads.

    The clients and rounds are those of the first; uploads are changed by the first, then by the second.

    Args:
      attack: the first.
      then: the second; its share of clients and its rounds do not count.

    Edge cases: after an attack that needs the global model, such as :func:`random_model`, the second changes uploads
    where the first does, in the last phase of a round.

    Raises:
      EvenhandError: both are coalitions, or both poison examples; or the first is a coalition, and the second changes
        uploads, which each client does before a coalition agrees on others.

    Example:
      >>> from evenhand.attacks import label_flip, model_replacement
      >>> both(label_flip(0.2), model_replacement(boost=10.0)).fraction
      0.2

    Source: the code of Ditto, whose attacks A2 and A3 come on top of wrong labels.
    """
    _check(attack)
    _check(then, "then")
    poisons = [member.rows or member.fresh for member in (attack, then)]
    if all(poisons) or (attack.collude and then.collude):
        clash = "poison examples" if all(poisons) else "are coalitions"
        raise EvenhandError(f"both(): the two attacks {clash}: give one that does, and one of another kind.")
    if attack.collude and (then.upload or then.reply):
        raise EvenhandError(
            "both(): a coalition replaces uploads after each client has changed its own, so the second attack would "
            "have no effect: give the coalition as the second."
        )
    return attack._replace(
        rows=attack.rows or then.rows,
        # A reply comes after uploads: where the first attack is one, the second becomes one, which keeps their order.
        upload=attack.upload if attack.reply else _chained(attack.upload, then.upload),
        reply=_chained(attack.reply, _reply(then) if attack.reply else then.reply),
        report=_chained(attack.report, then.report),
        collude=attack.collude or then.collude,
        fresh=attack.fresh or then.fresh,
        lifted=_chained(attack.lifted, then.lifted),
        trigger=attack.trigger or then.trigger,
    )


def _reply(attack: Attack) -> Callable[..., Any] | None:
    """What an attack makes of an upload, also if it does not depend on the model."""
    upload = attack.upload
    return _chained(upload and (lambda delta, params, key: upload(delta, key)), attack.reply)


def _check(attack: Attack, name: str = "attack") -> None:
    expect(name, attack, Attack, "eh.attacks.sign_flip(0.2)")


def _chained(
    before: Callable[..., Any] | None, after: Callable[..., Any] | None
) -> Callable[..., Any] | None:
    """One change of a value after the other; what is between the value and the key, both of them get."""
    if before is None or after is None:
        return before or after

    def change(value: Any, *arguments: Any) -> Any:
        *public, key = arguments
        first, second = jax.random.split(key)
        return after(before(value, *public, first), *public, second)

    return change
