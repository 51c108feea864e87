"""Prints the CPU time of starting Evenhand, beside that of importing JAX: python benchmarks/imports.py [turns].

Each row is a process of its own; the rows take turns, so that what else the machine does falls on all of them. CPU
time counts all cores together. A first turn, which is not counted, compiles Python's files, as pip does when it
installs a package.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile

from rich.console import Console
from rich.table import Table

RUN = "import evenhand as eh; eh.data; eh.models; eh.local; eh.algorithms; eh.simulate"
COMMAND = "import sys; from evenhand_command import main; sys.exit(main())"
ROWS = {
    "import jax": ["import jax"],
    "import evenhand": ["import evenhand"],
    "and the names of a first run": [RUN],
    "and all public names": ["from evenhand import *"],
    "evenhand --version": [COMMAND, "--version"],
    "evenhand --help": [COMMAND, "--help"],
    "evenhand run --help": [COMMAND, "run", "--help"],
    "evenhand list": [COMMAND, "list"],
}


def seconds(words: list[str], environment: dict[str, str]) -> float:
    """The CPU time of a process that runs this code."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", *words], env=environment, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(turns: int) -> None:
    with tempfile.TemporaryDirectory() as compiled:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment |= {"PYTHONPYCACHEPREFIX": compiled}
        times: dict[str, list[float]] = {name: [] for name in ROWS}
        for turn in range(turns + 1):
            for name, words in ROWS.items():
                spent = seconds(words, environment)
                if turn > 0:
                    times[name].append(spent)
    table = Table("", "CPU seconds (median)", "least", "beside JAX")
    jax = statistics.median(times["import jax"])
    for name, spent in times.items():
        median = statistics.median(spent)
        table.add_row(name, f"{median:.2f}", f"{min(spent):.2f}", f"{median / jax:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
