"""``python -m fuzz FOLDER FIRST LAST ...`` loads fuzzed files FIRST to LAST - 1; without numbers, the hostile ones.

It writes one JSON object per file to stdout.

It is a separate process, so that its peak memory is that of the files, and a crash cannot pass for a refusal.
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
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any

import fuzz
from evenhand.data import load
from evenhand.errors import EvenhandError
from fuzz.hostile import HOSTILE

_SECONDS = 10


class _TooSlow(BaseException):
    """Not an ``Exception``, so that no reader can catch it as one of its errors."""


def _alarm(number: int, frame: FrameType | None) -> None:
    raise _TooSlow(f"over {_SECONDS} s")


def attempt(name: str, path: Path, options: dict[str, Any]) -> dict[str, object]:
    """The outcome of one file."""
    found: dict[str, object] = {"name": name, "options": options}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    signal.alarm(_SECONDS)
    try:
        data = load(path, **options)
        found |= {"outcome": "loaded", "words": repr(data)}
    except EvenhandError as error:
        found |= {"outcome": "refused", "words": str(error).replace(str(path.parent), "")}
    except BaseException:
        found |= {"outcome": "traceback", "words": traceback.format_exc()}
    finally:
        signal.alarm(0)
    found["seconds"] = time.perf_counter() - start
    found["megabytes"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000
    return found


def main() -> None:
    """Loads the files that the arguments name."""
    warnings.simplefilter("error")
    signal.signal(signal.SIGALRM, _alarm)
    root = Path(sys.argv[1])
    root.mkdir(exist_ok=True)
    ends = list(map(int, sys.argv[2:]))
    numbers = [range(*pair) for pair in zip(ends[::2], ends[1::2], strict=True)]
    names = list(chain.from_iterable(numbers)) if numbers else list(HOSTILE)
    for name in names:
        folder = root / "files"
        folder.mkdir()
        with warnings.catch_warnings(action="ignore"):
            if isinstance(name, int):
                found = attempt(*fuzz.write(name, folder))
            else:
                found = attempt("hostile", HOSTILE[name][0](folder), {})
        sys.stdout.write(json.dumps({"file": name, **found}) + "\n")
        sys.stdout.flush()
        shutil.rmtree(folder)


main()
