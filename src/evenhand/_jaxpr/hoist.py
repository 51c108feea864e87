"""Programs in which the numbers of a method are inputs, so that changing one does not compile anything.

A method closes over its hyper-parameters, so a traced program has them as literals.  Here they become arguments: two
programs that differ in a learning rate only are one program, called with other numbers.  Literals that mean something
to the compiler (0, 1, -1, the infinities) stay where they are, and going to or from one of them compiles anew.

Arrays that the program closes over are arguments, too, and so are large ones that a program inside closes over, such as
the frozen parameters of a model in a jitted gradient.  JAX 0.10 writes these into what is compiled: 40 MB of them take
ten times as long to compile, and are in memory and in the cache of programs once more for each program.  (JAX has a
setting with the same effect, ``jax_use_simplified_jaxpr_constants``, on which its authors ask not to rely.)  Another
small array inside compiles anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import PartitionSpec

from evenhand._jaxpr import CALLS, KEPT_WHOLE, JaxprEqn, Literal, jaxpr_as_fun, programs
from evenhand.types import Array


class Hoisted(NamedTuple):
    """A program apart from its numbers.

    Attributes:
      key: equal for programs that differ in their numbers only.
      values: the numbers, float32 ``(n,)``.
      constants: the arrays that the program closes over, then large ones that programs inside it close over.
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


def hoist(program: Any, *, warn: bool = True) -> Hoisted:
    """``program``, closed, with its literal numbers as an argument; ``warn`` of those that it has to keep.

    Raises:
      programs.UnknownForm: JAX keeps the program in a way that is not known.
    """
    jaxpr, constants = programs.opened(program)
    large = {id(array): array for array in _large_arrays(program)}
    places: dict[int, int] = {}
    values: list[float] = []
    for literal in _literals(program):
        if id(literal) not in places:
            places[id(literal)] = len(values)
            values.append(float(literal.val))
    strangers = sorted(set(_strangers(program)))
    if strangers and warn:
        warn_of(programs.UnknownForm(f"numbers inside {', '.join(strangers)}"))

    slots = {address: slot for slot, address in enumerate(large)}

    def run(values: Array, constants: Sequence[Array], arguments: Sequence[Array]) -> list[Array]:
        own, inside = constants[: len(jaxpr.constvars)], constants[len(jaxpr.constvars) :]
        literals = _Literals(values, tuple(inside), places, slots)
        return programs.evaluate(jaxpr, own, arguments, partial(_apply, literals), literals.read)

    key = _described(program, _Places(places, slots))
    return Hoisted(key, np.array(values, np.float32), [*constants, *large.values()], run)


class Keyed:
    """What equals another value of its class that has the same key, and was made under the same settings of JAX."""

    def __init__(self, key: Hashable) -> None:
        # What is kept by it may have been traced, which depends on the settings.
        self._key = key, _settings()

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self._key == other._key


def _settings() -> Hashable:
    """The settings of JAX on which a traced program depends."""
    config: Any = jax.config
    return (
        config.jax_default_matmul_precision,
        config.jax_default_prng_impl,
        config.jax_enable_x64,
        config.jax_numpy_dtype_promotion,
        config.jax_threefry_partitionable,
    )


class ByProgram(Keyed):
    """A function as a key: it equals another one that is the same program on such arguments, with the same numbers.

    Caches of compiled programs that are keyed with a method's own functions would grow with each method that is built,
    though all of them are one program.
    """

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._function = function
        program, results = jax.make_jaxpr(function, return_shape=True)(*arguments)
        # Else its address: it is held here, so that no other one gets that.
        super().__init__(_program_key(program, (arguments, results))[0] or id(function))

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)


class AsTraced(Keyed):
    """A function as a key, as :class:`ByProgram`, and as the program: of the function, it holds what the program does.

    It takes arguments of the shapes and dtypes that it was traced on.  ``nbytes``: of the arrays that it closes over;
    infinite where it equals nothing but itself.
    """

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        program, results = jax.make_jaxpr(function, return_shape=True)(*arguments)
        key, self.nbytes = _program_key(program, (arguments, results))
        super().__init__(key or object())
        self.__name__ = function.__name__  # JAX names the compiled program after it
        self._run, self._results = jaxpr_as_fun(program), jax.tree.structure(results)

    def __call__(self, *arguments: Any) -> Any:
        return jax.tree.unflatten(self._results, self._run(*jax.tree.leaves(arguments)))


def _program_key(program: Any, tree: Any) -> tuple[Hashable, float]:
    """What is equal for programs with equal numbers, arrays and structures, and the most bytes that its arrays have.

    None and infinity where the program is not known, of which the rounds warn.
    """
    with contextlib.suppress(Exception):
        hoisted = hoist(program, warn=False)
        constants = _digests(hoisted.constants)
        key = hoisted.key, hoisted.values.tobytes(), constants, jax.tree.structure(tree)
        hash(key)
        return key, sum(np.size(array) * 8 for array in hoisted.constants)
    return None, math.inf


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
    """The values of literals and of large arrays inside, and which is where, by address."""

    values: Array
    arrays: tuple[Array, ...]
    places: dict[int, int]
    slots: dict[int, int]

    def read(self, literal: Literal) -> Any:
        place = self.places.get(id(literal))
        return literal.val if place is None else self.values[place]

    def constants(self, closed: Sequence[Any]) -> list[Any]:
        """The constants of a program inside, the large ones as they are given now."""
        return [
            constant if (slot := self.slots.get(id(constant))) is None else self.arrays[slot]
            for constant in closed
        ]

    @property
    def operands(self) -> list[Array]:
        """All values, as operands of an equation."""
        return [self.values, *self.arrays]

    def given(self, operands: Sequence[Any]) -> tuple[_Literals, Sequence[Any]]:
        """The same with the values among the operands of an equation, and its other operands."""
        count = 1 + len(self.arrays)
        return self._replace(values=operands[0], arrays=tuple(operands[1:count])), operands[count:]


class _Places(NamedTuple):
    """Which literals and which large arrays are arguments, by address."""

    literals: Mapping[int, int]
    arrays: Mapping[int, int]


_LARGE = 2**18
"""Bytes from which an array inside is an argument; the compiler may make something of the values of small ones."""


def _is_large(constant: Any) -> bool:
    # Only arrays of JAX are never changed, and the program holds them, so that their addresses stay theirs.
    floating = isinstance(constant, jax.Array) and jnp.issubdtype(constant.dtype, jnp.floating)
    return floating and not isinstance(constant, Tracer) and constant.nbytes >= _LARGE


def has_large_arrays(program: Any) -> bool:
    """Whether a program, or one inside it, closes over arrays that should be arguments of what is compiled."""
    own = any(map(_is_large, programs.opened(program)[1]))
    return own or any(True for _ in _large_arrays(program))


def _large_arrays(program: Any) -> Iterator[Array]:
    """The large arrays that programs inside ``program`` close over."""
    for equation in programs.opened(program)[0].eqns:
        for inner in _entered(equation):
            yield from (constant for constant in programs.opened(inner)[1] if _is_large(constant))
            yield from _large_arrays(inner)


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


def _described(program: Any, places: _Places) -> Hashable:
    """Everything that decides what ``program`` computes, but for the values of the numbers that have a place.

    Values of parameters count as JAX itself counts them, by their own equality.
    """
    names: dict[Any, int] = {}

    def name(variable: Any) -> Hashable:
        if not isinstance(variable, Literal):
            return names.setdefault(variable, len(names)), variable.aval
        # Which number it is counts too: a program may use one of them in two places.
        place = places.literals.get(id(variable))
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


def _closed(program: Any, places: _Places) -> Hashable:
    constants = programs.opened(program)[1]
    # Of an argument, the place counts: two arrays of one shape may be used in either order.
    given = tuple(places.arrays.get(id(constant)) for constant in constants)
    kept = [constant for constant, place in zip(constants, given, strict=True) if place is None]
    return _described(program, places), given, _digests(kept)


def _counted(value: Any) -> Hashable:
    """A parameter as a part of a key; JAX keeps to parameters that can be hashed and compared."""
    if programs.is_program(value):
        return _closed(value, _Places({}, {}))  # not entered: each literal in it counts, with its value
    if type(value) is tuple or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return type(value), tuple(map(_counted, value))
    if isinstance(value, bool | int | float | complex):
        return type(value), repr(value)  # True is not 1 here, nor 0.0 -0.0
    return value


# --- evaluation --------------------------------------------------------------------------------------------------


def _call(literals: _Literals, program: Any, *arguments: Any) -> list[Any]:
    jaxpr, closed = programs.opened(program)
    constants = literals.constants(closed)
    return programs.evaluate(jaxpr, constants, arguments, partial(_apply, literals), literals.read)


def _apply(literals: _Literals, equation: JaxprEqn, operands: list[Any]) -> Sequence[Any]:
    """The results of one equation."""
    if not any(_is_changed(inner) for inner in _entered(equation)):
        return programs.as_it_is(equation, operands)
    if equation.primitive.name == "while":
        return _while(equation, operands, literals)
    if equation.primitive.name == "shard_map":
        return _shard_map(equation.params, operands, literals)
    return programs.again(equation, operands, partial(_call, literals))


def _is_changed(program: Any) -> bool:
    """Whether a program inside has a number or an array that is an argument now."""
    return any(True for _ in _literals(program)) or has_large_arrays(program)


def _while(equation: Any, operands: list[Any], literals: _Literals) -> Sequence[Any]:
    # Bound as it is, not through lax.while_loop: under vmap its condition is a vector, one entry per lane.
    parameters = equation.params
    of_cond, of_body = parameters["cond_nconsts"], parameters["body_nconsts"]
    changed = {
        "cond_nconsts": of_cond + len(literals.operands),
        "body_nconsts": of_body + len(literals.operands),
        "cond_jaxpr": _traced(parameters["cond_jaxpr"], literals),
        "body_jaxpr": _traced(parameters["body_jaxpr"], literals),
    }
    own = literals.operands
    fixed = [*own, *operands[:of_cond], *own, *operands[of_cond : of_cond + of_body]]
    return equation.primitive.bind(*fixed, *operands[of_cond + of_body :], **{**parameters, **changed})


def _with_literals(program: Any, literals: _Literals) -> Callable[..., list[Any]]:
    """The program as a function of the numbers, the large arrays and its own arguments."""

    def run(*operands: Any) -> list[Any]:
        own, arguments = literals.given(operands)
        return _call(own, program, *arguments)

    return run


def _traced(program: Any, literals: _Literals) -> Any:
    like = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in (*literals.operands, *program.in_avals)]
    return jax.make_jaxpr(_with_literals(program, literals))(*like)


def _shard_map(parameters: Any, operands: list[Any], literals: _Literals) -> Sequence[Any]:
    everywhere = jax.shard_map(
        _with_literals(parameters["jaxpr"], literals),
        mesh=parameters["mesh"],
        in_specs=(*[PartitionSpec()] * len(literals.operands), *parameters["in_specs"]),
        out_specs=list(parameters["out_specs"]),
        axis_names=set(parameters["newly_manual_axes"]),
        check_vma=parameters["check_vma"],
    )
    return everywhere(*literals.operands, *operands)
