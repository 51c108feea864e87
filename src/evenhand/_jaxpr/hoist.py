"""Programs in which the numbers of a method are inputs, so that changing one does not compile anything.

A method closes over its hyper-parameters, so a traced program has them as literals.  Here they become arguments: two
programs that differ in a learning rate only are one program, called with other numbers.  Literals that mean something
to the compiler (0, 1, -1, the infinities) stay where they are, and going to or from one of them compiles anew.  So does
another array: only numbers of Python and NumPy become arguments.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from evenhand._jaxpr import CALLS, KEPT_WHOLE, JaxprEqn, Literal, jaxpr_as_fun, programs
from evenhand.types import Array


class Hoisted(NamedTuple):
    """A program apart from its numbers.

    Attributes:
      key: equal for programs that differ in their numbers only.
      values: the numbers, float32 ``(n,)``.
      constants: the arrays that the program closes over.
      run: ``(values, constants, *arguments) -> results``, flat.
    """

    key: Hashable
    values: np.ndarray[Any, np.dtype[np.float32]]
    constants: Sequence[Array]
    run: Callable[[Array, Sequence[Array], Sequence[Array]], list[Array]]


def is_switched_on() -> bool:
    """Whether numbers become arguments; ``EVENHAND_HOIST=off`` in the environment leaves them where they are."""
    return os.environ.get("EVENHAND_HOIST", "").lower() not in {"off", "no", "false", "0"}


def warn_of(error: Exception) -> None:
    """Warns that this version of JAX is not known, and what that costs."""
    warnings.warn(
        f"JAX {jax.__version__} keeps programs in a way that Evenhand does not know ({error!r}). Results are the same,"
        f" but each new number, such as another learning rate, compiles the rounds again.",
        stacklevel=2,
    )


def unchanged(program: Any) -> Hoisted:
    """``program`` as it is, which shares nothing with any other."""
    function = jaxpr_as_fun(program)
    nothing = np.zeros(0, np.float32)
    return Hoisted(object(), nothing, (), lambda literals, constants, arguments: function(*arguments))


def hoist(program: Any) -> Hoisted:
    """``program``, closed, with its literal numbers as an argument.

    Raises:
      programs.UnknownForm: JAX keeps the program in a way that is not known.
    """
    jaxpr, constants = programs.opened(program)
    places: dict[int, int] = {}
    values: list[float] = []
    for literal in _literals(program):
        if id(literal) not in places:
            places[id(literal)] = len(values)
            values.append(float(literal.val))
    strangers = sorted(set(_strangers(program)))
    if strangers:
        warn_of(programs.UnknownForm(f"numbers inside {', '.join(strangers)}"))

    def run(values: Array, constants: Sequence[Array], arguments: Sequence[Array]) -> list[Array]:
        literals = _Literals(values, places)
        return programs.evaluate(jaxpr, constants, arguments, partial(_apply, literals), literals.read)

    return Hoisted(_described(program, places), np.array(values, np.float32), constants, run)


class Keyed:
    """What equals another value of its class that has the same key."""

    def __init__(self, key: Hashable) -> None:
        self._key = key

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self._key == other._key


class ByProgram(Keyed):
    """A function as a key: it equals another one that is the same program on such arguments, with the same numbers.

    Caches of compiled programs that are keyed with a method's own functions would grow with each method that is built,
    though all of them are one program.
    """

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._function = function
        program, results = jax.make_jaxpr(function, return_shape=True)(*arguments)
        try:
            hoisted = hoist(program)
        except programs.UnknownForm:
            super().__init__(id(function))  # it is held here, so that no other one gets its address
        else:
            structure = jax.tree.structure((arguments, results))
            constants = _digests(hoisted.constants)
            super().__init__((hoisted.key, hoisted.values.tobytes(), constants, structure))

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)


def by_program(function: Callable[..., Any], *arguments: Any) -> ByProgram:
    """``function``, which compares by what holds it, as the program that it is on arguments of these shapes."""
    leaves, structure = jax.tree.flatten(arguments)
    return _by_program(function, structure, tuple((np.shape(leaf), leaf.dtype) for leaf in leaves))


@lru_cache(maxsize=16)  # traced once, though a run is evaluated many times
def _by_program(function: Callable[..., Any], structure: Any, form: tuple[Any, ...]) -> ByProgram:
    like = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in form]
    return ByProgram(function, jax.tree.unflatten(structure, like))


def inner_constants(value: Any) -> Iterator[bytes]:
    """The arrays that programs inside a program close over: parts of what is compiled, so their values count."""
    for program in programs.within(value):
        jaxpr, constants = programs.opened(program)
        yield from map(_bytes, constants)
        for equation in jaxpr.eqns:
            yield from inner_constants(equation.params)


def _digests(constants: Sequence[Any]) -> tuple[bytes, ...]:
    return tuple(hashlib.sha256(_bytes(constant)).digest() for constant in constants)


def _bytes(constant: Any) -> bytes:
    if isinstance(constant, jax.Array) and jnp.issubdtype(constant.dtype, jax.dtypes.prng_key):
        constant = jax.random.key_data(constant)
    array = np.asarray(constant)
    return f"{array.dtype}{array.shape}".encode() + array.tobytes()


# --- numbers -----------------------------------------------------------------------------------------------------


class _Literals(NamedTuple):
    values: Array
    places: dict[int, int]

    def read(self, literal: Literal) -> Any:
        place = self.places.get(id(literal))
        return literal.val if place is None else self.values[place]


def _is_hoisted(variable: Any) -> TypeGuard[Literal]:
    """Whether this is a literal that a method may have been given."""
    if not isinstance(variable, Literal) or np.shape(variable.val):
        return False
    if np.result_type(variable.val) != np.float32:
        return False
    value = float(variable.val)
    return bool(np.isfinite(value)) and value not in (0.0, 1.0, -1.0)


def _entered(equation: JaxprEqn) -> list[Any]:
    """The programs inside an equation whose numbers become arguments."""
    return [] if equation.primitive.name in KEPT_WHOLE else programs.inner(equation)


def _literals(program: Any) -> Iterator[Literal]:
    for equation in programs.opened(program)[0].eqns:
        yield from (variable for variable in equation.invars if _is_hoisted(variable))
        for inner in _entered(equation):
            yield from _literals(inner)


def _strangers(program: Any) -> Iterator[str]:
    """The names of unknown primitives with numbers in programs inside them."""
    for equation in programs.opened(program)[0].eqns:
        entered = _entered(equation)
        for inner in entered:
            yield from _strangers(inner)
        if entered or equation.primitive.name in KEPT_WHOLE or equation.params.get("branches_platforms"):
            continue
        if any(True for inner in programs.within(equation.params) for _ in _literals(inner)):
            yield equation.primitive.name


# --- keys --------------------------------------------------------------------------------------------------------


def _described(program: Any, places: Mapping[int, int]) -> Hashable:
    """Everything that decides what ``program`` computes, but for the values of the numbers that have a place.

    Values of parameters count as JAX itself counts them, by their own equality.
    """
    names: dict[Any, int] = {}

    def name(variable: Any) -> Hashable:
        if not isinstance(variable, Literal):
            return names.setdefault(variable, len(names)), variable.aval
        # Which number it is counts too: a program may use one of them in two places.
        place = places.get(id(variable))
        return ("literal", _bytes(variable.val)) if place is None else ("number", place), variable.aval

    jaxpr = programs.opened(program)[0]
    lines: list[Hashable] = [tuple(map(name, (*jaxpr.constvars, *jaxpr.invars)))]
    for equation in jaxpr.eqns:
        entered = _entered(equation)
        # What a call keeps beside its program is for differentiation and printing.
        kept = {} if equation.primitive.name in CALLS else equation.params
        kept = programs.beside(equation) if entered and kept else kept
        beside = tuple((key, _counted(value)) for key, value in sorted(kept.items()))
        operands, results = tuple(map(name, equation.invars)), tuple(map(name, equation.outvars))
        inside = tuple(_closed(inner, places) for inner in entered)
        lines.append((equation.primitive, equation.ctx, beside, operands, results, inside))
    return (*lines, tuple(map(name, jaxpr.outvars)))


def _closed(program: Any, places: Mapping[int, int]) -> Hashable:
    return _described(program, places), _digests(programs.opened(program)[1])


def _counted(value: Any) -> Hashable:
    """A parameter as a part of a key; JAX keeps to parameters that can be hashed and compared."""
    if programs.is_program(value):
        return _closed(value, {})  # not entered: each literal in it counts, with its value
    if type(value) is tuple or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return type(value), tuple(map(_counted, value))
    if isinstance(value, bool | int | float | complex):
        return type(value), repr(value)  # True is not 1 here, nor 0.0 -0.0
    return value


# --- evaluation --------------------------------------------------------------------------------------------------


def _call(literals: _Literals, program: Any, *arguments: Any) -> list[Any]:
    opened = programs.opened(program)
    return programs.evaluate(*opened, arguments, partial(_apply, literals), literals.read)


def _apply(literals: _Literals, equation: JaxprEqn, operands: list[Any]) -> Sequence[Any]:
    """The results of one equation."""
    if not any(True for inner in _entered(equation) for _ in _literals(inner)):
        return programs.as_it_is(equation, operands)
    if equation.primitive.name == "while":
        return _while(equation, operands, literals)
    if equation.primitive.name == "shard_map":
        return _shard_map(equation.params, operands, literals)
    return programs.again(equation, operands, partial(_call, literals))


def _while(equation: Any, operands: list[Any], literals: _Literals) -> Sequence[Any]:
    # Bound as it is, not through lax.while_loop: under vmap its condition is a vector, one entry per lane.
    parameters = equation.params
    of_cond, of_body = parameters["cond_nconsts"], parameters["body_nconsts"]
    changed = {
        "cond_nconsts": of_cond + 1,
        "body_nconsts": of_body + 1,
        "cond_jaxpr": _traced(parameters["cond_jaxpr"], literals),
        "body_jaxpr": _traced(parameters["body_jaxpr"], literals),
    }
    fixed = [literals.values, *operands[:of_cond], literals.values, *operands[of_cond : of_cond + of_body]]
    return equation.primitive.bind(*fixed, *operands[of_cond + of_body :], **{**parameters, **changed})


def _with_literals(program: Any, literals: _Literals) -> Callable[..., list[Any]]:
    """The program as a function of the numbers and its own arguments."""
    return lambda values, *arguments: _call(literals._replace(values=values), program, *arguments)


def _traced(program: Any, literals: _Literals) -> Any:
    like = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in (literals.values, *program.in_avals)]
    return jax.make_jaxpr(_with_literals(program, literals))(*like)


def _shard_map(parameters: Any, operands: list[Any], literals: _Literals) -> Sequence[Any]:
    everywhere = jax.shard_map(
        _with_literals(parameters["jaxpr"], literals),
        mesh=parameters["mesh"],
        in_specs=(PartitionSpec(), *parameters["in_specs"]),
        out_specs=list(parameters["out_specs"]),
        axis_names=set(parameters["newly_manual_axes"]),
        check_vma=parameters["check_vma"],
    )
    return everywhere(literals.values, *operands)
