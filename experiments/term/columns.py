"""Saved tables side by side in Markdown, for the pages of the experiments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

__all__ = ["columns"]


def columns(parts: Mapping[str, tuple[Path, str]]) -> str:
    """One column per saved measure, mean (standard error) [the paper's mean]; one row per method of any.

    Args:
      parts: heading -> ``(JSON file, measure)``.
    """
    contents = {heading: json.loads(path.read_text(encoding="utf-8")) for heading, (path, _) in parts.items()}
    names = dict.fromkeys(name for content in contents.values() for name in content["methods"])
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
    digits = 3 if mean < 10 else 1 if mean < 100 else 0
    shown = f"{mean:.{digits}f} ({error:.{digits}f})"
    return shown if paper is None else f"{shown} [{paper:.{digits}f}]"
