"""Noise in second moments, and how fast divisors change: the experiment runs, and the page has its numbers."""

import json
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from tiny_reviews import tiny_reviews

from evenhand.privacy import Noise, dp_sgd
from evenhand.privacy.update_rules import oracle_work
from experiments.private import imdb, imdb_moments

FOLDER = Path(__file__).parents[2] / "experiments" / "private"
SAVED = json.loads((FOLDER / "results" / "imdb_moments.json").read_text(encoding="utf-8"))["moments"]
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")


def _tiny(folder, **settings):
    tiny_reviews(folder)
    small = imdb.Config(data_dir=folder, batch=8, epochs=2, public=10, valid=10, test=20, seeds=1)
    chosen = {"chosen": {"lr": 0.1, "clip": 0.5}}
    names = ("DP-Adam", "DP-SGD", "DP-RMSProp", "DP2-RMSProp")
    (folder / "imdb.json").write_text(json.dumps({"accuracy": dict.fromkeys(names, chosen)}))
    return imdb_moments.Config(imdb=small, chosen=folder / "imdb.json", out=folder, **settings)


def test_the_experiment_at_a_tiny_size(tmp_path, monkeypatch):
    monkeypatch.setattr(imdb_moments, "PHASE", 3)
    with jax.numpy_dtype_promotion("standard"):  # optax mixes types inside
        imdb_moments.main(_tiny(tmp_path, cycles=1, windows=(1, 2), parts=("noise",)))

    saved = json.loads((tmp_path / "imdb_moments.json").read_text())["moments"]
    assert list(saved) == ["noise"] and list(saved["noise"]) == ["3", "6"]
    for found in saved["noise"].values():
        assert {key: len(each) for key, each in found["square of mean"].items()} == dict.fromkeys(
            ("rank", "tenth", "words", "bias"), 1
        )


def test_a_watched_run_takes_the_steps_of_dp_sgd_and_sums_its_gradients(tmp_path):
    data, model = imdb_moments.client(_tiny(tmp_path)), imdb_moments.MODEL
    given = {"noise_multiplier": 1.0, "rate": 0.2, "steps": 4}
    plain = dp_sgd(model, optax.sgd(0.5), clip=0.5, **given).continued
    seen = oracle_work(model, imdb_moments.watched(optax.sgd(0.5)), Noise(0.5, **given)).continued
    assert plain is not None and seen is not None
    params, key = model.init(jax.random.key(0)), jax.random.key(1)
    one, _ = plain.solve(params, plain.init(params), data, key)
    two, (_, sums) = seen.solve(params, seen.init(params), data, key)
    jax.tree.map(np.testing.assert_array_equal, one, two)
    moved = jax.tree.map(lambda before, after: (before - after) / 0.5, params, one)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), sums.noisy, moved)
    assert all(np.all(leaf >= 0) for leaf in jax.tree.leaves(sums.clean_squares))


def test_moments_of_noise_alone_grow_as_those_of_dp2_and_nothing_new_is_like_what_was_before():
    moments = imdb_moments.of_noise(14, 5000, 2.0, seed=0)
    divisors, news = imdb_moments.parts(moments, "DP2")
    # What is divided by 1 - 0.9^k has the expectation of the square of noise, 4, at any time.
    np.testing.assert_allclose(np.square(divisors).mean(axis=1), 4.0, rtol=0.1)
    np.testing.assert_allclose(news[0], divisors[0] * 0.1**0.5)
    drift = imdb_moments.drift(divisors, news)
    assert abs(drift["rank of news"]) < 0.02 < 0.8 < drift["rank"]
    same = imdb_moments.drift(np.ones((3, 4)) * np.arange(4.0), np.ones((3, 4)) * np.arange(4.0))
    assert same["change"] == same["change in all"] == 0.0 and same["rank"] == pytest.approx(1.0)


def test_what_is_compared_of_moments():
    clean = np.arange(100.0)
    alike = imdb_moments.compared(clean + 1.0, clean, alone=10.0)
    assert (alike["rank"], alike["tenth"]) == (pytest.approx(1.0), 1.0)
    assert alike["words"] == pytest.approx(clean[2:].mean() / 10.0)
    assert alike["bias"] == pytest.approx(1.5 / 50.5)
    assert imdb_moments.compared(-clean, clean, alone=1.0)["tenth"] == 0.0


def _mean(values):
    return float(np.mean(values))


@pytest.mark.parametrize("steps", SAVED["noise"])
@pytest.mark.parametrize("name", imdb_moments.MOMENTS)
def test_the_page_has_the_saved_moments(steps, name):
    found = {key: _mean(each) for key, each in SAVED["noise"][steps][name].items()}
    row = (
        f"| {name} | {int(steps):,} | {found['rank']:.3f} | {found['tenth']:.1%} | {found['words']:.3%} "
        f"| {found['bias']:.1f} |"
    )
    assert row.replace("%", " %") in PAGE


@pytest.mark.parametrize("name", SAVED["change"])
def test_the_page_has_how_divisors_change(name):
    assert all(len(each) == 5 for each in SAVED["change"][name].values())
    found = {key: _mean(each) for key, each in SAVED["change"][name].items()}
    ranks = [f"{abs(found[key]) if abs(found[key]) < 5e-3 else found[key]:.2f}" for key in RANKS]
    row = (
        f"| {name} | {found['change']:.0%} | {ranks[0]} | {ranks[1]} | {found['change in all']:.0%} | {ranks[2]} "
        f"| {found['first median']:.1e} | {found['last median']:.1e} | {found['bias']:,.0f} |"
    )
    assert row.replace("%", " %") in PAGE


RANKS = ("rank", "rank of news", "rank in all")


def test_noise_leaves_no_order_and_averaging_first_leaves_more_of_words():
    for over in SAVED["noise"].values():
        plain, averaged = (over[name] for name in imdb_moments.MOMENTS)
        for each in (plain, averaged):
            assert (
                max(map(abs, each["rank"])) < 0.02 and 0.095 < min(each["tenth"]) < max(each["tenth"]) < 0.125
            )
        assert min(averaged["words"]) > 6 * max(plain["words"])
    assert min(SAVED["noise"]["195"]["square of mean"]["bias"]) > 5


def test_divisors_without_noise_keep_their_order_and_those_of_dp2_change_as_noise_alone():
    change = SAVED["change"]
    clean = change["mean of squares, without privacy"]
    assert min(clean["rank"]) > 0.86 and min(clean["rank in all"]) > 0.83
    assert round(1 - _mean(clean["last median"]) / _mean(clean["first median"]), 2) == 0.38
    late, alone = change["DP2"], change["DP2, noise alone"]
    for key in ("change", "rank", "change in all", "rank in all", "last median"):
        assert _mean(late[key]) == pytest.approx(_mean(alone[key]), rel=0.04)
    assert (
        max(map(abs, late["rank of news"])) < 5e-3 < 0.5 < min(change["DP2, without noise"]["rank of news"])
    )
    assert min(late["bias"]) > 64 and max(alone["bias"]) < 1.2
