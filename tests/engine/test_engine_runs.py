"""What a run promises beyond its numbers: the same bits however it is divided, and what it reports."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import evenhand as eh
from evenhand.simulation import Checkpoint
from evenhand.simulation.setup import device_rows
from evenhand.types import Attack, Stack

MODEL = eh.testing.toy_model()
DATA = eh.testing.toy_data()
METHOD = eh.algorithms.fedavg(eh.local.sgd(MODEL, 0.1, epochs=2, batch_size=4))


def bits(run):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(run.params)])


@pytest.fixture(scope="module")
def seven():
    return eh.simulate(METHOD, DATA, rounds=7, cohort=4, eval_every=3, seed=2)


def test_the_same_seed_gives_the_same_bits_and_another_does_not(seven):
    again = eh.simulate(METHOD, DATA, rounds=7, cohort=4, eval_every=3, seed=2)
    other = eh.simulate(METHOD, DATA, rounds=7, cohort=4, eval_every=3, seed=3)
    np.testing.assert_array_equal(bits(seven), bits(again))
    assert not np.array_equal(bits(seven), bits(other))


@pytest.mark.parametrize(
    "offsets", [[0, 1, 4, 20, 29, 34, 46], [0, 4, 12, 29, 34, 46]], ids=["sizes", "clients"]
)
def test_a_method_that_has_run_on_other_data_has_the_bits_of_a_new_one(offsets):
    """What is kept of earlier runs belongs to their number of clients and to the size of the largest one.

    All data have the toy's 46 training examples.  In the first the largest client has 16 of them, not 17: a full batch
    made for it would cut the toy's largest client short.  In the second there are five clients, not six.
    """
    work = eh.local.sgd(MODEL, 0.1, epochs=2)
    settings: dict[str, Any] = {"rounds": 3, "cohort": 4, "lanes": 2, "seed": 2}
    used, new = eh.algorithms.scaffold(work), eh.algorithms.scaffold(work)
    few = len(offsets) - 1
    other = eh.data.FederatedDataset(
        train=DATA.train._replace(offsets=np.array(offsets)),
        valid=DATA.valid._replace(offsets=DATA.valid.offsets[: few + 1]),
        test=eh.data.Split(DATA.test.x[: 2 * few], DATA.test.y[: 2 * few], DATA.test.offsets[: few + 1]),
        client_ids=DATA.client_ids[:few],
    )
    earlier = eh.simulate(used, other, **settings)
    then, expected = eh.simulate(used, DATA, **settings), eh.simulate(new, DATA, **settings)
    assert not np.array_equal(bits(earlier), bits(expected))
    for found, wanted in zip(jax.tree.leaves(then.state), jax.tree.leaves(expected.state), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_another_default_generator_of_jax_changes_no_bit(seven):
    with jax.default_prng_impl("rbg"):
        again = eh.simulate(METHOD, DATA, rounds=7, cohort=4, eval_every=3, seed=2)
    np.testing.assert_array_equal(bits(again), bits(seven))


def test_evaluating_or_watching_changes_no_bit(seven):
    often = eh.simulate(METHOD, DATA, rounds=7, cohort=4, eval_every=1, seed=2)
    watched = eh.simulate(METHOD, DATA, rounds=7, cohort=4, eval_every=3, seed=2, progress=True)
    np.testing.assert_array_equal(bits(seven), bits(often))
    np.testing.assert_array_equal(bits(seven), bits(watched))
    assert often.history["round"].tolist() == list(range(8))


@pytest.mark.parametrize("lanes", [2, 3, 4, 64])
def test_lanes_change_nothing_but_the_last_bits(seven, lanes):
    run = eh.simulate(METHOD, DATA, rounds=7, cohort=4, eval_every=3, seed=2, lanes=lanes)
    np.testing.assert_allclose(bits(seven), bits(run), rtol=1e-6, atol=1e-7)


def test_round_zero_is_the_initial_model_and_the_last_round_is_always_evaluated(seven):
    untouched = eh.simulate(METHOD, DATA, rounds=0, seed=2)
    assert seven.history["round"].tolist() == [0, 3, 6, 7]
    assert untouched.history["round"].tolist() == [0]
    assert seven.history["test_loss"][0] == untouched.history["test_loss"][0]
    assert untouched.per_round == {}
    assert all(len(values) == 7 for values in seven.per_round.values())
    assert all(len(values) == 4 for values in seven.history.values())


def test_history_is_the_row_weighted_mean_of_the_clients(seven):
    for split in ("train", "test"):
        sizes = getattr(DATA, split).sizes
        for name, values in seven.client_metrics(split).items():
            expected = np.sum(values * sizes) / sizes.sum()
            assert seven.history[f"{split}_{name}"][-1] == pytest.approx(expected, rel=1e-12)
        assert seven.history[f"{split}_accuracy_mean"][-1] == seven.summary(split)["mean"]
    assert seven.history["train_accuracy_mean"][-1] != seven.history["train_accuracy"][-1]
    assert "valid_loss" not in seven.history
    assert np.isnan(seven.client_metrics("valid")["loss"]).all()


def test_summary_repr_and_info_describe_the_run(seven):
    accuracy = seven.client_metrics("test")["accuracy"]
    assert seven.summary()["mean"] == pytest.approx(accuracy.mean())
    assert seven.summary("train", "loss")["mean"] == pytest.approx(
        seven.client_metrics("train")["loss"].mean()
    )
    assert "round=7" in repr(seven)
    assert seven.info["rounds"] == 7
    assert seven.info["seconds"]["train"] > 0


def test_the_callers_arrays_survive(seven):
    """Training on deletes no array of an earlier snapshot: each keeps its numbers."""
    snapshots = [
        bits(run) for run in eh.simulation.iterate(METHOD, DATA, rounds=7, cohort=4, eval_every=3, seed=2)
    ]
    kept = list(eh.simulation.iterate(METHOD, DATA, rounds=7, cohort=4, eval_every=3, seed=2))
    for before, run in zip(snapshots, kept, strict=True):
        np.testing.assert_array_equal(before, bits(run))
    np.testing.assert_array_equal(snapshots[-1], bits(seven))


def test_only_malicious_clients_send_what_the_attack_says():
    """Two of six clients upload zeros: their deltas are missing from the sum."""
    zero_uploads = Attack(fraction=0.34, upload=lambda delta, key: jax.tree.map(lambda leaf: 0 * leaf, delta))
    kwargs: dict[str, Any] = {"rounds": 1, "seed": 2}
    honest = eh.simulate(METHOD, DATA, **kwargs)
    attacked = eh.simulate(METHOD, DATA, attack=zero_uploads, **kwargs)
    with pytest.warns(eh.errors.EvenhandWarning, match="no malicious client"):
        unattacked = eh.simulate(METHOD, DATA, attack=zero_uploads._replace(fraction=0.1), **kwargs)
    np.testing.assert_array_equal(bits(honest), bits(unattacked))
    assert not np.array_equal(bits(honest), bits(attacked))


def _times(factor):
    return lambda report, key: report._replace(weight=factor * report.weight)


def _only(k):
    """A data set of client ``k`` alone."""
    parts = {}
    for name in ("train", "valid", "test"):
        x, y = getattr(DATA, name).client(k)
        parts[name] = eh.data.Split(x, y, np.array([0, len(y)]))
    return eh.data.FederatedDataset(**parts, client_ids=(DATA.client_ids[k],))


_STREAMED = eh.aggregators.mean()
_WEIGHED = _STREAMED._replace(weigh=lambda reports, cohort, state: (reports.weight, state))
_STACKED = Stack(
    lambda like, clients: (),
    lambda uploads, present, state, key: (
        jax.tree.map(lambda leaf: jnp.average(leaf, axis=0, weights=uploads.weight), uploads.delta),
        state,
    ),
)


@pytest.mark.parametrize("aggregator", [_STREAMED, _WEIGHED, _STACKED], ids=["sum", "weigh", "stack"])
def test_a_false_weight_counts_unless_no_honest_client_can_have_it(aggregator):
    """A tenth of client j's weight gives (sum_k n_k d_k - 0.9 n_j d_j) / (sum_k n_k - 0.9 n_j) of deltas d, sizes n."""
    method = eh.algorithms.fedavg(eh.local.sgd(MODEL, 0.1, epochs=2), aggregator=aggregator)
    tenth = Attack(fraction=0.17, report=_times(0.1))
    kwargs: dict[str, Any] = {"rounds": 1, "seed": 2}
    (j,) = np.flatnonzero(device_rows(DATA, tenth, 2).malicious)
    n, start = DATA.train.sizes, bits(eh.simulate(method, DATA, rounds=0, seed=2))
    honest = bits(eh.simulate(method, DATA, **kwargs)) - start
    attacked = bits(eh.simulate(method, DATA, attack=tenth, **kwargs)) - start
    alone = bits(eh.simulate(method, _only(j), **kwargs)) - start
    expected = (n.sum() * honest - 0.9 * n[j] * alone) / (n.sum() - 0.9 * n[j])
    np.testing.assert_allclose(attacked, expected, atol=1e-6)
    assert np.abs(attacked - honest).max() > 1e-3
    with pytest.warns(eh.errors.EvenhandWarning, match="rejected 1 upload"):
        run = eh.simulate(method, DATA, attack=tenth._replace(report=_times(100.0)), **kwargs)
    without = (n.sum() * honest - n[j] * alone) / (n.sum() - n[j])
    np.testing.assert_allclose(bits(run) - start, without, atol=1e-6)
    assert (run.per_round["rejected"].tolist(), run.per_round["reported"].tolist()) == ([1.0], [5.0])
    with pytest.warns(eh.errors.EvenhandWarning, match="no malicious client"):
        unattacked = bits(eh.simulate(method, DATA, attack=tenth._replace(fraction=0.1), **kwargs)) - start
    np.testing.assert_array_equal(unattacked, honest)


def test_a_false_report_is_drawn_anew_for_each_malicious_client_and_round():
    """The aggregator keeps the weights alone; the true weight is 1."""
    keep_weights = Stack(
        lambda like, clients: jnp.zeros(6),
        lambda uploads, present, state, key: (
            jax.tree.map(lambda leaf: leaf[0] * 0, uploads.delta),
            uploads.weight,
        ),
    )
    method = eh.algorithms.fedavg(
        eh.local.sgd(MODEL, 0.1, epochs=1),
        aggregator=keep_weights,
        sampling=eh.sampling.uniform(weighted=False),
    )
    attack = Attack(
        fraction=0.5, report=lambda report, key: report._replace(weight=0.5 * jax.random.uniform(key))
    )
    watched = list(eh.simulation.iterate(method, DATA, rounds=3, eval_every=1, attack=attack))[1:]
    weights = np.stack([run.state.aggregators[0] for run in watched])
    malicious = device_rows(DATA, attack, 0).malicious
    assert (weights[:, ~malicious] == 1).all()
    assert len(np.unique(weights[:, malicious])) == 9
    assert weights[:, malicious].max() <= 0.5


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"rounds": -1}, "rounds=-1"),
        ({"rounds": 1, "cohort": 0}, "cohort=0"),
        ({"rounds": 1, "eval_every": 0}, "eval_every=0"),
        ({"rounds": 1, "lanes": 0}, "lanes=0"),
        ({"rounds": 1.5}, "rounds=1.5: give a whole number"),
        ({"rounds": 1, "cohort": "x"}, "cohort='x': give a whole number"),
        ({"rounds": 1, "seed": -1}, "seed=-1"),
        ({"rounds": 1, "seed": 2**32}, "seed=4294967296"),
        ({"rounds": 1, "systems": 0.5}, "systems=0.5: give a value such as"),
        ({"rounds": 1, "attack": Attack(fraction=1.5)}, "fraction=1.5"),
        ({"rounds": 1, "stream": "no"}, "stream='no': give a value such as True"),
        ({"rounds": 1, "masks": "x"}, "masks='x': give a value such as True"),
        ({"rounds": 1, "progress": None}, "progress=None: give a value such as True"),
        ({"rounds": 1, "offload": 5}, "offload=5: give a value such as True"),
        ({"rounds": 1, "offload": ""}, "offload='': give the name of a folder"),
        ({"rounds": 1, "checkpoint": ""}, "checkpoint='': give the name of a folder"),
        ({"rounds": 1, "checkpoint": Checkpoint("")}, "checkpoint='': give the name of a folder"),
        ({"rounds": 1, "checkpoint": 5}, "checkpoint=5: give a value such as"),
        ({"rounds": 1, "checkpoint": Checkpoint(5)}, r"Checkpoint\(folder=\)=5: give"),  # pyright: ignore[reportArgumentType]
        ({"rounds": 1, "checkpoint": Checkpoint("a", seconds=None)}, r"Checkpoint\(seconds=\)=None"),  # pyright: ignore[reportArgumentType]
        ({"rounds": 1, "checkpoint": Checkpoint("a", fresh="no")}, r"Checkpoint\(fresh=\)='no'"),  # pyright: ignore[reportArgumentType]
        ({"rounds": 1, "metrics": 5}, "metrics=5: give a value such as"),
    ],
)
def test_arguments_out_of_range_get_a_sentence(wrong, words):
    with pytest.raises(eh.EvenhandError, match=words):
        eh.simulate(METHOD, DATA, **wrong)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("round", 7.0, "'round', which is a column"),
        ("rows", 7.0, "'rows', which is a column"),
        ("test_loss", 7.0, "'test_loss', which is a column"),
        ("norms", jnp.ones(3), r"'norms' of shape \(3,\): report scalars"),
    ],
)
def test_what_the_history_cannot_show_is_refused_before_the_first_round(name, value, words):
    (phase,) = METHOD.phases

    def server(state, direction, reported, key):
        state, info = phase.server(state, direction, reported, key)
        return state, {**info, name: jnp.asarray(value)}

    runs = eh.simulation.iterate(METHOD._replace(phases=(phase._replace(server=server),)), DATA, rounds=2)
    assert next(runs).info["rounds"] == 0
    with pytest.raises(eh.EvenhandError, match=words):
        next(runs)


def test_a_stateful_method_refuses_to_draw_a_client_twice():
    method = eh.algorithms.scaffold(
        eh.local.sgd(MODEL, 0.1, epochs=1), sampling=eh.sampling.proportional(replace=True)
    )
    with pytest.raises(eh.EvenhandError, match="sample without replacement"):
        eh.simulate(method, DATA, rounds=1)


def test_unknown_names_get_a_sentence(seven):
    for call, words in (
        (lambda: seven.client_metrics("tset"), "'tset'"),
        (lambda: seven.summary(metric="f1"), "'f1'"),
        (lambda: seven.personal_params(6), "positions run from 0 to 5"),
        (lambda: seven.personal_params(seven.data.client_ids[4]), "position of the client, 4, not its id"),
        (lambda: seven.personal_params("bert"), r"'bert'\): give the position .*, from 0 to 5\."),
    ):
        with pytest.raises(eh.EvenhandError, match=words):
            call()


def _data(y, features=4):
    return eh.data.from_arrays(np.ones((12, features), np.float32), y, np.arange(12) // 4)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            _data(np.full(12, 3)),
            "Client '0' .and 2 more. has train rows .* labels go up to 3, .* has 3 outputs: give it classes=4",
        ),
        (
            _data(np.zeros(12, int), features=5),
            "does not fit the data 'arrays', whose rows are float32\\[5\\] .*[^.]\\)\\.$",
        ),
    ],
)
def test_data_that_do_not_fit_the_model_get_a_sentence(data, words):
    with pytest.raises(eh.EvenhandError, match=words):
        eh.simulate(METHOD, data, rounds=1)


def test_losses_that_are_not_finite_get_a_sentence():
    model = MODEL._replace(losses=lambda outputs, y: jnp.nan * MODEL.losses(outputs, y))
    method = eh.algorithms.fedavg(eh.local.sgd(model, 0.1, epochs=1))
    with pytest.raises(eh.EvenhandError, match=r"check that its labels lie in the model's range"):
        eh.simulate(method, DATA, rounds=1)


def test_reduced_losses_get_a_sentence():
    model = MODEL._replace(losses=lambda outputs, y: MODEL.losses(outputs, y).mean())
    method = eh.algorithms.fedavg(eh.local.sgd(model, 0.1, epochs=1))
    with pytest.raises(eh.EvenhandError, match="one number per row"):
        eh.simulate(method, DATA, rounds=1)


@pytest.mark.parametrize("made", [lambda losses: None, lambda losses: (losses, losses)])
def test_losses_that_are_no_array_get_a_sentence(made):
    model = MODEL._replace(losses=lambda outputs, y: made(MODEL.losses(outputs, y)))
    method = eh.algorithms.fedavg(eh.local.sgd(model, 0.1, epochs=1))
    with pytest.raises(eh.EvenhandError, match=r"losses are of the type (NoneType|tuple)"):
        eh.simulate(method, DATA, rounds=1)


def test_parameters_that_no_gradient_trains_get_a_sentence():
    model = MODEL._replace(init=lambda key: {**MODEL.init(key), "n": jnp.int32(3)})
    method = eh.algorithms.fedavg(eh.local.sgd(model, 0.1, epochs=1))
    with pytest.raises(eh.EvenhandError, match=r"int32\[\] at \['n'\], which no gradient trains"):
        eh.simulate(method, DATA, rounds=1)


@pytest.mark.parametrize(
    ("method", "down", "up"),
    [
        (eh.algorithms.fedavg, 1, 1),
        (partial(eh.algorithms.fedprox, mu=1.0), 1, 1),
        (partial(eh.algorithms.feddane, mu=1.0), 3, 2),
        (eh.algorithms.scaffold, 2, 2),
    ],
    ids=["fedavg", "fedprox", "feddane", "scaffold"],
)
def test_traffic_is_counted_in_models(method, down, up):
    """d = 15 parameters; each upload carries one weight besides.

    FedDane's second broadcast repeats the model, and says whether its gradient is known.
    """
    made = method(eh.local.sgd(MODEL, 0.1, epochs=1))
    floats = eh.simulate(made, DATA, rounds=0).info["floats"]
    exchanges = len(made.phases)
    assert floats == {"down": 15 * down + exchanges - 1, "up": 15 * up + exchanges}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: eh.algorithms.fedavg(eh.local.sgd(MODEL, optax.sgd, epochs=1)),  # pyright: ignore[reportArgumentType]
            "client_opt= got the function sgd itself",
        ),
        (
            lambda: eh.algorithms.fedavg(eh.local.sgd(MODEL, -0.1, epochs=1)),
            "got the step -0.1: give a finite number >= 0",
        ),
        (lambda: eh.algorithms.fedavg(eh.local.sgd(MODEL, 0.1, epochs=1.5)), "epochs=1.5"),  # pyright: ignore[reportArgumentType]
        (
            lambda: eh.algorithms.fedavg(eh.local.sgd(MODEL, 0.1, epochs=1, batch_size=2**31)),
            "batch_size=",
        ),
        (
            lambda: eh.algorithms.scaffold(
                eh.local.sgd(MODEL, 0.1, epochs=1),
                aggregator=eh.aggregators.mean,  # pyright: ignore[reportArgumentType]
            ),
            "aggregator= got the function mean itself, .* give a value such as eh.aggregators.mean",
        ),
        (
            lambda: eh.simulate(MODEL, DATA, rounds=1),  # pyright: ignore[reportArgumentType]
            "algorithm= got an instance of evenhand's Model: give a value such as eh.algorithms.fedavg",
        ),
    ],
)
def test_the_likeliest_mistakes_get_a_sentence_with_the_cure(make, words):
    with pytest.raises(eh.EvenhandError, match=words):
        make()
