"""Even-handed federated learning: accurate, fair, robust, personal and private.

A method is a value made by a factory (:mod:`evenhand.algorithms`), a data set is flat rows plus offsets
(:mod:`evenhand.data`), a model is three pure functions (:mod:`evenhand.models`), and :func:`simulate` runs them.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if sys.argv[:1] == ["-m"] and ("-m", "evenhand") in zip(sys.orig_argv, sys.orig_argv[1:], strict=False):
    # ``python -m evenhand``: Python imports this package, and JAX with it, before it runs the command.
    import evenhand_command

    evenhand_command.guard()

from evenhand import _platform

_platform.prepare()

from evenhand import (
    aggregators,
    algorithms,
    attacks,
    build,
    centralized,
    data,
    evaluation,
    expressions,
    local,
    lowering,
    models,
    network,
    personalization,
    privacy,
    report,
    risks,
    rounds,
    sampling,
    secure,
    server_opt,
    simulation,
    streams,
    studies,
    systems,
    testing,
    theory,
    tree,
    types,
    watch,
)
from evenhand._version import __version__
from evenhand.errors import EvenhandError
from evenhand.simulation import Run, load_run, simulate
from evenhand.studies import load as load_study
from evenhand.studies import study
from evenhand.types import Algorithm, Model

if TYPE_CHECKING:
    from evenhand import sklearn as sklearn

__all__ = [
    "Algorithm",
    "EvenhandError",
    "Model",
    "Run",
    "__version__",
    "aggregators",
    "algorithms",
    "attacks",
    "build",
    "centralized",
    "data",
    "evaluation",
    "expressions",
    "load_run",
    "load_study",
    "local",
    "lowering",
    "models",
    "network",
    "personalization",
    "privacy",
    "report",
    "risks",
    "rounds",
    "sampling",
    "secure",
    "server_opt",
    "simulate",
    "simulation",
    "streams",
    "studies",
    "study",
    "systems",
    "testing",
    "theory",
    "tree",
    "types",
    "watch",
]


def __getattr__(name: str) -> Any:
    """``evenhand.sklearn``, imported when it is first asked for: scikit-learn takes a second that few need to wait."""
    if name == "sklearn":
        return importlib.import_module("evenhand.sklearn")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
