"""Clients set aside before training, and how a run serves them."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

import evenhand as eh

DATA = eh.testing.toy_data()
MODEL = eh.testing.toy_model()
WORK = eh.local.sgd(MODEL, 0.1, epochs=1, batch_size=4)
SEEN, UNSEEN = eh.data.hold_out_clients(DATA, 0.4, seed=1)
FEDAVG = eh.algorithms.fedavg(WORK)
P, TURNS = eh.privacy, {"noise_multiplier": 1.0, "cohort": 2, "clients": SEEN.num_clients}
FIXED = eh.sampling.fixed(1 / SEEN.num_clients)
OF_A_FIXED_SIZE = {
    "dp_ftrl": P.dp_ftrl(WORK, clip=0.5, **TURNS),
    "dp_fed2": P.dp_fed2(WORK, step_sizes=(1.0, 0.1), clips=(0.5, 5.0), delay=2, **TURNS),
    "dp_delta_fl": P.dp_delta_fl(
        WORK,
        theta=0.5,
        largest_loss=3.0,
        clip=0.5,
        noise_multiplier=2.0,
        rate=0.75,
        at_server=False,
        fewest=3,
    ),
    "discrete_mean": P.private(
        eh.algorithms.fedavg(
            WORK,
            aggregator=P.discrete_mean(0.5, noise_multiplier=2.0, rate=0.75, fewest=3),
            sampling=eh.sampling.fixed(0.75),
        )
    ),
    "noisy_mean": P.private(
        eh.algorithms.fedavg(
            WORK,
            aggregator=P.noisy_mean(0.5, noise_multiplier=2.0, rate=FIXED.rate, sampling="fixed"),
            sampling=FIXED,
        )
    ),
}


def test_every_client_is_on_one_side_with_all_of_its_examples() -> None:
    assert set(SEEN.client_ids) | set(UNSEEN.client_ids) == set(DATA.client_ids)
    assert UNSEEN.num_clients == round(0.4 * DATA.num_clients)
    assert SEEN.num_clients + UNSEEN.num_clients == DATA.num_clients
    for part in (SEEN, UNSEEN):
        for k, name in enumerate(part.client_ids):
            before = DATA.client_ids.index(name)
            for split in ("train", "valid", "test"):
                for new, old in zip(
                    getattr(part, split).client(k), getattr(DATA, split).client(before), strict=True
                ):
                    np.testing.assert_array_equal(new, old)


def test_the_seed_decides_who() -> None:
    chosen = {eh.data.hold_out_clients(DATA, 0.4, seed=seed)[1].client_ids for seed in range(8)}
    assert len(chosen) > 1
    assert eh.data.hold_out_clients(DATA, 0.4, seed=1)[1].client_ids == UNSEEN.client_ids


@pytest.mark.parametrize("fraction", [1e-6, 1 - 1e-6])
def test_each_side_has_a_client(fraction: float) -> None:
    assert min(part.num_clients for part in eh.data.hold_out_clients(DATA, fraction)) == 1


def test_what_cannot_be_set_aside_is_refused() -> None:
    for fraction in (0.0, 1.0, -0.1):
        with pytest.raises(eh.errors.EvenhandError, match="between 0 and 1"):
            eh.data.hold_out_clients(DATA, fraction)
    one = eh.data.hold_out_clients(DATA, 1 - 1e-6)[0]
    with pytest.raises(eh.errors.EvenhandError, match="one client only"):
        eh.data.hold_out_clients(one, 0.5)


def test_newcomers_get_the_global_model() -> None:
    run = eh.simulate(FEDAVG, SEEN, rounds=3)
    new = run.serve(UNSEEN)
    expected = eh.evaluation.evaluate(MODEL, run.params, UNSEEN.test)
    for name, values in expected.items():
        np.testing.assert_allclose(new.client_metrics("test")[name], values, rtol=1e-6)
    assert new.data is UNSEEN
    assert "global_loss" not in new.client_metrics("test")  # nobody has a model of its own


@pytest.mark.parametrize("name", OF_A_FIXED_SIZE)
def test_newcomers_may_be_of_another_number_than_the_method_is_for(name: str, tmp_path: Path) -> None:
    """Its cohorts and sums need the number of clients that train, and newcomers do not."""
    method, newcomer = OF_A_FIXED_SIZE[name], UNSEEN.select(UNSEEN.client_ids[:1])
    run = eh.simulate(method, SEEN, rounds=0)
    saved = eh.load_run(run.save(tmp_path / "a"), algorithm=method)
    expected = eh.evaluation.evaluate(MODEL, run.params, newcomer.test)["loss"]
    for kept in (run, saved):
        np.testing.assert_allclose(kept.serve(newcomer).client_metrics("test")["loss"], expected, rtol=1e-6)


def test_newcomers_of_ditto_begin_with_the_global_model_of_today() -> None:
    run = eh.simulate(eh.personalization.ditto(FEDAVG, WORK, lam=1.0), SEEN, rounds=3)
    metrics = run.serve(UNSEEN).client_metrics("test")
    np.testing.assert_allclose(metrics["loss"], metrics["global_loss"], rtol=1e-6)
    own = run.client_metrics("test")
    assert not np.allclose(own["loss"], own["global_loss"], rtol=1e-3)


def test_newcomers_finetune_on_their_own_examples() -> None:
    method = eh.personalization.finetune(FEDAVG, WORK, lam=0.5)
    run = eh.simulate(method, SEEN, rounds=3)
    new = run.serve(UNSEEN)
    metrics = new.client_metrics("train")
    assert (metrics["loss"] < metrics["global_loss"]).all()
    k = 1
    alone = eh.evaluation.evaluate(MODEL, new.personal_params(k), UNSEEN.test)
    np.testing.assert_allclose(new.client_metrics("test")["loss"][k], alone["loss"][k], rtol=1e-5)


def test_newcomers_of_a_partly_personal_model_begin_with_its_first_personal_part() -> None:
    run = eh.simulate(eh.personalization.fedalt(WORK, personal="b"), SEEN, rounds=3)
    params = run.serve(UNSEEN).personal_params(0)
    first = MODEL.init(jax.random.key(0))
    np.testing.assert_array_equal(params["w"], run.params["w"])
    assert params["b"].shape == first["b"].shape
    np.testing.assert_array_equal(params["b"], run.params["b"])
    assert not np.array_equal(run.personal_params(0)["b"], params["b"])


def test_the_global_model_is_measured_beside_personal_ones() -> None:
    run = eh.simulate(eh.personalization.ditto(FEDAVG, WORK, lam=1.0), DATA, rounds=3)
    plain = eh.simulate(FEDAVG, DATA, rounds=3)
    for split in ("train", "test"):
        np.testing.assert_allclose(
            run.client_metrics(split)["global_loss"], plain.client_metrics(split)["loss"], rtol=1e-6
        )
    np.testing.assert_allclose(run.history["test_global_loss"], plain.history["test_loss"], rtol=1e-6)


def test_examples_of_another_shape_are_refused() -> None:
    run = eh.simulate(FEDAVG, SEEN, rounds=1)
    other = eh.data.synthetic(clients=3)
    with pytest.raises(eh.errors.EvenhandError, match="trained on"):
        run.serve(other)


def test_runs_with_and_without_personal_models_are_served_by_level() -> None:
    ditto = eh.simulate(eh.personalization.ditto(FEDAVG, WORK, lam=1.0), DATA, rounds=2)
    plain = eh.simulate(FEDAVG, DATA, rounds=2)
    served = eh.evaluation.serve_by_level([ditto, plain], choose_on="train", metric="loss")
    assert "global_loss" not in served.metrics and len(served.metrics["loss"]) == DATA.num_clients


@pytest.mark.parametrize("guarantees", [True, False])
def test_newcomers_leave_the_account_of_the_training_as_it_is(guarantees: bool, tmp_path: Path) -> None:
    # Enough in a round, and more than ten, so that the usual delta is another than for the newcomer.
    seen, unseen = eh.data.hold_out_clients(eh.data.load("digits", clients=12), 0.1)
    work = eh.local.sgd(eh.models.softmax_regression(64, classes=10), 0.1, epochs=1, batch_size=50)
    method, other = (
        eh.privacy.dp_fedavg(work, clip=0.5, noise_multiplier=noise, rate=0.5) for noise in (1.0, 50.0)
    )
    run = eh.simulate(method if guarantees else eh.algorithms.fedavg(work), seen, rounds=2)
    served = run.serve(unseen)
    assert (run.privacy is not None) == guarantees
    assert served.privacy == run.privacy == served.serve(unseen.select(unseen.client_ids)).privacy
    assert "few_expected" not in {finding.kind for finding in served.findings}
    # The method that it is read back with has not trained it.
    saved = eh.load_run(run.save(tmp_path / "a"), algorithm=other)
    assert saved.serve(unseen).privacy == saved.privacy == run.privacy
