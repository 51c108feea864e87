"""Saved tables side by side in Markdown, for the pages of the experiments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

__all__ = ["columns"]


def columns(parts: Mapping[str, tuple[Path, str]]) -> str:
    """One column per saved measure, mean (standard error) [the paper's mean]; one row per method.

    Args:
      parts: heading -> ``(JSON file, measure)``.
    """
    contents = {heading: json.loads(path.read_text(encoding="utf-8")) for heading, (path, _) in parts.items()}
    names = list(next(iter(contents.values()))["methods"])
    rows = [f"| | {' | '.join(parts)} |", f"|---|{'---:|' * len(parts)}"]
    for name in names:
        cells = [_cell(contents[heading], name, measure) for heading, (_, measure) in parts.items()]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _cell(content: Mapping[str, Mapping], name: str, measure: str) -> str:
    if name not in content["methods"]:
        return ""
    mean, error = (content["methods"][name][part][measure] for part in ("mean", "error"))
    paper = content["paper"].get(name, {}).get(measure)
    return f"{_short(mean)} ({_short(error)})" + ("" if paper is None else f" [{_short(paper)}]")


def _short(number: float) -> str:
    return f"{number:.3f}" if number < 100 else f"{number:.0f}"
