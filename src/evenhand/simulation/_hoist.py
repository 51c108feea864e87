"""Programs in which the numbers of a method are inputs, so that changing one does not compile anything.

A method closes over its hyper-parameters, so a traced program has them as literals.  Here they become arguments: two
programs that differ in a learning rate only are one program, called with other numbers.  Literals that mean something
to the compiler (0, 1, -1, the infinities) stay where they are, and going to or from one of them compiles anew.  So does
another array: only numbers of Python and NumPy become arguments.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jax.sharding import PartitionSpec

from evenhand.lowering._interpret import scan_counts
from evenhand.types import Array

__all__ = ["Hoisted", "hoist", "inner_constants"]

_INLINE = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vmap_call": "call",
}
"""Primitives that only call a function, and under which name they keep it; nothing is differentiated any more."""
_INNER = {
    "while": ("cond_jaxpr", "body_jaxpr"),
    "scan": ("jaxpr",),
    "cond": ("branches",),
    "shard_map": ("jaxpr",),
} | {name: (inner,) for name, inner in _INLINE.items()}


class Hoisted(NamedTuple):
    """A program apart from its numbers.

    Attributes:
      key: equal for programs that differ in their numbers only.
      values: the numbers, float32 ``(n,)``.
      constants: the arrays that the program closes over.
      run: ``(values, constants, *arguments) -> results``, flat.
    """

    key: str
    values: np.ndarray[Any, np.dtype[np.float32]]
    constants: Sequence[Array]
    run: Callable[[Array, Sequence[Array], Sequence[Array]], list[Array]]


def hoist(program: ClosedJaxpr) -> Hoisted:
    """``program`` with its literal numbers as an argument."""
    places: dict[int, int] = {}
    values: list[float] = []
    for literal in _literals(program.jaxpr):
        if id(literal) not in places:
            places[id(literal)] = len(values)
            values.append(float(literal.val))

    def run(numbers: Array, constants: Sequence[Array], arguments: Sequence[Array]) -> list[Array]:
        return _evaluate(program.jaxpr, constants, arguments, _Numbers(numbers, places))

    digest = hashlib.sha256()
    for line in _describe(program.jaxpr):
        digest.update(line.encode())
    for constant in inner_constants(program.jaxpr):
        digest.update(constant)
    return Hoisted(digest.hexdigest(), np.array(values, np.float32), program.consts, run)


def inner_constants(value: Any) -> Iterator[bytes]:
    """The arrays that programs inside a program close over: parts of what is compiled, so their values count."""
    if isinstance(value, ClosedJaxpr):
        for constant in value.consts:
            yield _bytes(constant)
        yield from inner_constants(value.jaxpr)
    elif isinstance(value, Jaxpr):
        for equation in value.eqns:
            yield from inner_constants(equation.params)
    elif isinstance(value, Mapping):
        yield from inner_constants(tuple(value.values()))
    elif isinstance(value, tuple | list):
        for each in value:
            yield from inner_constants(each)


def _bytes(constant: Any) -> bytes:
    if isinstance(constant, jax.Array) and jnp.issubdtype(constant.dtype, jax.dtypes.prng_key):
        constant = jax.random.key_data(constant)
    array = np.asarray(constant)
    return f"{array.dtype}{array.shape}".encode() + array.tobytes()


class _Numbers(NamedTuple):
    values: Array
    places: dict[int, int]

    def read(self, literal: Literal) -> Any:
        place = self.places.get(id(literal))
        return literal.val if place is None else self.values[place]


def _is_number(variable: Any) -> TypeGuard[Literal]:
    """Whether this is a literal that a method may have been given."""
    if (
        not isinstance(variable, Literal)
        or np.shape(variable.val)
        or np.result_type(variable.val) != np.float32
    ):
        return False
    value = float(variable.val)
    return bool(np.isfinite(value)) and value not in (0.0, 1.0, -1.0)


def _inner(equation: Any) -> list[Jaxpr]:
    """The programs inside an equation that are entered here."""
    found: list[Jaxpr] = []
    for name in _INNER.get(equation.primitive.name, ()):
        value = equation.params[name]
        programs = value if isinstance(value, tuple) else (value,)
        found += [program.jaxpr if isinstance(program, ClosedJaxpr) else program for program in programs]
    return found


def _literals(program: Jaxpr) -> Iterator[Literal]:
    for equation in program.eqns:
        yield from (variable for variable in equation.invars if _is_number(variable))
        for inner in _inner(equation):
            yield from _literals(inner)


def _describe(program: Jaxpr) -> Iterator[str]:
    """Everything that decides what ``program`` computes, numbers left out."""
    names: dict[Any, int] = {}

    def name(variable: Any) -> str:
        if isinstance(variable, Literal):
            return f"number:{variable.aval}" if _is_number(variable) else f"{variable.val!r}:{variable.aval}"
        return f"{names.setdefault(variable, len(names))}:{variable.aval}"

    yield "|".join(name(variable) for variable in (*program.constvars, *program.invars))
    for equation in program.eqns:
        entered = _INNER.get(equation.primitive.name, ())
        # What a call keeps beside its program is for differentiation and printing.
        kept = {} if equation.primitive.name in _INLINE else equation.params
        parameters = {key: value for key, value in kept.items() if key not in entered}
        # With addresses: two callbacks of one name are two programs, and both live as long as what is cached.
        text = f"{equation.primitive.name}{sorted(parameters.items(), key=lambda item: item[0])}"
        operands = ",".join(name(variable) for variable in equation.invars)
        results = ",".join(name(variable) for variable in equation.outvars)
        yield f"{text}({operands})->{results}"
        for inner in _inner(equation):
            yield "{"
            yield from _describe(inner)
            yield "}"
    yield ";".join(name(variable) for variable in program.outvars)


def _evaluate(
    program: Jaxpr, constants: Sequence[Any], arguments: Sequence[Any], numbers: _Numbers
) -> list[Any]:
    known: dict[Any, Any] = {}

    def read(variable: Any) -> Any:
        return numbers.read(variable) if isinstance(variable, Literal) else known[variable]

    known.update(zip(program.constvars, constants, strict=True))
    known.update(zip(program.invars, arguments, strict=True))
    for equation in program.eqns:
        operands = [read(variable) for variable in equation.invars]
        with equation.ctx.manager:
            results = _apply(equation, operands, numbers)
        known.update(zip(equation.outvars, results, strict=True))
    return [read(variable) for variable in program.outvars]


def _apply(equation: Any, operands: list[Any], numbers: _Numbers) -> Sequence[Any]:
    """The results of one equation."""
    name, parameters = equation.primitive.name, equation.params
    if not any(True for inner in _inner(equation) for _ in _literals(inner)):
        results = equation.primitive.bind(*operands, **equation.primitive.get_bind_params(parameters))
        return results if equation.primitive.multiple_results else [results]

    def closed(program: ClosedJaxpr, *arguments: Any) -> list[Any]:
        return _evaluate(program.jaxpr, program.consts, arguments, numbers)

    if name in _INLINE:
        inner = parameters[_INLINE[name]]
        return (
            closed(inner, *operands)
            if isinstance(inner, ClosedJaxpr)
            else _evaluate(inner, (), operands, numbers)
        )
    if name == "cond":
        branches = [lambda *given, branch=branch: closed(branch, *given) for branch in parameters["branches"]]
        return lax.switch(operands[0], branches, *operands[1:])
    if name == "while":
        return _while(equation, operands, numbers)
    if name == "scan":
        return _scan(parameters, operands, closed)
    return _shard_map(parameters, operands, numbers)


def _while(equation: Any, operands: list[Any], numbers: _Numbers) -> Sequence[Any]:
    # Bound as it is, not through lax.while_loop: under vmap its condition is a vector, one entry per lane.
    parameters = equation.params
    of_cond, of_body = parameters["cond_nconsts"], parameters["body_nconsts"]
    cond, body = parameters["cond_jaxpr"], parameters["body_jaxpr"]
    changed = {
        "cond_nconsts": of_cond + 1,
        "body_nconsts": of_body + 1,
        "cond_jaxpr": _with_numbers(cond, numbers),
        "body_jaxpr": _with_numbers(body, numbers),
    }
    fixed = [numbers.values, *operands[:of_cond], numbers.values, *operands[of_cond : of_cond + of_body]]
    return equation.primitive.bind(*fixed, *operands[of_cond + of_body :], **{**parameters, **changed})


def _with_numbers(program: ClosedJaxpr, numbers: _Numbers) -> ClosedJaxpr:
    """The program with the numbers as its first argument."""

    def run(values: Array, *arguments: Any) -> list[Any]:
        return _evaluate(program.jaxpr, program.consts, arguments, numbers._replace(values=values))

    like = jax.ShapeDtypeStruct(numbers.values.shape, numbers.values.dtype)
    return jax.make_jaxpr(run)(like, *(jax.ShapeDtypeStruct(v.shape, v.dtype) for v in program.in_avals))


def _scan(parameters: Any, operands: list[Any], closed: Callable[..., list[Any]]) -> Sequence[Any]:
    constants, carried = scan_counts(parameters)
    fixed, begin, given = (
        operands[:constants],
        operands[constants : constants + carried],
        operands[constants + carried :],
    )

    def step(carry: list[Any], each: list[Any]) -> tuple[list[Any], list[Any]]:
        results = closed(parameters["jaxpr"], *fixed, *carry, *each)
        return results[:carried], results[carried:]

    carry, out = lax.scan(
        step,
        begin,
        given,
        length=parameters["length"],
        reverse=parameters["reverse"],
        unroll=parameters["unroll"],
    )
    return [*carry, *out]


def _shard_map(parameters: Any, operands: list[Any], numbers: _Numbers) -> Sequence[Any]:
    def inside(values: Array, *arguments: Any) -> list[Any]:
        return _evaluate(parameters["jaxpr"], (), arguments, numbers._replace(values=values))

    everywhere = jax.shard_map(
        inside,
        mesh=parameters["mesh"],
        in_specs=(PartitionSpec(), *parameters["in_specs"]),
        out_specs=list(parameters["out_specs"]),
        check_vma=parameters["check_vma"],
    )
    return everywhere(numbers.values, *operands)
