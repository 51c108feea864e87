"""What a study's folder keeps: the bits of a study that never stopped, and no number that was changed since."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import evenhand as eh
from evenhand.errors import StorageError
from evenhand.records import FolderInUse, resealed
from evenhand.report import RunView
from evenhand.rounds import malicious_clients
from evenhand.simulation import Job, identify
from evenhand.simulation._checkpoint import Checkpoints
from evenhand.studies import Halving, Outcome, Setting, _columns, load, study
from evenhand.studies._store import Store
from evenhand.types import Algorithm

DATA = eh.data.load("digits", clients=10, valid_fraction=0.2)
MODEL = eh.models.softmax_regression(features=64, classes=10)
HALVED: dict[str, Any] = {"halving": Halving(2, 0.5)}


@cache  # the same method each time, whose rounds are then traced once
def fedavg(lr: float) -> Algorithm:
    return eh.algorithms.fedavg(eh.local.sgd(MODEL, lr, epochs=1, batch_size=10))


def made(folder: Path, **how: Any) -> dict[str, str]:
    """The results of six runs, which train in columns, as text without what depends on the clock."""
    grid = {"lr": [0.01, 0.05, 0.1]}
    study(
        {"f": fedavg},
        DATA,
        rounds=6,
        seeds=2,
        eval_every=2,
        cohort=5,
        grid=grid,
        folder=folder,
        checkpoint=0,
        **how,
    )
    return results(folder)


def results(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.glob("runs/*/*.json")):
        value = json.loads(path.read_text())
        del value["sha256"], value["view"]["info"]["seconds"], value["view"]["info"]["examples_per_second"]
        found[f"{path.parent.name}/{path.name}"] = json.dumps(value)
    return found


@pytest.fixture(scope="module", autouse=True)
def _two_devices() -> Iterator[None]:
    """A column of three runs on each; tests have four devices, and use one by default."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evenhand.simulation._many._devices", lambda: 2)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study that was not interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    made(folder)
    return folder


@pytest.fixture(scope="module")
def halved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("halved")
    made(folder, **HALVED)
    return folder


def stopped_at(number: int, monkeypatch: pytest.MonkeyPatch, folder: Path, **how: Any) -> None:
    """Interrupts a study at one of its evaluations."""
    iterate: Callable[..., Iterator[Any]] = _columns.iterate_many
    seen = iter(range(1, 1000))

    def stopped(jobs: list[Job], wanted: list[int]) -> Iterator[Any]:
        for result in iterate(jobs, wanted):
            if next(seen) == number:
                raise KeyboardInterrupt
            yield result

    with monkeypatch.context() as patch:
        patch.setattr(_columns, "iterate_many", stopped)
        with pytest.raises(KeyboardInterrupt):
            made(folder, **how)


@pytest.mark.parametrize("number", [4, 9, 16, 20, 23])
def test_a_study_that_was_interrupted_gives_the_bits_of_one_that_was_not(
    number: int, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 24 evaluations: before the first round, between rounds, and when 0, 1 and 4 of the runs have ended."""
    stopped_at(number, monkeypatch, tmp_path)
    kept = len(results(tmp_path))
    assert kept == {20: 1, 23: 4}.get(number, 0)
    assert made(tmp_path) == results(whole)


def without(folder: Path, rng: random.Random, count: int, name: str = "result.json") -> None:
    for path in rng.sample(sorted(folder.glob(f"runs/*/{name}")), count):
        path.unlink()


@pytest.mark.parametrize("count", [1, 4])
def test_a_result_that_was_deleted_is_repeated_to_the_bit(count: int, whole: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "a"))
    without(folder, random.Random(count), count)
    assert made(folder) == results(whole)


def test_beside_others_the_bits_are_others(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where only the missing runs train together, as if there were no plan: so the tests above can fail."""
    folder = Path(shutil.copytree(whole, tmp_path / "a"))
    without(folder, random.Random(0), 2)

    def by_presence(store: Store, runs: list[tuple[Setting, int]]) -> list[list[int]]:
        present = [store.has(*run) for run in runs]
        return [[i for i, is_there in enumerate(present) if is_there is wanted] for wanted in (True, False)]

    monkeypatch.setattr(Store, "plan", by_presence)
    again, first = made(folder), results(whole)
    assert sum(again[name] != first[name] for name in first) == 2
    for name in first:
        a, b = (json.loads(of[name])["view"]["history"]["train_loss"] for of in (again, first))
        np.testing.assert_allclose(a, b, rtol=1e-4)


@pytest.mark.parametrize("number", [3, 10, 13, 16, 20, 23])
def test_halving_that_was_interrupted_gives_the_same_bits(
    number: int, halved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first phase, of six runs; in the second, of four, which continue from their states; and in the last."""
    stopped_at(number, monkeypatch, tmp_path, **HALVED)
    assert made(tmp_path, **HALVED) == results(halved)


def test_a_survivor_that_is_repeated_makes_each_phase_beside_the_same_runs(
    halved: Path, tmp_path: Path
) -> None:
    """With its state gone it begins anew, and trains beside all runs before the first rung, and fewer afterwards."""
    folder = Path(shutil.copytree(halved, tmp_path / "a"))
    done = [
        path for path in folder.glob("runs/*/result.json") if json.loads(path.read_text())["status"] == "done"
    ]
    assert len(done) == 2
    done[0].unlink()
    assert made(folder, **HALVED) == results(halved)


def test_of_settings_that_are_equally_good_the_first_goes_on_in_whatever_order_they_ended(
    tmp_path: Path,
) -> None:
    """The first of three equal settings is repeated last, and is no worse for it."""
    data, model = eh.data.hold_out(eh.testing.toy_data(), 0.4), eh.testing.toy_model()

    def same(name: str) -> Algorithm:
        return eh.algorithms.fedavg(eh.local.sgd(model, 0.1, epochs=1, batch_size=4))

    how: dict[str, Any] = {"rounds": 4, "seeds": 1, "eval_every": 2, "grid": {"name": ["a", "b", "c"]}}
    how |= {"halving": Halving(2), "folder": tmp_path}
    for _ in range(2):
        found = study({"f": same}, data, **how)
        assert [each.status for each in found.outcomes] == ["done", "stopped", "stopped"]
        for path in tmp_path.glob("runs/f-name=a-*/*.json"):
            path.unlink()


def test_a_plan_grows_and_damage_to_it_is_refused(whole: Path, tmp_path: Path) -> None:
    """New runs are a batch of their own, so that a value more does not repeat the others; results come first."""
    folder = Path(shutil.copytree(whole, tmp_path / "a"))
    runs = [(Setting("f", {"lr": lr}), seed) for lr in (0.01, 0.05, 0.1, 0.2) for seed in (0, 1, 2)]
    store = Store(folder)
    assert store.plan(runs) == [[0, 1, 3, 4, 6, 7], [2, 5, 8, 9, 10, 11]]
    assert store.plan(runs[::-1]) == [[11, 10, 8, 7, 5, 4], [9, 6, 3, 2, 1, 0]]
    assert store.plan(runs[4:5]) == [[0]]
    plan = folder / "plan.json"
    plan.unlink()  # as in a folder of an earlier version: what has ended stays apart
    assert store.plan(runs) == [[0, 1, 3, 4, 6, 7], [2, 5, 8, 9, 10, 11]]
    plan.write_text(plan.read_text().replace("seed-2", "seed-1", 1))
    with pytest.raises(
        eh.EvenhandError, match=r"plan\.json is damaged \(it does not match its checksum\): delete it"
    ):
        store.plan(runs)


# --- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lr", "seed", "words"), [(0.01, 1, "seed is 1, not 0"), (0.05, 0, "setting is f")])
def test_results_in_the_place_of_others_are_refused(
    lr: float, seed: int, words: str, whole: Path, tmp_path: Path
) -> None:
    """Of another seed, and of another setting; they differ in nothing else that a study knows of its runs."""
    folder = Path(shutil.copytree(whole, tmp_path / "a"))
    places = [
        Store(folder).checkpoint(Setting("f", {"lr": value}), number).parent
        for value, number in ((0.01, 0), (lr, seed))
    ]
    places[0].rename(folder / "x")
    places[1].rename(places[0])
    (folder / "x").rename(places[1])
    with pytest.raises(eh.EvenhandError, match=rf"result\.json is of another run \(its {words}"):
        load(folder)
    with pytest.raises(eh.EvenhandError, match=rf"result\.json is of another run \(its {words}"):
        made(folder)


def with_another_result(whole: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A study's folder with a result of fewer rounds in the place of one; and the folder that it comes from."""
    folder, other = Path(shutil.copytree(whole, tmp_path / "a")), tmp_path / "b"
    study({"f": fedavg}, DATA, rounds=2, seeds=[0], cohort=5, grid={"lr": [0.05, 0.1]}, folder=other)
    place = Store(folder).checkpoint(Setting("f", {"lr": 0.05}), 0).parent
    shutil.copy(other / "runs" / place.name / "result.json", place)
    return folder, other


def test_a_result_of_another_study_in_the_same_place_is_refused(whole: Path, tmp_path: Path) -> None:
    """Of the same setting and seed, after fewer rounds: it is whole, and not the result that the study had."""
    folder, other = with_another_result(whole, tmp_path)
    assert len(load(whole).outcomes) == 6 and len(load(other).outcomes) == 2
    with pytest.raises(
        eh.EvenhandError,
        match=r"f-lr=0\.05-\w+-seed-0/result\.json is not the result that study\.json lists: start the study again",
    ):
        load(folder)
    with pytest.raises(eh.EvenhandError, match=r"is of another run \(its rounds is 2, not 6\)"):
        made(folder)


def test_a_result_that_was_repeated_is_that_of_the_study_once_it_was_started_again(
    whole: Path, tmp_path: Path
) -> None:
    """Its time differs, and so does its checksum; ``study.json`` is written anew."""
    folder = Path(shutil.copytree(whole, tmp_path / "a"))
    listed = (folder / "study.json").read_text()
    without(folder, random.Random(0), 1)
    made(folder)
    assert len(load(folder).outcomes) == 6
    (folder / "study.json").write_text(listed)
    with pytest.raises(eh.EvenhandError, match="start the study again"):
        load(folder)


def test_a_list_of_an_earlier_version_says_nothing_about_results(whole: Path, tmp_path: Path) -> None:
    """Without the results' checksums, the result of another study is read; a checksum that is none is refused."""
    folder, _ = with_another_result(whole, tmp_path)
    path = folder / "study.json"
    value = json.loads(path.read_text())
    runs = value["runs"]
    path.write_text(
        json.dumps(
            resealed({**value, "runs": [{k: v for k, v in run.items() if k != "sha256"} for run in runs]})
        )
    )
    assert len(load(folder).outcomes) == 6
    path.write_text(json.dumps(resealed({**value, "runs": [run | {"sha256": 5} for run in runs]})))
    with pytest.raises(eh.EvenhandError, match="is not the result"):
        load(folder)


def test_folders_of_runs_can_be_merged(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds 0 and 1 made in one place, 2 and 3 in another: no run is made again."""
    how: dict[str, Any] = {"rounds": 2, "eval_every": 2, "grid": {"lr": [0.01, 0.1]}}
    for name, seeds in (("a", [0, 1]), ("b", [2, 3])):
        study({"f": fedavg}, DATA, seeds=seeds, folder=tmp_path / name, **how)
    shutil.copytree(tmp_path / "b", tmp_path / "a", dirs_exist_ok=True)
    merged = results(tmp_path / "a")
    monkeypatch.setattr(_columns, "iterate_many", None)
    found = study({"f": fedavg}, DATA, seeds=4, folder=tmp_path / "a", **how)
    assert len(found.outcomes) == 8 and results(tmp_path / "a") == merged
    assert [each[:4] for each in load(tmp_path / "a").outcomes] == [each[:4] for each in found.outcomes]


def unsealed(folder: Path) -> Path:
    """Makes the folder one of an earlier version."""
    (folder / "plan.json").unlink()
    for path in folder.rglob("*.json"):
        value = json.loads(path.read_text())
        del value["sha256"]
        for later in ("format", "evenhand"):
            value.pop(later, None)
        if "identity" in value:
            del value["identity"]["attack"], value["identity"]["data (every row, and the clients' names)"]
        path.write_text(json.dumps(value))
    return folder


@pytest.mark.parametrize("name", ["study.json", "result.json"])
def test_a_newer_format_is_refused_by_version(name: str, whole: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "a"))
    path = next(folder.rglob(name))
    value = json.loads(path.read_text())
    path.write_text(
        json.dumps(resealed({**value, "format": value["format"] + 1, "evenhand": "9.9.9"})) + "\n"
    )
    with pytest.raises(eh.EvenhandError, match=r"read it with Evenhand 9\.9\.9 or later"):
        eh.load_study(folder)


def test_a_folder_of_an_earlier_version_is_read_and_reported(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = unsealed(Path(shutil.copytree(whole, tmp_path / "a")))
    words = "of the study's files have no checksums (an earlier version of Evenhand wrote them)"
    assert any(f"7 {words}" in remark for remark in load(folder).remarks)
    assert not any(words in remark for remark in load(whole).remarks)
    monkeypatch.setattr(_columns, "iterate_many", None)
    made_of = study(
        {"f": fedavg}, DATA, rounds=6, seeds=2, eval_every=2, cohort=5, grid={"lr": [0.1]}, folder=folder
    )
    assert any(f"2 {words}" in remark for remark in made_of.remarks)
    path = next(folder.glob("runs/*/result.json"))
    text = path.read_text()
    # A file whose checksum has another name is none of an earlier version.
    path.write_text(json.dumps({**json.loads(text), "sha257": 5}))
    with pytest.raises(eh.EvenhandError, match="is damaged"):
        load(folder)
    path.write_text(text)


_ODD: list[Any] = [5, None, [], {}, "x", True, [1, [2]], {"a": 1}, -1, [None], "9" * 30]


def test_whatever_is_damaged_in_a_folder_without_checksums_is_one_sentence(
    whole: Path, tmp_path: Path, thorough: bool
) -> None:
    """Another value at any place is refused in a sentence or shown; nothing raises another error."""
    folder = unsealed(Path(shutil.copytree(whole, tmp_path / "a")))
    paths = [folder / "study.json", next(folder.glob("runs/*/result.json"))]
    refused = 0
    for number in range(400 if thorough else 60):
        rng = random.Random(number)
        path = rng.choice(paths)
        text = path.read_text()
        path.write_text(json.dumps(_with_another_value(json.loads(text), rng)))
        refused += _is_refused(lambda: load(folder).table())
        path.write_text(text)
    assert refused > 10


def _is_refused(read: Callable[[], object]) -> bool:
    try:
        read()
    except eh.EvenhandError:
        return True
    return False


def _with_another_value(value: Any, rng: random.Random) -> Any:
    if rng.random() < 0.25 or not isinstance(value, dict | list) or not value:
        return rng.choice(_ODD)
    key = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
    value[key] = _with_another_value(value[key], rng)
    return value


@pytest.mark.parametrize("name", ["study.json", "result.json", "plan.json", "rounds-2.json"])
def test_a_digit_that_changed_is_refused(name: str, halved: Path, tmp_path: Path) -> None:
    """At any of its digits, also one beyond the precision of a float; the sentence says what to do."""
    folder = Path(shutil.copytree(halved, tmp_path / "a"))
    path = next(folder.rglob(name))
    text = path.read_text()
    for number in range(8 if name == "rounds-2.json" else 3):  # of these eight, one changes no value
        rng = random.Random(number)
        place = rng.choice([i for i, letter in enumerate(text) if letter.isdigit()])
        digit = str((int(text[place]) + rng.randint(1, 9)) % 10)
        path.write_text(text[:place] + digit + text[place + 1 :])
        words = rf"{name} is damaged \(.*\): (delete it|start the study again)"
        with pytest.raises(eh.EvenhandError, match=words):
            _ = load(folder) if name == "study.json" else made(folder, **HALVED)
    path.write_text(text)
    assert made(folder, **HALVED) == results(halved)


@pytest.mark.parametrize("name", ["study.json", "result.json", "plan.json"])
def test_a_text_that_was_changed_is_refused_though_its_values_are_the_same(
    name: str, whole: Path, tmp_path: Path
) -> None:
    """A digit beyond the precision of a float, which no checksum of values notices."""
    folder = Path(shutil.copytree(whole, tmp_path / "a"))
    path = next(folder.rglob(name))
    value = json.loads(path.read_text())
    if name != "result.json":  # which has fractions already
        value = resealed({**value, "fraction": 0.1})
    text = json.dumps(value)
    changed, count = re.subn(r"(\d\.\d*[1-9])(?=[,}\]])", r"\g<1>" + 20 * "0" + "1", text, count=1)
    assert count == 1 and json.loads(changed) == value

    def read() -> object:
        return Store(folder).plan([(Setting("f", {"lr": 0.1}), 0)]) if name == "plan.json" else load(folder)

    path.write_text(changed)
    with pytest.raises(eh.EvenhandError, match=rf"{name} is damaged \(it does not match its checksum\)"):
        read()
    path.write_text(text)
    read()


def test_what_was_measured_of_another_run_is_refused(tmp_path: Path) -> None:
    store, (a, b) = Store(tmp_path), (Setting("f", {"lr": lr}) for lr in (0.1, 0.2))
    store.note(a, 0, {0: {"norm": 1.5}})
    assert store.notes(a, 0) == {0: {"norm": 1.5}} and store.notes(b, 0) == {}
    path = next(tmp_path.glob("runs/*/measures.json"))
    other = store.checkpoint(b, 0).parent
    other.mkdir(parents=True)
    shutil.copy(path, other / path.name)
    with pytest.raises(
        eh.EvenhandError, match=r"measures.json is damaged \(it is of another run\): delete the folder"
    ):
        store.notes(b, 0)
    path.write_text(path.read_text().replace("1.5", "1.6"))
    with pytest.raises(eh.EvenhandError, match="is damaged"):
        store.notes(a, 0)
    path.write_text('{"0": {"norm": 1.5}, "2": {"norm": 2.5}}')  # of an earlier version
    assert store.notes(a, 0) == {0: {"norm": 1.5}, 2: {"norm": 2.5}}


# --- what distinguishes runs -----------------------------------------------------------------------------------------


def rows(count: int, change: int | None = None) -> eh.data.FederatedDataset:
    """One client with so many examples, one of which may be another."""
    x = np.linspace(0, 1, 4 * count, dtype=np.float32).reshape(count, 4)
    if change is not None:
        x[change, 2] += 0.5
    split = eh.data.Split(x, np.arange(count) % 3, np.array([0, count]))
    none = eh.data.Split(x[:0], split.y[:0], np.array([0, 0]))
    return eh.data.FederatedDataset(split, none, none, ("a",))


def test_every_row_distinguishes_data() -> None:
    """Any one of 9,000 rows, more than the 4,096 that earlier versions looked at; read in blocks, and only once."""
    whole, method = (
        rows(9000),
        eh.algorithms.fedavg(eh.local.sgd(eh.testing.toy_model(), 0.1, steps=1, batch_size=4)),
    )
    before = identify(Job(method, whole, rounds=2))
    assert before == identify(Job(method, rows(9000), rounds=2, seed=3))
    unnoticed = 0
    for change in (1, 2, 3, 4501, 8998):
        after = identify(Job(method, rows(9000, change), rounds=2))
        names = [name for name in before if before[name] != after[name]]
        assert "data (every row, and the clients' names)" in names
        unnoticed += "data" not in names
    assert unnoticed > 0  # by the sample
    assert "fingerprint" in vars(whole)  # kept with the object, whose arrays cannot be written to


def test_a_fingerprint_is_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file, too; it is the hash of all bytes at once, and of the clients' names."""
    expected = rows(100).fingerprint
    monkeypatch.setattr("evenhand.data._dataset._BLOCK", 48)
    assert rows(100).fingerprint == expected != rows(100, 99).fingerprint
    data = rows(100)
    named = eh.data.FederatedDataset(data.train, data.valid, data.test, ("b",))
    assert named.fingerprint != expected
    np.save(tmp_path / "x.npy", data.train.x)
    split = data.train._replace(x=np.load(tmp_path / "x.npy", mmap_mode="r"))
    assert eh.data.FederatedDataset(split, data.valid, data.test, ("a",)).fingerprint == expected


def test_attacks_distinguish_runs_whatever_the_seed() -> None:
    data, method = (
        eh.testing.toy_data(),
        eh.algorithms.fedavg(eh.local.sgd(eh.testing.toy_model(), 0.1, steps=1)),
    )

    def of(share: float, seed: int) -> dict[str, Any]:
        return identify(Job(method, data, 2, seed, attack=eh.attacks.sign_flip(share)))

    assert of(0.34, 0) == of(0.34, 1) != of(0.5, 0)


def test_a_checkpoint_of_an_earlier_version_continues_and_other_data_are_refused(tmp_path: Path) -> None:
    data, method = (
        rows(9000),
        eh.algorithms.fedavg(eh.local.sgd(eh.testing.toy_model(), 0.1, steps=1, batch_size=4)),
    )
    how: dict[str, Any] = {"eval_every": 2, "checkpoint": tmp_path}
    [*_, last] = eh.simulation.iterate(method, data, rounds=2, **how)
    assert last.info["rounds"] == 2
    with pytest.raises(StorageError, match=r"of another run \(its data \(every row"):
        list(eh.simulation.iterate(method, rows(9000, 1), rounds=4, **how))
    [path] = tmp_path.glob("*/about/metadata")
    about = json.loads(path.read_text())
    del about["identity"]["data (every row, and the clients' names)"]
    path.write_text(json.dumps(resealed(about)))
    assert [run.info["rounds"] for run in eh.simulation.iterate(method, data, rounds=4, **how)] == [2, 4]


def test_columns_that_do_not_fit_are_refused_before_they_are_used(tmp_path: Path) -> None:
    view = RunView("f", {"round": np.array([0])}, {"test": np.array([1, 2])}, ("a",), {}, {}, {})
    store, setting = Store(tmp_path), Setting("f", {})
    store.save(Outcome(setting, 0, "done", "", view), {})
    with pytest.raises(eh.EvenhandError, match="its columns do not fit together"):
        store.load(setting, 0, {})


def test_a_damaged_state_is_no_result_of_its_run(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The study stops in a sentence; with that state deleted, it begins the run anew and ends with the same bits."""
    stopped_at(16, monkeypatch, tmp_path)
    place = next(tmp_path.glob("runs/*/checkpoint"))
    for path in place.glob("*/about/metadata"):
        path.write_text(path.read_text().replace("train_loss", "train_lost"))
    with pytest.raises(StorageError, match=r"The checkpoint in .* is damaged .*: delete its contents"):
        made(tmp_path)
    assert not results(tmp_path)
    shutil.rmtree(place)
    assert made(tmp_path) == results(whole)


# --- another study in the same folder ---------------------------------------------------------------------------------


def states(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder)) for path in folder.glob("runs/*/checkpoint/*") if path.name.isdigit()
    }


def two(folder: Path, method: Any = fedavg, **how: Any) -> eh.studies.Study:
    """A study of two step sizes, four rounds each."""
    settings: dict[str, Any] = {
        "rounds": 4,
        "seeds": 1,
        "eval_every": 2,
        "cohort": 5,
        "grid": {"lr": [0.01, 0.05]},
    }
    return study({"f": method}, DATA, folder=folder, checkpoint=0, **{**settings, **how})


def test_states_beyond_the_rounds_that_are_asked_for_are_refused_and_kept(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With fewer rounds, and with a choice after fewer: a run's state is not lost, and nothing counts as failed."""
    stopped_at(16, monkeypatch, tmp_path)
    before = states(tmp_path)
    assert before
    grid: dict[str, Any] = {"grid": {"lr": [0.01, 0.05, 0.1]}, "seeds": 2}
    with pytest.raises(StorageError, match=r"rounds done, more than rounds=2: ask for at least as many"):
        two(tmp_path, rounds=2, **grid)
    with pytest.raises(eh.EvenhandError, match=r"has more than 2 rounds done .*start .* without halving"):
        made(tmp_path, **HALVED)
    assert states(tmp_path) == before and not results(tmp_path)
    assert made(tmp_path) == results(whole)


def test_a_run_that_another_process_trains_has_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock does not keep out its own process, so another one is pretended."""

    def in_use(checkpoints: Checkpoints) -> None:
        raise FolderInUse("runs/x/checkpoint is in use by process 1")

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "held", in_use)
        with pytest.raises(StorageError, match="is in use by process 1"):
            two(tmp_path)
    assert not results(tmp_path)
    assert {run.status for run in two(tmp_path).outcomes} == {"done"}


def test_halving_leaves_finished_runs_alone(tmp_path: Path) -> None:
    two(tmp_path)
    before = results(tmp_path)
    with pytest.raises(
        eh.EvenhandError, match="start the study again without halving, which repeats no finished run"
    ):
        two(tmp_path, **HALVED)
    assert results(tmp_path) == before


def test_a_run_that_had_diverged_at_a_choice_may_recover_without_one(tmp_path: Path) -> None:
    """Steps that are too large for two rounds, and a hundred times smaller afterwards."""

    @cache
    def falling(lr: float) -> Algorithm:
        schedule = eh.local.steps(1e-4, every=2)
        return eh.algorithms.fedavg(eh.local.sgd(MODEL, lr, epochs=1, batch_size=10, schedule=schedule))

    how: dict[str, Any] = {"grid": {"lr": [0.1, 4000.0]}, "rounds": 8}
    status = {
        run.setting.numbers["lr"]: run.status for run in two(tmp_path, falling, **how, **HALVED).outcomes
    }
    assert status == {0.1: "done", 4000.0: "diverged"}
    again, fresh = two(tmp_path, falling, **how), two(tmp_path / "fresh", falling, **how)
    for one, other in zip(again.outcomes, fresh.outcomes, strict=True):
        assert one.view is not None and other.view is not None
        assert one.status == other.status and one.view.info["rounds"] == 8
        np.testing.assert_allclose(
            one.view.history["train_loss"], other.view.history["train_loss"], rtol=1e-4
        )


def initialised(scale: float) -> eh.Model:
    return MODEL._replace(init=lambda key: jax.tree.map(lambda leaf: leaf + scale, MODEL.init(key)))


CHANGED = {
    "first parameters": lambda lr: eh.algorithms.fedavg(
        eh.local.sgd(initialised(1.0), lr, epochs=1, batch_size=10)
    ),
    "metric": lambda lr: eh.algorithms.fedavg(
        eh.local.sgd(
            MODEL._replace(metrics={"accuracy": lambda outputs, y: jnp.argmin(outputs, -1) == y}),
            lr,
            epochs=1,
            batch_size=10,
        )
    ),
}


@pytest.mark.parametrize("name", list(CHANGED))
def test_a_result_of_another_model_is_refused(name: str, tmp_path: Path) -> None:
    """Of one that begins elsewhere, or is measured otherwise: a round of both is the same program."""
    two(tmp_path)
    with pytest.raises(eh.EvenhandError, match=r"another run \(its model \(its first parameters and"):
        two(tmp_path, CHANGED[name])


def test_results_that_do_not_say_which_model_they_are_of_are_taken(tmp_path: Path) -> None:
    """As version 0.2 wrote them."""
    two(tmp_path)
    for path in tmp_path.glob("runs/*/result.json"):
        value = json.loads(path.read_text())
        for part in (
            "model (its first parameters and its metrics)",
            "method (the states that it begins with)",
        ):
            del value["identity"][part]
        del value["sha256"]
        path.write_text(json.dumps(resealed(value)) + "\n")
    before = results(tmp_path)
    two(tmp_path)
    assert results(tmp_path) == before


def test_no_earlier_result_is_that_of_a_method_that_cannot_be_set_up(tmp_path: Path) -> None:
    def fails(outputs: Any, y: Any) -> Any:
        raise ValueError("broken")

    def broken(lr: float) -> Algorithm:
        return eh.algorithms.fedavg(eh.local.sgd(MODEL._replace(losses=fails), lr, epochs=1, batch_size=10))

    two(tmp_path / "a")
    with pytest.raises(eh.EvenhandError, match=r"not one that cannot be set up"):
        two(tmp_path / "a", broken)
    assert {run.status for run in two(tmp_path / "b", broken).outcomes} == {"failed"}


def test_an_attack_by_other_clients_is_another_study(tmp_path: Path) -> None:
    """By those whom a fraction draws at seed 0: at other seeds it draws others."""
    flip = eh.attacks.sign_flip(fraction=0.3)
    drawn = tuple(np.flatnonzero(malicious_clients(flip, DATA.client_ids, 0)).tolist())
    two(tmp_path, attack=flip)
    two(tmp_path / "again", attack=flip._replace(fraction=0.0, clients=(np.int64(drawn[0]),)))
    two(tmp_path / "again", attack=flip._replace(fraction=0.0, clients=(drawn[0],)))
    with pytest.raises(eh.EvenhandError, match=r"its attack \(its fraction and clients\) is \[0.3, None\]"):
        two(tmp_path, attack=flip._replace(fraction=0.0, clients=drawn))


def test_a_long_name_is_cut_where_a_file_system_would_refuse_it(tmp_path: Path) -> None:
    """A file system counts bytes, of which these characters have three each; what it takes is as long as ever."""
    for count, kept in ((10, 60), (14, 73)):
        place = Store(tmp_path).checkpoint(Setting("联邦平均算法" * count, {}), 0)
        place.mkdir(parents=True)
        assert place.parent.name.partition("-")[0] == ("联邦平均算法" * count)[:kept]


def test_halving_with_without_and_with_again_loses_nothing(tmp_path: Path) -> None:
    """What was stopped is trained to the end without halving, and stays so when halving would stop it again."""
    first = two(tmp_path, **HALVED)
    assert sorted(run.status for run in first.outcomes) == ["done", "stopped"]
    two(tmp_path)
    before = results(tmp_path)
    again = two(tmp_path, **HALVED)
    assert [run.status for run in again.outcomes] == ["done", "done"]
    assert results(tmp_path) == before and load(tmp_path).outcomes[0].status == "done"


def test_a_method_that_could_not_be_set_up_is_tried_again(tmp_path: Path) -> None:
    """Whatever it was: version 0.2 saved no identity of it."""

    def fails(outputs: Any, y: Any) -> Any:
        raise ValueError("broken")

    broken = MODEL._replace(losses=fails)
    two(tmp_path, lambda lr: eh.algorithms.fedavg(eh.local.sgd(broken, lr, epochs=1, batch_size=10)))
    for path in tmp_path.glob("runs/*/result.json"):
        value = json.loads(path.read_text())
        assert value["status"] == "failed"
        value["identity"] = {}
        del value["sha256"]
        path.write_text(json.dumps(resealed(value)) + "\n")
    read = Store(tmp_path).load(Setting("f", {"lr": 0.01}), 0, {})
    assert read is not None and read.status == "failed"
    assert {run.status for run in two(tmp_path).outcomes} == {"done"}
