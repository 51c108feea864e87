"""What methods are built from, for people who write their own: each name here is also what the package's methods use.

============================  =======================================================================================
:func:`training`              the phase of FedAvg and its variants: local work with a correction, an average, a step
:func:`beside`                a personal model beside any method, as in Ditto
:func:`private_work`          private local work, from a rule that sees examples through noisy queries alone
:func:`distances`             squared distances between stacked uploads, for aggregators such as Krum
============================  =======================================================================================

:class:`ServerState`, :class:`Message`, :func:`server_init`, :func:`server_step`, :func:`global_params`,
:func:`kept_state` and :func:`report` go with ``training``; :class:`UpdateRule`, :class:`Noise`, :class:`Query` and
:class:`Iteration` with ``private_work``; :func:`norms`,
:func:`least` and :func:`mean_of` with ``distances``.  ``docs/extending.md`` shows them at work.
"""

from evenhand.aggregators.stacked import distances, least, mean_of, norms
from evenhand.algorithms.averaging import (
    Message,
    ServerState,
    global_params,
    kept_state,
    report,
    server_init,
    server_step,
    training,
)
from evenhand.algorithms.beside import beside
from evenhand.privacy.update_rules import Iteration, Noise, Query, UpdateRule, private_work

__all__ = [
    "Iteration",
    "Message",
    "Noise",
    "Query",
    "ServerState",
    "UpdateRule",
    "beside",
    "distances",
    "global_params",
    "kept_state",
    "least",
    "mean_of",
    "norms",
    "private_work",
    "report",
    "server_init",
    "server_step",
    "training",
]
