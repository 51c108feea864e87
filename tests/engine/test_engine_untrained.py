"""A client that never trained is served the current global model, whatever its personal state is."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import evenhand as eh
from evenhand import tree
from evenhand.simulation import Job, iterate_many

MODEL, TOY = eh.testing.toy_model(), eh.testing.toy_data()
A, P = eh.algorithms, eh.personalization
WORK = eh.local.sgd(MODEL, 0.2, epochs=2, batch_size=4)
FEDAVG = A.fedavg(WORK)
ONCE: dict[str, Any] = {"rounds": 1, "cohort": 2, "seed": 1}
KEEPING = {
    "ditto": P.ditto(FEDAVG, WORK, lam=0.5),
    "dynamic_ditto": P.dynamic_ditto(FEDAVG, WORK),
    "dynamic_ditto, per run": P.dynamic_ditto(FEDAVG, WORK, per_run=True),
    "apfl": P.apfl(WORK),
    "mapper": P.mapper(WORK),
    "pfedme": P.pfedme(WORK, lam=5.0, inner_step=0.1),
    "l2sgd": P.l2sgd(WORK, lam=0.5),
    "l2gd": P.l2gd(MODEL, lam=1.0, p=0.3, step_size=2.0),
    "fedalt": P.fedalt(WORK, personal="b"),
    "fedsim": P.fedsim(WORK, personal="b"),
    "local_only": P.local_only(WORK),
    "fedtilt": A.fedtilt(WORK, classes=3, prox_mu=0.5),
}
ADAPTING = {
    "finetune": P.finetune(FEDAVG, WORK),
    "ewc": P.ewc(FEDAVG, WORK, lam=0.1),
    "skl": P.skl(FEDAVG, WORK, lam=0.1),
    "fedbabu": P.finetune(P.fedbabu(WORK, head="b"), WORK),
    "per_fedavg": P.finetune(P.per_fedavg(WORK, alpha=0.1), WORK),
    "finetuned ditto": P.finetune(P.ditto(FEDAVG, WORK, lam=0.5), WORK),
}
WHOLE = ("ditto", "dynamic_ditto", "dynamic_ditto, per run", "apfl", "pfedme", "l2sgd", "l2gd", "fedtilt")
"""Methods that begin with the initial model, which then stays behind the global one."""


def twelve_clients():
    """The toy data twice over: each client once more, with its own examples."""
    train, valid, test = (
        eh.data.Split(
            np.concatenate([part.x, part.x[::-1]]),
            np.concatenate([part.y, part.y[::-1]]),
            np.concatenate([part.offsets, part.offsets[-1] + np.cumsum(part.sizes[::-1])]),
        )
        for part in (TOY.train, TOY.valid, TOY.test)
    )
    return eh.data.FederatedDataset(train, valid, test, tuple(f"c{k}" for k in range(12)))


DATA = twelve_clients()


@pytest.fixture(scope="module")
def runs():
    made = {**KEEPING, **ADAPTING}
    return {name: eh.simulate(method, DATA, **ONCE) for name, method in made.items()}


def numbers(params):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])


def test_no_factory_of_the_package_is_missing():
    """MOCHA is a solver in which all clients take part in every round; FedBN is FedSim on another model."""
    named = {name.partition(",")[0] for name in (*KEEPING, *ADAPTING)}
    assert {name for name in P.__all__ if name[0].islower()} <= named | {"mocha", "fedbn"}


def losses_of(run, k, split="test"):
    x, y = getattr(DATA, split).client(k)
    return float(np.mean(MODEL.losses(MODEL.apply(run.personal_params(k), jnp.asarray(x)), y)))


@pytest.mark.parametrize("name", KEEPING)
def test_ten_of_twelve_clients_are_served_the_global_model(runs, name):
    run = runs[name]
    assert (run.last_round == 1).sum() == 2 and (run.last_round == 0).sum() == 10
    never, metrics = run.last_round == 0, run.client_metrics("test")
    np.testing.assert_allclose(metrics["loss"][never], metrics["global_loss"][never], rtol=1e-6)
    np.testing.assert_array_equal(metrics["accuracy"][never], metrics["global_accuracy"][never])
    for k in range(12):
        np.testing.assert_array_equal(
            numbers(run.personal_params(k)), numbers(run.params) if never[k] else kept(run, k)
        )
        assert losses_of(run, k) == pytest.approx(metrics["loss"][k], rel=1e-5)
    assert [each.kind for each in run.findings] == ["untrained"]
    assert "10 of 12 clients never trained in 1 round" in run.findings[0].sentence
    alone = name == "local_only"
    served = (
        "the global model, which has not changed since the start" if alone else "the current global model"
    )
    assert f"are served {served};" in run.findings[0].sentence


def kept(run, k):
    """What the method makes of a client's state, whether or not it trained."""
    return numbers(run.algorithm.personal_params(run.state.server, run.kept.client(k)))


@pytest.mark.parametrize("name", KEEPING)
def test_on_request_they_are_served_what_they_have_kept_since_the_start(runs, name):
    """A part of a model goes with the current global part either way; so does Mapper's mixture, all of it global."""
    run = eh.simulate(KEEPING[name], DATA, untrained="initial", **ONCE)
    never = run.last_round == 0
    for k in range(12):
        np.testing.assert_array_equal(numbers(run.personal_params(k)), kept(run, k))
        assert losses_of(run, k) == pytest.approx(run.client_metrics("test")["loss"][k], rel=1e-5)
    for a, b in zip(jax.tree.leaves(run.state), jax.tree.leaves(runs[name].state), strict=True):
        np.testing.assert_array_equal(a, b, "training changed")
    gap = np.abs(run.client_metrics("test")["loss"] - runs[name].client_metrics("test")["loss"])
    assert gap[~never].max() == 0.0
    assert (gap[never].min() > 1e-4) == (name in WHOLE)
    assert [each.kind for each in run.findings] == ["untrained"]
    assert "served the personal model as it was initialised" in run.findings[0].sentence


@pytest.mark.parametrize("name", ["ditto", "apfl", "fedtilt", "fedalt"])
def test_where_all_have_trained_there_is_no_difference(name):
    how: dict[str, Any] = {"rounds": 2, "eval_every": 1}
    served = {
        untrained: list(eh.simulation.iterate(KEEPING[name], DATA, untrained=untrained, **how))
        for untrained in ("global", "initial")
    }
    for one, other in zip(*served.values(), strict=True):
        for column, values in one.history.items():
            np.testing.assert_array_equal(values[1:], other.history[column][1:])
    assert not served["global"][-1].findings
    fewer = eh.simulate(KEEPING[name], DATA, rounds=2, cohort=2, untrained="initial")
    assert [each.kind for each in fewer.findings] == ["untrained"], "with fewer there is"


@pytest.mark.parametrize("name", ADAPTING)
def test_clients_that_adapt_begin_with_the_global_model(runs, name):
    run = runs[name]
    for k in np.flatnonzero(run.last_round == 0)[:2]:
        train, valid, test = (_one(part, k) for part in (DATA.train, DATA.valid, DATA.test))
        data = eh.data.FederatedDataset(train, valid, test, ("k",))
        alone = run.serve(data) if name != "finetuned ditto" else None
        assert losses_of(run, k) == pytest.approx(run.client_metrics("test")["loss"][k], rel=1e-5)
        assert alone is None or alone.last_round.tolist() == [0]
        assert np.abs(numbers(run.personal_params(k)) - numbers(run.params)).max() > 1e-3
    kinds = [each.kind for each in run.findings]
    assert kinds == (["untrained"] if name == "finetuned ditto" else [])
    if kinds:
        assert "which they adapt to their examples" in run.findings[0].sentence


def _one(part, k):
    rows = slice(part.offsets[k], part.offsets[k + 1])
    return eh.data.Split(part.x[rows], part.y[rows], np.array([0, rows.stop - rows.start]))


def test_what_finetuned_clients_begin_with_depends_on_whether_they_trained():
    method = ADAPTING["finetuned ditto"]
    run, initial = (eh.simulate(method, DATA, untrained=each, **ONCE) for each in ("global", "initial"))
    gap = np.abs(run.client_metrics("test")["loss"] - initial.client_metrics("test")["loss"])
    never = run.last_round == 0
    assert gap[~never].max() == 0.0 and gap[never].min() > 1e-4


@pytest.mark.parametrize(
    "more", [{"devices": 2}, {"offload": True}, {"stream": True}, {"eval_clients": 5}], ids=str
)
@pytest.mark.parametrize("name", ["ditto", "finetuned ditto"])
def test_it_is_the_same_however_clients_are_evaluated(runs, name, more):
    run = eh.simulate({**KEEPING, **ADAPTING}[name], DATA, **ONCE, **more)
    for metric, values in runs[name].client_metrics("test").items():
        found = run.client_metrics("test")[metric]
        measured = np.isfinite(found)
        assert measured.sum() == more.get("eval_clients", 12)
        np.testing.assert_allclose(found[measured], values[measured], rtol=1e-5)


def test_states_on_the_host_are_served_in_windows(runs, monkeypatch):
    """Four clients at a time, so that a client's place differs from its number."""
    monkeypatch.setattr("evenhand.simulation.evaluating._ROOM", 60)
    run = eh.simulate(KEEPING["ditto"], DATA, offload=True, **ONCE)
    np.testing.assert_allclose(
        run.client_metrics("test")["loss"], runs["ditto"].client_metrics("test")["loss"], rtol=1e-6
    )


def test_runs_side_by_side_are_served_alike(runs):
    jobs = [
        Job(method, DATA, rounds=1, cohort=2, seed=1, untrained=untrained)
        for untrained in ("global", "initial")
        for method in (KEEPING["ditto"], P.ditto(FEDAVG, WORK, lam=0.7))
    ]
    found: dict[int, Any] = dict(iterate_many(jobs))
    np.testing.assert_allclose(
        found[0].client_metrics("test")["loss"], runs["ditto"].client_metrics("test")["loss"], rtol=1e-5
    )
    never = found[0].last_round == 0
    for one, other in ((0, 2), (1, 3)):
        losses = [found[position].client_metrics("test")["loss"] for position in (one, other)]
        assert np.abs(losses[0] - losses[1])[never].min() > 1e-4


def test_methods_side_by_side_serve_each_its_own():
    method = A.side_by_side(
        {"tilted": KEEPING["fedtilt"], "plain": A.fedavg(WORK, sampling=eh.sampling.uniform(weighted=False))}
    )
    run = eh.simulate(method, DATA, **ONCE)
    for k in np.flatnonzero(run.last_round == 0):
        np.testing.assert_array_equal(numbers(run.personal_params(int(k))), numbers(run.params))


def test_newcomers_are_served_the_global_model_and_are_not_found_fault_with(runs):
    served = runs["ditto"].serve(DATA)
    metrics = served.client_metrics("test")
    np.testing.assert_allclose(metrics["loss"], metrics["global_loss"], rtol=1e-6)
    assert served.last_round.tolist() == [0] * 12 and served.findings == ()


def test_a_wrong_word_is_refused():
    with pytest.raises(eh.EvenhandError, match="give 'global' or 'initial'"):
        eh.simulate(FEDAVG, DATA, rounds=1, untrained="none")  # pyright: ignore[reportArgumentType]


def test_a_checkpoint_with_the_other_choice_is_refused(tmp_path):
    how = {"rounds": 1, "cohort": 2, "checkpoint": tmp_path}
    eh.simulate(KEEPING["ditto"], DATA, **how)
    with pytest.raises(eh.EvenhandError, match="its untrained is global, not initial"):
        eh.simulate(KEEPING["ditto"], DATA, untrained="initial", **how)


# --- diverged personal models ------------------------------------------------------------------------------------


def with_wild_clients(wild, size):
    """Ditto whose personal models of these clients move far away, which no global model sees."""
    method = KEEPING["ditto"]
    (phase,) = method.phases
    shift = np.zeros(12, np.float32)
    shift[list(wild)] = size

    def broadcast(state, client):
        return phase.broadcast(state, client), jnp.asarray(shift)[client]

    def report(message, state, data):
        return phase.report(message[0], state, data)

    def work(message, state, data, key):
        delta, state = phase.work(message[0], state, data, key)
        # By class: the same shift of all outputs would change no probability.
        steps = jax.tree.map(
            lambda leaf: jnp.broadcast_to(jnp.arange(leaf.shape[-1], dtype=jnp.float32), leaf.shape),
            state.personal,
        )
        moved = tree.add(state.personal, tree.scale(message[1], steps))
        return delta, state._replace(personal=moved)

    whole = phase._replace(broadcast=broadcast, report=report, work=work)
    return method._replace(phases=(whole,), received=lambda message: message[0].params)


@pytest.fixture(scope="module")
def wild():
    with pytest.warns(eh.errors.EvenhandWarning, match="diverged"):
        return eh.simulate(with_wild_clients({4}, 6.0), DATA, rounds=3, eval_every=1)


def test_one_diverged_client_is_named_however_often_the_run_is_evaluated(wild):
    own, alone = (wild.client_metrics("train")[name][4] for name in ("loss", "global_loss"))
    assert own > 10 * max(alone, wild.initial_loss[4])
    sentences = []
    for every in (1, 3):
        with pytest.warns(eh.errors.EvenhandWarning, match="personal models of 1 of 12 clients diverged"):
            run = eh.simulate(with_wild_clients({4}, 6.0), DATA, rounds=3, eval_every=every)
        (finding,) = [each for each in run.findings if each.kind == "client_diverged"]
        sentences.append(finding.sentence)
        assert "By client: c4 (" in finding.sentence
    assert sentences[0] == sentences[1]
    np.testing.assert_array_equal(
        wild.initial_loss, eh.simulate(FEDAVG, DATA, rounds=0).client_metrics("train")["loss"]
    )


def test_a_resumed_run_names_the_same_client(wild, tmp_path):
    method, how = with_wild_clients({4}, 6.0), {"rounds": 3, "eval_every": 1, "checkpoint": tmp_path}
    for run in eh.simulation.iterate(method, DATA, **how):
        if run.info["rounds"] == 2:
            break
    with pytest.warns(eh.errors.EvenhandWarning, match="diverged"):
        run = eh.simulate(method, DATA, **how)
    assert run.findings == wild.findings


def test_untrained_and_malicious_clients_are_not_meant():
    method = with_wild_clients({4}, 6.0)
    never = eh.simulate(method, DATA, rounds=1, cohort=2, seed=next(s for s in range(99) if _not_drawn(s)))
    assert [each.kind for each in never.findings] == ["untrained"]
    attack = eh.attacks.sign_flip(0.0)._replace(clients=(4,), fraction=0.0)
    attacked = list(eh.simulation.iterate(method, DATA, rounds=1, attack=attack))[-1]
    assert "client_diverged" not in [each.kind for each in attacked.findings]


def test_clients_that_never_trained_are_those_of_the_headline():
    attack = eh.attacks.sign_flip(0.3)
    run = list(eh.simulation.iterate(KEEPING["ditto"], DATA, attack=attack, eval_clients=6, **ONCE))[-1]
    assert run.evaluated is not None
    who = run.evaluated[~run.malicious[run.evaluated]]
    count = int(np.sum(run.last_round[who] == 0))
    assert 0 < count < 6 and len(who) < 6
    (sentence,) = [each.sentence for each in run.findings if each.kind == "untrained"]
    assert sentence.startswith(f"{count} of {len(who)} evaluated honest clients never trained")


def _not_drawn(seed):
    return eh.simulate(FEDAVG, DATA, rounds=1, cohort=2, seed=seed).last_round[4] == 0
