"""What a client checks before it gives anything away."""

from __future__ import annotations

from collections.abc import Collection

from evenhand.errors import EvenhandError
from evenhand.secure.plan import Plan

__all__ = ["TooFewError", "check_members", "check_plan", "check_present", "check_survivors"]


class TooFewError(EvenhandError):
    """Too few clients are left for the sum to be found."""


def check_members(plan: Plan, clients: Collection[int]) -> None:
    """Checks that messages are from, or for, clients that the sum's plan names.

    Raises:
      EvenhandError: a client is not in the plan.
    """
    if strange := sorted(set(clients) - (set(plan.clients) & set(plan.neighbours))):
        raise EvenhandError(
            f"Client {strange[0]} is not in the plan of this sum: leave its messages out, and start the round again."
        )


def check_plan(plan: Plan, me: int) -> None:
    """Checks that a plan, which comes from the server, asks for enough shares of this client's secrets.

    Raises:
      EvenhandError: half of those who keep them could find them, or a neighbour has another view of the plan.
    """
    check_members(plan, [me])
    near = plan.neighbours[me]
    check_members(plan, near)
    mutual = me not in near and all(me in plan.neighbours[other] for other in near)
    if not (mutual and (len(near) + 1) / 2 < plan.threshold <= len(near) + 1):
        raise EvenhandError(
            f"The plan of this sum does not protect client {me}: give neighbours that are mutual, and a threshold of "
            f"more than half of the {len(near) + 1} who keep its shares, not {plan.threshold}."
        )


def check_present(plan: Plan, me: int, offers: Collection[int]) -> None:
    """Checks that enough of a client and its neighbours made an offer.

    Raises:
      TooFewError: they are fewer than the threshold.
      EvenhandError: a client is not in the plan, or made no offer itself.
    """
    check_members(plan, [me, *offers])
    if me not in offers:
        raise EvenhandError(f"Client {me} has made no offer, so it cannot take part in this sum.")
    there = _left(plan, me, offers)
    if there < plan.threshold:
        raise TooFewError(
            f"Of client {me} and its {len(plan.neighbours[me])} neighbours, {there} are there, and "
            f"{plan.threshold} are needed: start the round again with other clients."
        )


def check_survivors(plan: Plan, offers: Collection[int], alive: Collection[int]) -> None:
    """Checks that the sum of all survivors can be found, and none of only some of them.

    Masks between survivors stay unknown to the server.  Where these masks link all survivors to each other, they cancel
    in the sum of all and in no other.

    Args:
      plan: of this sum.
      offers: who has sent their shares.
      alive: who has sent their numbers.

    Raises:
      TooFewError: too few are left around some client, or there is a group that no mask links to the others.
      EvenhandError: a survivor has made no offer, or a client is not in the plan.
    """
    check_members(plan, offers)
    if strange := sorted(set(alive) - set(offers)):
        raise EvenhandError(f"Client {strange[0]} has sent numbers, but no shares before: the sum is lost.")
    for client in offers:
        left = _left(plan, client, alive)
        if left and left < plan.threshold:
            raise TooFewError(
                f"Of client {client} and its neighbours, {left} have sent their numbers, and {plan.threshold} are "
                "needed: nobody reveals anything."
            )
    waiting = set(alive)
    linked = [waiting.pop()] if waiting else []
    while linked:
        found = waiting.intersection(plan.neighbours[linked.pop()])
        waiting -= found
        linked += found
    if waiting:
        raise TooFewError(
            "So many are lost that the others fall into groups without masks between them: as the server would learn "
            "each group's sum, nobody reveals anything."
        )


def _left(plan: Plan, client: int, among: Collection[int]) -> int:
    return sum(other in among for other in (*plan.neighbours[client], client))
