"""What goes around an attack: whose it is, in which rounds, and a second attack by the same clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax

from evenhand.errors import EvenhandError, expect
from evenhand.types import Attack

__all__ = ["both", "by_clients", "during"]


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
    if attack.collude and then.upload:
        raise EvenhandError(
            "both(): a coalition replaces uploads after each client has changed its own, so the second attack would "
            "have no effect: give the coalition as the second."
        )
    return attack._replace(
        rows=attack.rows or then.rows,
        upload=_chained(attack.upload, then.upload),
        report=_chained(attack.report, then.report),
        collude=attack.collude or then.collude,
        fresh=attack.fresh or then.fresh,
        lifted=_chained(attack.lifted, then.lifted),
        trigger=attack.trigger or then.trigger,
    )


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
