"""A run that stops continues from its checkpoint, and ends with the same bits as one that never stopped."""

import errno
import itertools
import json
import os
import pty
import re
import shutil
import signal
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint
import pytest

import evenhand as eh
from evenhand.errors import EvenhandWarning
from evenhand.simulation import Checkpoint, Job
from evenhand.simulation._checkpoint import Checkpoints, resealed
from evenhand.simulation.setup import set_up
from nursery import Nursery

MODEL = eh.testing.toy_model()
DATA = eh.testing.toy_data()
WORK = eh.local.sgd(MODEL, 0.1, epochs=2, batch_size=4)
METHOD = eh.algorithms.scaffold(WORK)
SETTINGS: dict[str, Any] = {"rounds": 12, "cohort": 4, "eval_every": 2, "seed": 3}


@pytest.fixture(scope="module")
def whole():
    return eh.simulate(METHOD, DATA, **SETTINGS)


def assert_same_run(a, b):
    for x, y in zip(jax.tree.leaves(a.state), jax.tree.leaves(b.state), strict=True):
        np.testing.assert_array_equal(x, y)
    for columns in ("history", "per_round"):
        values, others = getattr(a, columns), getattr(b, columns)
        assert values.keys() == others.keys()
        for name in values:
            np.testing.assert_array_equal(values[name], others[name])


def test_ctrl_c_during_a_save_waits_until_it_is_whole(whole, tmp_path, monkeypatch):
    """An interrupt inside it would make the checkpoint library's threads print errors on the user's screen."""
    save, saved = orbax.checkpoint.CheckpointManager.save, []

    def interrupted(manager, step, **how):
        os.kill(os.getpid(), signal.SIGINT)
        saved.append(save(manager, step, **how))

    monkeypatch.setattr(orbax.checkpoint.CheckpointManager, "save", interrupted)
    # What a shell puts in the background ignores the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            eh.simulate(METHOD, DATA, checkpoint=tmp_path, **SETTINGS)
    finally:
        signal.signal(signal.SIGINT, before)
    monkeypatch.undo()
    assert saved == [True]
    runs = list(eh.simulation.iterate(METHOD, DATA, checkpoint=tmp_path, **SETTINGS))
    assert runs[0].info["rounds"] == 2
    assert_same_run(runs[-1], whole)


@pytest.mark.parametrize(("evaluations", "devices"), [(1, 1), (3, 1), (3, 2)])
def test_an_interrupted_run_continues_to_the_same_bits(whole, tmp_path, evaluations, devices):
    settings = {**SETTINGS, "devices": devices}
    if devices > 1:
        whole = eh.simulate(METHOD, DATA, **settings)
    first = cast(Any, eh.simulation.iterate(METHOD, DATA, checkpoint=tmp_path, **settings))
    for _ in itertools.islice(first, evaluations):
        pass
    first.close()
    starts = []
    for run in eh.simulation.iterate(METHOD, DATA, checkpoint=tmp_path, **settings):
        starts.append(run.info["rounds"])
    assert starts[0] == 2 * (evaluations - 1) and starts[-1] == 12
    assert_same_run(run, whole)


def test_a_finished_run_trains_further_when_asked_for_more_rounds(whole, tmp_path):
    eh.simulate(METHOD, DATA, checkpoint=tmp_path, **{**SETTINGS, "rounds": 6})
    assert_same_run(eh.simulate(METHOD, DATA, checkpoint=tmp_path, **SETTINGS), whole)
    assert_same_run(eh.simulate(METHOD, DATA, checkpoint=tmp_path, **SETTINGS), whole)


def test_another_runs_checkpoint_is_refused(tmp_path):
    eh.simulate(METHOD, DATA, checkpoint=tmp_path, **{**SETTINGS, "rounds": 2})
    for changed, words in (({"seed": 4}, "its seed is 3, not 4"), ({"cohort": 3}, "its cohort is 4, not 3")):
        with pytest.raises(eh.EvenhandError, match=words):
            eh.simulate(METHOD, DATA, checkpoint=tmp_path, **{**SETTINGS, **changed})
    with pytest.raises(eh.EvenhandError, match="2 rounds done, more than rounds=1"):
        eh.simulate(METHOD, DATA, checkpoint=tmp_path, **{**SETTINGS, "rounds": 1})
    faster = eh.algorithms.scaffold(eh.local.sgd(MODEL, 0.2, epochs=2, batch_size=4))
    with pytest.raises(eh.EvenhandError, match=r"of another run .its method"):
        eh.simulate(faster, DATA, checkpoint=tmp_path, **SETTINGS)
    with pytest.raises(eh.EvenhandError, match=r"of another run .its method"):
        eh.simulate(METHOD, DATA, checkpoint=tmp_path, systems=eh.systems.stragglers(0.5), **SETTINGS)
    with pytest.raises(eh.EvenhandError, match="its data is"):
        eh.simulate(METHOD, eh.testing.toy_data(1), checkpoint=tmp_path, **SETTINGS)
    flipped = eh.types.Attack(0.25, rows=lambda x, y, rng: (-x, y))
    with pytest.raises(eh.EvenhandError, match="its attack is"):
        eh.simulate(METHOD, DATA, checkpoint=tmp_path, attack=flipped, **SETTINGS)


@pytest.mark.parametrize(
    "other",
    [
        eh.types.Attack(0.5, rows=lambda x, y, rng: (-x, y)),
        eh.types.Attack(0.25, rows=lambda x, y, rng: (2 * x, y)),
    ],
)
def test_the_checkpoint_of_another_attack_is_refused(tmp_path, other):
    flipped = eh.types.Attack(0.25, rows=lambda x, y, rng: (-x, y))
    eh.simulate(METHOD, DATA, checkpoint=tmp_path, attack=flipped, **{**SETTINGS, "rounds": 2})
    eh.simulate(METHOD, DATA, checkpoint=tmp_path, attack=flipped, **{**SETTINGS, "rounds": 2})
    with pytest.raises(eh.EvenhandError, match="its attack is"):
        eh.simulate(METHOD, DATA, checkpoint=tmp_path, attack=other, **SETTINGS)


def test_the_checkpoint_of_another_array_in_the_method_is_refused(tmp_path):
    def scaffold(lr):
        return eh.algorithms.scaffold(eh.local.sgd(MODEL, optax.sgd(jnp.float32(lr)), epochs=2, batch_size=4))

    eh.simulate(scaffold(0.1), DATA, checkpoint=tmp_path, **{**SETTINGS, "rounds": 2})
    with pytest.raises(eh.EvenhandError, match=r"of another run .its method"):
        eh.simulate(scaffold(0.2), DATA, checkpoint=tmp_path, **SETTINGS)


def _discrete(noise_multiplier):
    mean = eh.privacy.discrete_mean(0.5, noise_multiplier=noise_multiplier, rate=0.5, fewest=2)
    return eh.privacy.private(
        eh.algorithms.fedavg(WORK, aggregator=mean, sampling=eh.sampling.fixed(0.5)),
    )


def _scaled(rate):
    """With the rate in an array, which a traced program closes over, where it writes a number out."""
    rates = jnp.array([rate, 1.0])
    opt = optax.GradientTransformation(
        lambda params: rates,
        lambda updates, state, params=None: (jax.tree.map(lambda leaf: state[0] * leaf, updates), state),
    )
    return eh.algorithms.fedavg(WORK, server_opt=opt)


@pytest.mark.parametrize(
    "method",
    [
        _discrete,
        _scaled,
        lambda clip: eh.privacy.dp_fedavg(WORK, clip=clip, noise_multiplier=1.0, rate=0.5),
        lambda mu: eh.algorithms.fedprox_adaptive(WORK, mu0=mu),
        lambda rate: eh.algorithms.fedavg(
            WORK, server_opt=optax.inject_hyperparams(optax.sgd)(learning_rate=rate)
        ),
    ],
    ids=["discrete noise", "array", "clip", "mu", "injected"],
)
def test_the_checkpoint_of_another_number_in_a_state_is_refused(tmp_path, method):
    """A round reads it in the state, and is the same program; a continued run would state noise that it lacks."""
    eh.simulate(method(0.5), DATA, rounds=1, checkpoint=tmp_path)
    with pytest.raises(eh.EvenhandError, match=r"of another run .its method .the states that it begins with"):
        eh.simulate(method(2.0), DATA, rounds=2, checkpoint=tmp_path)
    assert eh.simulate(method(0.5), DATA, rounds=2, checkpoint=tmp_path).info["rounds"] == 2


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        ({"Evenhand": "0.0.9", "JAX": "0.4.1"}, "with Evenhand 0.0.9 and JAX 0.4.1, which saved it"),
        (None, "with the earlier version that saved it"),
        ({"Evenhand": eh.__version__, "JAX": jax.__version__}, "delete that one.$"),
    ],
)
def test_a_method_that_another_version_traced_names_that_version(tmp_path, versions, words):
    eh.simulate(METHOD, DATA, checkpoint=tmp_path, **{**SETTINGS, "rounds": 2})
    (path,) = tmp_path.glob("2/about/metadata")
    about = json.loads(path.read_text())
    about["identity"] = {
        name: "0" if "method" in name else value for name, value in about["identity"].items()
    }
    about["versions"] = versions
    if versions is None:
        del about["versions"]
    path.write_text(json.dumps(resealed(about)))
    with pytest.raises(eh.EvenhandError, match=words):
        eh.simulate(METHOD, DATA, checkpoint=tmp_path, **SETTINGS)


def kept(folder):
    names = {path.name for path in folder.iterdir()} - {".lock"}
    assert names == {str(done) for done in Checkpoint(folder).saved()}
    return Checkpoint(folder).saved()


def forged(step, **changes):
    """Changes what is saved beside the arrays, and its checksum with it, so that the checksum cannot show it."""
    path = step / "about" / "metadata"
    about = json.loads(path.read_text())
    assert changes.keys() <= about.keys()
    path.write_text(json.dumps(resealed({**about, **changes})))


def test_the_last_two_states_are_kept_and_nothing_before_the_first_round(tmp_path):
    eh.simulate(METHOD, DATA, checkpoint=tmp_path / "none", **{**SETTINGS, "rounds": 0})
    assert not (tmp_path / "none").exists()
    eh.simulate(METHOD, DATA, checkpoint=tmp_path / "two", **SETTINGS)
    assert kept(tmp_path / "two") == [10, 12]


def test_states_are_saved_no_more_often_than_asked(tmp_path, monkeypatch):
    clock = iter(range(0, 10**6, 3))  # three seconds pass between two readings
    monkeypatch.setattr("evenhand.simulation._checkpoint.monotonic", lambda: next(clock))
    saved = []
    save = Checkpoints.save
    monkeypatch.setattr(
        Checkpoints, "save", lambda self, state: (saved.append(state.done), save(self, state))
    )
    eh.simulate(METHOD, DATA, checkpoint=Checkpoint(tmp_path, seconds=2), **{**SETTINGS, "rounds": 14})
    # A save takes 3 s by this clock, so that the next one waits for 2 * 3 s; the last state is saved anyway.
    assert saved == [2, 6, 10, 14]
    saved.clear()
    # A run that is shorter than the time between two saves can still be trained further.
    eh.simulate(METHOD, DATA, checkpoint=Checkpoint(tmp_path / "short", seconds=10**5), **SETTINGS)
    assert saved == Checkpoint(tmp_path / "short").saved() == [12]
    for seconds in (-1.0, float("nan"), float("inf")):
        with pytest.raises(eh.EvenhandError, match="seconds="):
            eh.simulate(METHOD, DATA, checkpoint=Checkpoint(tmp_path, seconds=seconds), **SETTINGS)


def test_a_fresh_run_replaces_the_checkpoint_of_another(whole, tmp_path):
    eh.simulate(METHOD, DATA, checkpoint=tmp_path, **{**SETTINGS, "seed": 4, "rounds": 16})
    fresh = Checkpoint(tmp_path, seconds=0, fresh=True)
    first = cast(Any, eh.simulation.iterate(METHOD, DATA, checkpoint=fresh, **SETTINGS))
    assert next(first).info["rounds"] == 0 and kept(tmp_path) == [14, 16]
    next(first)
    assert kept(tmp_path) == [2]
    first.close()
    assert_same_run(eh.simulate(METHOD, DATA, checkpoint=tmp_path, **SETTINGS), whole)


@pytest.mark.parametrize("rounds", [0, 2])
def test_a_fresh_run_that_saves_nothing_leaves_nothing_of_another(tmp_path, rounds):
    eh.simulate(METHOD, DATA, checkpoint=tmp_path, offload=True, **{**SETTINGS, "rounds": 2})
    assert Checkpoint(tmp_path).saved() == [2] and (tmp_path / "clients").exists()
    fresh = Checkpoint(tmp_path, seconds=1e6, fresh=True, last=False)
    eh.simulate(METHOD, DATA, checkpoint=fresh, **{**SETTINGS, "rounds": rounds, "seed": 4})
    assert kept(tmp_path) == []


def test_a_second_run_of_the_process_in_the_folder_of_one_that_goes_on_is_refused(whole, tmp_path):
    place, link = tmp_path / "run", tmp_path / "link"
    first = cast(Any, eh.simulation.iterate(METHOD, DATA, checkpoint=place, **SETTINGS))
    next(first)
    link.symlink_to(place)
    for folder in (place, link):
        with pytest.raises(eh.EvenhandError, match="is in use by another run of this process"):
            eh.simulate(METHOD, DATA, checkpoint=folder, **SETTINGS)
    next(first)
    assert kept(place) == [2]
    first.close()
    assert_same_run(eh.simulate(METHOD, DATA, checkpoint=place, **SETTINGS), whole)


def test_a_checkpoint_that_cannot_be_written_or_read_gives_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(eh.EvenhandError, match=r"No checkpoint can be kept in .*/file/below"):
        eh.simulate(METHOD, DATA, checkpoint=tmp_path / "file" / "below", **SETTINGS)
    damages = (("about/metadata", "nonsense"), ("about/metadata", "{}"), ("state/_METADATA", "nonsense"))
    for number, (damage, nonsense) in enumerate(damages):
        folder = tmp_path / str(number)
        eh.simulate(METHOD, DATA, checkpoint=folder, **{**SETTINGS, "rounds": 2})
        assert (folder / "2" / damage).exists()
        (folder / "2" / damage).write_text(nonsense)
        assert kept(folder) == [2]
        with pytest.raises(eh.EvenhandError, match=rf"{folder} is damaged \(.*delete its contents") as caught:
            eh.simulate(METHOD, DATA, checkpoint=folder, **SETTINGS)
        assert "\n" not in str(caught.value)


def test_the_comparison_sees_a_wrong_number_of_rounds(whole, tmp_path):
    """Random numbers are drawn by the number of the round."""
    eh.simulate(METHOD, DATA, checkpoint=tmp_path, **{**SETTINGS, "rounds": 6})
    shutil.rmtree(tmp_path / "4")
    (tmp_path / "6").rename(tmp_path / "4")
    forged(tmp_path / "4", done=4)
    tampered = eh.simulate(METHOD, DATA, checkpoint=tmp_path, **SETTINGS)
    with pytest.raises(AssertionError):
        assert_same_run(tampered, whole)
    with pytest.raises(AssertionError):
        np.testing.assert_array_equal(tampered.params["w"], whole.params["w"])


def test_the_comparison_sees_one_bit_of_the_state(whole, tmp_path):
    eh.simulate(METHOD, DATA, checkpoint=tmp_path, **{**SETTINGS, "rounds": 6})
    job = Job.from_arguments({"algorithm": METHOD, "data": DATA, **SETTINGS})
    found = Checkpoints(set_up(job), job, tmp_path).load()
    assert found is not None
    server = jax.tree.map(lambda leaf: np.nextafter(leaf, np.float32(9)), found.state.server)
    checkpoints = Checkpoints(set_up(job), job, Checkpoint(tmp_path, fresh=True))
    checkpoints.save(found._replace(state=found.state._replace(server=server)))
    with pytest.raises(AssertionError):
        assert_same_run(eh.simulate(METHOD, DATA, checkpoint=tmp_path, **SETTINGS), whole)
    checkpoints = Checkpoints(set_up(job), job, Checkpoint(tmp_path, fresh=True))
    checkpoints.save(found)
    assert_same_run(eh.simulate(METHOD, DATA, checkpoint=tmp_path, **SETTINGS), whole)


@pytest.fixture(scope="module")
def two_states(tmp_path_factory):
    """The states after rounds 4 and 6."""
    folder = tmp_path_factory.mktemp("two")
    eh.simulate(METHOD, DATA, checkpoint=folder, **{**SETTINGS, "rounds": 6})
    return folder


def damaged_history(step):
    path = step / "about" / "metadata"
    text = path.read_text()
    loss = re.search(r'"test_loss": \d+\.\d{3}(\d)', text)
    assert loss is not None
    digit = loss.start(1)
    path.write_text(text[:digit] + str((int(text[digit]) + 1) % 10) + text[digit + 1 :])


def damaged_state(step):
    """Only the checksum can show it: the arrays of another run, in files that are whole."""
    shutil.rmtree(step / "state")
    other = step.parent.parent / "other"
    eh.simulate(METHOD, DATA, checkpoint=other, **{**SETTINGS, "seed": 4, "rounds": 6})
    shutil.copytree(other / "6" / "state", step / "state")


def of_another_round(step):
    forged(step, done=5)


@pytest.mark.parametrize("damage", [damaged_history, damaged_state, of_another_round])
def test_damage_is_seen_and_the_state_before_it_leads_to_the_same_bits(whole, two_states, tmp_path, damage):
    folder = tmp_path / "run"
    shutil.copytree(two_states, folder)
    damage(folder / "6")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    runs = eh.simulation.iterate(METHOD, DATA, checkpoint=folder, **SETTINGS)
    with pytest.warns(
        EvenhandWarning, match=r"after round 6, is damaged \(.*from the one after round 4"
    ) as told:
        assert next(runs).info["rounds"] == 4
    assert told[0].filename == __file__
    # Nothing is deleted before a newer state is saved.
    assert {path: path.read_bytes() for path in before} == before
    assert next(runs).info["rounds"] == 6 and kept(folder) == [4, 6]
    assert_same_run(list(runs)[-1], whole)
    for step in (folder / "10", folder / "12"):
        damaged_history(step)
    with pytest.raises(eh.EvenhandError, match=r"is damaged \(the data beside the arrays"):
        eh.simulate(METHOD, DATA, checkpoint=folder, **SETTINGS)


def test_a_checkpoint_without_checksums_is_read_with_a_warning(whole, two_states, tmp_path):
    """Earlier versions wrote such checkpoints; they did not save how many clients are evaluated either, what untrained
    clients are served, what traced the run, and when each client last trained, which is drawn again."""
    shutil.copytree(two_states, tmp_path / "run")
    for path in (tmp_path / "run").glob("*/about/metadata"):
        about = {name: value for name, value in json.loads(path.read_text()).items() if "sha256" not in name}
        del about["identity"]["eval_clients"], about["identity"]["untrained"]
        del about["last_round"], about["versions"]
        path.write_text(json.dumps(about))
    with pytest.warns(EvenhandWarning, match="by an earlier version of Evenhand, without checksums") as told:
        run = eh.simulate(METHOD, DATA, checkpoint=tmp_path / "run", **SETTINGS)
    assert told[0].filename == __file__
    assert_same_run(run, whole)
    np.testing.assert_array_equal(run.last_round, whole.last_round)
    # A checkpoint whose checksum is itself damaged is not one of an earlier version.
    for path in (tmp_path / "run").glob("*/about/metadata"):
        path.write_text(path.read_text().replace('"sha256":', '"sha257":'))
    with pytest.raises(eh.EvenhandError, match="is damaged"):
        eh.simulate(METHOD, DATA, checkpoint=tmp_path / "run", **SETTINGS)


def test_other_evaluated_clients_are_another_run(tmp_path):
    eh.simulate(METHOD, DATA, checkpoint=tmp_path, **{**SETTINGS, "rounds": 2})
    with pytest.raises(eh.EvenhandError, match="its eval_clients is None, not 3"):
        eh.simulate(METHOD, DATA, checkpoint=tmp_path, eval_clients=3, **SETTINGS)


def test_a_full_disk_gives_one_sentence_and_keeps_the_last_state(whole, tmp_path, monkeypatch):
    def full(manager, step, **how):
        raise OSError(errno.ENOSPC, "No space left on device")

    first = eh.simulation.iterate(METHOD, DATA, checkpoint=tmp_path, **SETTINGS)
    assert [next(first).info["rounds"] for _ in range(3)] == [0, 2, 4]
    monkeypatch.setattr(orbax.checkpoint.CheckpointManager, "save", full)
    words = rf"after round 6 could not be saved in {tmp_path} \(.*No space left on device.*free some space"
    with pytest.raises(eh.EvenhandError, match=words):
        next(first)
    monkeypatch.undo()
    runs = list(eh.simulation.iterate(METHOD, DATA, checkpoint=tmp_path, **SETTINGS))
    assert runs[0].info["rounds"] == 4
    assert_same_run(runs[-1], whole)


def test_what_is_no_fault_of_the_disk_is_not_blamed_on_it(tmp_path, monkeypatch):
    def odd(manager, step, **how):
        raise TypeError("an odd value")

    monkeypatch.setattr(orbax.checkpoint.CheckpointManager, "save", odd)
    with pytest.raises(eh.EvenhandError, match=r"\(an odd value\): run again"):
        eh.simulate(METHOD, DATA, checkpoint=tmp_path, **SETTINGS)


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint32])
def test_whole_numbers_of_numpy_are_those_of_python(whole, tmp_path, kind):
    settings = {name: kind(value) for name, value in SETTINGS.items()}
    run = eh.simulate(METHOD, DATA, checkpoint=tmp_path, eval_clients=kind(99), **settings)
    assert_same_run(run, whole)
    assert type(run.seed) is int


_IDENTIFY = """
import evenhand as eh
from evenhand.simulation import Job, identify
method = eh.algorithms.fedavg(eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1, batch_size=4))
print(identify(Job(method, eh.testing.toy_data(), rounds=2))["method (with its settings, systems and attack)"])
"""


def test_a_run_goes_on_whether_or_not_its_output_is_a_terminal(nursery: Nursery, tmp_path: Path):
    """JAX prints programs in colours to a terminal, and runs are told apart by their programs."""
    file = tmp_path / "plain"
    assert nursery.start("program", file, source=_IDENTIFY).wait() == 0
    plain = file.read_text().split()
    reader, terminal = pty.openpty()
    in_colours = "import os, sys; os.environ['TERM'] = 'xterm-256color'; assert sys.stdout.isatty()\n"
    assert nursery.start("program", os.ttyname(terminal), source=in_colours + _IDENTIFY).wait() == 0
    shown = os.read(reader, 1024).decode().split()
    os.close(reader)
    os.close(terminal)
    assert len(plain) == 1 and shown == plain
