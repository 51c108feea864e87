"""The tables of docs/performance.md, made from results.json with the standard library alone."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

__all__ = ["BEGIN", "END", "EVENHAND", "inserted", "rendered"]

BEGIN, END = "<!-- rivals: begin -->", "<!-- rivals: end -->"
EVENHAND = "Evenhand"


def fastest(result: dict[str, Any]) -> str:
    """The setting of a library whose median is the smallest."""
    walls = result["seconds"]
    return min(walls, key=lambda setting: statistics.median(walls[setting]))


def rounded(number: float) -> str:
    """Two digits that count."""
    return f"{number:,.0f}" if number >= 9.95 else f"{number:.1f}"


def duration(result: dict[str, Any], reference: dict[str, Any]) -> str:
    """Milliseconds, and how many times as long as Evenhand's: the median over the turns."""
    walls = result["seconds"][fastest(result)]
    cell = rounded(1e3 * statistics.median(walls))
    if result is reference or "error" in reference:
        return cell
    pairs = zip(walls, reference["seconds"][fastest(reference)], strict=True)
    return f"{cell} ({rounded(statistics.median(a / b for a, b in pairs))}x)"


def learned(result: dict[str, Any]) -> str:
    """The loss before and after training."""
    return f"{result['loss']['before']:.3f} → {result['loss']['after']:.3f}"


def table(header: list[str], rows: list[list[str]], align: str = "---:") -> list[str]:
    """The lines of a table, whose first column is text."""
    # A bar in a message would begin another column.
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (header, ["---", *[align] * (len(header) - 1)], *cells)]


def by_task(
    results: dict[str, Any],
    names: list[str],
    cell: Callable[[dict[str, Any], dict[str, Any]], str],
    failed: Callable[[str], str] = lambda message: "",
) -> list[str]:
    """A table with a row for each library and a column for each task."""
    tasks = results["tasks"]

    def entry(result: dict[str, Any], reference: dict[str, Any]) -> str:
        return failed(result["error"]) if "error" in result else cell(result, reference)

    rows = [[name, *(entry(task[name], task[EVENHAND]) for task in tasks.values())] for name in names]
    return table(["library", *tasks], rows)


def rendered(results: dict[str, Any]) -> str:
    """The text between the markers."""
    machine, names = results["machine"], list(results["versions"])
    times = by_task(results, names, duration, lambda message: f"failed: {message}")
    losses = by_task(results, names, lambda result, _: learned(result))
    settings = by_task(
        results, [name for name in names if name != EVENHAND], lambda result, _: fastest(result)
    )
    packages = [
        [name, ", ".join(f"{package} {version}" for package, version in versions.items())]
        for name, versions in results["versions"].items()
    ]
    turns = f"{results['repeats']} turn{'s' * (results['repeats'] > 1)}"
    parts = [
        "Milliseconds per round and, in brackets, the multiple of Evenhand's time:",
        "\n".join(times),
        f"Medians of {turns} on {results['date']}. Machine: {machine['cores']} cores, {machine['processor']}, "
        f"Python {machine['python']}.",
        f"Loss on 2,000 examples of all clients, before and after the first {results['rounds']} rounds:",
        "\n".join(losses),
        "The fastest setting of each library, which the times are of:",
        "\n".join(settings),
        "\n".join(table(["library", "versions"], packages, "---")),
    ]
    return "\n\n".join(parts)


def inserted(page: str, results: dict[str, Any]) -> str:
    """The page with new tables between its markers."""
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n{rendered(results)}\n\n{END}{after}"
