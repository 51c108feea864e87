"""Every malformed input gets one sentence that names the file, the place and the cure, and loads nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

import malformed
from evenhand.data import load
from evenhand.errors import EvenhandError


def test_there_are_enough_variants() -> None:
    assert len(malformed.VARIANTS) >= 30


@pytest.mark.parametrize("name", malformed.VARIANTS)
def test_one_sentence_with_file_place_and_cure(name: str, tmp_path: Path) -> None:
    path = malformed.VARIANTS[name](tmp_path)
    with pytest.raises(EvenhandError) as caught:
        load(path)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    assert path.name in sentence
    assert malformed.CURES[name] in sentence
    # A cure, not only a complaint: the sentence continues after the colon that ends the diagnosis.
    assert len(sentence.rsplit(": ", 1)[1].split()) >= 3
    assert len(sentence.replace(str(tmp_path), "")) < 300


def test_the_same_builders_without_the_fault_load(tmp_path: Path) -> None:
    """The negative control: what is refused above is refused for its fault alone."""
    (tmp_path / "table.csv").write_text(malformed.GOOD_CSV)
    assert load(tmp_path / "table.csv").num_clients == 2
    for builder in (
        malformed._npz(),
        malformed._npz_split(),
        malformed._parquet(),
        malformed._leaf(lambda content: None),
        malformed._leaf_folder(lambda content: None),
    ):
        assert load(builder(tmp_path)).num_clients == 2
    assert load(malformed.write_idx(tmp_path)).num_clients == 100
