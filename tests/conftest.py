"""Strict settings for every test: what JAX would let pass silently is an error here."""

import gc
import os
from importlib.metadata import version
from pathlib import Path

# Two thirds of the suite's time were compilation, and tests run what they compile for milliseconds: the compiler does
# little here.  XLA_FLAGS from outside replace these; .ci/run tests the engine with the compiler's own settings, too.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_force_host_platform_device_count=4 "
    + (
        "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false "
        "--xla_cpu_parallel_codegen_split_count=1 --xla_cpu_max_isa=AVX"
        if version("jaxlib").startswith("0.10.")
        # One generator of kernels is left, whose exponentials are good to 1e-5 only at level 0.
        else "--xla_backend_optimization_level=1"
    ),
)
os.environ.setdefault("MPLBACKEND", "Agg")
# Tests, and processes that they start, share compiled programs, now and in later runs.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# Most of the time goes to tracing and lowering, a twentieth of it to where in the source each operation came from.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import hypothesis
import jax
import pytest
from jax._src.interpreters import mlir

import sharing
from nursery import Nursery

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_platforms", "cpu")
# Four devices for the tests that ask for them; what asks for none gets one.
jax.config.update("jax_default_device", jax.devices()[0])

# JAX sets up a compiler's context for each program, which took a quarter of the time of a small one.
# Any thread may use a context of this version; of later ones that is not known.
if version("jaxlib").startswith("0.10."):
    mlir.make_ir_context = sharing.in_turns(mlir.make_ir_context, 100)

# Tracing makes so many objects that looking for cycles among all of them took a tenth of the suite's time.
gc.set_threshold(10_000, 20, 100)

hypothesis.settings.register_profile("evenhand", deadline=None, max_examples=50, derandomize=True)
hypothesis.settings.load_profile("evenhand")


# The experiments are not part of the package: where they are missing, there is nothing to test.
collect_ignore = [] if (Path(__file__).parent.parent / "experiments").is_dir() else ["experiments"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--thorough",
        action="store_true",
        help="as many kills, fuzzed files and competing processes as a release wants, not a sample of them",
    )


@pytest.fixture(scope="session")
def thorough(request: pytest.FixtureRequest) -> bool:
    """Whether a test of many trials makes all of them."""
    return bool(request.config.getoption("--thorough"))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(sharing)


def pytest_collection_finish() -> None:
    # What there is now stays; else each search for cycles would go through all of it.
    gc.freeze()


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Its cache is kept between test runs, and separate, so that nobody else reads what a kill left half-written."""
    found = Nursery(Path(__file__).parents[1] / ".jax_cache" / "nursery")
    yield found
    found.close()


@pytest.fixture(scope="module", autouse=True)
def _figures_in_words(request: pytest.FixtureRequest) -> Iterator[None]:
    """Pages hold the words of their figures, not the drawings, which take longest; but in modules marked ``draws``."""
    from evenhand.report.formatting import escape

    def words(figure: Any, name: str, title: str, note: str, alt: str) -> str:
        assert figure.axes
        return f"<figure>{escape(title)} {escape(note)} {escape(alt)}</figure>"

    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("draws") is None:
            for pages in ("report._plots", "studies._report"):
                patch.setattr(f"evenhand.{pages}.svg", words)
        yield


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips the command line's page, which takes as long as the training; other tests are about it."""
    monkeypatch.setattr("evenhand.cli._run.write_report", lambda path, views: path.write_text("page"))


@pytest.fixture(scope="module")
def shared_programs() -> Iterator[None]:
    """Commands of a module that name the same model, work and method get the same objects, as callers in Python would.

    What one command traced then serves the next, which takes a third of the time of a command on a small table.
    """
    from evenhand import expressions
    from evenhand.cli._models import ModelOptions
    from evenhand.cli._options import LocalOptions
    from evenhand.systems import stragglers

    models: dict[Any, Any] = {}
    works: dict[Any, Any] = {}
    values: dict[Any, list[tuple[Any, Any]]] = {}
    build, work_of, parse = ModelOptions.build, LocalOptions.work, expressions.parse

    def one_model(options: Any, form: Any) -> Any:
        key = (options, form)
        if key not in models:
            models[key] = build(options, form)
        return models[key]

    def one_work(options: Any, model: Any) -> Any:
        if (options, id(model)) not in works:
            works[options, id(model)] = model, work_of(options, model)
        return works[options, id(model)][1]

    def one_value(text: str, kind: type, model: Any, work: Callable[[], Any], beside: Any = None) -> Any:
        made: list[Any] = []
        if beside:  # arrays, which are read anew from their files
            return parse(text, kind, model, work, beside)

        def noted() -> Any:
            made.append(work())
            return made[0]

        made_before = values.setdefault((text, kind, id(model)), [])
        for work_then, value in made_before:
            # Asked for again where the expression asked, since the command wants to know whether it did.
            if work_then is None or work_then is work():
                return value
        value = parse(text, kind, model, noted)
        made_before.append((made[0] if made else None, value))
        return value

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModelOptions, "build", one_model)
        patch.setattr(LocalOptions, "work", one_work)
        for module in ("_models", "_options", "_run", "_study"):
            patch.setattr(f"evenhand.cli.{module}.parse", one_value)
        patch.setattr("evenhand.cli._run.stragglers", cache(stragglers))
        yield
