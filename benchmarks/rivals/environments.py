"""An environment for each library, in .venv-rivals: their versions of JAX, PyTorch and NumPy need not agree."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["Failure", "last_error", "python_for", "versions"]

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / ".venv-rivals"


class Failure(Exception):
    """A library could not be installed, or does not run."""


def last_error(text: str) -> str:
    """The line of a log that says why a process ended, cut to fit into a table."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # pip gives the reason first and hints after it; a traceback ends with the reason.
    refused = [line for line in lines if line.startswith("ERROR: ")]
    raised = re.findall(r"(?:\w+\.)*\w*(?:Error|Exception): .*", text)
    return (refused[:1] or raised[-1:] or lines[-1:] or ["The process ended without a message."])[0][:150]


def _run(*command: str | Path) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failure(last_error(done.stderr or done.stdout))
    return done.stdout


def python_for(name: str) -> Path:
    """The interpreter that has what NAME.txt lists; makes its environment when the list has changed."""
    requirements, folder = HERE / f"{name}.txt", FOLDER / name
    python, stamp = folder / "bin" / "python", folder / "installed.txt"
    # The place counts too: an environment that was moved no longer works.
    wanted = f"# {sys.version} in {folder}\n{requirements.read_text(encoding='utf-8')}"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    print(f"installing {name} into {folder} ...", file=sys.stderr, flush=True)
    _run(sys.executable, "-m", "venv", "--clear", folder)
    _run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-r", requirements)
    stamp.write_text(wanted, encoding="utf-8")
    return python


def versions(python: str | Path, packages: Sequence[str]) -> dict[str, str]:
    """The installed versions of packages."""
    program = "import json, sys\nfrom importlib.metadata import version\n"
    program += "print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
    return json.loads(_run(python, "-c", program, *packages))
