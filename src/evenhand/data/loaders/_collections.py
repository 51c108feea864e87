"""Pictures and ratings as others publish them: the digits of scikit-learn, CIFAR-10, Omniglot, MovieLens."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from evenhand.data import _validation as validation
from evenhand.data._dataset import FederatedDataset, PooledRows, build
from evenhand.data._validation import NDArray
from evenhand.data.loaders._archive import contents
from evenhand.data.loaders._arrays import in_unit_range, pooled
from evenhand.data.loaders._source import Options, listing
from evenhand.errors import EvenhandError, whole_number

# --- digits --------------------------------------------------------------------------------------------------


_DIGITS_CLIENTS = 30


def load_digits(options: Options) -> FederatedDataset:
    """1,797 digits of 8 x 8 pixels in [0, 1], flattened, spread over clients."""
    # Imported late: it takes a second that no other data set should wait for.
    from sklearn import datasets

    x, y = datasets.load_digits(return_X_y=True)
    examples = (np.asarray(x) / 16).astype(np.float32), np.asarray(y).astype(np.int32)
    return pooled("digits", [examples], tuple("0123456789"), options, clients=_DIGITS_CLIENTS)


# --- CIFAR-10 ------------------------------------------------------------------------------------------------


_CIFAR_CLIENTS = 100

_CIFAR_CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)

_SIDE, _CHANNELS = 32, 3

_RECORD = 1 + _SIDE * _SIDE * _CHANNELS

BATCHES = re.compile(r"(^|/)(data_batch_\d+|test_batch)\.bin$")


def load_cifar(path: Path, options: Options) -> FederatedDataset:
    """CIFAR-10 in its binary version: a folder or archive of ``data_batch_1.bin``, ..., ``test_batch.bin``, or a file.

    ``x`` is (32, 32, 3), channels last, in [0, 1].

    Source: Krizhevsky, *Learning Multiple Layers of Features from Tiny Images*, 2009.
    """
    batches: dict[str, bytes] = {}
    if path.is_file() and path.suffix.lower() == ".bin":
        batches[path.name] = path.read_bytes()
    else:
        for name, content in contents(path, BATCHES):
            stem = name.rpartition("/")[2]
            if stem in batches:
                raise EvenhandError(f"{path}: {stem} occurs twice: name the folder of one copy.")
            batches[stem] = content
    parts: list[list[tuple[NDArray, NDArray]]] = [[], []]
    for name in sorted(batches):
        is_test = name.startswith("test_batch") and len(batches) > 1
        parts[is_test].append(_cifar_batch(path, name, batches[name]))
    if not parts[0]:
        raise EvenhandError(f"{path}: there is no training batch data_batch_1.bin: add the five of CIFAR-10.")
    examples = [
        (in_unit_range(np.concatenate([x for x, _ in part])), np.concatenate([y for _, y in part]))
        for part in parts
        if part
    ]
    return pooled(path, examples, _CIFAR_CLASSES, options, clients=_CIFAR_CLIENTS)


def _cifar_batch(path: Path, name: str, content: bytes) -> tuple[NDArray, NDArray]:
    """The pixels, channels last, and the labels of a batch."""
    where = str(path) if path.name == name else f"{path}: {name}"
    if not content or len(content) % _RECORD:
        raise EvenhandError(
            f"{where}: {len(content):,} bytes are no images of CIFAR-10, which take {_RECORD:,} each: copy or download "
            "the binary version again."
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)
    labels = records[:, 0].astype(np.int32)
    if (large := labels >= len(_CIFAR_CLASSES)).any():
        row = int(np.argmax(large))
        raise EvenhandError(
            f"{where}: image {row} has the label {labels[row]}, and CIFAR-10 has {len(_CIFAR_CLASSES)} classes: use "
            "its binary version, not that of CIFAR-100."
        )
    planes = records[:, 1:].reshape(-1, _CHANNELS, _SIDE, _SIDE)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels


# --- Omniglot: tasks of five characters ----------------------------------------------------------------------


DRAWING = re.compile(r"(^|/)images_(background|evaluation)/([^/]+/character\d+)/[^/]+\.png$")

_TASKS, _WAYS, _SHOTS, _PIXELS, _LARGEST_DRAWING = 400, 5, 10, 28, 1024

_META_TRAIN = (1200 / 1623, 300 / 400)
"""The shares of the characters, and of the tasks, for meta-training."""


def load_omniglot(path: Path, options: Options) -> FederatedDataset:
    """Omniglot as q-FFL prepares it for meta-learning: each client is a task of five characters.

    The characters, those of ``images_background`` before those of ``images_evaluation``, are cut in two, 1,200 and 423
    in the whole set.  The first 300 of 400 clients are tasks of characters of the first kind, the others of the second:
    ``data.select(data.client_ids[:300])`` are those to train on.  Of each character, the first 10 drawings are for
    training and the others for testing; rows are in the order of the drawings, the five characters in turn, so that the
    first half of a task has all five.  A drawing has 28 x 28 numbers; over all drawings, each pixel has mean 0 and
    deviation about 1.

    Differs from the paper: the characters of a task are distinct, where the authors' code may draw one twice.

    Source: Lake et al., *Human-level concept learning through probabilistic program induction*, Science 2015; Li et
    al., *Fair Resource Allocation in Federated Learning*, ICLR 2020 (q-MAML).
    """
    drawings = _drawings(path)
    tasks = whole_number("clients", options.clients or _TASKS, 2)
    names = sorted(drawings)
    cut = round(_META_TRAIN[0] * len(names))
    if cut < _WAYS or len(names) - cut < _WAYS:
        raise EvenhandError(
            f"{path}: {len(names)} characters are too few for tasks of {_WAYS}: use Omniglot's two sets of images."
        )
    pixels = [drawing for name in names for drawing in drawings[name]]
    mean, deviation = np.mean(pixels, axis=0), np.std(pixels, axis=0)
    random = validation.generator(options.seed, "omniglot")
    parts: list[list[tuple[NDArray, int, str]]] = [[], []]
    first = min(max(1, round(_META_TRAIN[1] * tasks)), tasks - 1)
    digits = len(str(tasks - 1))
    for task in range(tasks):
        pool = np.arange(cut) if task < first else np.arange(cut, len(names))
        drawn = [drawings[names[character]] for character in random.choice(pool, _WAYS, replace=False)]
        # Drawing by drawing: the first half of a task, such as the support set of q-MAML, has all of its characters.
        for i in range(max(map(len, drawn))):
            for label, own in enumerate(drawn):
                if i < len(own):
                    parts[i >= _SHOTS].append((own[i], label, f"task {task:0{digits}d}"))
    rows = [
        PooledRows(
            ((np.stack([x for x, _, _ in part]) - mean) / (deviation + 1e-3)).astype(np.float32),
            np.array([label for _, label, _ in part], np.int32),
            np.array([client for _, _, client in part]),
        )
        for part in parts
        if part
    ]
    return build(rows, options.splitting, name=str(path), classes=None)


def _drawings(path: Path) -> Mapping[tuple[bool, str], list[NDArray]]:
    """Whether a character is for evaluation, and its name -> its drawings, in the order of their files."""
    images: dict[tuple[bool, str], dict[str, NDArray]] = {}
    for source in sorted(path.glob("images_*.zip")) if path.is_dir() else [path]:
        for name, content in contents(source, DRAWING):
            match = DRAWING.search(name)
            assert match is not None
            character = (match[2] == "evaluation", match[3])
            images.setdefault(character, {})[name] = _drawing(source, name, content)
    if path.is_dir() and not images:
        for name, content in contents(path, DRAWING):
            match = DRAWING.search(name)
            assert match is not None
            images.setdefault((match[2] == "evaluation", match[3]), {})[name] = _drawing(path, name, content)
    return {character: [files[name] for name in sorted(files)] for character, files in images.items()}


def _drawing(path: Path, name: str, content: bytes) -> NDArray:
    """A drawing as 28 x 28 numbers in [0, 1], ink being 0, resized as the authors do."""
    from PIL import Image, UnidentifiedImageError  # takes a tenth of a second that few data sets need

    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            if max(image.size) > _LARGEST_DRAWING:
                raise ValueError
            pixels = np.asarray(image.convert("L").resize((_PIXELS, _PIXELS)))
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        raise EvenhandError(
            f"{path}: {name[-80:]} is no drawing of Omniglot, or a damaged one: copy or download it again."
        ) from None
    return in_unit_range(pixels)


# --- MovieLens: ratings of films by users --------------------------------------------------------------------


RATINGS = re.compile(r"(^|/)(u\.data|ratings\.dat|ratings\.csv)$")

_SEPARATORS = {"u.data": "\t", "ratings.dat": "::", "ratings.csv": ","}


def load_movielens(path: Path, options: Options) -> FederatedDataset:
    """Ratings of films, each client being a user.

    The folder or archive has one of ``u.data``, ``ratings.dat`` and ``ratings.csv``, as MovieLens 100K, 1M and later.
    ``x`` is the place of the user and that of the film among their sorted ids, ``y`` the rating, a real number:
    for :func:`evenhand.models.matrix_factorisation`.

    Source: Harper and Konstan, *The MovieLens Datasets: History and Context*, TiiS 2015.
    """
    files = list(contents(path, RATINGS))
    if len(files) != 1:
        names = listing([name for name, _ in files]) or "none"
        raise EvenhandError(
            f"{path}: one file of ratings is needed, not {names}: name the folder of one set."
        )
    name, content = files[0]
    where, separator = f"{path}: {name}", _SEPARATORS[name.rpartition("/")[2]]
    lines = content.decode("latin-1").splitlines()
    begin = 1 if separator == "," and lines and lines[0].lower().startswith("userid") else 0
    rows = [line.split(separator) for line in lines[begin:] if line.strip()]
    for line, cells in enumerate(rows, begin + 1):
        if len(cells) != 4 or not (cells[0].isdecimal() and cells[1].isdecimal() and cells[2].strip()):
            raise EvenhandError(
                f"{where}: line {line} is not a user, a film, a rating and a time: copy or download it again."
            )
    if not rows:
        raise EvenhandError(f"{where}: there are no ratings: copy or download it again.")
    ratings = validation.numbers([cells[2] for cells in rows])
    if ratings is None or not np.isfinite(ratings).all():
        raise EvenhandError(f"{where}: a rating is no finite number: copy or download it again.")
    ids = [np.array([cells[column] for cells in rows]) for column in (0, 1)]
    if max(column.itemsize // 4 for column in ids) > 18:
        raise EvenhandError(f"{where}: an id has more than 18 digits: copy or download it again.")
    users, films = (np.unique(column.astype(np.int64), return_inverse=True)[1] for column in ids)
    x = np.stack([users, films], axis=1).astype(np.int32)
    rated = PooledRows(x, ratings.astype(np.float32), ids[0])
    return build([rated], options.splitting, name=str(path), classes=None)
