"""MNIST and Fashion-MNIST from their public mirrors, checked and cached."""

from __future__ import annotations

import hashlib
import os
import urllib.request
from pathlib import Path
from typing import NamedTuple

from evenhand.errors import EvenhandError

__all__ = ["SOURCES", "Source", "download"]


class Source(NamedTuple):
    """Where files are, and the SHA-256 that each must have."""

    url: str
    files: dict[str, str]


SOURCES = {
    "mnist": Source(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        {
            "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
    ),
    "fashion-mnist": Source(
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        {
            "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        },
    ),
}


def download(name: str, source: Source) -> Path:
    """The folder with ``source``'s files, downloaded if they are missing.

    They are kept under ``$XDG_CACHE_HOME/evenhand`` (``~/.cache/evenhand``).  A file gets its name only after
    its checksum was right, so an interrupted download leaves nothing behind that looks complete.
    """
    cache = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(cache) if cache else Path.home() / ".cache") / "evenhand" / name
    for file, checksum in source.files.items():
        if not (folder / file).is_file():
            _fetch(f"{source.url}/{file}", folder / file, checksum)
    return folder


def _fetch(url: str, path: Path, checksum: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(url, timeout=60) as answer:
            content = answer.read()
        if hashlib.sha256(content).hexdigest() != checksum:
            raise EvenhandError(
                f"{url}: the file is not the published one (SHA-256 differs): try again later."
            )
        partial = path.with_name(f"{path.name}.{os.getpid()}.part")
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        reason = " ".join(str(error).split())
        raise EvenhandError(
            f"{url}: cannot be fetched to {path.parent} ({reason}): connect to the internet, or put the file "
            "there yourself."
        ) from None
