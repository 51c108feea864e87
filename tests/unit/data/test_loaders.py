"""npz, IDX, digits, downloads, and the function that finds the loader."""

from __future__ import annotations

import gzip
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import malformed
from evenhand.data import FederatedDataset, from_arrays, from_frame, load, load_leaf, loaders
from evenhand.data.loaders._source import Options
from evenhand.errors import EvenhandError


def assert_same(one: FederatedDataset, other: FederatedDataset) -> None:
    assert one.client_ids == other.client_ids
    assert one.classes == other.classes
    for first, second in ((one.train, other.train), (one.valid, other.valid), (one.test, other.test)):
        for column, same in zip(first, second, strict=True):
            np.testing.assert_array_equal(column, same)
            assert column.dtype == same.dtype


def table(n: int = 40) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.normal(size=(n, 3)), random.integers(0, 3, n), random.integers(8, 12, n)


@pytest.mark.parametrize(
    ("loader", "sources"),
    [(load, {"source"}), (from_frame, {"frame", "name"}), (load_leaf, {"train", "test"})],
)
def test_each_argument_of_a_loader_is_an_option(loader: Callable[..., Any], sources: set[str]) -> None:
    """Options are taken from a loader's arguments by name, and what has none of the names is dropped."""
    parameters = inspect.signature(loader).parameters
    options = {name: each.default for name, each in parameters.items() if name not in sources}
    assert sources <= set(parameters) and set(options) <= set(Options._fields)
    assert loader is not load or set(options) == set(Options._fields)
    assert Options.from_arguments(options) == Options()


class TestNpz:
    def test_arrays_are_found_by_name(self, tmp_path: Path) -> None:
        x, y, client = table()
        np.savez_compressed(tmp_path / "d.npz", x=x, y=y, client=client, other=np.ones(3))
        assert_same(load(tmp_path / "d.npz"), from_arrays(x, y, client))

    def test_arrays_may_have_other_names(self, tmp_path: Path) -> None:
        x, y, client = table()
        np.savez(tmp_path / "d.npz", x=x, target=y, writer=client)
        assert_same(load(tmp_path / "d.npz", client="writer", label="target"), from_arrays(x, y, client))

    def test_features_can_be_named(self, tmp_path: Path) -> None:
        x, y, client = table(30)
        np.savez(tmp_path / "d.npz", x=np.zeros((5, 5)), pixels=x, y=y, client=client)
        assert_same(load(tmp_path / "d.npz", features_array="pixels"), from_arrays(x, y, client))
        parts = {"pixels": x, "y": y, "client": client}
        arrays: dict[str, Any] = {f"{name}_train": a[:20] for name, a in parts.items()}
        arrays |= {f"{name}_test": a[20:] for name, a in parts.items()}
        np.savez(tmp_path / "s.npz", **arrays)
        data = load(tmp_path / "s.npz", features_array="pixels")
        assert (data.train.rows, data.test.rows) == (20, 10)
        with pytest.raises(EvenhandError, match="no array 'x' among"):
            load(tmp_path / "s.npz")

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"features_array": "y"}, "array 'y' cannot be two of"),
            ({"features_array": "client"}, "array 'client' cannot be two of"),
            ({"label": "client"}, "array 'client' cannot be two of"),
            ({"features_array": "pixels"}, "no array 'pixels' among 'x', 'y', 'client'"),
            ({"label": "lable"}, "no array 'lable' among"),
        ],
    )
    def test_each_array_has_only_one_role(self, tmp_path: Path, options: dict[str, str], words: str) -> None:
        x, y, client = table()
        np.savez(tmp_path / "d.npz", x=x, y=y, client=client)
        with pytest.raises(EvenhandError, match=words):
            load(tmp_path / "d.npz", **options)  # pyright: ignore[reportArgumentType]

    def test_features_are_named_only_in_archives(self, tmp_path: Path) -> None:
        (tmp_path / "t.csv").write_text(malformed.GOOD_CSV)
        for source in (tmp_path / "t.csv", tmp_path, "digits"):
            with pytest.raises(EvenhandError, match=r"only \.npz files have arrays"):
                load(source, features_array="a")

    def test_given_split_is_kept(self, tmp_path: Path) -> None:
        x, y, client = table(30)
        arrays: dict[str, Any] = {"x_train": x[:20], "y_train": y[:20], "client_train": client[:20]}
        arrays |= {"x_test": x[20:], "y_test": y[20:], "client_test": client[20:]}
        np.savez(tmp_path / "d.npz", **arrays)
        data = load(tmp_path / "d.npz", test_fraction=0.9)
        assert (data.train.rows, data.test.rows) == (20, 10)
        for k, name in enumerate(data.client_ids):
            of_client = client[20:] == int(name)
            np.testing.assert_array_equal(data.test.client(k)[0], x[20:][of_client].astype(np.float32))

    @pytest.mark.parametrize("name", ["y", "y_train"])
    def test_labels_of_two_parts_are_declared_by_either_name(self, name: str, tmp_path: Path) -> None:
        one = {"x_train": np.zeros((3, 1)), "y_train": np.array([7, -1, 7]), "client_train": np.zeros(3)}
        two = {"x_test": np.zeros((2, 1)), "y_test": np.array([-1, 7]), "client_test": np.zeros(2)}
        np.savez(tmp_path / "d.npz", **one, **two)
        data = load(tmp_path / "d.npz", categorical=[name])
        assert data.classes == ("-1", "7")
        np.testing.assert_array_equal(data.train.y, [1, 0, 1])
        with pytest.raises(EvenhandError, match=f"categorical='{name}' is one piece of text"):
            load(tmp_path / "d.npz", categorical=name)

    def test_text_labels_agree_between_the_parts(self, tmp_path: Path) -> None:
        one = {"x_train": np.zeros((3, 1)), "y_train": np.array(["b", "c", "b"]), "client_train": np.zeros(3)}
        two = {"x_test": np.zeros((2, 1)), "y_test": np.array(["a", "c"]), "client_test": np.zeros(2)}
        np.savez(tmp_path / "d.npz", **one, **two)
        data = load(tmp_path / "d.npz")
        assert data.classes == ("a", "b", "c")
        np.testing.assert_array_equal(data.train.y, [1, 2, 1])
        np.testing.assert_array_equal(data.test.y, [0, 2])

    def test_images_become_fractions_but_small_tokens_stay(self, tmp_path: Path) -> None:
        pixels = np.arange(256, dtype=np.uint8).reshape(4, 8, 8)
        np.savez(tmp_path / "d.npz", x=pixels, y=np.zeros(4, int), client=np.zeros(4, int))
        data = load(tmp_path / "d.npz", test_fraction=0.0)
        np.testing.assert_array_equal(data.train.x, (pixels / 255).astype(np.float32))
        np.savez(tmp_path / "d.npz", x=pixels.reshape(4, 64), y=np.zeros(4, int), client=np.zeros(4, int))
        assert load(tmp_path / "d.npz").train.x.dtype == np.int32

    def test_rows_are_spread_when_asked(self, tmp_path: Path) -> None:
        x, y, _ = table(60)
        np.savez(tmp_path / "d.npz", x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:])
        data = load(tmp_path / "d.npz", clients=4)
        assert (data.num_clients, data.train.rows, data.test.rows) == (4, 40, 20)
        with pytest.raises(EvenhandError, match="clients=N"):
            load(tmp_path / "d.npz")
        with pytest.raises(EvenhandError, match="no array 'nobody_train' of client ids"):
            load(tmp_path / "d.npz", client="nobody", clients=4)
        np.savez(tmp_path / "r.npz", x_train=x[:40], y_train=x[:40, 0], x_test=x[40:], y_test=x[40:, 0])
        real = load(tmp_path / "r.npz", clients=4, regression=True)
        np.testing.assert_array_equal(real.train.sizes, [10] * 4)
        np.testing.assert_array_equal(real.test.sizes, [5] * 4)

    def test_no_pickle_is_ever_run(self, tmp_path: Path) -> None:
        ran = tmp_path / "ran"
        evil = np.empty(1, dtype=object)
        evil[0] = _Touch(ran)
        np.savez(tmp_path / "d.npz", x=evil, y=np.zeros(1, int), client=np.zeros(1, int))
        with pytest.raises(EvenhandError, match="Python objects"):
            load(tmp_path / "d.npz")
        assert not ran.exists()


class _Touch:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.path,)


class TestIdx:
    @pytest.mark.parametrize("zipped", [False, True])
    def test_a_folder_keeps_its_test_part(self, tmp_path: Path, zipped: bool) -> None:
        random = np.random.default_rng(0)
        for name, n in (("train", 500), ("t10k", 100)):
            y = random.integers(0, 10, n)
            x = np.repeat(y * 25, 4).reshape(n, 2, 2)
            for kind, array in (("images-idx3", x), ("labels-idx1", y)):
                file = tmp_path / f"{name}-{kind}-ubyte{'.gz' if zipped else ''}"
                file.write_bytes(gzip.compress(malformed.idx(array)) if zipped else malformed.idx(array))
        data = load(tmp_path, clients=20, alpha=0.2)
        assert (data.num_clients, data.train.rows, data.test.rows) == (20, 500, 100)
        assert data.feature_shape == (2, 2)
        for split in (data.train, data.test):
            np.testing.assert_array_equal(split.x[:, 0, 0], (split.y * 25 / 255).astype(np.float32))
        # A client is tested on the classes that it trains on.
        for k in range(20):
            assert set(data.test.client(k)[1].tolist()) <= set(data.train.client(k)[1].tolist())
        labels = next(tmp_path.glob("train-labels*"))
        images = next(tmp_path.glob("train-images*"))
        assert_same(load(labels, clients=20), load(images, clients=20))
        assert load(images, clients=20).test.rows > 80

    def test_other_number_formats_are_read(self, tmp_path: Path) -> None:
        values = np.array([[[0.5, -1.25]], [[3.0, 4.0]]], ">f4")
        head = bytes([0, 0, 0x0D, 3]) + np.array([2, 1, 2], ">u4").tobytes()
        labels = malformed.idx(np.array([0, 1]))
        path = malformed.write_idx(tmp_path, head + values.tobytes(), labels)
        data = load(path, clients=1, test_fraction=0.0)
        np.testing.assert_array_equal(data.train.x, values.astype(np.float32))

    def test_a_folder_with_several_data_sets_is_refused(self, tmp_path: Path) -> None:
        for name in ("emnist-digits-train", "emnist-letters-train"):
            (tmp_path / f"{name}-images-idx3-ubyte").write_bytes(b"")
        with pytest.raises(EvenhandError, match="name the images file to load"):
            load(tmp_path)


class TestDigits:
    def test_the_digits_are_all_there_and_spread_by_the_seed(self) -> None:
        data = load("digits")
        assert (data.num_clients, data.num_classes, data.feature_shape) == (30, 10, (64,))
        assert data.train.rows + data.test.rows == 1797
        assert (data.train.x.min(), data.train.x.max()) == (0, 1)
        assert data.train.sizes.min() >= 1
        assert_same(data, load("digits"))
        assert not np.array_equal(data.train.sizes, load("digits", seed=1).train.sizes)

    def test_a_small_alpha_makes_clients_unlike(self) -> None:
        def concentration(data: FederatedDataset) -> float:
            shares = [np.bincount(data.train.client(k)[1]).max() / data.train.sizes[k] for k in range(10)]
            return float(np.mean(shares))

        assert concentration(load("digits", clients=10, alpha=0.1)) > 2 * concentration(
            load("digits", clients=10, alpha=1000.0)
        )


class TestLoad:
    @pytest.mark.parametrize(
        "options", [{"test_fraction": 1.0}, {"clients": 0}, {"alpha": -1.0}, {"seed": -1}]
    )
    def test_bad_options_are_refused(self, options: dict[str, float]) -> None:
        with pytest.raises(EvenhandError, match=next(iter(options))):
            load("digits", **options)  # pyright: ignore[reportArgumentType]

    def test_known_names_are_listed(self) -> None:
        assert loaders.NAMES[:4] == ("digits", "mnist", "fashion-mnist", "cifar10")
        with pytest.raises(EvenhandError, match="digits, mnist, fashion-mnist, cifar10"):
            load("digit")

    def test_text_paths_work(self, tmp_path: Path) -> None:
        (tmp_path / "t.CSV").write_text(malformed.GOOD_CSV)
        assert load(str(tmp_path / "t.CSV")).num_clients == 2
