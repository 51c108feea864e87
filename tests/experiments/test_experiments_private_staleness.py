"""How far the delay of DP2 takes its divisor from the gradients: the experiment runs, and the page has its numbers."""

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_reviews import tiny_reviews

from experiments.private import imdb, imdb_staleness

FOLDER = Path(__file__).parents[2] / "experiments" / "private"
_CONTENT = json.loads((FOLDER / "results" / "imdb_staleness.json").read_text(encoding="utf-8"))
SAVED, WITHOUT = (
    {int(delay): each for delay, each in _CONTENT["staleness"][part].items()} for part in imdb_staleness.PARTS
)
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")


def test_the_experiment_at_a_tiny_size(tmp_path):
    tiny_reviews(tmp_path)
    small = imdb.Config(data_dir=tmp_path, batch=8, epochs=2, public=10, valid=10, test=20, seeds=2)
    chosen = {"chosen": {"lr": 10.0, "clip": 5.0}}
    names = ("DP-SGD", "DP-RMSProp", "DP2-RMSProp")
    (tmp_path / "imdb.json").write_text(json.dumps({"accuracy": dict.fromkeys(names, chosen)}))

    imdb_staleness.main(
        imdb_staleness.Config(
            imdb=small, chosen=tmp_path / "imdb.json", out=tmp_path, delays=(3,), parts=("with noise",)
        )
    )

    saved = json.loads((tmp_path / "imdb_staleness.json").read_text())["staleness"]
    found = saved["with noise"]["3"]
    assert list(saved) == ["with noise"] and len(found["seeds"]) == 2
    assert min(found["seeds"]) <= found["h"] * 1.001 and found["h"] <= max(found["seeds"]) * 1.001
    # Five rows of tiny reviews have next to no gradient beside such noise.
    assert found["accumulator"] == pytest.approx(found["noise"], rel=0.05)


@pytest.mark.parametrize("delay", SAVED)
def test_the_page_has_the_saved_numbers(delay):
    found = SAVED[delay]
    assert len(found["seeds"]) == 5
    row = (
        f"| {delay:,} | {found['h']:.3f} | {min(found['seeds']):.3f} to {max(found['seeds']):.3f} "
        f"| {found['gradient']:.2f} | {found['accumulator']:.2f} | {found['noise']:.2f} | {WITHOUT[delay]['h']:.1f} |"
    )
    assert row in PAGE


def test_h_grows_as_the_root_of_the_delay_since_its_denominator_is_noise():
    delays, found = np.array(list(SAVED)), SAVED.values()
    h = np.array([each["h"] for each in found])
    assert (np.diff(h) > 0).all() and h[-1] < 1
    root = h / np.sqrt(delays)
    assert round(root.min(), 3) == 0.017 and round(root.max(), 3) == 0.018
    excess = np.array([each["accumulator"] / each["noise"] - 1 for each in found])
    assert excess.min() > 0.0025 and excess.max() < 0.0095
    largest = h * [each["accumulator"] for each in found]
    assert largest.min() > 1.8 and largest.max() < 2.1
    rule = next(iter(SAVED.values()))["noise"] / np.sqrt(delays)
    np.testing.assert_allclose([each["noise"] for each in found], rule, rtol=1e-2)  # epsilon is 1e-7


def test_without_noise_it_grows_as_well_but_is_not_small():
    h = np.array([WITHOUT[delay]["h"] for delay in SAVED])
    assert (np.diff(h) > 0).all() and all(len(each["seeds"]) == 5 for each in WITHOUT.values())
    assert (round(h[0], 1), round(h[-1])) == (4.8, 30) and h[2] - h[0] > 3 * (h[-1] - h[2])
