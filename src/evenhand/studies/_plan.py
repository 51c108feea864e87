"""What a study runs: methods with every choice of their hyper-parameters, for every seed."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from evenhand.errors import Argument, EvenhandError, expect, perhaps, whole_number
from evenhand.types import Algorithm

__all__ = ["Family", "Grid", "Methods", "Setting", "check_seeds", "settings", "shown"]


class Family(NamedTuple):
    """Methods that differ in hyper-parameters whose names are known only when the program runs.

    Attributes:
      arguments: the hyper-parameters.
      make: hyper-parameter -> value, to the method.
    """

    arguments: tuple[str, ...]
    make: Callable[[Mapping[str, Any]], Algorithm]


Methods: TypeAlias = Mapping[str, Algorithm | Callable[..., Algorithm] | Family]
Grid: TypeAlias = Mapping[str, Sequence[Any] | Mapping[str, Sequence[Any]]]

_MOST = 100_000
_COLUMNS = {"method", "seed", "status", "data", "attack", "systems"}


class Setting(NamedTuple):
    """A method with one choice of its hyper-parameters, under one condition.

    Attributes:
      method: its name in the study.
      numbers: hyper-parameter -> value, in the order of the factory's arguments.
      case: what else is varied, ``"data"``, ``"attack"`` or ``"systems"`` -> name; empty where nothing is.
    """

    method: str
    numbers: Mapping[str, Any]
    case: Mapping[str, str] = {}

    def __str__(self) -> str:
        """As an expression, followed by the condition: ``fedprox(lr=0.1, mu=1) [data=digits]``."""
        given = ", ".join(f"{name}={shown(value)}" for name, value in self.numbers.items())
        within = ", ".join(f"{name}={value}" for name, value in self.case.items())
        if not self.method.endswith(")"):
            given = f"({given})"
        elif given:  # its name is an expression already
            given = f", {given}"
        return f"{self.method}{given}" + (f" [{within}]" if within else "")

    def __hash__(self) -> int:
        return hash(str(self))


def shown(value: Any) -> str:
    """A hyper-parameter as a person writes it."""
    return format(value, ".6g") if isinstance(value, float) else str(value)


def settings(
    methods: Methods, grid: Grid | None
) -> tuple[dict[str, list[Setting]], dict[str, Callable[[Setting], Algorithm]]]:
    """The settings of each method, and what makes a method from one of them.

    Raises:
      EvenhandError: a method's argument has no values, or values are for no argument.
    """
    expect("methods", methods, Mapping, '{"fedavg": fedavg(work), "fedprox": lambda lr, mu: ...}')
    if not methods:
        raise EvenhandError("study(methods={}): give at least one method, by name.")
    expect("grid", grid, Mapping | None, '{"lr": [0.01, 0.1]}')
    axes = {name: values for name, values in (grid or {}).items() if not isinstance(values, Mapping)}
    own = {name: values for name, values in (grid or {}).items() if isinstance(values, Mapping)}
    for name in own:
        if name not in methods:
            raise EvenhandError(
                f"study(grid): there is no method {name!r}{perhaps(name, methods)}: its own grid needs its name."
            )
    found: dict[str, list[Setting]] = {}
    makers: dict[str, Callable[[Setting], Algorithm]] = {}
    used = set[str]()
    for name, method in methods.items():
        arguments = _arguments(name, method)
        given = {**axes, **own.get(name, {})}
        for extra in own.get(name, {}):
            if extra not in arguments:
                raise EvenhandError(
                    f"study(grid): {name} has no argument {extra!r}{perhaps(extra, arguments)}."
                )
        needed = [argument for argument, has_default in arguments.items() if not has_default]
        if missing := [argument for argument in needed if argument not in given]:
            raise EvenhandError(
                f"study(grid): {name} needs values of {missing[0]!r}, such as grid={{{missing[0]!r}: [0.01, 0.1]}}."
            )
        taken = {argument: _values(argument, given[argument]) for argument in arguments if argument in given}
        used |= set(taken)
        found[name] = [
            Setting(name, dict(zip(taken, choice, strict=True)))
            for choice in itertools.product(*taken.values())
        ]
        makers[name] = _maker(name, method)
    if unused := [axis for axis in axes if axis not in used]:
        known = {argument for name, method in methods.items() for argument in _arguments(name, method)}
        raise EvenhandError(
            f"study(grid): no method has an argument {unused[0]!r}{perhaps(unused[0], known)}: leave it out."
        )
    if sum(map(len, found.values())) > _MOST:
        raise EvenhandError(f"study(grid): that makes more than {_MOST:,} settings: give fewer values.")
    _expect_distinct([setting for each in found.values() for setting in each])
    return found, makers


def _expect_distinct(wanted: Sequence[Setting]) -> None:
    known = dict[str, Setting]()
    for setting in wanted:
        if (other := known.setdefault(str(setting), setting)) is not setting:
            raise EvenhandError(
                f"study has {str(setting)!r:.60} twice, under {other.method!r:.40} and {setting.method!r:.40}: leave "
                "one of them out, or give it another name."
            )


def check_seeds(seeds: int | Iterable[int]) -> list[int]:
    """The seeds, distinct; a number ``n`` stands for ``0, ..., n - 1``."""
    if isinstance(seeds, Iterable):
        found = [whole_number("seeds", seed, 0, 2**32 - 1) for seed in seeds]
    else:
        found = list(range(whole_number("seeds", seeds, 1, 10_000)))
    if not found or len(set(found)) < len(found):
        shown = ",".join(map(str, found))
        raise EvenhandError(
            Argument("seeds", f"{shown:.60}"), ": give at least one seed, and none of them twice."
        )
    return found


def _arguments(name: str, method: Any) -> dict[str, bool]:
    """Argument of a factory -> whether it has a default."""
    if isinstance(method, Algorithm):
        return {}
    if isinstance(method, Family):
        return dict.fromkeys(method.arguments, False)
    if not callable(method):
        raise EvenhandError(
            f"study(methods): {name} is {method!r:.60}: give a method, or a function that makes one."
        )
    parameters = inspect.signature(method).parameters.values()
    return {
        each.name: each.default is not each.empty
        for each in parameters
        if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    }


def _values(argument: str, values: Any) -> list[Any]:
    found = list(values) if isinstance(values, Iterable) and not isinstance(values, str) else []
    found = [value.item() if isinstance(value, np.generic) else value for value in found]
    if argument in _COLUMNS:
        raise EvenhandError(
            f"study(grid): {argument!r} is a column of the results: call the argument otherwise."
        )
    if not found or len({shown(value) for value in found}) < len(found):
        raise EvenhandError(f"study(grid): {argument}={values!r:.60}: give a list of distinct values.")
    for value in found:
        if " at 0x" in shown(value):  # which differs from process to process
            raise EvenhandError(
                f"study(grid): {argument} has a value of type {type(value).__name__}, which has no name to be found "
                "again by: give names, and let the method's function choose by them."
            )
    return found


def _maker(name: str, method: Any) -> Callable[[Setting], Algorithm]:
    def make(setting: Setting) -> Algorithm:
        if isinstance(method, Family):
            made = method.make(setting.numbers)
        else:
            made = method if isinstance(method, Algorithm) else method(**setting.numbers)
        expect(name, made, Algorithm, "eh.algorithms.fedavg(eh.local.sgd(model, 0.1, epochs=1))")
        return made

    return make
