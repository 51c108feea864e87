"""Synthetic(alpha, beta) against its definition, by statistics and by an independent re-computation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evenhand.data import FederatedDataset, _synthetic, load, synthetic
from evenhand.errors import EvenhandError


def whole(**options: object) -> FederatedDataset:
    """A data set with all rows in the training split."""
    return synthetic(test_fraction=0.0, **options)  # pyright: ignore[reportArgumentType]


def grand_means(data: FederatedDataset) -> np.ndarray:
    return np.array([data.train.client(k)[0].mean(dtype=np.float64) for k in range(data.num_clients)])


def test_the_federation_has_the_published_form() -> None:
    data = synthetic(1.0, 1.0, seed=0)
    assert (data.num_clients, data.num_classes, data.feature_shape) == (30, 10, (60,))
    total = data.train.sizes + data.test.sizes
    np.testing.assert_array_equal(data.train.sizes, np.floor(0.8 * total + 1e-9))
    assert total.min() >= 50


@pytest.mark.parametrize("sigma", [1.0, 2.0])
def test_sizes_are_log_normal_plus_fifty(sigma: float) -> None:
    sizes = whole(clients=400, size_sigma=sigma, max_size=5000, beta=0.0, iid=True).train.sizes - 50
    assert sizes.min() >= 0
    # Quantiles, which the cap does not touch: P(n < exp(4 + q sigma)) = Phi(q).
    for q, probability in ((-0.5, 0.3085), (0.0, 0.5), (1.0, 0.8413)):
        assert abs((sizes < np.floor(np.exp(4 + q * sigma))).mean() - probability) < 0.07


def test_sizes_are_capped() -> None:
    free, capped = whole(seed=4).train.sizes, whole(seed=4, max_size=60).train.sizes
    np.testing.assert_array_equal(capped, np.minimum(free, 60))
    assert free.max() > 60
    assert whole(max_size=3, clients=2).train.sizes.tolist() == [3, 3]


def test_variance_within_a_client_falls_as_j_to_the_minus_1_2() -> None:
    clients = 50
    data = whole(clients=clients, seed=1, max_size=2000)
    rows = (data.train.client(k)[0].astype(np.float64) for k in range(clients))
    centred = np.concatenate([x - x.mean(axis=0) for x in rows])
    variance = (centred**2).sum(axis=0) / (len(centred) - clients)
    expected = np.arange(1, 61) ** -1.2
    np.testing.assert_allclose(expected[[0, 1, 2, 59]], [1, 0.4353, 0.2676, 0.00735], rtol=1e-3)
    tolerance = 5 * np.sqrt(2 / len(centred))
    np.testing.assert_allclose(variance / expected, 1, atol=tolerance)
    # Negative control: counting j from 0 (a shift by one) or reading j^-1.2 as a standard deviation fails.
    assert np.abs(variance / np.arange(2, 62) ** -1.2 - 1).max() > 10 * tolerance
    assert np.abs(variance / expected**2 - 1).max() > 10 * tolerance


@pytest.mark.parametrize("beta", [0.0, 0.5, 2.0])
def test_beta_is_the_standard_deviation_of_the_clients_means(beta: float) -> None:
    means = grand_means(whole(beta=beta, clients=300, max_size=20, seed=2))
    as_deviation, as_variance = np.sqrt(beta**2 + 1 / 60), np.sqrt(beta + 1 / 60)
    assert abs(means.std() / as_deviation - 1) < 0.15
    if beta not in (0.0, 1.0):
        assert abs(means.std() / as_variance - 1) > 0.2


@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_alpha_is_the_standard_deviation_of_the_clients_models(alpha: float) -> None:
    random = np.random.default_rng(0)
    means = _synthetic._draw_means(random, 4000, alpha, 1.0, 0)
    assert abs(means.model.std() / alpha - 1) < 0.05
    assert abs(means.model.std() / np.sqrt(alpha) - 1) > 0.2
    w, b = _synthetic._draw_model(random, 3.0)
    assert (w.shape, b.shape) == ((60, 10), (10,))
    assert abs(w.mean() - 3) < 0.2
    assert abs(w.std() - 1) < 0.1


def test_a_common_shift_of_the_model_keeps_all_labels() -> None:
    random = np.random.default_rng(3)
    x, w, b = random.normal(size=(500, 60)), random.normal(size=(60, 10)), random.normal(size=10)
    labels = _synthetic._labels(x, w, b)
    np.testing.assert_array_equal(labels, _synthetic._labels(x, w + 7.5, b + 7.5))
    # Negative control: the same shift of one class's column does change labels.
    column = np.eye(10)[4] * 7.5
    assert (labels != _synthetic._labels(x, w + column, b + column)).mean() > 0.1


def test_alpha_therefore_changes_nothing_but_beta_does() -> None:
    one, other = whole(alpha=0.0, beta=0.5, seed=5), whole(alpha=3.0, beta=0.5, seed=5)
    np.testing.assert_array_equal(one.train.x, other.train.x)
    np.testing.assert_array_equal(one.train.y, other.train.y)
    assert not np.array_equal(one.train.x, whole(alpha=0.0, beta=0.6, seed=5).train.x)


def test_clients_label_differently_already_at_zero() -> None:
    """A linear rule fitted to one client predicts another's labels only between IID clients."""

    def transfer(data: FederatedDataset) -> float:
        hits = []
        for k in range(4):
            x, y = (part.astype(np.float64) for part in data.train.client(k))
            other_x, other_y = data.train.client(k + 1)
            targets = np.eye(10)[y.astype(int)]
            ones = np.ones((len(x), 1))
            weights = np.linalg.lstsq(np.hstack([x, ones]), targets, rcond=None)[0]
            scores = np.hstack([other_x, np.ones((len(other_x), 1))]) @ weights
            hits.append((scores.argmax(axis=1) == other_y).mean())
        return float(np.mean(hits))

    options = {"clients": 5, "size_sigma": 0.0, "seed": 6}
    # 104 rows each are few for 60 features, so IID clients get more.
    iid = transfer(whole(iid=True, **{**options, "size_sigma": 1.5}))
    unlike = transfer(whole(alpha=0.0, beta=0.0, **options))
    assert iid > 0.4
    assert unlike < 0.3


def test_iid_clients_share_model_and_mean() -> None:
    means = grand_means(whole(iid=True, clients=200, max_size=60, seed=7))
    # The grand mean of 54 to 60 rows has variance sum(j^-1.2) / 60^2 / n.
    expected = np.sqrt((np.arange(1, 61) ** -1.2).sum() / 60**2 / 58)
    assert abs(means.std() / expected - 1) < 0.2


def test_hybrid_data_have_both_kinds_of_clients() -> None:
    means = grand_means(whole(clients=100, iid_clients=50, size_sigma=1.0, seed=8))
    assert means[:50].std() < 0.05
    assert means[50:].std() > 0.5
    sizes = whole(clients=100, iid_clients=100, size_sigma=1.0, seed=8)
    np.testing.assert_array_equal(sizes.train.x, whole(clients=100, iid=True, size_sigma=1.0, seed=8).train.x)


def test_sizes_are_near_those_of_the_table_of_q_ffl() -> None:
    """Table 4.4 of the source: mean 127 and standard deviation 73, with sigma 1."""
    sizes = np.concatenate(
        [whole(clients=100, size_sigma=1.0, seed=s, iid=True).train.sizes for s in range(3)]
    )
    assert 115 < sizes.mean() < 165
    assert 70 < sizes.std() < 180
    # Negative control: sigma 2, as the authors' script has it, cannot.
    assert whole(clients=100, iid=True).train.sizes.mean() > 200


def test_the_seed_decides_the_data() -> None:
    one, same, other = whole(seed=1), whole(seed=1), whole(seed=2)
    np.testing.assert_array_equal(one.train.x, same.train.x)
    np.testing.assert_array_equal(one.train.y, same.train.y)
    assert not np.array_equal(one.train.sizes, other.train.sizes)


def test_the_rows_of_clients_do_not_depend_on_the_split() -> None:
    """The split draws from its own stream: another split leaves the rows as they were."""
    one, other = synthetic(clients=3, max_size=60), synthetic(clients=3, max_size=60, valid_fraction=0.3)
    for k in range(3):
        rows = [
            np.concatenate([split.client(k)[0] for split in (data.train, data.valid, data.test)])
            for data in (one, other)
        ]
        np.testing.assert_array_equal(np.sort(rows[0], axis=0), np.sort(rows[1], axis=0))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"alpha": -1.0}, "alpha"),
        ({"beta": float("nan")}, "beta"),
        ({"clients": 0}, "clients"),
        ({"clients": 2.5}, "clients"),
        ({"iid_clients": 31}, "iid_clients"),
        ({"iid_clients": -1}, "iid_clients"),
        ({"max_size": 0}, "max_size"),
        ({"size_sigma": -1.0}, "size_sigma"),
        ({"alpha": "1"}, "alpha must be finite and at least 0, not '1'"),
        ({"beta": None}, "beta must be finite"),
        ({"size_sigma": 100.0, "seed": 1}, "lower it, or give max_size"),
        ({"test_fraction": 1.0}, "test_fraction"),
        ({"seed": -3}, "seed"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, float], words: str) -> None:
    with pytest.raises(EvenhandError, match=words):
        synthetic(**options)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("synthetic:0.5,1", {"alpha": 0.5}),
        ("synthetic:0,0.5", {"beta": 0.5}),
        ("synthetic:iid", {"iid": True}),
    ],
)
def test_a_name_loads_it(name: str, options: dict[str, float]) -> None:
    """``evenhand run --data NAME`` reads the same names."""
    splitting: dict[str, float] = {"seed": 3, "test_fraction": 0.3, "valid_fraction": 0.1}
    loaded = load(name, clients=4, **splitting)  # pyright: ignore[reportArgumentType]
    drawn = synthetic(clients=4, **splitting, **options)  # pyright: ignore[reportArgumentType]
    assert (loaded.num_clients, loaded.num_classes) == (4, 10)
    for split in ("train", "valid", "test"):
        one, other = getattr(loaded, split), getattr(drawn, split)
        np.testing.assert_array_equal(one.x, other.x)
        np.testing.assert_array_equal(one.y, other.y)
    assert load(name).num_clients == 30


@pytest.mark.parametrize("name", ["synthetic:1", "synthetic:a,b", "synthetic:1,1,1"])
def test_a_name_with_other_parameters_is_refused(name: str) -> None:
    with pytest.raises(EvenhandError, match=f"^{name} is not understood: write synthetic:ALPHA,BETA"):
        load(name)


def test_a_folder_that_is_called_synthetic_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load("synthetic", clients=2).num_clients == 2
    (tmp_path / "synthetic").mkdir()
    with pytest.raises(EvenhandError, match="synthetic: the folder holds neither"):
        load("synthetic")
    with pytest.raises(EvenhandError, match="fill is for tables"):
        load("synthetic:1,1", fill="mean")
