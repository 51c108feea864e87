"""Small data sets in the forms in which the large ones are published, each made in a folder."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy import io as matlab

RNG = np.random.default_rng(39)


def packed(folder: Path, archive: Path, inside: str = "") -> Path:
    """The files of a folder in an archive, whose kind its suffix tells, below the folder ``inside``."""
    files = sorted(entry for entry in folder.rglob("*") if entry.is_file())
    names = [str(Path(inside) / entry.relative_to(folder)) for entry in files]
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
            for entry, name in zip(files, names, strict=True):
                target.write(entry, name)
    else:
        mode: Any = f"w:{archive.suffix.removeprefix('.')}"
        with tarfile.open(archive, mode) as target:
            for entry, name in zip(files, names, strict=True):
                target.add(entry, name)
    return archive


def cifar_batch(labels: Sequence[int], pixels: npt.NDArray[np.uint8]) -> bytes:
    """A batch of CIFAR-10's binary version; ``pixels`` are ``(n, 32, 32, 3)``."""
    planes = pixels.transpose(0, 3, 1, 2).reshape(len(labels), -1)
    return np.concatenate([np.array(labels, np.uint8)[:, None], planes], axis=1).tobytes()


def cifar(folder: Path) -> Path:
    """Two training batches of 20 images and a test batch of 10, whose first pixel is ten times the label."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, n in (("data_batch_1", 20), ("data_batch_2", 20), ("test_batch", 10)):
        labels = (np.arange(n) % 10).tolist()
        pixels = RNG.integers(0, 256, (n, 32, 32, 3)).astype(np.uint8)
        pixels[:, 0, 0] = 10 * np.arange(n)[:, None] % 100 + np.arange(3)
        (folder / f"{name}.bin").write_bytes(cifar_batch(labels, pixels))
    return folder


def drawing(shade: int) -> bytes:
    """A PNG of one bit per pixel, 105 by 105, with a black rectangle of ``shade`` rows."""
    pixels = np.ones((105, 105), bool)
    pixels[:shade] = False
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def omniglot(folder: Path, *, background: int = 6, evaluation: int = 4, drawings: int = 12) -> Path:
    """Two alphabets in each of two archives; a drawing of character ``c`` has ``3 c`` black rows and some more."""
    character = 0
    for name, alphabets in (("images_background", background), ("images_evaluation", evaluation)):
        root = folder / "unpacked" / name
        for i in range(alphabets):
            for j in range(2):
                place = root / f"Alphabet_{i}" / f"character{j + 1:02d}"
                place.mkdir(parents=True)
                for k in range(drawings):
                    (place / f"{character:04d}_{k + 1:02d}.png").write_bytes(drawing(3 * character + k % 3))
                character += 1
        packed(root, folder / f"{name}.zip", name)
    return folder


def imdb(folder: Path) -> Path:
    """Four reviews of each sentiment for training and two for testing."""
    for part, n in (("train", 4), ("test", 2)):
        for sentiment, word, stars in (("pos", "good", 9), ("neg", "bad", 2)):
            place = folder / part / sentiment
            place.mkdir(parents=True)
            for i in range(n):
                text = f"A {word} film.<br /><br />{word.upper()} {'x ' * i}"
                (place / f"{i}_{stars}.txt").write_text(text, encoding="utf-8")
    (folder / "imdb.vocab").write_text("good\nbad\n")
    return folder


def movielens(folder: Path) -> Path:
    """Ratings of MovieLens 100K: user, film, rating and time with tabs between."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [(user, film, 1 + (user + film) % 5) for user in (1, 2, 10) for film in (3, 5, 7, 900)]
    lines = [f"{user}\t{film}\t{rating}\t87{user}" for user, film, rating in rows]
    (folder / "u.data").write_text("\n".join(lines) + "\n")
    (folder / "u1.base").write_text(lines[0])
    return folder


TWEETS = "training.1600000.processed.noemoticon.csv"


def tweets(folder: Path) -> Path:
    """Five tweets of ann, three of bob and one of an account without a usable name."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [("4", "ann", "what a good day"), ("0", "ann", "bad, bad film!"), ("4", "ann", "Good")]
    rows += [("0", "ann", "so bad"), ("4", "ann", "good film, caf\u00e9"), ("0", "bob", "a bad day")]
    rows += [("4", "bob", 'he said ""good""'), ("0", "bob", "bad"), ("0", "null", "bad")]
    lines = [
        f'"{label}","{i}","Mon","NO_QUERY","{user}","{text}"' for i, (label, user, text) in enumerate(rows)
    ]
    (folder / TWEETS).write_bytes("\n".join(lines).encode("latin-1"))
    (folder / "testdata.manual.2009.06.14.csv").write_text('"2","1","Mon","q","eve","no"')
    return folder


def vectors(folder: Path) -> Path:
    """Vectors of a few words in GloVe's format."""
    path = folder / "glove.tiny.txt"
    path.write_text(
        "good 1 0.5 0\nbad -1 0.5 0\nfilm 0 -0.25 2\na 0 0 0.125\n. . . 0 0 1\n", encoding="utf-8"
    )
    return path


def hdf5(path: Path, clients: Mapping[str, Mapping[str, Any]]) -> Path:
    """A file of TensorFlow Federated; lists of bytes become text of any length."""
    import h5py

    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, fields in clients.items():
            group = file.require_group("examples").create_group(name)
            for field, values in fields.items():
                group[field] = np.array(values, dtype=object) if isinstance(values, list) else values
    return path


def emnist(folder: Path) -> Path:
    """Three writers, one of whom has no test images; the first pixel is the label's share of 62."""
    for part, counts in (("train", {"f0": 6, "f1": 8, "f2": 4}), ("test", {"f0": 2, "f2": 3, "f3": 2})):
        clients = dict[str, dict[str, Any]]()
        for writer, n in counts.items():
            labels = (np.arange(n) * 7 % 62).astype(np.int32)
            pixels = RNG.random((n, 28, 28)).astype(np.float32)
            pixels[:, 0, 0] = labels / 62
            clients[writer] = {"pixels": pixels, "label": labels}
        hdf5(folder / f"fed_emnist_{part}.h5", clients)
    return folder


SPEECH = b"To be, or not to be: that is the question.\nWhether 'tis nobler in the mind to suffer @ once"


def plays(folder: Path) -> Path:
    """Two roles, one of which says too little to predict anything."""
    speeches = {
        "HAMLET_HAMLET": {"snippets": [SPEECH, b"The slings"]},
        "HAMLET_GHOST": {"snippets": [b"Mark me."]},
    }
    hdf5(folder / "shakespeare_train.h5", speeches)
    hdf5(folder / "shakespeare_test.h5", {name: {"snippets": [2 * SPEECH]} for name in speeches})
    return folder


def questions(folder: Path) -> Path:
    """Three users of Stack Overflow."""
    clients = dict[str, dict[str, Any]]()
    for user, tags in (
        ("00000001", [b"python|sql", b"sql", b"css"]),
        ("00000002", [b"sql", b"perl"]),
        ("7", [b"x"]),
    ):
        fields: dict[str, Any] = {"tags": tags, "title": [b"a sort"] * len(tags)}
        fields |= {name: [b"text"] * len(tags) for name in ("creation_date", "type")}
        fields |= {"tokens": [b"how to sort a list ?"] * len(tags), "score": np.arange(len(tags))}
        clients[user] = fields
    hdf5(folder / "stackoverflow_train.h5", clients)
    return folder


def libsvm(folder: Path) -> Path:
    """Two clients with four rows each."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "node1.libsvm").write_text("-1 1:0.5 3:2\n+1 2:1 # a comment\n\n1\n-1 3:-1e-3\n")
    (folder / "node2.libsvm").write_text("1 qid:3 1:1 4:2.5\n-1 2:1\n-1 1:1\n1 4:1\n")
    return folder


def vehicle(folder: Path, xs: Sequence[Any] | None = None, ys: Sequence[Any] | None = None) -> Path:
    """Three sensors with 8, 6 and 7 rows of four features, the last of which does not vary."""
    folder.mkdir(parents=True, exist_ok=True)
    if xs is None:
        xs = [np.c_[RNG.normal(k, 1 + k, (n, 3)), np.full(n, 5.0)] for k, n in enumerate((8, 6, 7))]
    if ys is None:
        ys = [np.where(np.arange(len(x)) % 2, 1.0, -1.0)[:, None] for x in xs]
    cells: dict[str, Any] = {"X": np.empty((len(xs), 1), object), "Y": np.empty((len(ys), 1), object)}
    for name, values in (("X", xs), ("Y", ys)):
        for k, value in enumerate(values):
            cells[name][k, 0] = value
    matlab.savemat(folder / "vehicle.mat", cells)
    return folder / "vehicle.mat"


BUILDERS: dict[str, Callable[[Path], Path]] = {
    "cifar10": cifar,
    "omniglot": omniglot,
    "imdb": imdb,
    "movielens": movielens,
    "sent140": tweets,
    "femnist": emnist,
    "shakespeare": plays,
    "stackoverflow": questions,
}
"""What :func:`evenhand.data.load` downloads -> a small one of the form."""
