"""Private learning: clipping, noise, sampling and accounting, and the methods made of them."""

from evenhand.privacy.account import Account, account, usual_delta
from evenhand.privacy.accounting import epsilon, spent
from evenhand.privacy.audit import Audit, audit_mean, audit_work, least_epsilon
from evenhand.privacy.dp_fedavg import dp_fedadam, dp_fedavg
from evenhand.privacy.dp_sgd import dp_sgd
from evenhand.privacy.noisy_mean import AdaptiveClip, adaptive_clip, noisy_mean
from evenhand.privacy.private import private

__all__ = [
    "Account",
    "AdaptiveClip",
    "Audit",
    "account",
    "adaptive_clip",
    "audit_mean",
    "audit_work",
    "dp_fedadam",
    "dp_fedavg",
    "dp_sgd",
    "epsilon",
    "least_epsilon",
    "noisy_mean",
    "private",
    "spent",
    "usual_delta",
]
