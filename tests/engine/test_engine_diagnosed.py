"""``Run.diagnosed``: how unlike the clients of a run are and how exactly they work, in its report and its summary."""

import json
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import evenhand as eh
from evenhand.centralized import methods
from evenhand.cli import main

MODEL, DATA = eh.testing.toy_model(), eh.testing.toy_data()


def gradient(params, x, y):
    """Of the mean cross-entropy of softmax regression, in NumPy."""
    logits = x @ params["w"] + params["b"]
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    shares[np.arange(len(y)), y] -= 1.0
    return np.concatenate([(x.T @ shares / len(y)).ravel(), shares.mean(axis=0)])


def rows(k):
    return tuple(
        np.asarray(part, np.float64 if i == 0 else int) for i, part in enumerate(DATA.train.client(k))
    )


def as_floats(params):
    return {name: np.asarray(leaf, np.float64) for name, leaf in params.items()}


@pytest.mark.parametrize("attack", [None, eh.attacks.sign_flip(0.34)])
def test_numbers_are_those_of_numpy_over_honest_clients(attack):
    """Two full-batch steps of each client from the final model, and the norms of its gradients before and after."""
    work = eh.local.sgd(MODEL, 0.2, epochs=2, batch_size=None)
    run = eh.simulate(eh.algorithms.fedavg(work), DATA, rounds=3, attack=attack, seed=1).diagnosed()
    params, honest = as_floats(run.params), np.flatnonzero(~run.malicious)
    assert len(honest) == (6 if attack is None else 4)
    sizes = np.array([len(rows(k)[1]) for k in honest])
    gradients = np.array([gradient(params, *rows(k)) for k in honest])
    whole = np.average(gradients, axis=0, weights=sizes)
    squares = np.average((gradients**2).sum(axis=1), weights=sizes)
    gammas = []
    for k in honest:
        own = {name: leaf.copy() for name, leaf in params.items()}
        for _ in range(2):
            step = 0.2 * gradient(own, *rows(k))
            own["w"] -= step[:12].reshape(4, 3)
            own["b"] -= step[12:]
        gammas.append(np.linalg.norm(gradient(own, *rows(k))) / np.linalg.norm(gradient(params, *rows(k))))
    numbers = run.info["diagnostics"]
    assert numbers["dissimilarity"] == pytest.approx(np.sqrt(squares / (whole**2).sum()), rel=1e-4)
    assert numbers["inexactness"] == pytest.approx(np.mean(gammas), rel=1e-4)
    assert numbers["no_progress"] == np.mean(np.array(gammas) >= 1)
    assert numbers["clients"] == numbers["worked"] == len(honest)


def test_fewer_clients_work_where_fewer_are_asked_for():
    run = eh.simulate(eh.algorithms.fedavg(eh.local.sgd(MODEL, 0.2, epochs=1)), DATA, rounds=1)
    few, everybody = run.diagnosed(2).info["diagnostics"], run.diagnosed().info["diagnostics"]
    assert few["worked"] == 2 and few["dissimilarity"] == everybody["dissimilarity"]
    assert few["inexactness"] != everybody["inexactness"]


def test_the_inexactness_of_fedprox_is_that_of_its_local_problem():
    """Five steps of 0.1 on ``a (w - c)^2 / 2`` at ``mu = 1`` leave ``(1 - 0.1 (a + 1))^5`` of its gradient."""
    model = eh.models.from_functions(
        init=lambda key: jnp.float32(2.0),
        apply=lambda w, x: x[:, 0] / 2 * (w - x[:, 1]) ** 2,
        losses=lambda outputs, y: outputs,
    )
    data = eh.data.from_arrays(
        np.array([[1.0, 0.0], [3.0, 1.0]]), np.zeros(2), client=[0, 1], test_fraction=0.0
    )
    work = eh.local.sgd(model, 0.1, epochs=5)
    run = eh.simulate(eh.algorithms.fedprox(work, mu=1.0), data, rounds=0)
    own, local = (run.diagnosed(mu=mu).info["diagnostics"]["inexactness"] for mu in (0.0, 1.0))
    assert local == pytest.approx((0.32768 + 0.07776) / 2, rel=1e-5)
    assert own == pytest.approx((1.32768 / 2 + 3 * 0.30832 / 3) / 2, rel=1e-5)


@pytest.mark.parametrize(
    "method",
    [
        eh.algorithms.scaffold(eh.local.sgd(MODEL, 0.2, epochs=1)),
        methods.fit(MODEL, batch_size=4),
    ],
)
def test_methods_that_send_something_else_have_no_inexactness(method):
    numbers = eh.simulate(method, DATA, rounds=1).diagnosed().info["diagnostics"]
    assert numbers["dissimilarity"] >= 1 and "inexactness" not in numbers


@pytest.mark.usefixtures("shared_programs")
def test_the_command_writes_them_into_summary_and_report(tmp_path):
    words = ["--rounds", "2", "--quiet", "--out", str(tmp_path / "a"), "--clients", "8"]
    assert main(["run", "fedavg", *words, "--diagnostics"]) == 0
    saved = json.loads((tmp_path / "a" / "summary.json").read_text())["info"]["diagnostics"]
    assert saved["dissimilarity"] > 1 and saved["worked"] == 8
    assert "Heterogeneity of the clients" in (tmp_path / "a" / "report.html").read_text()
    assert main(["report", str(tmp_path / "a"), "--out", str(tmp_path / "again.html")]) == 0
    assert "Heterogeneity of the clients" in (tmp_path / "again.html").read_text()


def test_the_work_is_that_of_the_round_that_would_come_next():
    """With one client, the global model of one more round is where its work ends, batches and all."""
    alone, method = DATA.select(["d"]), eh.algorithms.fedavg(eh.local.sgd(MODEL, 0.2, epochs=1, batch_size=4))
    before, after = (eh.simulate(method, alone, rounds=rounds) for rounds in (3, 4))
    gamma = eh.evaluation.inexactness(MODEL, before.params, after.params, alone.train, 0)
    assert before.diagnosed().info["diagnostics"]["inexactness"] == pytest.approx(gamma, rel=1e-4)


def test_a_proximal_weight_is_checked_kept_and_named_on_the_page(tmp_path):
    run = eh.simulate(eh.algorithms.fedprox(eh.local.sgd(MODEL, 0.2, epochs=1), mu=1.0), DATA, rounds=1)
    measured = run.diagnosed(mu=0.5)
    assert measured.info["diagnostics"]["mu"] == 0.5 and "mu" not in run.diagnosed().info["diagnostics"]
    assert "γ with mu=0.5" in measured.report(tmp_path / "page.html").read_text(encoding="utf-8")
    wrong: list[Any] = [-1.0, math.nan, math.inf, None, "a", True]
    for mu in wrong:
        with pytest.raises(eh.EvenhandError, match="give the proximal weight, a finite number from 0"):
            run.diagnosed(mu=mu)
