"""Runs that are saved and loaded: every number, model and sentence comes back, and damage is one sentence."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import evenhand as eh
from evenhand.centralized.methods import fit as pooled
from evenhand.errors import EvenhandWarning, StorageError
from evenhand.records import as_json, replacing_folder
from evenhand.simulation import SavedRun

CLIENTS = 8
Params = Any


def federation(**options: Any) -> eh.data.FederatedDataset:
    return eh.data.load("digits", clients=CLIENTS, **options)


def model() -> eh.Model:
    return eh.models.softmax_regression(64, classes=10)


def work(trained: eh.Model | None = None) -> eh.local.Work:
    return eh.local.sgd(model() if trained is None else trained, 0.1, epochs=1, batch_size=10)


def plain() -> eh.Run:
    return eh.simulate(eh.algorithms.fedavg(work()), federation(), rounds=3, cohort=4, eval_every=1)


def personal() -> eh.Run:
    method = eh.personalization.ditto(eh.algorithms.fedavg(work()), work(), lam=1.0)
    return eh.simulate(method, federation(), rounds=2, cohort=3, eval_every=1)


def adapted() -> eh.Run:
    method = eh.personalization.finetune(eh.algorithms.fedavg(work()), work())
    return eh.simulate(method, federation(), rounds=2, cohort=3, untrained="initial")


def partly_personal() -> eh.Run:
    """Most leaves are frozen at each client."""
    method = eh.personalization.fedalt(work(), personal="bias")
    return eh.simulate(method, federation(), rounds=2, cohort=3)


def attacked() -> eh.Run:
    method = eh.algorithms.fedavg(work(), aggregator=eh.aggregators.geometric_median())
    attack = eh.attacks.sign_flip(fraction=0.25)
    return eh.simulate(method, federation(), rounds=2, attack=attack, eval_every=1)


def sampled() -> eh.Run:
    data = federation(valid_fraction=0.2)
    return eh.simulate(eh.algorithms.qfedavg(work(), q=1.0), data, rounds=2, cohort=3, eval_clients=5)


def private() -> eh.Run:
    method = eh.privacy.dp_fedavg(work(), clip=1.0, noise_multiplier=1.0, rate=0.5)
    return eh.simulate(method, federation(), rounds=2)


def measured() -> eh.Run:
    metrics = ("auc", "macro_f1")
    return eh.simulate(eh.algorithms.fedavg(work()), federation(), rounds=2, cohort=3, metrics=metrics)


def diverged() -> eh.Run:
    """Its history has numbers that JSON does not."""
    hot = eh.local.sgd(eh.models.linear_regression(4), 1e6, epochs=3, batch_size=5)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 4)), rng.normal(size=60)
    data = eh.data.from_arrays(x, y, np.repeat(["north / A", "café\n", "c"], 20), seed=0)
    with pytest.warns(EvenhandWarning):
        return eh.simulate(eh.algorithms.fedavg(hot), data, rounds=4, eval_every=1)


KINDS: Mapping[str, Callable[[], eh.Run]] = {
    kind.__name__: kind
    for kind in (plain, personal, adapted, partly_personal, attacked, sampled, private, measured, diverged)
}


@pytest.fixture(scope="module")
def trained() -> Callable[[str], eh.Run]:
    """The run of each kind, made once."""
    runs: dict[str, eh.Run] = {}

    def get(kind: str) -> eh.Run:
        if kind not in runs:
            runs[kind] = KINDS[kind]()
        return runs[kind]

    return get


def assert_same_bits(a: Params, b: Params) -> None:
    left, right = jax.tree.leaves(a), jax.tree.leaves(b)
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for leaf, other in zip(left, right, strict=True):
        assert (leaf.dtype, leaf.shape) == (other.dtype, other.shape)
        assert np.asarray(leaf).tobytes() == np.asarray(other).tobytes()


def assert_same_arrays(a: Mapping[str, Any], b: Mapping[str, Any]) -> None:
    assert set(a) == set(b)
    for name in a:
        assert np.asarray(a[name]).dtype == np.asarray(b[name]).dtype
        np.testing.assert_array_equal(a[name], b[name])


def assert_same_views(a: eh.report.RunView, b: eh.report.RunView) -> None:
    assert tuple(a.client_ids) == tuple(b.client_ids)
    assert_same_arrays(a.history, b.history)
    assert_same_arrays(a.sizes, b.sizes)
    for before, after in ((a.clients, b.clients), (a.classes, b.classes)):
        assert set(before) == set(after)
        for split in before:
            assert_same_arrays(before[split], after[split])
    assert (a.malicious is None) == (b.malicious is None)
    np.testing.assert_array_equal(a.last_round, b.last_round)
    assert tuple(a.findings) == tuple(b.findings)
    for name in ("rounds", "seed", "clients", "by_class", "metrics", "adapts", "privacy", "constant"):
        assert as_json(a.info.get(name)) == as_json(b.info.get(name)), name


# --- what was saved is what is loaded -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(KINDS))
def test_everything_comes_back(kind: str, trained: Callable[[str], eh.Run], tmp_path: Path) -> None:
    run = trained(kind)
    saved = eh.load_run(run.save(tmp_path / "a"))
    assert isinstance(saved, SavedRun)
    assert saved.facts.client_ids == run.data.client_ids
    assert_same_arrays(saved.history, run.history)
    assert_same_arrays(saved.per_round, run.per_round)
    for split in ("train", "valid", "test"):
        assert_same_arrays(saved.client_metrics(split), run.client_metrics(split))
        for group in ("all", "honest", "malicious") if run.malicious.any() else ("all", "honest"):
            before, after = run.summary(split, who=group), saved.summary(split, who=group)
            assert_same_arrays(after, before)
            assert (after.clients, after.metric, after.split) == (before.clients, before.metric, before.split)
    assert set(saved.classes) == set(run.classes)
    for split in run.classes:
        for before, after in zip(run.class_metrics(split), saved.class_metrics(split), strict=True):
            np.testing.assert_array_equal(after, before)
    np.testing.assert_array_equal(saved.malicious, run.malicious)
    np.testing.assert_array_equal(saved.last_round, run.last_round)
    assert saved.findings == run.findings
    assert saved.privacy == run.privacy
    assert saved.info == as_json(run.info)
    assert saved.untrained == run.untrained
    assert saved.remarks == ()
    assert repr(saved) == repr(run)
    assert_same_views(saved.view("run"), run.view())


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_models_come_back_bit_for_bit(
    kind: str, trained: Callable[[str], eh.Run], tmp_path: Path
) -> None:
    run = trained(kind)
    saved = eh.load_run(run.save(tmp_path / "a"))
    assert_same_bits(saved.params, run.params)
    for k, name in enumerate(run.data.client_ids):
        assert_same_bits(saved.personal_params(k), run.personal_params(k))
        x = run.data.train.client(k)[0]
        np.testing.assert_array_equal(saved.predict(x, client=name), run.predict(x, client=name))
    np.testing.assert_array_equal(saved.predict(run.data.train.x), run.predict(run.data.train.x))
    np.testing.assert_array_equal(saved.personal_clients, run.personal_clients)
    if saved.has_personal_models:
        models = [
            np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(saved.personal_params(k))])
            for k in (0, 1, 2)
        ]
        own = run.personal_clients
        assert own.any() and any(not np.array_equal(models[0], other) for other in models[1:])


def test_another_run_differs(trained: Callable[[str], eh.Run], tmp_path: Path) -> None:
    a, b = (eh.load_run(trained(kind).save(tmp_path / kind)) for kind in ("plain", "attacked"))
    assert a.summary() != b.summary() and a.history.keys() == b.history.keys()
    assert not np.array_equal(a.params["kernel"], b.params["kernel"])
    assert not a.malicious.any() and b.malicious.any()
    assert trained("private").privacy is not None and a.privacy is None


def test_clients_that_took_no_part_are_shown(tmp_path: Path) -> None:
    data, others = eh.data.hold_out_clients(federation(), 0.25)
    method = eh.personalization.finetune(eh.algorithms.fedavg(work()), work())
    run = eh.simulate(method, data, rounds=2, cohort=3)
    run.save(tmp_path / "a", unseen=others)
    saved = eh.load_run(tmp_path / "a", algorithm=method)
    before, after = run.view(unseen=others).unseen, saved.view().unseen
    assert before is not None and after is not None
    assert tuple(after.client_ids) == tuple(before.client_ids)
    np.testing.assert_allclose(after.clients["test"]["accuracy"], before.clients["test"]["accuracy"])
    served, again = run.serve(others), saved.serve(others)
    assert_same_arrays(again.client_metrics(), served.client_metrics())
    assert_same_bits(again.personal_params(0), served.personal_params(0))
    with pytest.raises(eh.EvenhandError, match=r"give it, as in eh.load_run\(folder, algorithm=algorithm\)"):
        eh.load_run(tmp_path / "a").serve(others)


def test_the_page_of_a_loaded_run(trained: Callable[[str], eh.Run], tmp_path: Path) -> None:
    saved = eh.load_run(trained("attacked").save(tmp_path / "a"))
    page = saved.report(tmp_path / "page.html").read_text()
    assert "evenhand run --config" not in page  # no command repeats it
    assert "fedavg" in page


# --- models -------------------------------------------------------------------------------------------------------


def own_model() -> eh.Model:
    return eh.models.from_functions(
        init=lambda key: (jax.numpy.zeros((64, 10)), [jax.numpy.ones(10)]),
        apply=lambda params, x: x @ params[0] + params[1][0][None],
        losses=eh.models.cross_entropy,
    )


def test_a_model_made_in_python_must_be_given(tmp_path: Path) -> None:
    data, mine = federation(), own_model()
    run = eh.simulate(eh.algorithms.fedavg(work(mine)), data, rounds=1, cohort=3)
    run.save(tmp_path / "a")
    saved = eh.load_run(tmp_path / "a")
    assert saved.summary() == run.summary()
    with pytest.raises(eh.EvenhandError, match=r"eh.load_run\(folder, model=model\)"):
        saved.predict(data.test.x)
    saved = eh.load_run(tmp_path / "a", model=mine)
    assert_same_bits(saved.params, run.params)
    np.testing.assert_array_equal(saved.predict(data.test.x), run.predict(data.test.x))
    other = eh.load_run(tmp_path / "a", model=eh.models.mlp(64, classes=10))
    with pytest.raises(eh.EvenhandError, match="does not hold the parameters of the model"):
        other.predict(data.test.x)


def renamed(dtype: Any) -> eh.Model:
    """A model whose parameters have the names of arguments of ``numpy.savez``, and this dtype."""
    return eh.models.from_functions(
        init=lambda key: {
            "file": jax.numpy.ones((64, 10), dtype),
            "allow_pickle": jax.numpy.ones((), dtype),
        },
        apply=lambda params, x: (
            x @ params["file"].astype("float32") + params["allow_pickle"].astype("float32")
        ),
        losses=eh.models.cross_entropy,
    )


@pytest.mark.parametrize("dtype", [jax.numpy.float32, jax.numpy.bfloat16])
def test_parameters_of_any_name_and_dtype_come_back(tmp_path: Path, dtype: Any) -> None:
    mine = renamed(dtype)
    method = eh.personalization.ditto(eh.algorithms.fedavg(work(mine)), work(mine), lam=1.0)
    with jax.numpy_dtype_promotion("standard"):  # of half precision with the step size
        run = eh.simulate(method, federation(), rounds=1)
    saved = eh.load_run(run.save(tmp_path / "a"), model=mine)
    assert saved.params["file"].dtype == dtype
    assert_same_bits(saved.params, run.params)
    assert_same_bits(saved.personal_params(1), run.personal_params(1))


def test_a_changed_model_is_not_taken_for_the_one_of_its_name(tmp_path: Path) -> None:
    data, plain = federation(), model()
    doubled = plain._replace(apply=lambda params, x: 2.0 * plain.apply(params, x))
    assert doubled.name == plain.name
    run = eh.simulate(eh.algorithms.fedavg(work(doubled)), data, rounds=1, cohort=3)
    with pytest.raises(eh.EvenhandError, match=r"model=model"):
        eh.load_run(run.save(tmp_path / "a")).predict(data.test.x)


@pytest.mark.parametrize(
    "made",
    [
        lambda: eh.models.standardized(eh.models.linear_regression(3, outputs=1), mean=1e3, deviation=7.25),
        lambda: eh.models.svm(3, regularization=1.23456789e-5),
        lambda: eh.models.mlp(3, classes=2, hidden=(4, 5)),
        lambda: eh.models.autoencoder(3, widths=(4, 2)),
    ],
)
def test_models_of_the_library_are_known_by_name(made: Callable[[], eh.Model]) -> None:
    from evenhand.simulation.saving import described

    model, other = made(), described(made().name)
    assert other is not None and other.name == model.name
    x = jax.numpy.linspace(-1, 1, 12).reshape(4, 3)
    params = model.init(jax.random.key(1))
    assert_same_bits(other.init(jax.random.key(1)), params)
    assert_same_bits(other.apply(params, x), model.apply(params, x))


@pytest.mark.parametrize(
    "name",
    [
        "lenet(3)",
        "resnet20(3, groups=4)",
        "resnet32(10, groups=2)",
        "pca(features=3, components=2)",
        "matrix_factorisation(3, 4, dimension=2)",
    ],
)
def test_names_describe_the_models_that_have_them(name: str) -> None:
    from evenhand.simulation.saving import described

    model = described(name)
    assert model is not None and model.name == name


@pytest.mark.parametrize(
    "name", ["", "MyModule", "mlp(", "open('x')", "mlp(3)", "mlp(3, classes=-1)", "mlp(*a)"]
)
def test_other_names_describe_no_model(name: str) -> None:
    from evenhand.simulation.saving import described

    assert described(name) is None


# --- what a folder does not hold ----------------------------------------------------------------------------------


def test_what_is_missing_is_one_sentence(trained: Callable[[str], eh.Run], tmp_path: Path) -> None:
    run = trained("plain")
    saved = eh.load_run(run.save(tmp_path / "a"))
    with pytest.raises(eh.EvenhandError, match=r"does not hold the data: give them"):
        _ = saved.data
    assert eh.load_run(tmp_path / "a", data=run.data).data is run.data
    with pytest.raises(eh.EvenhandError, match="are not those of the run"):
        eh.load_run(tmp_path / "a", data=federation(seed=1))
    with pytest.raises(eh.EvenhandError, match="there is no client 'x'"):
        saved.predict(run.data.test.x, client="x")
    with pytest.raises(eh.EvenhandError, match="positions run from 0 to 7"):
        saved.personal_params(8)
    with pytest.raises(eh.EvenhandError, match="There is no split 'trial'"):
        saved.client_metrics("trial")
    with pytest.raises(eh.EvenhandError, match=r"nothing\.json|config.json does not exist"):
        eh.load_run(tmp_path / "none")


def test_a_released_run_cannot_be_saved(tmp_path: Path) -> None:
    run = personal()
    run.release()
    with pytest.raises(eh.EvenhandError, match="has released its clients' states"):
        run.save(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


# --- damage -------------------------------------------------------------------------------------------------------

FILES = [
    "checksums.json",
    "clients.csv",
    "metrics.jsonl",
    "params.npz",
    "personal/index.csv",
    "results.npz",
    "summary.json",
]


@pytest.mark.parametrize(
    ("name", "damage"),
    [*product(FILES, ["missing", "empty", "changed"]), ("config.json", "missing"), ("config.json", "empty")],
)
def test_a_damaged_file_is_one_sentence(
    name: str, damage: str, trained: Callable[[str], eh.Run], tmp_path: Path
) -> None:
    folder = trained("personal").save(tmp_path / "a")
    path = folder / name
    match damage:
        case "missing":
            path.unlink()
        case "empty":
            path.write_bytes(b"")
        case _:
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(bytes(data))
    if (name, damage) == ("checksums.json", "missing"):  # as in folders of earlier versions
        saved = eh.load_run(folder)
        assert "damage would go unnoticed" in saved.remarks[0]
        losses = [run.client_metrics()["loss"] for run in (saved, trained("personal"))]
        np.testing.assert_allclose(*losses, rtol=1e-8)
        return
    with pytest.raises(eh.EvenhandError, match=re.escape(str(folder))) as raised:
        eh.load_run(folder)
    assert "\n" not in str(raised.value)


def test_an_edited_configuration_is_reported(trained: Callable[[str], eh.Run], tmp_path: Path) -> None:
    path = trained("plain").save(tmp_path / "a") / "config.json"
    path.write_text(path.read_text().replace('"rounds": 3', '"rounds": 4'))
    saved = eh.load_run(tmp_path / "a")
    assert "was changed" in saved.remarks[0] and saved.info["rounds"] == 3


def test_a_damaged_personal_model(trained: Callable[[str], eh.Run], tmp_path: Path) -> None:
    folder = trained("personal").save(tmp_path / "a")
    saved = eh.load_run(folder)
    k = int(np.flatnonzero(trained("personal").personal_clients)[0])
    entry = saved.personal[saved.facts.client_ids[k]]
    (folder / "personal" / entry.file).write_bytes(b"x")
    with pytest.raises(eh.EvenhandError, match="is damaged"):
        saved.personal_params(k)
    assert saved.params is not None


def test_a_newer_format_is_refused_by_version(trained: Callable[[str], eh.Run], tmp_path: Path) -> None:
    folder = trained("plain").save(tmp_path / "a")
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "format": config["format"] + 1, "evenhand": "9.9.9"}))
    with pytest.raises(eh.EvenhandError, match=r"read it with Evenhand 9\.9\.9 or later"):
        eh.load_run(folder)


# --- writing in one step ------------------------------------------------------------------------------------------


def test_a_folder_is_not_overwritten_unasked(trained: Callable[[str], eh.Run], tmp_path: Path) -> None:
    folder = trained("plain").save(tmp_path / "a")
    with pytest.raises(eh.EvenhandError, match="give overwrite=True"):
        trained("attacked").save(folder)
    assert eh.load_run(folder).summary() == trained("plain").summary()
    trained("attacked").save(folder, overwrite=True)
    assert eh.load_run(folder).summary() == trained("attacked").summary()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(eh.EvenhandError, match=r"notes.txt was not written by a run: move it away"):
        trained("plain").save(folder, overwrite=True)
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_file_and_a_foreign_folder_are_left_alone(trained: Callable[[str], eh.Run], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(eh.EvenhandError, match="it is a file"):
        trained("plain").save(tmp_path / "file", overwrite=True)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.tex").write_text("mine")
    with pytest.raises(eh.EvenhandError, match="was not written by a run"):
        trained("plain").save(tmp_path / "b", overwrite=True)
    (tmp_path / "empty").mkdir()
    assert eh.load_run(trained("plain").save(tmp_path / "empty")).summary()


def test_a_full_disk_leaves_the_old_folder(
    trained: Callable[[str], eh.Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = trained("plain").save(tmp_path / "a")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full(path: Path, arrays: Mapping[str, Any]) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("evenhand.records.write_arrays", full)
        with pytest.raises(StorageError, match=r"could not be written: No space left"):
            trained("attacked").save(folder, overwrite=True)
        with pytest.raises(StorageError, match="No space left"):
            trained("attacked").save(tmp_path / "new")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("step", range(4))
def test_a_kill_leaves_the_old_folder_or_the_new_one(
    step: int, trained: Callable[[str], eh.Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends at one of the renames that replace the folder, with nothing cleaned up."""
    folder = trained("plain").save(tmp_path / "a")
    rename, done = os.rename, 0

    class Killed(BaseException):
        pass

    def stop(source: Any, target: Any) -> None:
        nonlocal done
        if Path(source).parent == tmp_path or Path(target).parent == tmp_path:
            if done == step:
                raise Killed
            done += 1
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr("os.rename", stop)
        patch.setattr("shutil.rmtree", lambda path, ignore_errors=False: None)
        with suppress(Killed):
            trained("attacked").save(folder, overwrite=True)
    expected = "plain" if step < 2 else "attacked"
    assert eh.load_run(folder).summary() == trained(expected).summary()
    trained("personal").save(folder, overwrite=True)  # what was left behind is in nobody's way
    assert eh.load_run(folder).summary() == trained("personal").summary()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_folder_in_use_is_not_replaced(trained: Callable[[str], eh.Run], tmp_path: Path) -> None:
    folder = trained("plain").save(tmp_path / "a")
    words = "import sys; from evenhand.records import held\nwith held(sys.argv[1]): print('held', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", words, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdin is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(eh.EvenhandError, match=f"in use by process {other.pid}"):
            trained("attacked").save(folder, overwrite=True)
        assert eh.load_run(folder).summary() == trained("plain").summary()
        other.stdin.write("\n")
        other.stdin.close()
    trained("attacked").save(folder, overwrite=True)
    assert eh.load_run(folder).summary() == trained("attacked").summary()


def test_a_folder_is_replaced_once_it_is_complete(tmp_path: Path) -> None:
    with replacing_folder(tmp_path / "b") as part:
        (part / "x").write_text("1")
        assert not (tmp_path / "b").exists()
    assert (tmp_path / "b" / "x").read_text() == "1"
    with suppress(KeyError), replacing_folder(tmp_path / "b") as part:
        (part / "x").write_text("2")
        raise KeyError
    assert (tmp_path / "b" / "x").read_text() == "1"
    assert not [path for path in tmp_path.iterdir() if path.name != "b"]


def test_numbers_of_very_many_groups_are_in_the_table_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JSON that is too long for a reader would make a folder that nobody can load."""
    run = eh.simulate(pooled(eh.testing.toy_model()), eh.testing.toy_data(), rounds=1)
    few = run.save(tmp_path / "few")
    monkeypatch.setattr("evenhand.simulation.saving._MOST_GROUPS", run.data.num_clients - 1)
    many = run.save(tmp_path / "many")
    assert "groups" in json.loads((few / "summary.json").read_text())
    assert "groups" not in json.loads((many / "summary.json").read_text())
    assert eh.load_run(many).summary() == eh.load_run(few).summary()


def test_commands_in_sentences_can_be_copied(trained: Callable[[str], eh.Run], tmp_path: Path) -> None:
    """Into a shell, which would take a path with a space for two words."""
    folder = trained("plain").save(tmp_path / "my runs")
    (folder / "checksums.json").unlink()
    (folder / "summary.json").unlink()
    with pytest.raises(eh.EvenhandError) as caught:
        eh.load_run(folder)
    assert f"`evenhand resume '{folder}'`" in str(caught.value)


def test_a_page_that_cannot_be_written_is_one_sentence(
    trained: Callable[[str], eh.Run], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    for place in (tmp_path, tmp_path / "file" / "page.html"):
        with pytest.raises(StorageError, match=r"The page could not be written to .*: name a file"):
            trained("plain").report(place)
