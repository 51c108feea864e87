"""``--public`` and ``--divided-by``: arrays beside an expression, from files to the method that takes them."""

import json
import re

import jax
import numpy as np
import pytest

import evenhand as eh
from evenhand.cli import main

pytestmark = pytest.mark.usefixtures("no_figures", "shared_programs")

ADADPS = "alone(adadps(0.05, clip=5, noise_multiplier=1, rate=0.05, steps=4, eps=0.1))"
SCALED = "adadps_fl(clip=1, noise_multiplier=1, rate=0.5)"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with private examples of one client, public ones, and scales of the default model for digits."""
    x, y = (np.asarray(part) for part in eh.data.load("digits", clients=1).train.client(0))
    np.savez(tmp_path / "private.npz", x=x[200:], y=y[200:], client=np.zeros(len(y) - 200, int))
    np.savez(tmp_path / "public.npz", x=x[:200], y=y[:200])
    np.savez(tmp_path / "other.npz", x=x[50:250], y=y[50:250])
    scales = np.linspace(0.5, 4.0, 64, dtype=np.float32)[:, None]
    np.savez(
        tmp_path / "scales.npz", kernel=scales * np.ones((64, 10), np.float32), bias=np.ones(10, np.float32)
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words, out="a"):
    return main(["run", *words, "--rounds", "2", "--out", out, "--quiet", "--checkpoint", "0"])


def metrics(folder):
    return (folder / "metrics.jsonl").read_text()


PRIVATE = ["--data", "private.npz", "--label-column", "y"]


def test_public_examples_from_a_file_are_those_that_python_gives(here):
    assert run(ADADPS, *PRIVATE, "--public", "public.npz") == 0
    data = eh.data.load("private.npz", label="y", test_fraction=0.2)
    public = np.load("public.npz")
    model = eh.models.softmax_regression(features=64, classes=10)
    work = eh.privacy.adadps(
        model,
        0.05,
        public=(public["x"], public["y"].astype(np.int32)),
        clip=5.0,
        noise_multiplier=1.0,
        rate=0.05,
        steps=4,
        eps=0.1,
    )
    here_too = eh.simulate(eh.algorithms.alone(work), data, rounds=2, seed=0)
    for mine, read in zip(
        jax.tree.leaves(here_too.params), jax.tree.leaves(eh.load_run("a").params), strict=True
    ):
        np.testing.assert_array_equal(mine, read)
    assert run(ADADPS, *PRIVATE, "--public", "other.npz", out="b") == 0
    assert metrics(here / "a") != metrics(here / "b")


def test_scales_from_a_file_are_those_that_python_gives(here):
    assert run(SCALED, "--divided-by", "scales.npz") == 0
    data = eh.data.load("digits")
    model = eh.models.softmax_regression(features=64, classes=10)
    work = eh.local.sgd(model, 0.1, epochs=1, batch_size=10)
    scales = {name: np.load("scales.npz")[name] for name in ("kernel", "bias")}
    method = eh.privacy.adadps_fl(work, divided_by=scales, clip=1.0, noise_multiplier=1.0, rate=0.5)
    mine, read = eh.simulate(method, data, rounds=2, seed=0).params, eh.load_run("a").params
    np.testing.assert_allclose(mine["kernel"], read["kernel"], rtol=1e-6)
    # Without the scales the same noise gives another model.
    plain = eh.privacy.dp_fedavg(work, clip=1.0, noise_multiplier=1.0, rate=0.5)
    other = eh.simulate(plain, data, rounds=2, seed=0).params
    assert np.abs(np.asarray(other["kernel"]) - read["kernel"]).max() > 1e-4


def test_a_budget_finds_the_noise_of_a_method_with_public_examples(here):
    budget = ["--public", "public.npz", "--epsilon", "3"]
    assert run(ADADPS.replace(" noise_multiplier=1,", ""), *PRIVATE, *budget) == 0
    summary = json.loads((here / "a" / "summary.json").read_text())
    assert 2.9 < summary["privacy"]["epsilon"] <= 3.0


def test_a_study_gives_the_file_to_the_methods_that_take_it(here):
    methods = [SCALED.replace("clip=1", "clip={0.5, 1}"), "dp_fedavg(clip=1, noise_multiplier=1)"]
    words = [
        "--divided-by",
        "scales.npz",
        "--rounds",
        "1",
        "--seeds",
        "1",
        "--select",
        "train:mean",
        "--out",
        "s",
    ]
    assert main(["study", *methods, *words, "--quiet"]) == 0
    assert len(eh.load_study("s").frame()) == 3


def test_a_resumed_run_refuses_another_file(here, capsys):
    assert run(SCALED, "--divided-by", "scales.npz") == 0
    assert main(["resume", "a", "--rounds", "3", "--quiet"]) == 0
    np.savez("scales.npz", kernel=np.ones((64, 10), np.float32), bias=np.ones(10, np.float32))
    assert main(["resume", "a", "--rounds", "4", "--quiet"]) == 2
    assert "is not the file with which a began" in capsys.readouterr().err
    assert main(["predict", "a", "--data", "public.npz", "--quiet"]) == 0  # which needs the model alone


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((SCALED,), "needs divided_by, which holds arrays: give it as --divided-by FILE"),
        (("fedavg", "--public", "public.npz"), "--public has no effect on fedavg\\(\\)"),
        ((ADADPS.replace("eps=0.1", "public=3"),), "public holds arrays, which a text cannot"),
        ((ADADPS, *PRIVATE), "exactly one of public= and divided_by="),
        ((SCALED, "--divided-by", "public.npz"), "public.npz"),
        ((SCALED, "--divided-by", "none.npz"), "none.npz"),
        ((ADADPS, *PRIVATE, "--public", "short.npz"), "short.npz: the examples have shape"),
        (
            (ADADPS, *PRIVATE, "--public", "odd.npz"),
            "odd.npz, example 2: no example of .* has the label '77'",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence(here, capsys, words, sentence):
    np.savez("short.npz", x=np.zeros((2, 5), np.float32), y=np.zeros(2, int))
    np.savez("odd.npz", x=np.zeros((2, 64), np.float32), y=np.array([1, 77]))
    assert run(*words) == 2
    said = capsys.readouterr().err
    assert re.search(sentence, said) and said.count("\n") <= 3, said
    assert not (here / "a").exists()
