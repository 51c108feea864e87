"""MOCHA as a method: its rounds are those of the solver, and those of a loop in NumPy."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import evenhand as eh
from evenhand.personalization.methods import mocha

LAM, CLIENTS = 0.05, 4
SVM = eh.models.svm(3, regularization=0.0)
SOFTMAX = eh.models.softmax_regression(3, classes=3)
ONE_EACH, SEVERAL = (1,) * CLIENTS, (5, 9, 4, 7)


def federation(sizes: tuple[int, ...], classes: int = 2) -> eh.data.FederatedDataset:
    """Clients with opposite labels, and the same examples for training and testing."""
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(CLIENTS), sizes)
    x = rng.normal(size=(len(client), 3)).astype(np.float32)
    y = (np.argmax(x[:, :classes], axis=1) + (client == 0)) % classes
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    split = eh.data.Split(x, y.astype(np.int32), offsets)
    nothing = eh.data.Split(x[:0], y[:0].astype(np.int32), 0 * offsets)
    return eh.data.FederatedDataset(split, nothing, split, tuple("abcd"))


def with_ones(data: eh.data.FederatedDataset) -> Any:
    """The examples as the solver takes them: a column of ones for the intercept."""
    return data.train._replace(x=np.hstack([data.train.x, np.ones((data.train.rows, 1), np.float32)]))


def weights_of(run: eh.Run) -> np.ndarray:
    """Kernel and intercept of each client, ``(K, d + 1, classes)``."""
    params = [run.personal_params(k) for k in range(CLIENTS)]
    return np.stack([np.concatenate([each["kernel"], each["bias"][None]]) for each in params])


@cache
def run_of(sizes: tuple[int, ...], rounds: int = 6, **options: Any) -> eh.Run:
    return eh.simulate(mocha(SVM, lam=LAM, **options), federation(sizes), rounds=rounds)


@pytest.mark.parametrize("inner", [2, 3])
def test_rounds_are_those_of_the_solver(inner: int) -> None:
    """Each client has one example, so that there is no choice to draw; Sigma is learnt after the last round, too."""
    run = run_of(ONE_EACH, inner=inner, share=3.0)
    solved = eh.personalization.mocha(
        with_ones(federation(ONE_EACH)), lam=LAM, outer=6 // inner - 1, inner=inner, share=3.0
    )
    sums = np.asarray(run.kept.server.sums)[..., 0]
    before = np.asarray(solved.relations)
    np.testing.assert_allclose(before @ sums / LAM, solved.weights, atol=2e-5)
    assert not np.allclose(weights_of(run)[..., 0], solved.weights, atol=1e-3)
    other = run_of(ONE_EACH, inner=5 - inner, share=3.0)
    assert np.abs(weights_of(run) - weights_of(other)).max() > 1e-3


def test_without_relations_each_client_solves_its_own_machine() -> None:
    run = run_of(SEVERAL, rounds=300, inner=1000, share=2.0)
    solved = eh.personalization.mocha(with_ones(federation(SEVERAL)), lam=LAM, outer=0, inner=300, share=2.0)
    np.testing.assert_allclose(weights_of(run)[..., 0], solved.weights, atol=5e-3)
    np.testing.assert_allclose(np.asarray(run.kept.server.relations), np.eye(CLIENTS) / CLIENTS)


@pytest.mark.parametrize("classes", [2, 3])
def test_one_round_is_a_loop_in_numpy(classes: int) -> None:
    """From the dual variables that clients keep: each is in its range, and gives what the server adds up."""
    model, data = (SVM, federation(SEVERAL)) if classes == 2 else (SOFTMAX, federation(SEVERAL, 3))
    run = eh.simulate(mocha(model, lam=LAM, inner=2), data, rounds=3)
    server, clients = run.state.server, run.state.clients
    ones = with_ones(data)
    for k in range(CLIENTS):
        x, y = ones.client(k)
        alphas = np.asarray(clients.alphas[k])[: len(y)]
        signs = (
            np.where(y == 1, 1.0, -1.0)[:, None]
            if classes == 2
            else np.where(y[:, None] == np.arange(3), 1, -1)
        )
        assert ((signs * alphas >= 0) & (signs * alphas <= 1)).all() and np.abs(alphas).max() > 0
        np.testing.assert_allclose(np.asarray(server.sums[k]), x.T @ alphas / len(y), atol=1e-5)
    sums, relations = np.asarray(server.sums, np.float64), np.asarray(server.relations, np.float64)
    np.testing.assert_allclose(np.asarray(server.weights), np.tensordot(relations, sums, 1) / LAM, atol=1e-4)
    np.testing.assert_allclose(weights_of(run), np.asarray(server.weights), atol=1e-6)
    mean = jax.tree.map(np.asarray, run.params)
    np.testing.assert_allclose(mean["bias"], np.asarray(server.weights).mean(axis=0)[-1], atol=1e-6)
    assert np.isclose(np.trace(relations), 1.0) and np.abs(relations - np.eye(CLIENTS) / CLIENTS).max() > 0.02


def test_a_share_of_the_examples_is_a_number_of_steps() -> None:
    for share, steps in ((0.5, 2 + 4 + 2 + 3), (0.01, 4), (2.0, 2 * sum(SEVERAL))):
        run = run_of(SEVERAL, rounds=1, share=share)
        assert run.info["steps"]["useful"] == run.info["examples"] == steps
    slow = eh.simulate(
        mocha(SVM, lam=LAM, share=2.0), federation(SEVERAL), rounds=1, systems=eh.systems.stragglers(1.0)
    )
    assert 4 <= slow.info["steps"]["useful"] < 2 * sum(SEVERAL)
    assert slow.per_round["reported"].tolist() == [4] and not mocha(SVM, keep_partial=False).partial_work


def test_clients_outside_the_cohort_keep_their_dual_variables_and_get_the_models_of_their_relations() -> None:
    data = federation(SEVERAL)
    runs = list(eh.simulation.iterate(mocha(SVM, lam=LAM, inner=1), data, rounds=3, cohort=2, eval_every=1))
    before, after = runs[2].last_round, runs[3].last_round
    trained = before != after
    assert trained.sum() == 2
    sums = np.asarray(runs[3].kept.server.sums)
    never = after == 0
    assert not sums[never].any() and np.abs(sums[~never]).max(axis=(1, 2)).min() > 0
    if never.any():
        k = int(np.argmax(never))
        np.testing.assert_array_equal(runs[3].personal_params(k)["kernel"], runs[3].params["kernel"])


def test_traffic_is_a_model_each_way() -> None:
    floats = run_of(SEVERAL, rounds=1).info["floats"]
    assert floats["up"] == 4 + 1  # a change of b_k, and a weight
    assert floats["down"] == 4 + 3 + 1


def test_its_sums_are_not_secure_and_the_solver_names_the_method() -> None:
    """The server sees each client's change."""
    assert run_of(SEVERAL, rounds=2).info["communication"]["secure_sums"] == 0
    with pytest.raises(
        eh.EvenhandError, match=r"give it their examples, .* eh.personalization.methods.mocha"
    ):
        eh.personalization.mocha(SVM, lam=LAM)  # type: ignore[arg-type]


def test_the_package_brings_the_method() -> None:
    """In a process of its own, where no other module has imported it."""
    code = "import evenhand as eh; print(eh.personalization.methods.mocha.__name__)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "mocha"


def test_an_attack_changes_what_a_client_sends_and_nothing_else_of_the_sums() -> None:
    how: dict[str, Any] = {"rounds": 1}
    data, method = federation(SEVERAL), mocha(SVM, lam=LAM)
    plain = np.asarray(eh.simulate(method, data, **how).kept.server.sums)
    attack = eh.attacks.by_clients(eh.attacks.model_replacement(boost=3.0), (1,))
    boosted = np.asarray(eh.simulate(method, data, attack=attack, **how).kept.server.sums)
    np.testing.assert_allclose(boosted[1], 3.0 * plain[1], rtol=1e-5)
    np.testing.assert_allclose(boosted[[0, 2, 3]], plain[[0, 2, 3]], rtol=1e-5)
    broken = eh.attacks.by_clients(eh.attacks.non_finite(), (2,))
    with pytest.warns(eh.errors.EvenhandWarning, match="rejected 1 upload"):
        rejected = eh.simulate(method, data, attack=broken, **how)
    assert rejected.per_round["rejected"].tolist() == [1]
    np.testing.assert_allclose(
        rejected.kept.server.sums, np.where(np.arange(4)[:, None, None] == 2, 0, plain)
    )


def test_features_that_a_model_scales_first_are_those_of_the_machine() -> None:
    data = federation(SEVERAL, 3)
    scaled = SOFTMAX._replace(apply=lambda params, x: SOFTMAX.apply(params, (x - 0.5) / 2.0))
    moved = dataclasses.replace(
        data,
        **{
            name: getattr(data, name)._replace(x=(getattr(data, name).x - 0.5) / 2.0)
            for name in ("train", "test")
        },
    )
    inside = eh.simulate(mocha(scaled, lam=LAM), data, rounds=3).client_metrics()["loss"]
    outside = eh.simulate(mocha(SOFTMAX, lam=LAM), moved, rounds=3).client_metrics()["loss"]
    np.testing.assert_allclose(inside, outside, rtol=1e-4)


def test_newcomers_get_the_mean_of_all_models() -> None:
    run = run_of(SEVERAL)
    new = run.serve(federation((3, 12, 2, 2)))
    np.testing.assert_allclose(new.client_metrics()["loss"], new.client_metrics()["global_loss"], rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: mocha(eh.models.mlp(3, classes=2)),
            r"trains linear models, and the model mlp.*--model softmax or svm",
        ),
        (lambda: mocha(SVM, lam=0.0), "two finite numbers above 0"),
        (lambda: mocha(SVM, share=np.inf), "two finite numbers above 0"),
        (lambda: mocha(SVM, inner=0), "^inner=0"),
    ],
)
def test_slips_are_refused(make: Any, sentence: str) -> None:
    with pytest.raises(eh.EvenhandError, match=sentence):
        make()


def test_real_labels_and_methods_around_it_are_refused() -> None:
    data = federation(SEVERAL)
    real = dataclasses.replace(
        data,
        **{
            name: getattr(data, name)._replace(y=getattr(data, name).y * 0.5)
            for name in ("train", "valid", "test")
        },
    )
    regression = eh.models.linear_regression(3)
    with pytest.raises(eh.EvenhandError, match=r"mocha\(\) is for classes"):
        eh.simulate(mocha(regression), real, rounds=1)
    work = eh.local.sgd(SVM, 0.1, epochs=1)
    with pytest.raises(eh.EvenhandError, match="keeps a number for each training example"):
        eh.simulate(eh.personalization.ditto(mocha(SVM), work, lam=1.0), data, rounds=1)


def test_a_loaded_run_serves_no_model_that_was_never_trained(tmp_path: Path) -> None:
    """The folder holds no sums of the clients, of which the global model is made."""
    saved = eh.load_run(run_of(SEVERAL).save(tmp_path / "a"), algorithm=mocha(SVM, lam=LAM))
    with pytest.raises(eh.EvenhandError, match=r"has too little of mocha\(lam=0.05\) to serve new clients"):
        saved.serve(federation(SEVERAL))
