"""Private learning: clipping, noise, sampling and accounting, and the methods made of them.

A method lists what it gives away (:class:`evenhand.types.Release`), :func:`spent` adds it up, and :func:`noise_for`
says how much noise a budget calls for.  ``accountant="pld"`` needs the package ``dp-accounting``, which
``pip install 'evenhand[privacy]'`` brings.  Aggregators and local work of this package carry what they give away with
them; :func:`private` makes the promise for a whole method, or says why it cannot.
"""

from evenhand.privacy.account import Account, account, usual_delta
from evenhand.privacy.accounting import epsilon, spent
from evenhand.privacy.audit import Audit, audit_mean, audit_work, least_epsilon
from evenhand.privacy.calibration import clients_for, noise_for, steps_for
from evenhand.privacy.concentrated import epsilon_of_zcdp, joint
from evenhand.privacy.dp_fedavg import dp_fedadam, dp_fedavg
from evenhand.privacy.dp_ftrl import dp_ftrl
from evenhand.privacy.dp_sgd import dp_sgd
from evenhand.privacy.noisy_mean import AdaptiveClip, adaptive_clip, noisy_mean
from evenhand.privacy.private import private, promise
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
    "Account",
    "AdaptiveClip",
    "Audit",
    "Spent",
    "account",
    "adaptive_clip",
    "amplified",
    "audit_mean",
    "audit_work",
    "clients_for",
    "dp_fedadam",
    "dp_fedavg",
    "dp_ftrl",
    "dp_sgd",
    "epsilon",
    "epsilon_of_rdp",
    "epsilon_of_zcdp",
    "joint",
    "least_epsilon",
    "noise_for",
    "noisy_mean",
    "private",
    "promise",
    "rdp",
    "spent",
    "steps_for",
    "usual_delta",
]
