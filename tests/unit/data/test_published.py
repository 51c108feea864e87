"""The data sets of the sources, in small: by name, from a folder and from an archive."""

from __future__ import annotations

import hashlib
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import published
from evenhand.data import FederatedDataset, encode_words, load, load_vectors, loaders
from evenhand.data._text import ALPHABET
from evenhand.data.loaders._download import Remote
from evenhand.errors import EvenhandError

pytest.importorskip("h5py")


def assert_same(one: FederatedDataset, other: FederatedDataset) -> None:
    assert one.client_ids == other.client_ids and one.classes == other.classes
    assert one.fingerprint == other.fingerprint


# --- by name --------------------------------------------------------------------------------------------------


def test_every_download_has_a_checksum_and_a_builder() -> None:
    for name, entry in loaders.PUBLISHED.items():
        assert entry.files
        for remote in entry.files:
            assert remote.sha256 is not None and len(remote.sha256) == 64 and int(remote.sha256, 16)
            assert remote.url.startswith("http") and remote.name
        assert name in published.BUILDERS or "mnist" in name
    checksums = [remote.sha256 for entry in loaders.PUBLISHED.values() for remote in entry.files]
    assert len(set(checksums)) == len(checksums)


@pytest.mark.parametrize("name", published.BUILDERS)
def test_a_name_downloads_and_reads(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The small data set at a file: address, with its own checksum; the second time it comes from the cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    entry, site = loaders.PUBLISHED[name], tmp_path / "site"
    folder = published.BUILDERS[name](tmp_path / "made")
    site.mkdir()
    files = []
    for remote in entry.files:
        path = folder / remote.name if name == "omniglot" else site / remote.name
        if name != "omniglot" and not path.exists() and "tag_count" not in path.name:
            published.packed(folder, path, "inside")
        if "tag_count" in path.name:
            (tmp_path / "tags").mkdir()
            (tmp_path / "tags/stackoverflow.tag_count").write_text('{"css": 9, "sql": 7, "perl": 7, "x": 1}')
            published.packed(tmp_path / "tags", path)
        files.append(
            Remote(path.as_uri(), hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size)
        )
    monkeypatch.setitem(loaders.PUBLISHED, name, entry._replace(files=tuple(files)))  # pyright: ignore[reportArgumentType]
    options: dict[str, Any] = {"vocabulary": 5} if name in ("imdb", "sent140", "stackoverflow") else {}
    options |= {"clients": 2} if name in ("imdb", "cifar10") else {"clients": 4} if name == "omniglot" else {}
    data = load(name, **options)
    assert data.name == name
    assert (data.test.rows > 0) >= entry.has_test
    assert (data.num_classes is None) == entry.has_reals
    for remote in files:
        (tmp_path / Path(remote.url.removeprefix("file://"))).unlink()
    assert_same(load(name, **options), data)
    if name == "stackoverflow":
        assert data.classes == ("css", "perl", "sql", "x"), "the published counts, and ties by name"


def test_a_wrong_checksum_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    archive = published.packed(published.cifar(tmp_path / "made"), tmp_path / "c.tar.gz")
    entry = loaders.PUBLISHED["cifar10"]
    files = (Remote(archive.as_uri(), entry.files[0].sha256),)
    monkeypatch.setitem(loaders.PUBLISHED, "cifar10", entry._replace(files=files))  # pyright: ignore[reportArgumentType]
    with pytest.raises(EvenhandError, match=r"not the published one \(its SHA-256 is"):
        load("cifar10")
    assert not any((tmp_path / "cache/evenhand/cifar10").iterdir())


def test_a_folder_of_a_new_name_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    published.emnist(tmp_path / "femnist")
    assert load("femnist").num_clients == 3


# --- pictures ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["folder", "c.tar.gz", "c.tar.bz2", "c.zip"])
def test_cifar_has_its_channels_last(tmp_path: Path, form: str) -> None:
    folder = published.cifar(tmp_path / "made")
    path = folder if form == "folder" else published.packed(folder, tmp_path / form, "cifar-10-batches-bin")
    data = load(path, clients=3)
    assert (data.train.rows, data.test.rows, data.feature_shape) == (40, 10, (32, 32, 3))
    assert data.classes is not None and data.classes[3] == "cat" and data.num_clients == 3
    for split in (data.train, data.test):
        expected = (10 * split.y[:, None] + np.arange(3)) / 255
        np.testing.assert_allclose(split.x[:, 0, 0], expected, rtol=1e-6)
    raw = np.frombuffer((folder / "test_batch.bin").read_bytes(), np.uint8).reshape(10, 3073)
    images = {int(row[0]): row[1:] for row in raw}
    for x, y in zip(data.test.x, data.test.y, strict=True):
        # The second pixel of the first line, and the first of the second line, of the green plane.
        np.testing.assert_allclose(x[0, 1, 1], images[int(y)][1024 + 1] / 255, rtol=1e-6)
        np.testing.assert_allclose(x[1, 0, 1], images[int(y)][1024 + 32] / 255, rtol=1e-6)


def test_one_batch_is_split_at_random(tmp_path: Path) -> None:
    data = load(published.cifar(tmp_path) / "data_batch_1.bin", clients=2, test_fraction=0.5)
    assert data.train.rows + data.test.rows == 20 and data.test.rows > 5


def test_pickles_are_refused_unread(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py/data_batch_1").write_bytes(b"cos\nsystem\n(S'touch ran'\ntR.")
    with pytest.raises(EvenhandError, match="a pickle, which may run any code"):
        load(tmp_path / "cifar-10-batches-py")


def test_omniglot_is_tasks_of_five_characters(tmp_path: Path) -> None:
    folder = published.omniglot(tmp_path)
    data = load(folder, clients=8)
    assert data.client_ids == tuple(f"task {i}" for i in range(8))
    assert (data.feature_shape, data.num_classes) == ((28, 28), 5)
    assert data.train.sizes.tolist() == [50] * 8 and data.test.sizes.tolist() == [10] * 8
    # Of 20 characters, the first 15 are for the first 6 tasks: 1200 / 1623 and 300 / 400 of them.
    heights = _heights(data)
    assert all(max(heights[k]) < 15 for k in range(6)) and all(min(heights[k]) >= 15 for k in (6, 7))
    assert all(len(set(characters)) == 5 for characters in heights)
    assert_same(load(folder / "unpacked", clients=8), data)
    assert load(folder, clients=8, seed=1).fingerprint != data.fingerprint


def test_both_halves_of_an_omniglot_task_have_all_characters(tmp_path: Path) -> None:
    """q-MAML adapts to the first half of a task's rows, and is judged on the other: on the same characters."""
    data = load(published.omniglot(tmp_path), clients=4)
    for k in range(4):
        own = data.train.client(k)[1]
        assert [np.bincount(half).tolist() for half in (own[:25], own[25:])] == [[5] * 5] * 2


def _heights(data: FederatedDataset) -> list[list[int]]:
    """Task by task, the characters of the labels, told by the blackness of their first drawing."""
    shades = [
        np.asarray(Image.open(_file(published.drawing(3 * c))).convert("L").resize((28, 28))).sum(dtype=float)
        for c in range(20)
    ]
    drawings = np.stack(
        [
            np.asarray(Image.open(_file(published.drawing(3 * c + k % 3))).convert("L").resize((28, 28)))
            / 255
            for c in range(20)
            for k in range(12)
        ]
    )
    mean, deviation = drawings.mean(0), drawings.std(0)
    characters = []
    for k in range(data.num_clients):
        x, y = data.train.client(k)
        raw = (x * (deviation + 1e-3) + mean).sum((1, 2)) * 255
        first = [max(raw[y == label]) for label in range(5)]
        characters.append([int(np.argmin(np.abs(np.array(shades) - value))) for value in first])
    return characters


def _file(content: bytes) -> io.BytesIO:
    return io.BytesIO(content)


# --- texts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["folder", "a.tar.gz"])
def test_imdb(tmp_path: Path, form: str) -> None:
    folder = published.imdb(tmp_path / "made")
    path = folder if form == "folder" else published.packed(folder, tmp_path / form, "aclImdb")
    data = load(path, clients=1, vocabulary=4)
    assert data.classes == ("neg", "pos") and (data.train.rows, data.test.rows) == (8, 4)
    # "a" occurs in each of the 8 texts, "." too, and "x" 0, ..., 3 times in each sentiment: 12 times.
    words = ("x", ".", "a", "bad")
    texts = {"pos": "A good film. GOOD {}", "neg": "A bad film. BAD {}"}
    rows = {label: set[tuple[float, ...]]() for label in texts}
    for label, text in texts.items():
        for i in range(4):
            tokens = text.format("x " * i).lower().replace(".", " .").split()
            rows[label].add(tuple(np.float32(tokens.count(word) / len(tokens)).item() for word in words))
    x, y = data.train.client(0)
    for k, label in enumerate(("neg", "pos")):
        assert {tuple(row.tolist()) for row in x[y == k]} == rows[label]


@pytest.mark.parametrize("form", ["folder", "file", "t.zip"])
def test_tweets_belong_to_accounts(tmp_path: Path, form: str) -> None:
    folder = published.tweets(tmp_path / "made")
    path = published.packed(folder, tmp_path / form) if form == "t.zip" else folder
    path = folder / published.TWEETS if form == "file" else path
    known = load_vectors(published.vectors(tmp_path))
    data = load(path, encode=encode_words(known, length=4), test_fraction=0.0)
    assert data.client_ids == ("ann", "bob") and data.classes == ("negative", "positive")
    assert "Dropped 1 tweets" in data.notes[-1]
    x, y = data.train.client(1)
    np.testing.assert_array_equal(y, [0, 1, 0])
    np.testing.assert_array_equal(x[2], [1, 5, 5, 5])  # "bad" and padding
    np.testing.assert_array_equal(data.train.client(0)[0][1], [1, 5, 1, 2])  # "bad , bad film"
    fewer = load(path, encode=encode_words(known, length=4), min_examples=4)
    assert fewer.client_ids == ("ann",) and any("Kept 1 of 2 clients" in note for note in fewer.notes)


def test_clients_with_few_tweets_are_never_encoded(tmp_path: Path) -> None:
    seen = list[str]()

    def encode(text: str) -> np.ndarray:
        seen.append(text)
        return np.zeros(1, np.float32)

    load(published.tweets(tmp_path), encode=encode, min_examples=4)
    assert len(seen) == 5 and "a bad day" not in seen


@pytest.mark.parametrize("builder", [published.imdb, published.tweets, published.questions])
def test_texts_need_to_become_numbers(tmp_path: Path, builder: Callable[[Path], Path]) -> None:
    with pytest.raises(EvenhandError, match=r"vocabulary=1000.*encode_words"):
        load(builder(tmp_path))


# --- the HDF5 files -----------------------------------------------------------------------------------------------


def test_writers_keep_their_test_images(tmp_path: Path) -> None:
    data = load(published.emnist(tmp_path))
    assert data.client_ids == ("f0", "f1", "f2")
    assert data.train.sizes.tolist() == [6, 8, 4] and data.test.sizes.tolist() == [2, 0, 3]
    for split in (data.train, data.test):
        np.testing.assert_allclose(split.x[:, 0, 0] * 62, split.y, rtol=1e-5)
    alone = load(tmp_path / "fed_emnist_train.h5", clients=2)
    assert alone.client_ids == ("f0", "f1") and alone.train.rows + alone.test.rows == 14
    assert data.min_examples(train=4, test=3).client_ids == ("f2",)


def test_roles_predict_the_next_character(tmp_path: Path) -> None:
    data = load(published.plays(tmp_path))
    assert data.client_ids == ("HAMLET_HAMLET",) and "Dropped 1 roles" in data.notes[-1]
    text = " ".join((published.SPEECH.decode() + " The slings").split()).replace("@", " ")
    assert data.train.rows == len(text) - 80 and data.feature_shape == (80,)
    for i in (0, 1, data.train.rows - 1):
        assert "".join(ALPHABET[token] for token in data.train.x[i]) == text[i : i + 80]
        assert ALPHABET[data.train.y[i]] == text[i + 80]
    assert data.test.rows == 2 * len(published.SPEECH) - 80


def test_questions_have_their_most_frequent_tag(tmp_path: Path) -> None:
    data = load(published.questions(tmp_path), vocabulary=3, test_fraction=0.0)
    assert data.client_ids == ("00000001", "00000002", "7")
    assert data.classes == ("sql", "css", "perl", "python", "x")
    assert [data.train.client(k)[1].tolist() for k in range(3)] == [[0, 0, 1], [0, 2], [4]]
    # "how to sort a list ? a sort": "a" and "sort" twice among eight words.
    np.testing.assert_allclose(data.train.x[0], [2 / 8, 2 / 8, 1 / 8])
    assert load(tmp_path, vocabulary=3, clients=2).client_ids == ("00000001", "00000002")


@pytest.mark.parametrize("place", ["examples/link", "examples/f0/pixels"])
def test_links_out_of_a_file_are_not_followed(tmp_path: Path, place: str) -> None:
    import h5py

    published.emnist(tmp_path)
    path = tmp_path / "fed_emnist_train.h5"
    target = "/examples/f2" + "/pixels" * place.endswith("pixels")
    for link in (h5py.ExternalLink("fed_emnist_test.h5", target), h5py.SoftLink(target)):
        with h5py.File(path, "a") as file:
            if place in file:
                del file[place]
            file[place] = link
        with pytest.raises(EvenhandError, match="is not stored in the file itself"):
            load(path)


def test_hdf5_needs_h5py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published.emnist(tmp_path)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(EvenhandError, match=r"pip install 'evenhand\[hdf5\]'"):
        load(tmp_path)


# --- ratings, sparse rows, sensors --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["u.data", "ratings.dat", "ratings.csv"])
def test_ratings_belong_to_users(tmp_path: Path, name: str) -> None:
    folder = published.movielens(tmp_path / "made")
    if name != "u.data":
        lines = (folder / "u.data").read_text().splitlines()
        separator = "::" if name == "ratings.dat" else ","
        header = ["userId,movieId,rating,timestamp"] if name == "ratings.csv" else []
        (folder / "u.data").unlink()
        (folder / name).write_text("\n".join(header + [line.replace("\t", separator) for line in lines]))
    data = load(folder, test_fraction=0.25)
    assert data.client_ids == ("1", "2", "10") and data.num_classes is None
    assert data.train.sizes.tolist() == [3] * 3 and data.test.sizes.tolist() == [1] * 3
    users, films = (1, 2, 10), (3, 5, 7, 900)
    for split in (data.train, data.test):
        for (user, film), rating in zip(split.x.tolist(), split.y.tolist(), strict=True):
            assert rating == 1 + (users[user] + films[film]) % 5
    assert_same(load(published.packed(folder, tmp_path / "m.zip", "ml"), test_fraction=0.25), data)


def test_sparse_rows(tmp_path: Path) -> None:
    folder = published.libsvm(tmp_path)
    data = load(folder, test_fraction=0.0)
    assert data.client_ids == ("node1", "node2") and data.classes == ("-1", "1")
    np.testing.assert_allclose(
        data.train.client(0)[0], [[0.5, 0, 2, 0], [0, 1, 0, 0], [0, 0, 0, 0], [0, 0, -1e-3, 0]], rtol=1e-6
    )
    np.testing.assert_array_equal(data.train.client(0)[1], [0, 1, 1, 0])
    alone = load(folder / "node2.libsvm", clients=2, test_fraction=0.0)
    assert alone.num_clients == 2 and alone.train.rows == 4
    with pytest.raises(EvenhandError, match="clients=N"):
        load(folder / "node2.libsvm")
    real = load(folder / "node2.libsvm", clients=2, regression=True, test_fraction=0.0)
    assert real.num_classes is None and set(real.train.y.tolist()) == {-1, 1}


@pytest.mark.parametrize("name", ["a.svm", "a.libsvm.gz", "a .libsvm"])
def test_two_sparse_files_of_one_client_are_refused(name: str, tmp_path: Path) -> None:
    for file in ("a.libsvm", name):
        (tmp_path / file).write_text("1 1:1\n0 1:2\n")
    with pytest.raises(
        EvenhandError, match=r"a.* and a.* are both files of client 'a ?': keep one, or rename"
    ):
        load(tmp_path)


def test_sparse_rows_are_those_of_scikit_learn(tmp_path: Path) -> None:
    from sklearn.datasets import dump_svmlight_file, load_svmlight_file

    x = published.RNG.normal(size=(30, 7)) * (published.RNG.random((30, 7)) < 0.4)
    dump_svmlight_file(x, np.arange(30) % 3, str(tmp_path / "t.svm"), zero_based=False)
    data = load(tmp_path / "t.svm", clients=1, test_fraction=0.0)
    expected, labels = load_svmlight_file(str(tmp_path / "t.svm"))
    order = np.lexsort(data.train.x.T), np.lexsort(expected.toarray().T)
    np.testing.assert_allclose(data.train.x[order[0]], expected.toarray()[order[1]], rtol=1e-6)
    np.testing.assert_array_equal(data.train.y[order[0]], labels[order[1]])


def test_sensors_standardise_their_own_features(tmp_path: Path) -> None:
    data = load(published.vehicle(tmp_path), test_fraction=0.0)
    assert data.client_ids == ("sensor 0", "sensor 1", "sensor 2") and data.classes == ("-1", "1")
    for k, n in enumerate((8, 6, 7)):
        x, y = data.train.client(k)
        assert len(y) == n
        np.testing.assert_allclose(x.mean(0), 0, atol=1e-6)
        np.testing.assert_allclose(x.std(0), [1, 1, 1, 0], atol=1e-5)
    raw = load(tmp_path / "vehicle.mat", standardize=False, test_fraction=0.0)
    assert (raw.train.x[:, 3] == 5).all() and raw.train.x.std() > 1.1


def test_vehicle_has_no_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EvenhandError, match=r"get vehicle\.mat from the page of q-FFL's authors"):
        load("vehicle")


def test_what_no_reader_knows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made/readme.txt").write_text("nothing")
    for path in (tmp_path / "made", published.packed(tmp_path / "made", tmp_path / "a.zip")):
        with pytest.raises(EvenhandError, match="nor those of CIFAR-10"):
            load(path)
    hdf5 = published.packed(published.emnist(tmp_path / "h"), tmp_path / "e.tar.bz2")
    with pytest.raises(EvenhandError, match="unpack it, and name the folder"):
        load(hdf5)
