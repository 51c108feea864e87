"""MOCHA against independent support vector machines and its own duality gap.

With ``Sigma = I / K`` the clients do not meet: client ``k`` minimises
``mean_i max(0, 1 - y_i x_i w) + (lam K / 2) |w|^2``, a support vector machine that SciPy solves in its
dual variables.  A loop in NumPy takes from the library only which examples are drawn.
"""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy import linalg, optimize

import evenhand as eh
from evenhand.personalization import mocha

LAM, CLIENTS = 0.05, 3


def federation(sizes: tuple[int, ...] = (12, 30, 21), opposed: bool = False) -> eh.data.FederatedDataset:
    rng = np.random.default_rng(3)
    client = np.repeat(np.arange(len(sizes)), sizes)
    x = rng.normal(size=(len(client), 4))
    truth = rng.normal(size=4) + 0.7 * rng.normal(size=(len(sizes), 4))
    truth[0] *= -1.0 if opposed else 1.0
    y = (np.sum(x * truth[client], axis=1) + 0.3 * rng.normal(size=len(client)) > 0).astype(int)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    split = eh.data.Split(x, y, offsets)
    return eh.data.FederatedDataset(
        split,
        eh.data.Split(x[:0], y[:0], 0 * offsets),
        split,
        tuple("abcdef"[: len(sizes)]),
    )


DATA, OPPOSED = federation(), federation(opposed=True)


def signs(k: int, split: eh.data.Split = DATA.train) -> tuple[np.ndarray, np.ndarray]:
    x, y = split.client(k)
    return np.asarray(x, np.float64), np.where(y == 1, 1.0, -1.0)


def alone(k: int) -> tuple[np.ndarray, float]:
    """The support vector machine of one client, and its objective, by SciPy on the dual problem."""
    x, y = signs(k)
    scale = LAM * CLIENTS

    def negative_dual(beta: np.ndarray) -> float:
        w = x.T @ (beta * y) / (scale * len(y))
        return float(scale / 2 * w @ w - beta.mean())

    start = np.full(len(y), 0.5)
    beta = optimize.minimize(
        negative_dual,
        start,
        bounds=[(0, 1)] * len(y),
        method="L-BFGS-B",
        options={"ftol": 1e-14, "gtol": 1e-10},
    ).x
    w = x.T @ (beta * y) / (scale * len(y))
    return w, float(np.maximum(0, 1 - y * (x @ w)).mean() + scale / 2 * w @ w)


def loop(
    outer: int,
    inner: int,
    share: float = 0.5,
    seed: int = 0,
    boost: dict[int, float] | None = None,
    split: eh.data.Split = DATA.train,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights, relations, and both objectives after each round, in float64; some clients send what is too long."""
    data, sizes = [signs(k, split) for k in range(CLIENTS)], split.sizes
    steps = max(1, int(share * sizes.max()))
    relations, sums = np.eye(CLIENTS) / CLIENTS, np.zeros((CLIENTS, 4))
    alphas, objectives = [np.zeros(n) for n in sizes], []
    for turn in range(outer + 1):
        if turn:
            weights = relations @ sums / LAM
            values, vectors = np.linalg.eigh(weights @ weights.T)
            root = vectors @ np.diag(np.sqrt(np.maximum(values, 1e-7))) @ vectors.T
            relations = root / np.trace(root)
        rho = max(np.abs(relations[k]).sum() / relations[k, k] for k in range(CLIENTS))
        for key in jax.random.split(jax.random.fold_in(jax.random.key(seed), turn), inner):
            weights = relations @ sums / LAM
            for k, own in enumerate(jax.random.split(key, CLIENTS)):
                (x, y), n, change = data[k], sizes[k], np.zeros(4)
                before = alphas[k].copy()
                for i in np.asarray(jax.random.randint(own, (steps,), 0, n))[: max(1, int(share * n))]:
                    u = y[i] * x[i] @ (weights[k] + rho * change)
                    gain = LAM * n * (1 - u) / (relations[k, k] * rho * x[i] @ x[i])
                    new = y[i] * np.clip(gain + y[i] * alphas[k][i], 0, 1)
                    change += relations[k, k] / (LAM * n) * (new - alphas[k][i]) * x[i]
                    alphas[k][i] = new
                sums[k] += (boost or {}).get(k, 1.0) * (alphas[k] - before) @ x / n
            weights = relations @ sums / LAM
            true = np.stack([alphas[k] @ data[k][0] / sizes[k] for k in range(CLIENTS)])
            losses = sum(
                np.maximum(0, 1 - y * (x @ w)).mean() for w, (x, y) in zip(weights, data, strict=True)
            )
            gains = sum((alphas[k] * data[k][1]).mean() for k in range(CLIENTS))
            penalty, bound = (np.trace(b.T @ relations @ b) / (2 * LAM) for b in (sums, true))
            objectives.append((losses + penalty, gains - bound))
    return weights, relations, np.array(objectives)


BOOSTED = eh.attacks.by_clients(eh.attacks.model_replacement(boost=3.0), (1,))
RUNS = {
    "usual": ({}, {}),
    "few steps": ({"share": 0.05}, {"share": 0.05}),
    "opposed": ({"train": OPPOSED.train}, {"split": OPPOSED.train}),
    "boosted": ({"attack": BOOSTED}, {"boost": {1: 3.0}}),
}


@pytest.mark.parametrize("name", RUNS)
def test_mocha_equals_its_numpy_loop(name: str) -> None:
    def error(of: str) -> float:
        weights, relations, objectives = loop(2, 4, seed=5, **RUNS[of][1])
        pairs = (
            (found.weights, weights),
            (found.relations, relations),
            (found.primal, objectives[:, 0]),
        )
        return max(np.abs(a - b).max() for a, b in (*pairs, (found.dual, objectives[:, 1])))

    found = mocha(
        **{
            "train": DATA.train,
            "lam": LAM,
            "outer": 2,
            "inner": 4,
            "seed": 5,
            **RUNS[name][0],
        }
    )
    assert (found.relations.min() < -0.05) == (name == "opposed")
    for other in RUNS:
        assert (error(other) < 2e-4) == (name == other), (other, error(other))


def test_without_relations_each_client_solves_its_own_machine() -> None:
    found = mocha(DATA.train, lam=LAM, outer=0, inner=400)
    solved = [alone(k) for k in range(CLIENTS)]
    assert found.primal[-1] == pytest.approx(sum(value for _, value in solved), rel=1e-4)
    np.testing.assert_allclose(found.weights, [w for w, _ in solved], atol=5e-3)
    np.testing.assert_allclose(found.relations, np.eye(CLIENTS) / CLIENTS)


def test_the_dual_rises_to_the_primal_for_fixed_relations() -> None:
    found = mocha(DATA.train, lam=LAM, outer=1, inner=300)
    for part in (slice(0, 300), slice(300, 600)):
        primal, dual = found.primal[part], found.dual[part]
        assert (np.diff(dual) > -1e-5).all()
        assert (primal - dual > -1e-5).all()
        assert primal[-1] - dual[-1] < 2e-3 * primal[-1] < primal[0] - dual[0]


def test_relations_are_the_root_of_the_models_products() -> None:
    before, after = (mocha(DATA.train, lam=LAM, outer=outer, inner=40) for outer in (0, 1))
    root = np.real(linalg.sqrtm(before.weights.astype(np.float64) @ before.weights.T))
    np.testing.assert_allclose(after.relations, root / np.trace(root), atol=1e-3)
    assert np.abs(after.relations - before.relations).max() > 0.05


def test_tiny_models_do_not_relate_the_clients() -> None:
    """All eigenvalues of their products are below 1e-7, and are taken for it."""
    for lam, near in ((1e4, True), (100.0, False)):
        found = mocha(DATA.train, lam=lam, outer=1, inner=2)
        assert np.isclose(found.relations, np.eye(CLIENTS) / CLIENTS, atol=1e-6).all() == near


def test_the_primal_is_that_of_the_weights() -> None:
    found = mocha(DATA.train, lam=LAM, outer=2, inner=30)
    w = found.weights.astype(np.float64)
    losses = [np.maximum(0, 1 - y * (x @ w[k])).mean() for k in range(CLIENTS) for x, y in [signs(k)]]
    penalty = LAM / 2 * np.trace(w.T @ np.linalg.inv(found.relations.astype(np.float64)) @ w)
    assert found.primal[-1] == pytest.approx(sum(losses) + penalty, rel=1e-3)


def test_shares_and_seeds_count() -> None:
    short, long, other = (
        mocha(DATA.train, lam=LAM, outer=0, inner=1, share=share, seed=seed).dual[-1]
        for share, seed in ((0.1, 0), (3.0, 0), (0.1, 1))
    )
    assert long > short != other


def test_accuracy_counts_zero_scores_as_wrong() -> None:
    found = mocha(DATA.train, lam=LAM, outer=1, inner=50)
    expected = [np.mean(y * (x @ found.weights[k]) > 0) for k in range(CLIENTS) for x, y in [signs(k)]]
    np.testing.assert_allclose(found.accuracy(DATA.test), expected)
    assert (found._replace(weights=0 * found.weights).accuracy(DATA.test) == 0).all()
    assert np.isnan(found.accuracy(DATA.valid)).all()


@pytest.mark.parametrize("how", [{"lam": 0.0}, {"lam": 1.0, "share": 0.0}, {"lam": 1.0, "inner": 0}])
def test_numbers_out_of_range_are_refused(how: dict[str, float]) -> None:
    with pytest.raises(eh.errors.EvenhandError):
        mocha(DATA.train, **how)  # pyright: ignore[reportArgumentType]


def test_more_than_two_classes_are_refused() -> None:
    with pytest.raises(eh.errors.EvenhandError, match="two classes"):
        mocha(eh.data.synthetic(clients=3).train, lam=1.0)


def test_a_client_without_examples_is_refused() -> None:
    split = DATA.train._replace(offsets=np.array([0, 12, 12, 63]))
    with pytest.raises(eh.errors.EvenhandError, match="client 1 has no examples"):
        mocha(split, lam=1.0)


def test_models_that_are_not_finite_come_with_a_warning() -> None:
    huge = eh.attacks.by_clients(eh.attacks.gaussian(std=3e18), (0,))
    with pytest.warns(eh.errors.EvenhandWarning, match="not finite"):
        mocha(DATA.train, lam=LAM, outer=1, inner=1, attack=huge)


# --- attacks ---------------------------------------------------------------------------------------------------------


def equal(a: eh.personalization.Mocha, b: eh.personalization.Mocha) -> bool:
    return all(np.array_equal(one, other) for one, other in zip(a, b, strict=True) if one is not a.malicious)


def test_attacks_by_nobody_change_nothing() -> None:
    how = {"lam": LAM, "outer": 1, "inner": 10}
    plain = mocha(DATA.train, **how)
    for make in (
        eh.attacks.sign_flip,
        eh.attacks.label_flip,
        eh.attacks.alie,
        eh.attacks.non_finite,
    ):
        assert equal(mocha(DATA.train, attack=make(0.0), **how), plain)
        assert not equal(mocha(DATA.train, attack=make(0.4), **how), plain)
    assert not plain.malicious.any() and not plain.rejected.any() and len(plain.rejected) == 20


def test_a_boosted_upload_is_boosted_exactly() -> None:
    """After one round W = B Sigma / lam with Sigma = I / K, so that a client's model is what it sent."""
    how = {"lam": LAM, "outer": 0, "inner": 1}
    plain = mocha(DATA.train, **how)
    attack = eh.attacks.by_clients(eh.attacks.model_replacement(boost=4.0), (1,))
    boosted = mocha(DATA.train, attack=attack, **how)
    np.testing.assert_allclose(boosted.weights[1], 4.0 * plain.weights[1], rtol=1e-6)
    np.testing.assert_array_equal(boosted.weights[[0, 2]], plain.weights[[0, 2]])
    assert boosted.dual == plain.dual and boosted.primal != plain.primal
    later = mocha(DATA.train, attack=eh.attacks.during(attack, first=2), **how)
    np.testing.assert_array_equal(later.weights, plain.weights)
    twice = mocha(DATA.train, attack=eh.attacks.during(attack, first=2), **{**how, "inner": 2})
    assert not np.array_equal(twice.weights, mocha(DATA.train, **{**how, "inner": 2}).weights)


def test_rounds_of_an_attack_are_counted_over_all_turns() -> None:
    how = {"lam": LAM, "outer": 1, "inner": 3}
    late, never = (
        mocha(
            DATA.train,
            attack=eh.attacks.during(eh.attacks.sign_flip(0.4), first=first),
            **how,
        )
        for first in (6, 7)
    )
    plain = mocha(DATA.train, **how)
    assert equal(never, plain) and not equal(late, plain)
    np.testing.assert_array_equal(late.primal[:5], plain.primal[:5])


def test_noise_differs_between_clients_and_rounds_and_has_the_deviation_of_what_it_replaces() -> None:
    data = eh.data.Split(
        np.tile(np.random.default_rng(0).normal(size=(8, 3000)), (2, 1)),
        np.tile([0, 1], 8),
        np.array([0, 8, 16]),
    )
    how = {"lam": LAM, "outer": 0, "inner": 1}
    plain, noisy = (
        mocha(data, **how),
        mocha(data, attack=eh.attacks.gaussian(1.0), **how),
    )
    twice = mocha(data, attack=eh.attacks.gaussian(1.0, std=1.0), **{**how, "inner": 2})
    once = mocha(data, attack=eh.attacks.gaussian(1.0, std=1.0), **how)
    np.testing.assert_allclose(noisy.weights.std(axis=1), plain.weights.std(axis=1), rtol=0.1)
    for one, other in (
        noisy.weights,
        (noisy.weights[0], plain.weights[0]),
        (once.weights[0], (twice.weights - once.weights)[0]),
    ):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.1


def test_malicious_clients_are_those_of_simulate() -> None:
    data = eh.testing.toy_data()
    work = eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1)
    for seed in (0, 1, 4):
        attack = eh.attacks.label_flip(0.5, classes=3)
        run = eh.simulate(eh.algorithms.fedavg(work), data, rounds=0, seed=seed, attack=attack)
        two = data.train._replace(y=data.train.y % 2)
        found = mocha(two, lam=LAM, outer=0, inner=1, seed=seed, attack=eh.attacks.label_flip(0.5))
        np.testing.assert_array_equal(found.malicious, run.malicious)
        assert found.malicious.sum() == data.num_clients // 2


def test_flipped_labels_are_those_of_the_malicious_clients_alone() -> None:
    attack = eh.attacks.by_clients(eh.attacks.label_flip(), (2,))
    y = DATA.train.y.copy()
    y[DATA.train.offsets[2] :] = 1 - y[DATA.train.offsets[2] :]
    before = DATA.train.y.copy()
    how = {"lam": LAM, "outer": 1, "inner": 20}
    flipped = mocha(DATA.train, attack=attack, **how)
    assert equal(flipped, mocha(DATA.train._replace(y=y), **how))
    np.testing.assert_array_equal(DATA.train.y, before)
    with pytest.raises(eh.errors.EvenhandError, match="two classes"):
        mocha(DATA.train, attack=eh.attacks.uniform_labels(1.0, classes=9), **how)


def test_what_is_not_finite_is_rejected_and_counted() -> None:
    """As if that client took no part: it keeps its dual variables, and the others' models are as with Sigma = I / K."""
    how = {"lam": LAM, "outer": 0, "inner": 6}
    plain = mocha(DATA.train, **how)
    attack = eh.attacks.by_clients(eh.attacks.non_finite(), (0,))
    for one in (
        attack,
        attack._replace(upload=None, collude=lambda u, m, p, key: np.nan * u.delta),
    ):
        found = mocha(DATA.train, attack=one, **how)
        assert found.rejected.tolist() == [1] * 6
        np.testing.assert_array_equal(found.weights[0], 0.0)
        np.testing.assert_array_equal(found.weights[1:], plain.weights[1:])
        assert (found.dual < plain.dual).all() and (np.diff(found.dual) > -1e-6).all()
    brief = mocha(DATA.train, attack=eh.attacks.during(attack, last=2), **how)
    assert brief.rejected.tolist() == [1, 1, 0, 0, 0, 0] and np.abs(brief.weights[0]).max() > 0.1


def test_a_coalition_knows_what_the_others_send() -> None:
    attack = eh.attacks.by_clients(eh.attacks.alie(z=0.0), (1,))
    plain = mocha(DATA.train, lam=LAM, outer=0, inner=1)
    found = mocha(DATA.train, lam=LAM, outer=0, inner=1, attack=attack)
    np.testing.assert_allclose(found.weights[1], plain.weights[[0, 2]].mean(axis=0), rtol=1e-5)


def test_honest_clients_lose_accuracy_to_wrong_uploads_and_the_dual_still_bounds_the_primal() -> None:
    data = federation((40,) * 6)
    how = {"lam": 0.01, "outer": 3, "inner": 40}
    clean = mocha(data.train, **how)
    attack = eh.attacks.both(eh.attacks.label_flip(0.5), eh.attacks.model_replacement(boost=10.0))
    found = mocha(data.train, attack=attack, **how)
    honest = ~found.malicious
    assert honest.sum() == 3
    lost = clean.accuracy(data.train)[honest].mean() - found.accuracy(data.train)[honest].mean()
    assert 0.02 < lost < 0.6
    assert (found.primal > found.dual).all()


@pytest.mark.parametrize(
    ("attack", "sentence"),
    [
        (eh.attacks.persistent_outliers(0.5), "same examples in every round"),
        (eh.attacks.random_model(0.5), "receive no model"),
        (eh.types.Attack(0.5, report=lambda report, key: report), "report nothing"),
        (eh.attacks.sign_flip(1.5), "must lie in"),
        ("sign_flip", "model_replacement"),
    ],
)
def test_other_attacks_are_refused(attack: object, sentence: str) -> None:
    with pytest.raises(eh.errors.EvenhandError, match=sentence):
        mocha(DATA.train, lam=LAM, attack=attack)  # pyright: ignore[reportArgumentType]
