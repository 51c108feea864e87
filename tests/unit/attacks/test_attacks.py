"""Attacks against their definitions, in NumPy with loops, on 200 random cohorts each; and what they do to a run."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

import evenhand as eh
from evenhand import aggregators as agg
from evenhand import attacks
from evenhand.rounds import colluding, false_delta, malicious_clients, poisoned
from evenhand.streams import keys_of
from evenhand.types import Attack, Cohort, Report, Upload

CASES, CLIENTS = 200, 9
RNG = np.random.default_rng(3)
X = (RNG.normal(size=(CASES, CLIENTS, 5)) + RNG.normal(size=(CASES, 1, 5))).astype(np.float32)
WEIGHTS = RNG.integers(1, 20, (CASES, CLIENTS)).astype(np.float32)
MALICIOUS = RNG.random((CASES, CLIENTS)) < 0.35
MALICIOUS[:, 0], MALICIOUS[:, 1:3] = True, False
PRESENT = RNG.random((CASES, CLIENTS)) < 0.9
PRESENT[:, :3] = True
Definition = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def alie(x: np.ndarray, w: np.ndarray, bad: np.ndarray, z: Any = None) -> np.ndarray:
    good, m, f = x[~bad], len(x), int(bad.sum())
    if z is None:
        supporters = m // 2 + 1 - f
        z = max(norm.ppf(np.clip((m - f - supporters) / (m - f), 1e-4, 1 - 1e-4)), 0.0)
    return good.mean(axis=0) - z * good.std(axis=0)


def far(x: np.ndarray, bad: np.ndarray, kind: str, direction: str) -> np.ndarray:
    """By a root finder on the definition itself, for min-max and min-sum."""
    good = x[~bad]
    mean = good.mean(axis=0)
    p = {"unit": -mean / np.linalg.norm(mean), "std": -good.std(axis=0), "sign": -np.sign(mean)}[direction]
    pairs = ((good[:, None] - good[None]) ** 2).sum(axis=-1)
    reduce = np.max if kind == "max" else np.sum
    bound = pairs.max() if kind == "max" else pairs.sum(axis=1).max()
    gap = lambda g: reduce(((mean + g * p - good) ** 2).sum(axis=1)) - bound  # noqa: E731
    return mean + brentq(gap, 0.0, 1e4) * p


def omniscient(x: np.ndarray, w: np.ndarray, bad: np.ndarray) -> np.ndarray:
    mean, own = np.average(x, axis=0, weights=w), np.average(x[bad], axis=0, weights=w[bad])
    return own - 2 * w.sum() / w[bad].sum() * mean


def mimic(x: np.ndarray, w: np.ndarray, bad: np.ndarray) -> np.ndarray:
    good = x[~bad]
    return good[np.argmax(np.linalg.norm(good - good.mean(axis=0), axis=1))]


COALITIONS: dict[str, tuple[Attack, Definition]] = {
    "alie": (attacks.alie(), alie),
    "alie, z": (attacks.alie(z=1.5), lambda x, w, bad: alie(x, w, bad, 1.5)),
    "inner product": (attacks.inner_product(), lambda x, w, bad: -0.5 * x[~bad].mean(axis=0)),
    "inner product, 3": (attacks.inner_product(epsilon=3.0), lambda x, w, bad: -3 * x[~bad].mean(axis=0)),
    "omniscient": (attacks.omniscient(), omniscient),
    "same value": (attacks.same_value(value=-2.0), lambda x, w, bad: np.full(x.shape[1], -2.0)),
    "mimic": (attacks.mimic(), mimic),
    **{
        f"min {kind}, {direction}": (
            {"max": attacks.min_max, "sum": attacks.min_sum}[kind](direction=direction),
            lambda x, w, bad, kind=kind, direction=direction: far(x, bad, kind, direction),
        )
        for kind in ("max", "sum")
        for direction in ("unit", "std", "sign")
    },
}


def sent(attack: Attack) -> np.ndarray:
    """What the first client, which is malicious, sends in every case."""

    def one(x: Any, w: Any, malicious: Any, present: Any, key: Any) -> Any:
        deltas = {"a": x[:, :2], "b": x[:, 2:].reshape(-1, 1, 3)}
        assert attack.collude is not None
        found = attack.collude(Upload(deltas, w, jnp.zeros(CLIENTS)), malicious, present, key)
        return jnp.concatenate([found["a"][0], found["b"][0].ravel()])

    keys = jax.random.split(jax.random.key(0), CASES)
    return np.asarray(
        jax.jit(jax.vmap(one))(np.where(PRESENT[..., None], X, 0), WEIGHTS, MALICIOUS, PRESENT, keys)
    )


def expected(definition: Definition) -> np.ndarray:
    return np.array(
        [
            definition(x[here].astype(np.float64), w[here], bad[here])
            for x, w, bad, here in zip(X, WEIGHTS, MALICIOUS, PRESENT, strict=True)
        ]
    )


@pytest.mark.parametrize("name", COALITIONS)
def test_a_coalition_sends_what_its_definition_says(name: str) -> None:
    attack, definition = COALITIONS[name]
    np.testing.assert_allclose(sent(attack), expected(definition), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("alie", lambda x, w, bad: 2 * x[~bad].mean(axis=0) - alie(x, w, bad)),
        ("alie, z", lambda x, w, bad: x.mean(axis=0) - 1.5 * x.std(axis=0)),
        ("inner product", lambda x, w, bad: -0.5 * x.mean(axis=0)),
        ("omniscient", lambda x, w, bad: omniscient(x, np.ones(len(x)), bad)),
        ("min max, unit", lambda x, w, bad: far(x, bad, "sum", "unit")),
    ],
)
def test_a_wrong_definition_would_be_seen(name: str, wrong: Definition) -> None:
    assert np.abs(sent(COALITIONS[name][0]) - expected(wrong)).max() > 0.1


def test_the_weighted_mean_of_an_omniscient_coalition_is_the_opposite_of_the_honest_one() -> None:
    replaced, w = (
        np.where(MALICIOUS[..., None], sent(attacks.omniscient())[:, None], X),
        np.where(PRESENT, WEIGHTS, 0),
    )
    found, honest = (np.einsum("ck,ckd->cd", w, of) / w.sum(axis=1)[:, None] for of in (replaced, X))
    np.testing.assert_allclose(found, -honest, atol=1e-3)


@pytest.mark.parametrize("make", [attacks.alie, attacks.inner_product])
def test_a_coalition_that_knows_the_aggregator_does_more_harm(make: Any) -> None:
    """It moves the trimmed mean, and Krum, farther than with the usual factor, on average."""
    for against in (agg.trimmed_mean(0.3), agg.krum(3)):
        moved = []
        for attack in (make(), make(against=against)):
            gaps, collude = [], jax.jit(attack.collude)
            for case in range(12):
                x, bad = jnp.asarray(X[case]), jnp.asarray(MALICIOUS[case])
                uploads = Upload(x, jnp.ones(CLIENTS), jnp.zeros(CLIENTS))
                agreed = collude(uploads, bad, jnp.ones(CLIENTS, bool), jax.random.key(case))
                found = agg.aggregate(against, jnp.where(bad[:, None], agreed, x))
                gaps.append(float(jnp.linalg.norm(found - X[case][~MALICIOUS[case]].mean(axis=0))))
            moved.append(np.mean(gaps))
        assert moved[1] > 1.02 * moved[0], (against, moved)
    for argument in ({"z": 1.0} if make is attacks.alie else {"epsilon": 1.0}), {}:
        rule = agg.mean() if argument else agg.risk_weighted(eh.risks.superquantile(0.5))
        with pytest.raises(eh.EvenhandError, match="give"):
            make(against=rule, **argument)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("name", ["alie", "inner product"])
def test_the_strongest_form_is_that_of_16_factors(name: str, weighted: bool) -> None:
    """By brute force, with weights and absent clients, which an aggregator may or may not heed."""
    against = agg.coordinate_median(weighted=weighted)
    attack = {"alie": attacks.alie, "inner product": attacks.inner_product}[name](against=against)
    chosen = []
    for case, found in enumerate(sent(attack)[:60]):
        here = PRESENT[case]
        x, w, bad = X[case][here].astype(np.float64), WEIGHTS[case][here], MALICIOUS[case][here]
        mean, far = x[~bad].mean(axis=0), []
        direction = -x[~bad].std(axis=0) if name == "alie" else -mean
        tried = np.geomspace(1 / 16, 16, 16)
        for factor in tried:
            y = np.where(bad[:, None], mean + factor * direction, x)
            far.append(np.linalg.norm(_median(y, w if weighted else np.ones(len(w))) - mean))
        best = tried[np.array(far) > max(far) * (1 - 1e-5)]
        gaps = np.abs(found - (mean + best[:, None] * direction)).max(axis=1)
        assert gaps.min() < 1e-3 * np.abs(found).max() + 1e-3
        chosen.append(best[0])
    assert min(chosen) < 1 < max(chosen)


def _median(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    columns = []
    for column in x.T:
        order = np.argsort(column)
        below, values = np.cumsum(w[order]), column[order]
        columns.append((values[np.argmax(below >= w.sum() / 2)] + values[np.argmax(below > w.sum() / 2)]) / 2)
    return np.array(columns)


@pytest.mark.parametrize("name", COALITIONS)
def test_without_honest_or_without_malicious_clients_all_is_finite(name: str) -> None:
    collude = COALITIONS[name][0].collude
    assert collude
    uploads = Upload(jnp.asarray(X[0]), jnp.asarray(WEIGHTS[0]), jnp.zeros(CLIENTS))
    here = jnp.ones(CLIENTS, bool)
    for malicious in (here, ~here):
        assert np.isfinite(collude(uploads, malicious, here, jax.random.key(0))).all()


def test_a_coalition_skips_arrays_without_numbers() -> None:
    collude = attacks.min_max().collude
    assert collude
    here, bad, arrays = jnp.ones(CLIENTS, bool), jnp.asarray(MALICIOUS[0]), jnp.asarray(X[0])
    uploads = Upload((jnp.zeros((CLIENTS, 0)), arrays), jnp.ones(CLIENTS), jnp.zeros(CLIENTS))
    empty, sent = collude(uploads, bad, here, jax.random.key(0))
    assert empty.shape == (CLIENTS, 0)
    np.testing.assert_allclose(
        sent, collude(uploads._replace(delta=arrays), bad, here, jax.random.key(0)), rtol=1e-5
    )


@pytest.mark.parametrize("name", [name for name in COALITIONS if name.startswith("min")])
def test_long_and_short_uploads_are_attacked_alike(name: str) -> None:
    collude = COALITIONS[name][0].collude
    assert collude
    here, bad = jnp.ones(CLIENTS, bool), jnp.asarray(MALICIOUS[0])
    ask = jax.jit(
        lambda x: collude(Upload(x, jnp.ones(CLIENTS), jnp.zeros(CLIENTS)), bad, here, jax.random.key(0))[0]
    )
    for scale in (1e-8, 1e9):
        found = np.asarray(ask(X[0] * np.float32(scale)), np.float64) / scale
        if "sign" not in name:
            np.testing.assert_allclose(found, ask(X[0]), rtol=1e-3, atol=1e-3)


def test_a_coalition_has_no_member_in_an_empty_slot() -> None:
    """The id of an empty slot is arbitrary, and may be that of a malicious client."""
    attack = Attack(collude=lambda uploads, malicious, present, key: jnp.full(3, jnp.sum(malicious), float))
    uploads = Upload(jnp.array([5.0, 6.0, 0.0]), jnp.ones(3), jnp.zeros(3))
    cohort = Cohort.of(jnp.array([1, 0, 1]), jnp.array([True, True, False]))
    sent = colluding(attack, uploads, jnp.array([True, False, True]), cohort, keys_of(0), 0, 0)
    assert sent.delta.tolist() == [1.0, 6.0, 0.0]


# --- examples and uploads --------------------------------------------------------------------------------------------


def test_labels_become_what_each_attack_says() -> None:
    y, rng = np.arange(30) % 3, np.random.default_rng
    x = np.zeros((30, 2), np.float32)
    flip, other = attacks.label_flip(classes=3).rows, attacks.random_labels(classes=3).rows
    uniform, two = attacks.uniform_labels(classes=3).rows, attacks.label_flip().rows
    assert flip and other and uniform and two
    assert flip(x, y, rng(0))[1].tolist() == (2 - y).tolist()
    assert two(x, np.array([0, 1, 1]), rng(0))[1].tolist() == [1, 0, 0]
    assert two(x, np.array([1, 1]), rng(0))[1].tolist() == [0, 0]
    with pytest.raises(eh.EvenhandError, match=r"label_flip\(\): labels must be whole numbers from 0 to 1"):
        two(x, np.array([-1, 1]), rng(0))
    swapped = attacks.relabel(0.2, (1, 0)).rows
    assert swapped is not None
    with pytest.raises(eh.EvenhandError, match=r"relabel\(\).*give labels= for all of them"):
        swapped(x, y, rng(0))
    wrong, any_class = other(x, y, rng(0))[1], uniform(x, y, rng(0))[1]
    assert (wrong != y).all() and set(((wrong - y) % 3).tolist()) == {1, 2}
    assert 0 < (any_class == y).sum() < 30 and set(any_class.tolist()) == {0, 1, 2}
    for rows in (flip, other, uniform):
        with pytest.raises(eh.EvenhandError, match="classes=, the number of classes"):
            rows(x, y + 1, rng(0))
    noise, image = attacks.feature_noise(std=0.5).rows, attacks.negative(highest=2.0).rows
    assert noise and image
    found = noise(np.zeros((4000, 2), np.float32), y, rng(0))[0]
    assert abs(np.corrcoef(found.T)[0, 1]) < 0.1, "noise for each feature"
    assert 0.48 < found.std() < 0.52 and image(x + 0.5, y, rng(0))[0].max() == 1.5
    for rows in (noise, image):
        with pytest.raises(eh.EvenhandError, match="attack the labels"):
            rows(np.zeros((3, 2), np.int32), y, rng(0))


@pytest.mark.parametrize(
    "attack",
    [
        attacks.label_flip(classes=300),
        attacks.relabel(0.2, (-1, 5)),
        attacks.random_labels(classes=300),
        attacks.uniform_labels(classes=300),
    ],
    ids=["flip", "relabel", "random", "uniform"],
)
def test_a_false_label_that_the_labels_type_cannot_have_is_refused(attack: Attack) -> None:
    assert attack.rows
    y = np.arange(200, dtype=np.uint8) % 2
    with pytest.raises(eh.EvenhandError, match="from 0 to 255, and a false label"):
        attack.rows(np.zeros((200, 2), np.float32), y, np.random.default_rng(0))


def noise_of(delta: Any, key: Any) -> Any:
    upload = attacks.gaussian(std=1.0).upload
    assert upload
    return upload(delta, key)


def add_one(delta: Any, key: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf + 1, delta)


def test_one_upload_becomes_what_each_attack_says() -> None:
    delta, key = {"w": jnp.linspace(-1.0, 3.0, 4000), "b": jnp.full(10, 5.0)}, jax.random.key(1)
    flat = np.concatenate([delta["w"], delta["b"]])

    def upload(attack: Attack) -> Any:
        assert attack.upload is not None
        return attack.upload(delta, key)

    noise = upload(attacks.gaussian())
    assert abs(np.std(noise["w"]) / flat.std() - 1) < 0.05 and abs(np.mean(noise["w"])) < 0.1
    assert not np.allclose(noise["w"][:10], noise["b"]), "one key for both arrays"
    assert 1.9 < np.std(upload(attacks.gaussian(std=2.0))["w"]) < 2.1
    np.testing.assert_allclose(upload(attacks.model_replacement(boost=7.0))["b"], 35.0)
    np.testing.assert_allclose(upload(attacks.sign_flip(scale=2.0))["b"], -10.0)
    assert not np.any(upload(attacks.zero())["w"])
    assert (
        np.isnan(upload(attacks.non_finite())["b"]).all()
        and np.isinf(upload(attacks.non_finite(value="inf"))["b"]).all()
    )
    two = attacks.both(attacks.sign_flip(0.2), attacks.model_replacement(boost=3.0))
    np.testing.assert_allclose(upload(two)["b"], -15.0)
    noisy = attacks.both(attacks.gaussian(0.2, std=1.0), attacks.model_replacement(boost=3.0))
    # N(0, 1) three times as long, and then noise of another draw: with one draw for both, it would be 4 as long.
    twice = attacks.both(noisy, Attack(upload=lambda delta, key: eh.tree.add(delta, noise_of(delta, key))))
    assert abs(np.std(upload(twice)["w"]) - np.sqrt(10)) < 0.15
    assert upload(attacks.both(Attack(upload=add_one), attacks.sign_flip()))["b"][0] == -6.0
    louder = Attack(report=lambda report, key: report._replace(weight=2 * report.weight))
    shyer = Attack(report=lambda report, key: report._replace(weight=report.weight - 1))
    changed = attacks.both(louder, shyer).report
    assert changed and changed(Report(jnp.float32(5.0), jnp.float32(0.0)), key).weight == 9.0
    assert attacks.by_clients(attacks.zero(0.3), (1,)).fraction == 0.0
    mixed = attacks.both(attacks.during(attacks.label_flip(0.3), first=2, last=4), attacks.alie())
    assert mixed.rows and mixed.collude and (mixed.fraction, mixed.first, mixed.last) == (0.3, 2, 4)
    fresh = attacks.both(attacks.zero(0.2), attacks.persistent_outliers()).fresh
    assert fresh is not None
    for pair in (
        (attacks.alie(), attacks.mimic()),
        (attacks.same_value(), attacks.model_replacement(boost=10.0)),
        (attacks.label_flip(), attacks.uniform_labels()),
        (attacks.persistent_outliers(), attacks.label_flip()),
    ):
        with pytest.raises(eh.EvenhandError, match="both"):
            attacks.both(*pair)


def norm_of(*trees: Any) -> float:
    """Over all arrays of the sum of the trees."""
    summed = jax.tree.map(lambda *leaves: sum(np.asarray(leaf, np.float64) for leaf in leaves), *trees)
    return float(np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(summed))))


def test_a_random_model_is_as_long_as_the_one_received_and_points_anywhere() -> None:
    params = {"w": jnp.linspace(-1.0, 3.0, 3000), "b": jnp.full(1000, 5.0)}
    honest = jax.tree.map(jnp.ones_like, params)

    def reply(attack: Attack, key: int = 0, of: Any = params) -> Any:
        assert attack.reply is not None and attack.upload is None
        return attack.reply(honest, of, jax.random.key(key))

    sent = reply(attacks.random_model())
    assert norm_of(sent, params) == pytest.approx(norm_of(params), rel=1e-5)
    # Not of the length of each array: equally long in all directions.
    proposed = {name: np.asarray(sent[name] + params[name]) for name in params}
    scale = norm_of(params) / np.sqrt(4000)
    assert np.std(proposed["w"]) == pytest.approx(scale, rel=0.05)
    assert np.std(proposed["b"]) == pytest.approx(scale, rel=0.1)
    other = reply(attacks.random_model(), 1)
    cosine = sum(np.vdot(proposed[name], other[name] + params[name]) for name in params)
    assert abs(cosine) < 0.1 * norm_of(params) ** 2
    zeros = jax.tree.map(jnp.zeros_like, params)
    assert norm_of(reply(attacks.random_model(), 0, zeros)) == 0.0
    # On top of another attack, and beneath it.
    boost = attacks.model_replacement(boost=3.0)
    shifted = Attack(upload=add_one, reply=lambda delta, params, key: eh.tree.add(delta, params))

    def sent_by(*pair: Attack, known: bool = True) -> Any:
        model = (lambda: params) if known else None
        return false_delta(attacks.both(*pair), honest, jnp.bool_(True), 0, jax.random.key(0), model)

    for pair, factor in (((attacks.random_model(), boost), 3.0), ((boost, attacks.random_model()), 1.0)):
        scaled = jax.tree.map(lambda leaf, factor=factor: leaf / factor, sent_by(*pair))
        assert norm_of(scaled, params) == pytest.approx(norm_of(params), rel=1e-5)
    assert sent_by(shifted, boost)["b"][0] == 3.0 * (1.0 + 1.0 + 5.0)
    # Where the model is not known, in the phases before the last, the first attack acts alone.
    for pair, value in (
        ((boost, attacks.random_model()), 3.0),
        ((shifted, boost), 2.0),
        ((boost, shifted), 4.0),
    ):
        assert sent_by(*pair, known=False)["b"][0] == value
    with pytest.raises(eh.EvenhandError, match="give the coalition as the second"):
        attacks.both(attacks.mimic(), attacks.random_model())


def test_in_a_run_random_models_keep_the_length_of_the_model_and_replace_it() -> None:
    data, work = eh.testing.toy_data(), eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1)
    method = eh.algorithms.fedavg(work)
    start, honest = (eh.simulate(method, data, rounds=rounds, cohort=1).params for rounds in (0, 3))
    attack = attacks.random_model(1.0)
    (one, three) = (
        eh.simulate(method, data, rounds=rounds, cohort=1, attack=attack).params for rounds in (1, 3)
    )
    for params in (one, three):
        assert norm_of(params) == pytest.approx(norm_of(start), rel=1e-4)
        assert norm_of(params, jax.tree.map(jnp.negative, start)) > 0.5 * norm_of(start)
    assert norm_of(honest) != pytest.approx(norm_of(start), rel=1e-3)
    late = eh.simulate(method, data, rounds=3, cohort=1, attack=attacks.during(attack, first=4)).params
    assert all(map(np.array_equal, jax.tree.leaves(late), jax.tree.leaves(honest)))
    # Gradients, which clients of FedDane upload first, are no models.
    dane = eh.algorithms.feddane(work, mu=0.1)
    sent = [eh.simulate(dane, data, rounds=1, attack=of).params for of in (None, attack)]
    assert norm_of(sent[1], jax.tree.map(jnp.negative, sent[0])) > 0.1
    for refused, words in (
        (eh.algorithms.scaffold(work), "do not upload a changed model"),
        (eh.personalization.fedalt(work, personal="b"), "or take another attack"),
        # Methods of users whose ``received`` does not fit their broadcast.
        (
            method._replace(received=lambda sent: sent.model),
            "received= of fedavg fails: .*'model': give Algorithm",
        ),
        (method._replace(received=lambda sent: 0.5), "do not upload a changed model"),
    ):
        with pytest.raises(eh.EvenhandError, match=words):
            eh.simulate(refused, data, rounds=1, attack=attacks.random_model(0.5))


def test_clients_are_named_by_id_or_by_position() -> None:
    """Ids of a run's data, also where an id is the text of another client's position."""
    ids = ("north", "3", "0", "south")
    cases: dict[tuple[int | str, ...], list[int]] = {
        ("south", "3"): [1, 3],
        (3,): [3],
        ("0",): [2],
        (0, "north"): [0],
        (): [],
        ("north", 2): [0, 2],
    }
    for clients, expected in cases.items():
        malicious = malicious_clients(attacks.by_clients(attacks.zero(), clients), ids, 0)
        assert np.flatnonzero(malicious).tolist() == expected
    for clients, sentence in (
        (("nroth",), r"no such client \(perhaps you meant north\); give ids, or positions from 0 to 3"),
        ((4,), "from 0 to 3"),
    ):
        with pytest.raises(eh.EvenhandError, match=sentence):
            malicious_clients(attacks.by_clients(attacks.zero(), clients), ids, 0)
    with pytest.raises(eh.EvenhandError, match="here clients have positions but no ids"):
        malicious_clients(attacks.by_clients(attacks.zero(), ("north",)), 4, 0)


def test_clients_with_a_share_of_the_examples_are_the_shortest_beginning_of_a_random_order() -> None:
    """The fraction of RFA's code: of examples, just exceeded, and the same for the whole run."""
    sizes = np.random.default_rng(0).integers(1, 50, 40)
    for share, seed in ((0.01, 0), (0.1, 0), (0.25, 1), (0.45, 2), (1.0, 3)):
        attack = attacks.by_examples(attacks.zero(0.3), share, tuple(sizes.tolist()), seed=seed)
        assert attack.fraction == 0.0 and attack.clients
        chosen = [int(k) for k in attack.clients]
        assert sizes[chosen].sum() >= share * sizes.sum() > sizes[chosen].sum() - sizes[chosen].max()
    larger, smaller, other = (
        set(attacks.by_examples(attacks.zero(), share, tuple(sizes), seed=seed).clients or ())
        for share, seed in ((0.45, 0), (0.1, 0), (0.45, 1))
    )
    assert smaller < larger != other
    assert attacks.by_examples(attacks.zero(), 0.0, tuple(sizes)).clients == ()
    assert len(attacks.by_examples(attacks.zero(), 0.29, (1,) * 100).clients or ()) == 29
    for share, wrong, words in (
        (1.1, (1, 2), "share="),
        (0.1, (1.5, 2.0), "sizes="),
        (0.1, (1, -2), "sizes="),
    ):
        with pytest.raises(eh.EvenhandError, match=words):
            attacks.by_examples(attacks.zero(), share, wrong)  # pyright: ignore[reportArgumentType]


def test_a_run_attacked_by_name_is_the_run_attacked_by_position() -> None:
    """Flipped labels reach the same rows, and the run says who was malicious."""
    data = eh.testing.toy_data()
    method = eh.algorithms.fedavg(eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1, batch_size=4))
    by_name, by_position, other = (
        eh.simulate(
            method, data, rounds=1, attack=attacks.by_clients(attacks.model_replacement(boost=5.0), of)
        )
        for of in ((data.client_ids[1],), (1,), (0,))
    )
    assert by_name.malicious.tolist() == by_position.malicious.tolist() and by_name.malicious[1]
    for same, leaf, different in zip(
        *map(jax.tree.leaves, (by_name.params, by_position.params, other.params)), strict=True
    ):
        assert (same == leaf).all() and (same != different).any()


@pytest.mark.parametrize("name", attacks.__all__)
def test_every_attack_obeys_the_contract(name: str) -> None:
    made: dict[str, Any] = {
        "relabel": lambda: attacks.relabel(0.2, (1, 0)),
        "model_replacement": lambda: attacks.model_replacement(0.2, boost=3.0),
        "both": lambda: attacks.both(attacks.label_flip(0.2), attacks.gaussian()),
        "by_clients": lambda: attacks.by_clients(attacks.mimic(), (1, 3)),
        "by_examples": lambda: attacks.by_examples(attacks.mimic(), 0.4, (10, 10, 10, 10)),
        "during": lambda: attacks.during(attacks.sign_flip(0.2), first=2),
        "trigger": lambda: attacks.trigger(0.2, patch=1, boost=2.0),
    }
    attack = made.get(name, lambda: vars(attacks)[name](0.2))()
    eh.testing.check_attack(
        attack, is_random=name in ("gaussian", "random_model", "both"), tokens=name == "reversed_text"
    )


def test_a_broken_attack_is_found_out() -> None:
    for words, attack in (
        ("look like a true one", Attack(upload=lambda delta, key: delta["w"])),
        ("draws at random", attacks.gaussian(0.2)),
        ("look like clean ones", Attack(rows=lambda x, y, rng: (x[:2], y))),
        ("wrote to the examples", Attack(rows=_write_labels)),
        ("another report", Attack(report=lambda report, key: report._replace(loss=next(_RISING)))),
        ("other uploads of", Attack(collude=lambda uploads, malicious, present, key: jax.tree.map(
            lambda leaf: leaf + 1e-4 * next(_RISING), uploads.delta))),
        ("empty slots", Attack(collude=lambda uploads, malicious, present, key: jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf[6], leaf.shape), uploads.delta))),
        ("empty slots", Attack(collude=lambda uploads, malicious, present, key: jax.tree.map(
            lambda leaf: leaf * jnp.sum(uploads.weight), uploads.delta))),
        ("labels outside of 0 to 1", Attack(rows=lambda x, y, rng: (x, y + 1))),
        ("features that are not finite", Attack(rows=lambda x, y, rng: (np.inf * x, y))),
        ("labels outside of 0 to 1", Attack(fresh=lambda x, y, size, key: (
            x, jnp.where(jnp.arange(len(y)) < size, y - 1, y)))),
        ("rows beyond", Attack(fresh=lambda x, y, size, key: (
            jnp.where((jnp.arange(len(y)) < size)[:, None], x - jnp.mean(x), x), y))),
    ):  # fmt: skip
        with pytest.raises(AssertionError, match=words):
            eh.testing.check_attack(attack)
        assert sum(_breaks(check) for check in eh.testing.attack_checks(attack)) == 1


def test_an_attack_that_is_said_to_draw_at_random_draws_from_its_key() -> None:
    def noise(leaf: Any, key: Any) -> Any:
        return leaf + jax.random.normal(key, leaf.shape)

    def examples(x: Any, size: Any, key: Any) -> Any:
        return jnp.where((jnp.arange(len(x)) < size)[:, None], noise(x, key), x)

    def cohort(uploads: Any, key: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.broadcast_to(noise(leaf[0] * 0, key), leaf.shape), uploads.delta)

    always = jax.random.key(0)
    cases: tuple[tuple[str, Any, Any], ...] = (
        ("rows", lambda x, y, rng: (x + np.float32(np.random.default_rng(0).normal(size=x.shape)), y),
            lambda x, y, rng: (x + np.float32(rng.normal(size=x.shape)), y)),
        ("fresh", lambda x, y, size, key: (examples(x, size, always), y),
            lambda x, y, size, key: (examples(x, size, key), y)),
        ("report", lambda report, key: report._replace(loss=noise(report.loss, always)),
            lambda report, key: report._replace(loss=noise(report.loss, key))),
        ("collude", lambda uploads, malicious, present, key: cohort(uploads, always),
            lambda uploads, malicious, present, key: cohort(uploads, key)),
    )  # fmt: skip
    for name, fixed, drawn in cases:
        draws: dict[str, Any] = {name: drawn}
        keeps: dict[str, Any] = {name: fixed}
        eh.testing.check_attack(Attack(**draws), is_random=True)
        eh.testing.check_attack(attack := Attack(**keeps))
        with pytest.raises(AssertionError, match="is_random=True"):
            eh.testing.check_attack(attack, is_random=True)


_RISING = map(jnp.float32, itertools.count())
"""What an attack that is no function of its key draws from."""


def _write_labels(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The second time, nothing changes."""
    y[:] = 0
    return x, y


def _breaks(check: eh.testing.Check) -> bool:
    try:
        check()
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("shape", [(40,), (8, 5), (8, 5, 3)])
def test_persistent_outliers_hit_so_many_pixels_of_so_many_examples_of_a_class(
    shape: tuple[int, ...],
) -> None:
    x, y = jnp.zeros((50, *shape)), jnp.arange(50) % 5
    make = partial(attacks.persistent_outliers, examples=0.29, pixels=0.29, low=1.0, high=3.0)

    def hits(attack: Attack, size: int, seed: int) -> np.ndarray:
        assert attack.fresh
        found, labels = jax.jit(attack.fresh)(x, y, jnp.int32(size), jax.random.key(seed))
        assert np.array_equal(labels, y) and ((found == 0) | ((found >= 1) & (found < 3))).all()
        flat = np.asarray(found).reshape(50, 40, -1)
        assert (flat.all(axis=2) == flat.any(axis=2)).all(), "all channels of a pixel"
        assert len(shape) < 3 or (flat[..., 0] != flat[..., 1])[flat[..., 0] > 0].all()
        return flat[..., 0] > 0

    assert not hits(make(examples=0.0), 50, 0).any()
    for size, wanted in ((50, 14), (20, 5), (1, 0)):
        hit = hits(make(), size, 0)
        assert hit.any(axis=1).sum() == wanted and not hit[size:].any()
        assert set(hit.sum(axis=1).tolist()) <= {0, 12}, "0.29 of 40, to the nearest"
    assert hits(make(examples=0.58), 50, 0).any(axis=1).sum() == 29 > 0.58 * 50, "whole but for rounding"
    assert (hits(make(), 50, 0) != hits(make(), 50, 1)).any(axis=1).sum() > 10
    of_class = hits(make(label=3), 47, 0)
    assert of_class.any(axis=1).sum() == 2 and not of_class[np.arange(50) % 5 != 3].any()
    noisy = attacks.persistent_outliers(examples=1.0, std=0.5).fresh
    assert noisy and 0.45 < np.std(noisy(x, y, jnp.int32(50), jax.random.key(0))[0]) < 0.55


@pytest.mark.parametrize("options", [{"std": 0.5}, {"pixels": 0.29, "low": 1.0, "high": 3.0}])
def test_outliers_drawn_once_are_the_same_in_all_rounds_and_differ_between_seeds_and_clients(
    options: dict[str, Any],
) -> None:
    """FedTilt argues for outliers that are drawn in each round: this is what they are compared with."""
    attack = attacks.persistent_outliers(1.0, examples=0.29, once=True, **options)
    assert attack.fresh is None and attack.rows is not None
    x, y = np.zeros((50, 40), np.float32), np.arange(50) % 5
    first, again, other, seed = (
        poisoned(attack.rows, x.copy(), y, *which)[0] for which in ((0, 0), (0, 0), (0, 1), (1, 0))
    )
    assert np.array_equal(first, again) and first.dtype == x.dtype
    assert not np.array_equal(first, other) and not np.array_equal(first, seed)
    for hit in (first, other, seed):
        assert (hit != 0).any(axis=1).sum() == 14, "0.29 of 50, rounded down"
    assert poisoned(attack.rows, x[:0], y[:0], 0, 0)[0].shape == (0, 40)
    always = attacks.persistent_outliers(1.0, examples=0.29, **options)
    eh.testing.check_attack(attack)
    assert always.fresh and always.rows is None


def test_noise_on_pixels_may_stay_within_their_range() -> None:
    x, y = jnp.full((20, 30), 0.5), jnp.zeros(20, jnp.int32)
    bounded, free = (
        attacks.persistent_outliers(examples=1.0, std=1.0, low=0.1, high=0.8, bounded=bounded).fresh
        for bounded in (True, False)
    )
    assert bounded and free
    found, wide = (np.asarray(each(x, y, jnp.int32(20), jax.random.key(0))[0]) for each in (bounded, free))
    np.testing.assert_array_equal(found, np.clip(wide, np.float32(0.1), np.float32(0.8)))
    assert found.min() > wide.min() and found.max() < wide.max()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"bounded": True}, "give std="),
        ({"bounded": True, "std": 1.0, "low": 2.0}, "the lower one first"),
        ({"examples": 1.1}, "examples=1.1"),
        ({"pixels": -0.1}, "pixels=-0.1"),
        ({"low": 1.0}, "the lower one first"),
        ({"std": 0.0}, "std=0.0"),
        ({"label": -1}, "label="),
    ],
)
def test_impossible_outliers_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(eh.EvenhandError, match=words):
        attacks.persistent_outliers(**arguments)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (attacks.model_replacement, "boost="),
        (attacks.sign_flip, "scale="),
        (attacks.false_sum, "scale="),
        (attacks.same_value, "value="),
        (attacks.gaussian, "std="),
    ],
)
def test_factors_that_are_no_finite_number_are_refused(make: Any, words: str) -> None:
    argument = words.rstrip("=")
    for factor in (np.nan, np.inf, "2", np.ones(2)):
        with pytest.raises(eh.EvenhandError, match=words):
            make(0.2, **{argument: factor})
    make(0.2, **{argument: np.float32(2.0)})
    make(0.2, **{argument: jnp.float32(2.0)})


@pytest.mark.parametrize("std", [None, 1.0])
def test_outliers_among_whole_numbers_are_refused(std: float | None) -> None:
    fresh = attacks.persistent_outliers(std=std).fresh
    assert fresh
    with pytest.raises(eh.EvenhandError, match=r"uint8.*attack the labels"):
        fresh(jnp.zeros((10, 4), jnp.uint8), jnp.zeros(10, jnp.int32), jnp.int32(10), jax.random.key(0))
