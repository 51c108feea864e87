"""``python -m fuzz FIRST LAST FOLDER``: loads files FIRST to LAST - 1; one JSON object a file on stdout.

A process of its own, so that its peak memory is theirs and a crash of it can be told from a failure.
"""

from __future__ import annotations

import json
import resource
import shutil
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path
from types import FrameType

import fuzz
from evenhand.data import load
from evenhand.errors import EvenhandError

_SECONDS = 10


def _alarm(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"over {_SECONDS} s")


def attempt(seed: int, folder: Path) -> dict[str, object]:
    """What became of one file."""
    with warnings.catch_warnings(action="ignore"):
        name, path, options = fuzz.write(seed, folder)
    found: dict[str, object] = {"seed": seed, "format": name, "path": str(path), "options": options}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    signal.alarm(_SECONDS)
    try:
        data = load(path, **options)
        found |= {"outcome": "loaded", "said": repr(data)}
    except EvenhandError as error:
        found |= {"outcome": "refused", "said": str(error).replace(str(folder), "")}
    except BaseException:
        found |= {"outcome": "traceback", "said": traceback.format_exc()}
    finally:
        signal.alarm(0)
    found["seconds"] = time.perf_counter() - start
    found["megabytes"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000
    return found


def main() -> None:
    """Loads the files that the arguments name."""
    warnings.simplefilter("error")
    signal.signal(signal.SIGALRM, _alarm)
    first, last, root = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    for seed in range(first, last):
        folder = root / f"file{seed}"
        sys.stdout.write(json.dumps(attempt(seed, folder)) + "\n")
        sys.stdout.flush()
        shutil.rmtree(folder)


main()
