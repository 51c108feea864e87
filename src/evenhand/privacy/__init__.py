"""Private learning: clipping, noise, sampling and accounting, and the methods made of them.

Accounting: a method lists what it gives away (:class:`evenhand.types.Release`), :func:`spent` adds it up, and
:func:`noise_for` says how much noise a budget calls for.  ``accountant="pld"`` needs the package ``dp-accounting``,
which ``pip install 'evenhand[privacy]'`` brings.
"""

from evenhand.privacy.accounting import epsilon, spent
from evenhand.privacy.calibration import clients_for, noise_for, steps_for
from evenhand.privacy.concentrated import epsilon_of_zcdp, joint
from evenhand.privacy.renyi import (
    ORDERS,
    ORDERS_FEDERATED,
    ORDERS_FINE,
    Spent,
    amplified,
    epsilon_of_rdp,
    rdp,
)

__all__ = [
    "ORDERS",
    "ORDERS_FEDERATED",
    "ORDERS_FINE",
    "Spent",
    "amplified",
    "clients_for",
    "epsilon",
    "epsilon_of_rdp",
    "epsilon_of_zcdp",
    "joint",
    "noise_for",
    "rdp",
    "spent",
    "steps_for",
]
