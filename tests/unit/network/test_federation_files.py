"""The files of a federation: what they may say, and what is refused."""

import math

import pytest

from evenhand import EvenhandError
from evenhand.cli import main
from evenhand.network import files


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("files") / "fed"
    assert main(["deploy", "init", str(place), "--clients", "2"]) == 0
    return place


def changed(folder, tmp_path, name, old, new):
    """A folder with a file in which words were replaced."""
    source = (files.client_folder(folder, 0) if name == files.CLIENT else folder) / name
    text = source.read_text()
    assert old in text
    (tmp_path / name).write_text(text.replace(old, new, 1))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "old", "new", "sentence"),
    [
        (
            files.CLIENT,
            "cohort = 1\n",
            "noise_multipler = 1.0\n",
            r"\[allows\] noise_multipler is unknown \(perhaps you meant noise_multiplier\): correct it",
        ),
        (files.CLIENT, "cohort = 1\n", "epsilom = 1.0\n", "perhaps you meant epsilon"),
        (files.CLIENT, "cohort = 1\n", "histogram = true\n", r"histogram is unknown: .* there are metrics, "),
        (files.CLIENT, "[allows]", "[allow]", r"toml: allow is unknown \(perhaps you meant allows\)"),
        (files.CLIENT, "cohort = 1\n", "epsilon = nan\n", "epsilon = nan is not a number of at least 0"),
        (files.CLIENT, "cohort = 1\n", "noise_multiplier = -1\n", "noise_multiplier = -1 is not a number"),
        (files.SERVER, "min_answers", "min_answer", r"\[network\] min_answer is unknown .* min_answers\)"),
        (files.SERVER, "min_answers = 1", "min_answers = 0", "0 is not a whole number of at least 1"),
        (files.SERVER, "deadline = 60.0", "deadline = nan", "deadline = nan is not a number of seconds"),
        (files.SERVER, "deadline = 60.0", "deadline = inf", "deadline = inf is not a number of seconds"),
    ],
)
def test_what_a_file_should_not_say_is_refused(folder, tmp_path, name, old, new, sentence):
    """A limit that is misspelt, or NaN, would limit nothing."""
    place = changed(folder, tmp_path, name, old, new)
    with pytest.raises(EvenhandError, match=sentence):
        (files.read_client if name == files.CLIENT else files.read_server)(place)


def test_a_file_may_say_each_limit(folder, tmp_path):
    limits = "cohort = 2\nnoise_multiplier = 1.5\nepsilon = 8\nclip = 2.0\n"
    allowed = files.read_client(changed(folder, tmp_path, files.CLIENT, "cohort = 1\n", limits)).allowed
    assert (allowed.cohort, allowed.noise_multiplier, allowed.epsilon, allowed.clip) == (2, 1.5, 8.0, 2.0)
    place = changed(folder, tmp_path, files.CLIENT, "cohort = 1\n", "")
    assert files.read_client(place).allowed.epsilon == math.inf


def test_data_with_other_numbers_of_clients_get_advice_that_helps(folder, tmp_path, capsys):
    def refused(*words):
        assert main(["deploy", "split", str(folder), "--data", *map(str, words)]) == 2
        return capsys.readouterr().err.partition(", and the federation 2: ")[2].rstrip(".\n")

    named = tmp_path / "named.csv"
    named.write_text("client,a,label\n" + "".join(f"c{i % 3},{i},{i % 2}\n" for i in range(12)))
    new = "make a federation with `evenhand deploy init DIR --clients"
    assert refused(named) == f"{new} 3`, or name the clients to keep in a file and give --clients-from FILE"
    assert refused(named, "--clients", 3).startswith(new)
    assert refused(named, "--min-examples", 9) == ""  # another error
    (tmp_path / "kept").write_text("c0\nc2\n")
    words = ["--data", str(named), "--clients-from", str(tmp_path / "kept")]
    assert main(["deploy", "split", str(folder), *words]) == 0
    # If --clients says how many there are, it is what to give.
    bare = tmp_path / "bare.csv"
    bare.write_text("a,label\n" + "".join(f"{i},{i % 2}\n" for i in range(12)))
    assert (
        refused(bare, "--clients", 4) == refused("synthetic:1,1") == refused("digits") == "give --clients 2"
    )
    (tmp_path / "kept").write_text("c0\n")
    assert refused(named, *words[2:]) == f"{new} 1`"
