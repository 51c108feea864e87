r"""The types every method, aggregator and attack is written in.

A federated method is a value, not a subclass: a factory closes over the hyper-parameters and returns a NamedTuple of
pure functions.  The compiled engine and its readable twin run the same value, so every function obeys one set of laws.

**Laws.**

* *Pure.*  The same arguments give the same result, arguments are not modified, randomness comes from a key passed in.
* *Traceable.*  Arguments may be JAX tracers: no branch on a value, no shape that depends on one.
* *Closed.*  States keep their tree structure, shapes and dtypes from one round to the next.
* *Untrusted.*  Everything in an :class:`Upload` comes from a client, which may be malicious or broken.  What is not
  finite, or has a weight below 0 or above the largest honest one, is rejected before an aggregator sees it.
* *Presence.*  A cohort has ``m`` slots, some of which may be empty because a client was not drawn, dropped out, or
  was rejected.  The report and the upload of an empty slot are zeros, and no result depends on them.

Symbols: ``N`` clients, ``m`` slots in a round's cohort, ``n_k`` training examples at client ``k``, ``w`` the broadcast
parameters, ``F_k(w)`` client ``k``'s mean training loss.
"""

from evenhand.types._client import (
    Array,
    ClientData,
    Cohort,
    Effort,
    Info,
    Key,
    Model,
    Params,
    PyTree,
    Report,
    Upload,
)
from evenhand.types._method import Algorithm, Attack, Phase, Privacy, Sampling
from evenhand.types._reduction import (
    Aggregator,
    Need,
    OfLosses,
    Release,
    Risk,
    Stack,
    Sum,
    Summation,
)

__all__ = [
    "Aggregator",
    "Algorithm",
    "Array",
    "Attack",
    "ClientData",
    "Cohort",
    "Effort",
    "Info",
    "Key",
    "Model",
    "Need",
    "OfLosses",
    "Params",
    "Phase",
    "Privacy",
    "PyTree",
    "Release",
    "Report",
    "Risk",
    "Sampling",
    "Stack",
    "Sum",
    "Summation",
    "Upload",
]
