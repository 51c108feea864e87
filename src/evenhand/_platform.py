"""What JAX needs of a process: settings before it starts, one device per core, and no fork once it runs.

XLA runs a small program on one core, however many there are; with one device per core the engine spreads a cohort over
all of them.  What the user has set, in an environment variable or in ``jax.config``, is kept.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax

from evenhand.errors import EvenhandError

_config: Any = jax.config  # its attributes are not declared

_MOST_DEVICES = 64

_forked_in = set[int]()
"""Processes that forked while JAX ran in them: this one or, in a forked process, those that it comes from."""


def prepare() -> None:
    """Applies the settings but keeps the user's; if JAX is already running, its devices stay.  Watches for forks."""
    _device_per_core()
    _keep_compiled_programs()
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
