"""What JAX needs of a process: settings before it starts, one device per core, and no fork once it runs.

XLA runs a small program on one core, however many there are; with one device per core the engine spreads a cohort over
all of them.  What the user has set, in an environment variable or in ``jax.config``, is kept.

JAX before 0.11.1 can wait for itself for ever where it factorises stacks of matrices on a CPU; that is mended here.
"""

from __future__ import annotations

import gc
import itertools
import math
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax
from jax import lax
from jax.interpreters import mlir
from jaxlib.version import __version__ as _jaxlib_version

from evenhand.errors import EvenhandError

_config: Any = jax.config  # its attributes are not declared

_MOST_DEVICES = 64

_forked_in = set[int]()
"""Processes that forked while JAX ran in them: this one or, in a forked process, those that it comes from."""


def prepare() -> None:
    """Applies the settings but keeps the user's; if JAX is already running, its devices stay.  Watches for forks."""
    _device_per_core()
    _keep_compiled_programs()
    if _jaxlib_version.startswith(("0.10.", "0.11.0")):
        _factorise_in_pieces()
    if sys.platform != "win32":  # which cannot fork
        os.register_at_fork(before=_notice_fork)


def check_process() -> None:
    """Refuses a process that was forked from one in which JAX had started: JAX's threads are not in it.

    Raises:
      EvenhandError: this is such a process, in which the first computation would wait for ever.
    """
    if _forked_in - {os.getpid()}:
        raise EvenhandError(
            "This process was forked from one in which JAX had already started, and JAX cannot run in both: start it "
            'with multiprocessing.get_context("spawn"), or fork before the first run.'
        )


@contextmanager
def without_collections() -> Generator[None]:
    """Python looks for no cycles among its objects meanwhile, which it would do again and again.

    Importing and tracing make many objects that stay, and each search goes through all of them: together they took a
    seventh of the CPU time of a short run.
    """
    # Only who switches it off switches it on: the user may have, or another thread that is here, too.
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def settings() -> dict[str, Any]:
    """The settings of JAX on which the numbers of a program depend, by name."""
    return {
        "jax_default_matmul_precision": _config.jax_default_matmul_precision,
        "jax_default_prng_impl": _config.jax_default_prng_impl,
        "jax_enable_x64": _config.jax_enable_x64,
        "jax_numpy_dtype_promotion": _config.jax_numpy_dtype_promotion,
        "jax_threefry_partitionable": _config.jax_threefry_partitionable,
    }


def _notice_fork() -> None:
    """Notes, before this process forks, that JAX runs in it; what is noted is all that its child inherits."""
    bridge = sys.modules.get("jax._src.xla_bridge")  # private: JAX has no public question that starts nothing
    if bridge is not None and bridge.backends_are_initialized():
        _forked_in.add(os.getpid())


def _device_per_core() -> None:
    named = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if named or "JAX_NUM_CPU_DEVICES" in os.environ or _config.jax_num_cpu_devices > 0:
        return
    with suppress(RuntimeError):  # JAX is already running and keeps its devices
        # On Linux, the cores that this process may use.
        cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
        jax.config.update("jax_num_cpu_devices", min(cores, _MOST_DEVICES))


def _keep_compiled_programs() -> None:
    if "JAX_COMPILATION_CACHE_DIR" in os.environ or _config.jax_compilation_cache_dir:
        return
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evenhand" / "compiled"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no home folder, or not writable: every process compiles for itself
        return
    if not os.access(folder, os.W_OK):  # JAX would warn of each program that it cannot keep
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


# --- factorisations on a CPU ------------------------------------------------------------------------------------------

_LAPACK = {
    "cholesky",
    "eig",
    "eigh",
    "geqp3",
    "geqrf",
    "hessenberg",
    "householder_product",
    "lu",
    "ormqr",
    "schur",
    "svd",
    "triangular_solve",
    "tridiagonal",
    "tridiagonal_solve",
}
"""Primitives that call LAPACK."""

_UNDIVIDED = 200_000 // 30
"""JAX divides a stack from 200,000 operations on, of which it counts 30 for each entry and column at most."""


def _factorise_in_pieces() -> None:
    """Has JAX factorise a stack of matrices in pieces that it does not divide over its threads.

    It would hand the parts of a stack to the threads that run the program, and wait for them in one of these.  Once all
    wait, as with one stack on each of two devices of two cores, none is left for the parts, and the program never ends.
    """
    registry: Any = mlir
    rules = registry._platform_specific_lowerings["cpu"]  # private: JAX has no public question for a rule
    for primitive, registered in list(rules.items()):
        if primitive.name in _LAPACK:
            mlir.register_lowering(primitive, _in_pieces(primitive, registered.rule), platform="cpu")


def _in_pieces(primitive: Any, at_once: Callable[..., Any]) -> Callable[..., Any]:
    """The rule by which stacks of matrices are compiled, where ``at_once`` is the one of JAX."""
    of_one = 1 if primitive.name == "tridiagonal_solve" else 2

    def lower(context: Any, *operands: Any, **params: Any) -> Any:
        forms, stacked = context.avals_in, context.avals_in[0].ndim - of_one
        # Whose length is not known yet, or which the user has dealt to devices, the loop could not walk along.
        if any(map(_is_dealt, forms)) or not all(isinstance(n, int) for form in forms for n in form.shape):
            return at_once(context, *operands, **params)
        stack, sizes = forms[0].shape[:stacked], [form.shape[stacked:] for form in forms]
        if 0 in itertools.chain(*sizes):  # of which JAX divides none
            return at_once(context, *operands, **params)
        most = max(_UNDIVIDED // max(1, *(math.prod(size) * max(size) for size in sizes)), 1)
        if math.prod(stack) <= most:
            return at_once(context, *operands, **params)

        def loop(*stacks: Any, **params: Any) -> Any:
            rows = [leaf.reshape(math.prod(stack), *leaf.shape[stacked:]) for leaf in stacks]
            results = lax.map(lambda row: primitive.bind(*row, **params), rows, batch_size=most)
            return jax.tree.map(lambda leaf: leaf.reshape(*stack, *leaf.shape[1:]), results)

        return mlir.lower_fun(loop, primitive.multiple_results)(context, *operands, **params)

    return lower


def _is_dealt(form: Any) -> bool:
    return any(axis is not None for axis in form.sharding.spec)
