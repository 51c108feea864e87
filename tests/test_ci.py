"""``.ci/run`` with stand-ins for scripts and interpreters: which Pythons it uses, and how it ends."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).parents[1] / ".ci" / "run"
TOOLS = ("bash", "env", "dirname", "mktemp", "rm", "tee", "grep", "tail")


def script(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(("#!/usr/bin/env bash", *lines, "")))
    path.chmod(0o755)


@pytest.fixture
def ci(tmp_path):
    """Runs ``.ci/run``: ``(default, others, failing script) -> (exit status, what was run, closing lines)``."""
    if not all(map(shutil.which, TOOLS)):
        pytest.skip("needs a Unix shell")

    def run(default, others, failing=None):
        for tool in TOOLS:
            (tmp_path / "bin").mkdir(exist_ok=True)
            (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
        script(tmp_path / ".venv" / "bin" / "python", f"echo {default}")
        for version in (default, *others):
            script(tmp_path / "bin" / f"python{version}", f"echo {version}")
        for name in ("test", "optional", "network", "pytorch", "oldest", "deployment", "quickstart"):
            status = int(name == failing)
            words = f'echo "{name} in ${{VENV:-.venv}} with ${{PYTHON:-the default}}"'
            script(tmp_path / "scripts" / name, words, "echo ' == 5 passed == '", f"exit {status}")
        script(tmp_path / ".ci" / "run")
        shutil.copy(RUN, tmp_path / ".ci" / "run")
        environment = {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path), "TMPDIR": os.fspath(tmp_path)}
        done = subprocess.run(
            [tmp_path / ".ci" / "run"], env=environment, capture_output=True, text=True, check=False
        )
        lines = done.stdout.splitlines()
        closing = lines[max(n for n, line in enumerate(lines) if line.startswith("==> On")) :]
        return done.returncode, [line for line in lines if " in .venv" in line], closing

    return run


@pytest.mark.parametrize(
    ("default", "others", "second"),
    [
        ("3.11", ["3.12", "3.13"], "3.13"),
        ("3.12", ["3.11", "3.13"], "3.13"),
        ("3.11", ["3.12"], "3.12"),
        ("3.13", ["3.11", "3.12"], "3.11"),
    ],
)
def test_the_other_python_is_the_newest_or_else_the_oldest(ci, default, others, second):
    status, done, closing = ci(default, others)
    assert status == 0
    assert done == [
        f"{name} in .venv with the default"
        for name in ("test", "test", "optional", "network", "pytorch", "oldest", "deployment")
    ] + [f"{name} in .venv-{second} with python{second}" for name in ("quickstart", "test")]
    assert len(closing) == 10
    assert all("passed:" in line and "5 passed" in line for line in closing[1:])


def test_the_closing_lines_say_so_if_there_is_only_one_python(ci):
    status, done, closing = ci("3.11", [])
    assert (status, len(done)) == (0, 7)
    assert "ONE PYTHON ONLY" in closing[-1]


@pytest.mark.parametrize(
    "failing", ["test", "optional", "network", "pytorch", "oldest", "deployment", "quickstart"]
)
def test_a_part_that_fails_is_reported_and_fails_the_whole(ci, failing):
    status, done, closing = ci("3.11", ["3.13"], failing)
    assert (status, len(done)) == (1, 9), "the other parts run all the same"
    assert sum("FAILED" in line for line in closing) == (3 if failing == "test" else 1)
