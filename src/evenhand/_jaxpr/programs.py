"""How JAX stores traced programs: all differences between its versions are handled here and nowhere else.

A traced program is a list of equations, and some equations hold programs themselves: loops, branches, calls.  Up to
JAX 0.10 a program comes open (a ``Jaxpr``, whose constants are arguments) or closed (a ``ClosedJaxpr``: an open one and
the values of its constants).  Since 0.11 one class is both, and is its own attribute ``jaxpr``.  A scan gives the
counts of its operands as numbers or, since 0.11, as a tree.

What is not as listed in :mod:`evenhand._jaxpr` raises :exc:`UnknownForm`, and callers leave the program as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import jax
import jax.numpy as jnp
from jax import lax

from evenhand._jaxpr import BESIDE, CALLS, PROGRAMS, Jaxpr, JaxprEqn, Literal
from evenhand.types import Array

_Call = Callable[..., Sequence[Any]]


class UnknownForm(Exception):
    """JAX stores this in a way that is not known here."""


def is_program(value: Any) -> TypeGuard[Jaxpr]:
    """Whether this is a program, open or closed."""
    return hasattr(value, "eqns") and hasattr(value, "invars")


def opened(program: Any) -> tuple[Jaxpr, Sequence[Any]]:
    """A program and the values of its constants.

    Raises:
      UnknownForm: the constants and their values do not match.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> rows = jnp.arange(3.0)
      >>> jaxpr, values = opened(jax.make_jaxpr(lambda x: x + rows)(1.0))
      >>> len(jaxpr.constvars), [value.shape for value in values]
      (1, [(3,)])
    """
    jaxpr, values = getattr(program, "jaxpr", program), getattr(program, "consts", ())
    if not is_program(jaxpr) or len(jaxpr.constvars) != len(values):
        raise UnknownForm(f"a program of type {type(program).__name__}")
    return jaxpr, values


def inner(equation: JaxprEqn) -> list[Any]:
    """The programs in an equation of a known kind, open or closed; none for other kinds, nor for one per platform.

    Raises:
      UnknownForm: the equation is of a known kind, but not of the known form.

    Example:
      >>> import jax
      >>> [equation] = opened(jax.make_jaxpr(lambda n, x: lax.switch(n, [abs, lax.neg], x))(0, 1.0))[0].eqns[-1:]
      >>> len(inner(equation))
      2
    """
    name, params = equation.primitive.name, equation.params
    if name not in PROGRAMS or params.get("branches_platforms"):
        return []
    unknown = set(beside(equation)) - set(BESIDE[name].split())
    if unknown or not set(PROGRAMS[name]) <= set(params):
        raise UnknownForm(f"an equation {name} of {', '.join(sorted(params))}")
    programs: list[Any] = []
    for key in PROGRAMS[name]:
        programs += params[key] if isinstance(params[key], tuple) else [params[key]]
    if not all(map(is_program, programs)):
        raise UnknownForm(f"an equation {name} without a program")
    return programs


def beside(equation: JaxprEqn) -> dict[str, Any]:
    """The parameters of an equation that are not among its :func:`inner` programs."""
    programs = PROGRAMS.get(equation.primitive.name, ())
    return {key: value for key, value in equation.params.items() if key not in programs}


def within(value: Any) -> Iterator[Jaxpr]:
    """The outermost programs in a value, or in nested tuples, lists and mappings of values."""
    if is_program(value):
        yield value
    elif isinstance(value, Mapping):
        yield from within(tuple(value.values()))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from within(item)


def has_call(program: Any, name: str) -> bool:
    """Whether a program, or one inside it, calls a jitted function of this name.

    Example:
      >>> import jax
      >>> @jax.jit
      ... def here(x):
      ...     return x + 1
      >>> has_call(jax.make_jaxpr(jax.vmap(here))(jax.numpy.ones(3)), "here"), has_call(jax.make_jaxpr(abs)(1), "here")
      (True, False)
    """
    return any(
        equation.params.get("name") == name or any(has_call(part, name) for part in within(equation.params))
        for equation in opened(program)[0].eqns
    )


def has_primitive(program: Any, names: Collection[str]) -> bool:
    """Whether a program, or one inside it, has an equation of one of these primitives.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> program = jax.make_jaxpr(jax.vmap(lambda x: jnp.linalg.eigh(x)[0]))(jnp.ones((3, 2, 2)))
      >>> has_primitive(program, {"eigh"}), has_primitive(program, {"svd"})
      (True, False)
    """
    return any(
        equation.primitive.name in names
        or any(has_primitive(part, names) for part in within(equation.params))
        for equation in opened(program)[0].eqns
    )


def footprint(program: Any) -> int:
    """The bytes of what a program computes that are alive at once, at their largest; its arguments do not count.

    Operations run one after the other, each with results of its own: a compiler that merges them needs less.

    Raises:
      UnknownForm: an equation inside is not of the known form.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> footprint(jax.make_jaxpr(lambda x: jnp.sin(jnp.cos(jnp.exp(x))))(jnp.ones(100)))  # two of three at a time
      800
    """
    jaxpr = opened(program)[0]
    last_use = {
        atom: place for place, equation in enumerate(jaxpr.eqns) for atom in _variables(equation.invars)
    }
    last_use |= dict.fromkeys(_variables(jaxpr.outvars), len(jaxpr.eqns))
    alive, largest, sizes = 0, 0, dict[Any, int]()
    for place, equation in enumerate(jaxpr.eqns):
        made = {result: _bytes(result) for result in equation.outvars}
        alive += sum(made.values())
        largest = max(largest, alive + max(map(footprint, inner(equation)), default=0))
        sizes |= made
        for atom in {*_variables(equation.invars), *made}:
            if last_use.get(atom, place) <= place:
                alive -= sizes.pop(atom, 0)
    return largest


def _variables(atoms: Sequence[Any]) -> list[Any]:
    """Those that are no literals."""
    return [atom for atom in atoms if not isinstance(atom, Literal)]


def _bytes(atom: Any) -> int:
    """The memory of a value; nothing for a token, and four numbers for a key."""
    shape, kind = getattr(atom.aval, "shape", None), getattr(atom.aval, "dtype", None)
    return 0 if shape is None else math.prod(shape) * getattr(kind, "itemsize", 16)


def scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """How many of a scan's operands are constants, and how many are carried.

    Raises:
      UnknownForm: its counts are in no known form.
    """
    if "num_consts" in params and "num_carry" in params:
        return params["num_consts"], params["num_carry"]
    try:
        consts, carry, _ = params["ft_in"].unpack()
        return len(consts), len(carry)
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise UnknownForm("a scan without counts of its operands") from error


def evaluate(
    jaxpr: Jaxpr,
    values: Sequence[Any],
    arguments: Sequence[Any],
    step: Callable[[JaxprEqn, list[Any]], Sequence[Any]],
    literal: Callable[[Literal], Any] = lambda literal: literal.val,
) -> list[Any]:
    """The results of a program, evaluated equation by equation; those that nothing needs are left out.

    Args:
      jaxpr: the program, open.
      values: the values of its constants.
      arguments: its arguments, flat.
      step: ``(equation, operands) -> results``; :func:`as_it_is`, or a replacement of it.
      literal: the value of a literal.

    Example:
      >>> import jax
      >>> program = jax.make_jaxpr(lambda x: x * 2.0 + 1.0)(3.0)
      >>> def doubled(equation, operands):
      ...     return [2 * result for result in as_it_is(equation, operands)]
      >>> [float(evaluate(*opened(program), [3.0], step)[0]) for step in (as_it_is, doubled)]
      [7.0, 26.0]
    """
    bindings: dict[Any, Any] = dict(zip(jaxpr.constvars, values, strict=True))
    bindings.update(zip(jaxpr.invars, arguments, strict=True))

    def read(atom: Any) -> Any:
        return literal(atom) if isinstance(atom, Literal) else bindings[atom]

    for equation in _needed(jaxpr):
        operands = [read(atom) for atom in equation.invars]
        with equation.ctx.manager:
            results = step(equation, operands)
        bindings.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _needed(jaxpr: Jaxpr) -> list[JaxprEqn]:
    """The equations that have an effect, or that a result or such an equation needs."""
    used, needed = set[Any](), list[JaxprEqn]()

    def use(atoms: Sequence[Any]) -> None:
        used.update(_variables(atoms))

    use(jaxpr.outvars)
    for equation in reversed(jaxpr.eqns):
        if equation.effects or not used.isdisjoint(equation.outvars):
            use(equation.invars)
            needed.append(equation)
    return needed[::-1]


def used_inputs(program: Any) -> list[bool]:
    """Which inputs of a program its results depend on; all inputs of an equation inside count, if its results do.

    Example:
      >>> import jax
      >>> used_inputs(jax.make_jaxpr(lambda x, y, z: (x + z, y * 2)[0])(1.0, 2.0, 3.0))
      [True, False, True]
    """
    jaxpr = opened(program)[0]
    used = {id(atom) for atom in jaxpr.outvars}
    for equation in reversed(jaxpr.eqns):
        if any(id(variable) in used for variable in equation.outvars):
            used |= {id(atom) for atom in equation.invars}
    return [id(variable) in used for variable in jaxpr.invars]


def as_it_is(equation: JaxprEqn, operands: Sequence[Any]) -> Sequence[Any]:
    """The results of an equation."""
    primitive: Any = equation.primitive
    results = primitive.bind(*operands, **primitive.get_bind_params(equation.params))
    return results if primitive.multiple_results else [results]


def again(equation: JaxprEqn, operands: Sequence[Any], call: _Call) -> Sequence[Any]:
    """The results of a call, a branch or a scan whose programs are run by ``call(program, *operands)``.

    Raises:
      UnknownForm: the equation is of another kind.
    """
    name, params = equation.primitive.name, equation.params
    if name in CALLS:
        return call(params[CALLS[name]], *operands)
    if name == "cond":
        branches = [lambda *given, branch=branch: call(branch, *given) for branch in params["branches"]]
        return lax.switch(operands[0], branches, *operands[1:])
    if name == "scan":
        return _scan(params, operands, call)
    raise UnknownForm(f"{name} in place of a call, a branch or a scan")


def _scan(params: Mapping[str, Any], operands: Sequence[Any], call: _Call) -> Sequence[Any]:
    consts, carried = scan_counts(params)
    fixed, begin, rows = operands[:consts], operands[consts : consts + carried], operands[consts + carried :]

    def body(carry: Sequence[Array], row: Sequence[Array]) -> tuple[Sequence[Array], Sequence[Array]]:
        outputs = call(params["jaxpr"], *fixed, *carry, *row)
        return outputs[:carried], outputs[carried:]

    end, out = lax.scan(
        body,
        begin,
        rows,
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
    )
    return [*end, *out]


# --- a loop that can be left and entered again ------------------------------------------------------------------------


class Interruptible(NamedTuple):
    """A program with one ``while`` loop, which may be left early, and entered again where it was left.

    Attributes:
      carry: the shapes of what the loop carries.
      run: ``(arguments, begin, most) -> (results, carry)``: the program with at most so many iterations, from
        ``begin(carry before the first one)``.  The results are those of the whole program once the loop has ended.
    """

    carry: list[jax.ShapeDtypeStruct]
    run: Callable[[Sequence[Any], _Call, Array], tuple[list[Any], list[Any]]]


def interruptible(program: Any) -> Interruptible | None:
    """A program that can be interrupted; None: it has another loop than one ``while``, or its loop is in a branch.

    What stands before and after the loop is computed each time, so that a second loop there would be repeated.

    Raises:
      UnknownForm: an equation inside is not of the known form.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> doubled = jax.make_jaxpr(lambda x: jax.lax.while_loop(lambda x: x < 100, lambda x: 2 * x, x) + 1)(3)
      >>> part = interruptible(doubled)
      >>> _, [middle] = part.run([3], lambda fresh: [fresh], jnp.int32(2))
      >>> [whole], _ = part.run([3], lambda fresh: [middle], jnp.int32(100))
      >>> int(middle), int(whole)
      (12, 193)
    """
    loops = _loops(program)
    if [loop.primitive.name for loop in loops] != ["while"]:
        return None
    (loop,) = loops
    forms: list[Any] = [result.aval for result in loop.outvars]
    carry = [jax.ShapeDtypeStruct(form.shape, form.dtype) for form in forms]
    if any(jnp.issubdtype(leaf.dtype, jax.dtypes.extended) for leaf in carry):
        return None  # keys, of which there are no zeros to begin with

    def run(arguments: Sequence[Any], begin: _Call, most: Array) -> tuple[list[Any], list[Any]]:
        left: list[Any] = []

        def step(equation: JaxprEqn, operands: list[Any]) -> Sequence[Any]:
            if equation is loop:
                left[:] = _iterated(equation.params, operands, begin, most)
                return left
            if any(inside is loop for inside in _called_loops(equation)):
                return again(
                    equation, operands, lambda called, *given: evaluate(*opened(called), given, step)
                )
            return as_it_is(equation, operands)

        return evaluate(*opened(program), arguments, step), left

    return Interruptible(carry, run)


def _iterated(params: Mapping[str, Any], operands: Sequence[Any], begin: _Call, most: Array) -> list[Any]:
    """What a loop carries after at most so many iterations."""
    tests, steps = params["cond_nconsts"], params["body_nconsts"]
    condition, body = opened(params["cond_jaxpr"]), opened(params["body_jaxpr"])
    for_test, for_step, fresh = operands[:tests], operands[tests : tests + steps], operands[tests + steps :]

    def goes_on(state: tuple[Array, list[Any]]) -> Array:
        done, carry = state
        return (done < most) & evaluate(*condition, [*for_test, *carry], as_it_is)[0]

    def once(state: tuple[Array, list[Any]]) -> tuple[Array, list[Any]]:
        done, carry = state
        return done + 1, evaluate(*body, [*for_step, *carry], as_it_is)

    return lax.while_loop(goes_on, once, (jnp.int32(0), list(begin(*fresh))))[1]


def _loops(program: Any) -> list[JaxprEqn]:
    """The loops of a program and of those that it calls; and what else has a loop inside, such as branches."""
    loops: list[JaxprEqn] = []
    for equation in opened(program)[0].eqns:
        nested = _called_loops(equation)
        if equation.primitive.name in ("while", "scan") or (nested and equation.primitive.name not in CALLS):
            loops.append(equation)
        else:
            loops += nested
    return loops


def _called_loops(equation: JaxprEqn) -> list[JaxprEqn]:
    return [loop for program in inner(equation) for loop in _loops(program)]
