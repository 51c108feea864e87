"""Even-handed federated learning: accurate, fair, robust, personal and private.

A method is a value made by a factory (:mod:`evenhand.algorithms`), a data set is flat rows plus offsets
(:mod:`evenhand.data`), a model is three pure functions (:mod:`evenhand.models`), and :func:`simulate` runs them.
"""

import gc
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if sys.argv[:1] == ["-m"] and ("-m", "evenhand") in zip(sys.orig_argv, sys.orig_argv[1:], strict=False):
    # ``python -m evenhand``: Python imports this package, and JAX with it, before it runs the command.
    import evenhand_command

    evenhand_command.begin(sys.argv[1:])

# What _platform.without_collections() does; it cannot be used here, since its module imports JAX.
if _collects := gc.isenabled():
    gc.disable()
try:
    from evenhand import _platform
finally:
    if _collects:
        gc.enable()

_platform.prepare()

from evenhand._version import __version__
from evenhand.errors import EvenhandError

if TYPE_CHECKING:
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
    from evenhand import sklearn as sklearn
    from evenhand.simulation import Run, load_run, simulate
    from evenhand.studies import load as load_study
    from evenhand.studies import study
    from evenhand.types import Algorithm, Model

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

_IN_PACKAGES = {
    "Algorithm": ("types", "Algorithm"),
    "Model": ("types", "Model"),
    "Run": ("simulation", "Run"),
    "load_run": ("simulation", "load_run"),
    "load_study": ("studies", "load"),
    "simulate": ("simulation", "simulate"),
    "study": ("studies", "study"),
}
"""Names above that are not packages -> the package that each comes from, and its name there."""


def __getattr__(name: str) -> Any:
    """A public name, imported when a program first asks for it: all of them take as long as JAX, and few need all."""
    with _platform.without_collections():
        if name in _IN_PACKAGES:
            package, inner = _IN_PACKAGES[name]
            value = vars(import_module(f"evenhand.{package}"))[inner]
        elif name in __all__ or name == "sklearn":
            value = import_module(f"evenhand.{name}")
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "sklearn"})
