"""Traced programs: how JAX keeps them, and what is done with them.

JAX has no stable interface for reading a program that it has traced.  All that is needed of its internals is listed
here: its names, and the parameters of the equations that hold programs themselves (loops, branches, calls).  The
modules import them from here:

* :mod:`.programs` reads programs and evaluates them equation by equation.
* :mod:`.hoist` makes the numbers of a method inputs of its program, so that another number compiles nothing.
* :mod:`.lowering` and :mod:`.convolution` replace what XLA does slowly in a loop or under ``vmap``; their public names
  are in :mod:`evenhand.lowering`.
* :mod:`.layout` keeps pictures with their channels last between the layers of a model of PyTorch.
* :mod:`.per_example` finds the layers in a loss, for the gradients of single examples.

All parameters of each known kind of equation are listed.  One that a later version adds may change what the equation
means: :exc:`.programs.UnknownForm` is raised then, and callers leave the program as it is.
"""

from jax.extend.core import Jaxpr, JaxprEqn, Literal, Primitive, jaxpr_as_fun
from jax.extend.core.primitives import closed_call_p, cond_p, jit_p, remat_p, scan_p

__all__ = [
    "BESIDE",
    "CALLS",
    "KEPT_WHOLE",
    "PROGRAMS",
    "Jaxpr",
    "JaxprEqn",
    "Literal",
    "Primitive",
    "closed_call_p",
    "cond_p",
    "jaxpr_as_fun",
    "jit_p",
    "remat_p",
    "scan_p",
]

_CALLS = {
    "jit": (
        "jaxpr",
        "in_shardings out_shardings in_layouts out_layouts donated_invars ctx_mesh name keep_unused inline"
        " compiler_options_kvs",
    ),
    "closed_call": ("call_jaxpr", ""),
    "core_call": ("call_jaxpr", "name"),
    "custom_jvp_call": ("call_jaxpr", "jvp_jaxpr_fun num_consts symbolic_zeros"),
    "custom_vjp_call": ("call_jaxpr", "fwd_jaxpr_thunk num_consts bwd out_trees symbolic_zeros"),
    "custom_vmap_call": ("call", "rule in_tree out_tree"),
}
_FORMS = _CALLS | {
    "cond": ("branches", "branches_platforms"),
    "remat2": ("jaxpr", "prevent_cse differentiated policy"),
    "scan": ("jaxpr", "reverse length unroll num_consts num_carry ft_in ft_out"),
    "shard_map": ("jaxpr", "mesh in_specs out_specs check_vma newly_manual_axes"),
    "while": ("cond_jaxpr body_jaxpr", "cond_nconsts body_nconsts"),
}
CALLS = {name: program for name, (program, _) in _CALLS.items()}
"""Primitives that only call a program, once nothing more is to be differentiated -> the parameter that holds it."""
PROGRAMS = {name: tuple(programs.split()) for name, (programs, _) in _FORMS.items()}
BESIDE = {name: beside for name, (_, beside) in _FORMS.items()}
"""The parameters in which each kind of equation holds its programs, and the others that it may have."""

KEPT_WHOLE = {"remat2", "custom_linear_solve", "reduce", "reduce_window", "scatter", "select_and_scatter"}
"""Primitives whose programs are not entered for their numbers, as JAX has them today: another number compiles anew."""
