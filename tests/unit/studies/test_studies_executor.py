"""Studies whose runs train at the workers of an executor: the folder and the bits of a study in one process."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import evenhand as eh
from evenhand.errors import EvenhandError, EvenhandWarning, StorageError
from evenhand.memory import is_mapped
from evenhand.records import LOCK
from evenhand.simulation import Job, crews
from evenhand.studies import Halving, Setting, Study, _columns, _sweep, load, study
from evenhand.studies._columns import Crew, Planned, Workers, train_column
from evenhand.types import Algorithm
from evenhand.watch import Watched, Watcher

DATA = eh.data.load("digits", clients=6, valid_fraction=0.2)
LARGE = eh.data.load("digits", clients=12)
MODEL = eh.models.softmax_regression(features=64, classes=10)


@cache  # the same method each time, whose rounds are then traced once
def fedavg(lr: float) -> Algorithm:
    return eh.algorithms.fedavg(eh.local.sgd(MODEL, lr, epochs=1, batch_size=20))


@cache
def krum(lr: float) -> Algorithm:
    """Its aggregator needs more uploads than a cohort of three has, so each of its runs fails."""
    work = eh.local.sgd(MODEL, lr, epochs=1, batch_size=20)
    return eh.algorithms.fedavg(work, aggregator=eh.aggregators.krum(malicious=3))


METHODS = {"fedavg": fedavg, "krum": krum}


def made(folder: Path, executor: Any = None, data: Any = DATA, **how: Any) -> Study:
    """Two methods with two step sizes each: a column for each seed, and four runs that fail."""
    settings: dict[str, Any] = {"rounds": 4, "seeds": 2, "eval_every": 2, "cohort": 3, "checkpoint": 0, **how}
    grid = {"lr": [0.01, 0.1]}
    return study(METHODS, data, grid=grid, folder=folder, executor=executor, **settings)


def results(folder: Path) -> dict[str, str]:
    """The results as text without what depends on the clock, and the plan."""
    texts = {"plan": (folder / "plan.json").read_text()}
    for path in sorted(folder.glob("runs/*/*.json")):
        value = json.loads(path.read_text())
        del value["sha256"]
        if value["view"] is not None:
            del value["view"]["info"]["seconds"], value["view"]["info"]["examples_per_second"]
        texts[f"{path.parent.name}/{path.name}"] = json.dumps(value)
    return texts


def norm(run: Any) -> dict[str, float]:
    return {"norm": float(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(run.params)))}


class Inline:
    """An executor that calls the task at once, after what a test does before it."""

    def __init__(self, before: Callable[[int, bytes], object] = lambda number, task: None) -> None:
        self._before, self.tasks = before, list[bytes]()

    def submit(self, function: Callable[[bytes], bytes], task: bytes, /) -> Future[bytes]:
        future = Future[bytes]()
        self.tasks.append(task)
        try:
            self._before(len(self.tasks), task)
            future.set_result(function(task))
        except Exception as error:
            future.set_exception(error)
        return future


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study in this process."""
    folder = tmp_path_factory.mktemp("whole")
    made(folder, measure=norm)
    return folder


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    """Two processes with one device each, as this one uses."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_FLAGS", os.environ["XLA_FLAGS"].replace("device_count=4", "device_count=1"))
        patch.setenv("JAX_PLATFORMS", "cpu")
        with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as executor:
            yield executor


# --- the same study ---------------------------------------------------------------------------------------------------


def test_processes_give_the_folder_of_a_study_in_one(
    whole: Path, pool: ProcessPoolExecutor, tmp_path: Path
) -> None:
    found = made(tmp_path, pool, measure=norm)
    assert results(tmp_path) == results(whole)
    assert [outcome.status for outcome in found.outcomes] == ["done"] * 4 + ["failed"] * 4
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in whole.iterdir()}
    assert all("norm" in outcome.measures for outcome in load(tmp_path).outcomes[:4])


def test_workers_in_another_folder_keep_the_states_in_that_of_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a relative folder, of which each process has its own idea."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(here)
    states: list[Path] = []

    def there(task: bytes) -> bytes:
        os.chdir(elsewhere)
        try:
            return train_column(task)
        finally:
            states.extend((here / "a").rglob("checkpoint"))
            os.chdir(here)

    monkeypatch.setattr(_columns, "train_column", there)
    made(Path("a"), Inline())
    assert states and not list(elsewhere.iterdir())


def test_each_column_is_a_task_and_finished_runs_are_not_sent_again(whole: Path, tmp_path: Path) -> None:
    executor = Inline()
    made(tmp_path, executor, measure=norm)
    # A column for each seed; a run that fails before it is traced is a column of its own.
    assert len(executor.tasks) == 2 + 4
    assert results(tmp_path) == results(whole)
    for path in list(tmp_path.glob("runs/fedavg-lr=0.1*/result.json"))[:1]:
        path.unlink()
    again = Inline()
    made(tmp_path, again, measure=norm)
    assert len(again.tasks) == 1
    assert results(tmp_path) == results(whole)


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_the_runs_of_a_crew_are_the_same_crew_alone(devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenhand.simulation._many._devices", lambda: devices)
    monkeypatch.setattr("evenhand.simulation._many._LONGEST", 3)
    jobs = [
        Job(method(lr), LARGE, rounds=2, seed=seed)
        for method, lr, seed in (
            *((fedavg, lr, seed) for seed in (0, 1) for lr in (0.01, 0.02, 0.03, 0.04)),
            *((krum, lr, 2) for lr in (0.01, 0.02)),
        )
    ]
    parts = crews(jobs)
    assert sorted(position for part in parts for position in part) == list(range(len(jobs)))
    assert len(parts) == {1: 5, 2: 3, 3: 3}[devices]
    for part in parts:
        assert crews([jobs[position] for position in part]) == [list(range(len(part)))]
    assert crews(jobs, [9]) == [part for part in parts if 9 in part]


def test_halving_waits_for_its_rungs_and_gives_the_same_bits(tmp_path: Path) -> None:
    how: dict[str, Any] = {"halving": Halving(2, 0.5)}
    made(tmp_path / "here", **how)
    executor = Inline()
    found = made(tmp_path / "there", executor, **how)
    assert results(tmp_path / "there") == results(tmp_path / "here")
    assert [outcome.status for outcome in found.outcomes].count("stopped") == 2


def test_a_study_that_was_interrupted_goes_on_at_workers(whole: Path, tmp_path: Path) -> None:
    def stop(number: int, task: bytes) -> None:
        if number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made(tmp_path, Inline(stop), measure=norm)
    made(tmp_path, Inline(), measure=norm)
    assert results(tmp_path) == results(whole)


def test_trackers_get_the_same_rows(tmp_path: Path) -> None:
    def noted(executor: Any, folder: Path) -> list[Any]:
        notes = list[Any]()

        def begin(name: str, config: Any) -> Watched:
            # Runs end in another order here and there.
            log = lambda now, numbers: notes.append((name, now, sorted(numbers)))  # noqa: E731
            return Watched(log, lambda status: notes.append((name, status)))

        made(folder, executor, watch=Watcher(begin))
        return sorted(notes, key=repr)

    assert noted(Inline(), tmp_path / "there") == noted(None, tmp_path / "here")


def test_the_script_of_the_guide_runs(tmp_path: Path) -> None:
    """As a file, since worker processes import it."""
    page = (Path(__file__).parents[3] / "docs" / "studies.md").read_text("utf-8")
    section = page.split("## Several machines")[1]
    (tmp_path / "script.py").write_text(section.split("```python\n")[1].split("```")[0])
    script = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True)
    assert script.stdout.startswith("fedavg(lr="), script.stderr
    assert load(tmp_path / "studies" / "pool").methods == ["fedavg"]


# --- what travels -----------------------------------------------------------------------------------------------------


def column(method: Algorithm, data: Any = DATA, folder: Path = Path("x"), **how: Any) -> Crew:
    job = Job(
        method, data, rounds=2, cohort=3, eval_every=2, checkpoint=eh.simulation.Checkpoint(folder / "c")
    )
    return Crew([Planned(Setting("m", {}), 0, job._replace(**how), False)], [0])


def sent(folder: Path, *values: Any) -> list[Any]:
    """The values as a worker has them, sent one by one."""
    with Workers(Inline(), folder, None) as workers:
        packed = [workers._dumped(value) for value in values]
        return [_columns._loaded(content, str(folder)) for content in packed]


def large(folder: Path | None = None) -> eh.data.FederatedDataset:
    """Twelve clients with 1.2 MB of rows, in memory or in a file."""
    x = np.random.default_rng(0).normal(size=(4800, 64)).astype(np.float32)
    if folder is not None:
        np.save(folder / "x.npy", x)
        x = np.load(folder / "x.npy", mmap_mode="r")
    y, offsets = np.zeros(4800, np.int32), np.arange(0, 4801, 400)
    rows, none = eh.data.Split(x, y, offsets), eh.data.Split(x[:0], y[:0], np.zeros(13, np.int64))
    return eh.data.FederatedDataset(rows, none, none, tuple("abcdefghijkl"))


@pytest.mark.parametrize("is_in_file", [False, True], ids=["memory", "file"])
def test_large_data_are_files_of_the_folder_and_are_read_once(
    is_in_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, reads = large(tmp_path if is_in_file else None), list[str]()
    read = np.load
    monkeypatch.setattr(np, "load", lambda path, **how: reads.append(str(path)) or read(path, **how))
    with Workers(Inline(), tmp_path, None) as workers:
        tasks = [workers._task(column(fedavg(lr), data)) for lr in (0.01, 0.1)]
        assert max(map(len, tasks)) < 100_000 < data.train.x.nbytes
        packed = [workers._dumped((data, data.train.x)) for _ in tasks]
        (first, rows), (second, _) = (_columns._loaded(content, str(tmp_path)) for content in packed)
        assert (tmp_path / "shared").is_dir()
    assert first is second and first.train.x is rows and len(reads) == 1
    assert np.array_equal(first.train.x, data.train.x) and not first.train.x.flags.writeable
    # Rows in files are streamed, and rows in memory are not, which changes the bits.
    assert is_mapped(first.train.x) == is_in_file
    assert not (tmp_path / "shared").exists()


def test_large_parameters_are_files_and_arrive_on_the_device(tmp_path: Path) -> None:
    params = {"w": jnp.arange(300_000.0), "b": jnp.ones(3)}
    [first, second] = sent(tmp_path, params, params)
    assert isinstance(first["w"], jax.Array) and first["w"] is second["w"]
    assert np.array_equal(first["w"], params["w"]) and np.array_equal(first["b"], params["b"])


@pytest.mark.parametrize("kind", ["bfloat16", "float8_e4m3fn", "int4"])
def test_large_arrays_of_types_that_numpy_lacks_keep_their_type(kind: str, tmp_path: Path) -> None:
    values = (jnp.arange(1_200_000) % 7).astype(kind)
    [on_device, in_memory] = sent(tmp_path, values, np.asarray(values))
    assert isinstance(on_device, jax.Array) and isinstance(in_memory, np.ndarray)
    assert on_device.dtype == in_memory.dtype == values.dtype
    assert np.array_equal(on_device, values) and np.array_equal(in_memory, values)


def test_large_arrays_that_are_more_than_their_numbers_arrive_whole(tmp_path: Path) -> None:
    masked = np.ma.masked_array(np.ones(200_000), np.arange(200_000) % 2 == 0)
    records = np.rec.array(np.zeros(200_000, [("a", "f8")]))
    [mask, rows, weak] = sent(tmp_path, masked, records, jnp.full(300_000, 2.0))
    assert mask.sum() == 100_000
    assert rows.a.shape == (200_000,)
    assert (weak * jnp.ones(1, jnp.bfloat16)).dtype == jnp.bfloat16


def test_functions_that_jax_wraps_arrive_whole(tmp_path: Path) -> None:
    @partial(jax.jit, static_argnums=1)
    def power(x: Any, n: int) -> Any:
        return x**n if n > 1 else x

    @jax.custom_vjp
    def clipped(x: Any) -> Any:
        return x * x

    clipped.defvjp(lambda x: (x * x, x), lambda x, slope: (jnp.minimum(2 * x * slope, 1.0),))
    [(there, own, relu, normal)] = sent(tmp_path, (power, clipped, jax.nn.relu, jnp.linalg.norm))
    assert there(jnp.float32(3.0), 2) == 9.0
    assert jax.grad(own)(jnp.float32(5.0)) == 1.0
    # Those of a module are the worker's own.
    assert relu is jax.nn.relu and normal is jnp.linalg.norm


@pytest.mark.parametrize("policy", [None, jax.checkpoint_policies.dots_saveable])
def test_functions_that_are_computed_again_for_their_gradient_arrive(policy: Any, tmp_path: Path) -> None:
    function = jax.checkpoint(lambda x: jnp.sin(x) @ x, policy=policy)
    [there] = sent(tmp_path, function)
    x = jnp.arange(3.0)
    assert str(jax.make_jaxpr(jax.grad(there))(x)) == str(jax.make_jaxpr(jax.grad(function))(x))


def test_workers_have_the_settings_of_jax_that_the_study_has(tmp_path: Path) -> None:
    def precision(run: Any) -> dict[str, float]:
        return {"eps": float(jnp.finfo(jnp.zeros(1).dtype).eps)}

    with Workers(Inline(), tmp_path, precision) as workers:
        with jax.enable_x64(True):
            task = workers._task(column(fedavg(0.1), folder=tmp_path))
        try:
            [outcome] = _columns._read(*pickle.loads(train_column(task))).values()
        finally:
            jax.config.update("jax_enable_x64", False)
    assert outcome.measures["eps"][-1] == np.finfo(np.float64).eps


def test_what_cannot_travel_is_refused_with_the_run(tmp_path: Path) -> None:
    with (tmp_path / "x").open("w") as file:
        words = r"m\(\), seed 0 cannot be sent to a worker \(PicklingError: .*without open files"
        workers = Workers(Inline(), tmp_path, lambda run: {"x": file.write("x")})
        with pytest.raises(EvenhandError, match=words):
            workers._task(column(fedavg(0.1), folder=tmp_path))


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_column_whose_worker_is_lost_is_trained_by_another(whole: Path, tmp_path: Path) -> None:
    def lose(number: int, task: bytes) -> None:
        if number in (2, 3, 7):
            raise ConnectionError("worker gone")

    executor = Inline(lose)
    made(tmp_path, executor, measure=norm)
    assert len(executor.tasks) == 6 + 3
    assert results(tmp_path) == results(whole)


def test_a_column_that_is_lost_again_and_again_ends_the_study_after_the_others(
    whole: Path, tmp_path: Path
) -> None:
    first = list[bytes]()

    def lose(number: int, task: bytes) -> None:
        first.append(task)
        if task == first[0]:
            raise ConnectionError("worker gone")

    words = r"^1 of 6 columns .* lost with their workers 3 times; the first is fedavg\(lr=0.01\), seed 0 \(and 1 more\)"
    with pytest.raises(EvenhandError, match=words + r" \(ConnectionError: worker gone\)"):
        made(tmp_path, Inline(lose), measure=norm)
    assert len(results(tmp_path)) == len(results(whole)) - 2
    made(tmp_path, measure=norm)
    assert results(tmp_path) == results(whole)


def test_a_pool_whose_process_is_killed_says_so_and_another_pool_goes_on(
    whole: Path, pool: ProcessPoolExecutor, tmp_path: Path
) -> None:
    mark = tmp_path / "died"

    def die(run: Any) -> dict[str, float]:
        if run.info["rounds"] == 2 and not mark.exists():
            mark.touch()
            os._exit(1)
        return {"norm": float(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(run.params)))}

    with (
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as broken,
        pytest.raises(
            EvenhandError, match=r"a worker ended abruptly.*with a new executor. Finished runs are kept"
        ),
    ):
        made(tmp_path / "a", broken, measure=die)
    assert mark.exists()
    made(tmp_path / "a", pool, measure=die)
    assert results(tmp_path / "a") == results(whole)


def test_a_run_that_an_earlier_worker_still_has_is_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    folder.mkdir()
    hold = (
        "import fcntl, sys, time\nfile = open(sys.argv[1], 'a+b')\nfcntl.lockf(file, fcntl.LOCK_EX)\n"
        "print(flush=True)\ntime.sleep(1.5)"
    )
    with Workers(Inline(), tmp_path, None) as workers:
        task = workers._task(column(fedavg(0.1), folder=tmp_path))
        with subprocess.Popen([sys.executable, "-c", hold, folder / LOCK], stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None and holder.stdout.readline()
            outcomes = _columns._read(*pickle.loads(train_column(task)))
            assert holder.poll() == 0
    assert outcomes[0].status == "done", outcomes[0].reason


def test_a_worker_without_the_folder_or_with_other_versions_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Workers(Inline(), tmp_path, None) as workers:
        task = workers._task(column(fedavg(0.1)))
    monkeypatch.setattr(_columns, "_versions", lambda: {"Python": "2.7"})
    with pytest.raises(
        EvenhandError, match=r"The worker on \S+ has Python 2\.7, and the study 3\..*install the same"
    ):
        _columns._read(*pickle.loads(train_column(task)))
    monkeypatch.undo()
    # Nor is a folder of that name on a disk of the worker's own the study's.
    assert tmp_path.is_dir() and not (tmp_path / "shared").exists()
    with pytest.raises(
        EvenhandError,
        match=r"has no folder .*shared, which .*: give a folder on a file system that all workers share",
    ):
        _columns._read(*pickle.loads(train_column(task)))


def test_a_failure_of_the_users_function_names_the_worker_and_keeps_its_traceback(tmp_path: Path) -> None:
    def wrong(run: Any) -> dict[str, float]:
        return {"x": run.nothing}

    with pytest.raises(
        EvenhandError, match=r"The worker on \S+ failed \(AttributeError: .*nothing"
    ) as caught:
        made(tmp_path, Inline(), measure=wrong)
    assert "in wrong" in caught.value.__notes__[0]


def test_warnings_of_a_worker_are_repeated(tmp_path: Path) -> None:
    def warned(run: Any) -> dict[str, float]:
        import warnings

        warnings.warn(EvenhandWarning("The model is strange."), stacklevel=1)
        return {}

    with pytest.warns(EvenhandWarning, match="The model is strange"):
        made(tmp_path, Inline(), measure=warned)


class Waiting(Inline):
    """An executor whose tasks never end, and that takes only one."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.futures, self._error = list[Future[bytes]](), error

    def submit(self, function: Callable[[bytes], bytes], task: bytes, /) -> Future[bytes]:
        if self.futures:
            raise self._error
        self.futures.append(Future())
        return self.futures[0]


@pytest.mark.parametrize(
    "error", [OSError(11, "no more processes"), RuntimeError("sbatch: limit of jobs"), KeyboardInterrupt()]
)
def test_tasks_are_cancelled_if_a_later_one_is_not_taken(error: BaseException, tmp_path: Path) -> None:
    executor = Waiting(error)
    with pytest.raises((EvenhandError, KeyboardInterrupt)) as caught:
        made(tmp_path, executor)
    assert executor.futures[0].cancelled()
    if isinstance(error, Exception):
        assert str(error) in str(caught.value) and "takes no task" in str(caught.value)


def test_an_answer_that_is_lost_is_asked_for_again(whole: Path, tmp_path: Path) -> None:
    class Forgetful(Inline):
        def submit(self, function: Callable[[bytes], bytes], task: bytes, /) -> Future[bytes]:
            return super().submit((lambda task: b"") if len(self.tasks) == 1 else function, task)

    made(tmp_path, Forgetful(), measure=norm)
    assert results(tmp_path) == results(whole)


def test_an_executor_without_futures_is_refused(tmp_path: Path) -> None:
    class Blocking:
        def submit(self, function: Callable[[bytes], bytes], task: bytes, /) -> bytes:
            return function(task)

    with pytest.raises(EvenhandError, match=r"submit returned bytes, without done\(\) and result\(\)"):
        made(tmp_path, Blocking())


def test_a_disk_that_is_full_of_data_is_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with (
        Workers(Inline(), tmp_path, None) as workers,
        pytest.raises(StorageError, match=r"^The data could not be written in .*No space left on device\)"),
    ):
        workers._task(column(fedavg(0.1), large(), tmp_path))


def test_a_forked_worker_refuses_before_it_reads_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it would wait for ever for arrays of JAX."""
    monkeypatch.setattr("evenhand._platform._forked_in", {-1})
    [content, _] = pickle.loads(train_column(b"no task"))
    assert "forked" in str(content)


@pytest.mark.parametrize("where", ["here", "there"])
def test_a_module_that_is_missing_is_no_result_of_a_run(where: str, tmp_path: Path) -> None:
    is_missing = [True]

    def lazy(lr: float) -> Algorithm:
        def apply(params: Any, x: Any) -> Any:
            if is_missing:
                raise ModuleNotFoundError("No module named 'own'")
            return MODEL.apply(params, x)

        work = eh.local.sgd(MODEL._replace(apply=apply), lr, epochs=1, batch_size=20)
        return eh.algorithms.fedavg(work)

    def tried(executor: Any) -> Study:
        how: dict[str, Any] = {"rounds": 1, "seeds": 1, "folder": tmp_path, "executor": executor}
        return study({"lazy": lazy}, DATA, grid={"lr": [0.1]}, **how)

    with pytest.raises(
        EvenhandError, match=r"^lazy\(lr=0\.1\), seed 0, needs what \S+ cannot import \(No module"
    ):
        tried(None if where == "here" else Inline())
    is_missing.clear()
    assert tried(None).outcomes[0].status == "done"


def test_a_worker_without_a_module_of_the_study_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Workers(Inline(), tmp_path, norm) as workers:
        task = workers._task(column(fedavg(0.1), folder=tmp_path))
        monkeypatch.setattr(_columns, "_loaded", lambda *_: __import__("no_such_module"))
        with pytest.raises(
            EvenhandError, match=r"cannot import what the study uses \(No module named 'no_such"
        ):
            _columns._read(*pickle.loads(train_column(task)))


@pytest.mark.parametrize(
    ("executor", "words"),
    [
        (4, r"executor=4: give an executor, which has submit"),
        (ProcessPoolExecutor, "give an executor, which has submit"),
    ],
)
def test_something_else_than_an_executor_is_refused(executor: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(EvenhandError, match=words):
        made(tmp_path, executor)


def test_an_executor_needs_a_folder_and_cloudpickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EvenhandError, match=r"give folder=\.\.\., on a file system that all workers share"):
        study({"fedavg": fedavg(0.1)}, DATA, rounds=1, seeds=1, executor=Inline())
    monkeypatch.setattr(_sweep, "find_spec", lambda name: None)
    with pytest.raises(
        EvenhandError, match=r"cloudpickle, which is not installed: pip install 'evenhand\[executor\]'"
    ):
        made(tmp_path, Inline())


def test_an_executor_that_was_closed_is_refused(tmp_path: Path) -> None:
    executor = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    executor.shutdown()
    with pytest.raises(EvenhandError, match=r"the executor takes no task.*give another one"):
        made(tmp_path, executor)
