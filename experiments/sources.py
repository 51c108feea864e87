"""The page on the five sources, docs/sources.md, made from docs/sources.toml: ``python -m experiments.sources``.

The file has each source's algorithms, tables and figures; :func:`problems` says what is wrong with the file.
"""

from __future__ import annotations

import importlib
import inspect
import os
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from evenhand.records import write_text

__all__ = ["KINDS", "VERDICTS", "load", "named", "numbers", "page", "problems"]

Table: TypeAlias = Mapping[str, Any]

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
KINDS = ("algorithm", "table", "figure")
VERDICTS = ("holds", "in part", "does not", "not run")
_ROMAN = ("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X")
_OWN = ("title", "code", "runs", "tests", "verdict", "reason")
_HEAD = "| Number | Content | Code | Experiment or test | Verdict | Reason |\n|---|---|---|---|---|---|\n"


def load(path: Path = DOCS / "sources.toml") -> dict[str, Any]:
    """The file, in which entries that stand for another one (``same_as``) have the cells of that one."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    entries = {(part["source"], entry["kind"], entry["number"]): entry for part, entry in _entries(data)}
    for _, entry in _entries(data):
        if "same_as" in entry:
            twin = entries.get(tuple(entry["same_as"]), {})
            entry.update({name: twin[name] for name in _OWN if name in twin})
    return data


def named(name: str) -> Any:
    """The value with a dotted name, such as ``"evenhand.algorithms.fedprox"``."""
    module, _, last = name.rpartition(".")
    return vars(importlib.import_module(module))[last] if module else importlib.import_module(last)


def numbers(span: str) -> list[str]:
    """The numbers of a span: ``"3 to 5"``, ``"4.1 to 4.12"`` or ``"I to VII"``; of ``""``, none."""
    if not span:
        return []
    first, last = span.split(" to ")
    if first in _ROMAN:
        return list(_ROMAN[_ROMAN.index(first) : _ROMAN.index(last) + 1])
    chapter, dot, start = first.rpartition(".")
    end = last.rpartition(".")[2]
    return [f"{chapter}{dot}{number}" for number in range(int(start), int(end) + 1)]


def problems(data: Table) -> list[str]:
    """What is wrong with the file, a sentence each."""
    sentences = []
    for source in data["sources"]:
        parts = [part for part in data["parts"] if part["source"] == source["key"]]
        for kind in KINDS:
            spans = [number for part in parts for number in numbers(part[f"{kind}s"])]
            if len(spans) != source[f"{kind}s"]:
                sentences.append(f"{source['key']}: {len(spans)} {kind}s in spans, not {source[f'{kind}s']}")
            sentences += [f"{source['key']}: {gap}" for gap in _gaps(kind, spans)]
    for part in data["parts"]:
        for kind in KINDS:
            listed = [entry["number"] for entry in part["entries"] if entry["kind"] == kind]
            if listed != numbers(part[f"{kind}s"]):
                sentences.append(f"{part['title']}: {kind}s {listed}, not {part[f'{kind}s']!r}")
    cited = {path for _, entry in _entries(data) for path in entry.get("runs", [])} | set(data["others"])
    saved = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("experiments/*/results/**/*.json")}
    sentences += [f"{path} is in no entry, and not among the others" for path in sorted(saved - cited)]
    sentences += [f"{path} does not exist" for path in data["others"] if path not in saved]
    for part, entry in _entries(data):
        sentences += [
            f"{part['title']}, {entry['kind']} {entry['number']}: {wrong}" for wrong in _wrong(entry)
        ]
    return sentences


def page(data: Table) -> str:
    """The page in Markdown."""
    return "\n".join(
        [
            "<!-- Made from sources.toml by python -m experiments.sources. -->",
            f"# {data['title']}\n\n{data['intro'].strip()}\n",
            _summary(data),
            *(_section(data, source) for source in data["sources"]),
            data["end"].strip() + "\n",
        ]
    )


def main() -> None:
    """Writes the page, if nothing is wrong with the file."""
    data = load()
    if wrong := problems(data):
        raise SystemExit("\n".join(wrong))
    write_text(DOCS / "sources.md", page(data))


def _entries(data: Table) -> Iterator[tuple[Table, dict[str, Any]]]:
    """Each entry with its part."""
    return ((part, entry) for part in data["parts"] for entry in part["entries"])


def _gaps(kind: str, spans: list[str]) -> list[str]:
    """Numbers that do not follow the one before; the first of a chapter is 1."""
    sentences, before = [], {}
    for number in spans:
        chapter, _, last = number.rpartition(".")
        position = _ROMAN.index(last) + 1 if last in _ROMAN else int(last)
        if position != before.get(chapter, 0) + 1:
            sentences.append(f"{kind} {number} does not follow the one before")
        before[chapter] = position
    return sentences


def _wrong(entry: Table) -> list[str]:
    """What is wrong with an entry."""
    if missing := [name for name in _OWN if name not in entry]:
        return [f"has no {', '.join(missing)}"]
    sentences = [f"{name} is empty" for name in ("title", "code", "verdict", "reason") if not entry[name]]
    if entry["verdict"] not in VERDICTS:
        sentences.append(f"verdict {entry['verdict']!r}")
    if entry["verdict"] == "not run" and entry["runs"]:
        sentences.append("not run, but has results")
    if entry["verdict"] != "not run" and not entry["runs"] + entry["tests"]:
        sentences.append("has neither results nor a test")
    for name in entry["code"]:
        try:
            if not name.startswith("evenhand."):
                sentences.append(f"{name} is not in the library")
            named(name)
        except (ImportError, KeyError):
            sentences.append(f"{name} does not exist")
    places = [("runs", "experiments"), ("tests", "tests")]
    paths = [(path, folder) for key, folder in places for path in entry[key]]
    sentences += [f"{path} is not in {folder}/" for path, folder in paths if Path(path).parts[0] != folder]
    sentences += [f"{path} does not exist" for path, _ in paths if not (ROOT / path).is_file()]
    return sentences


def _counts(parts: list[Table]) -> str:
    """Cells with the numbers of algorithms, tables and figures, and of each verdict."""
    entries = [entry for part in parts for entry in part["entries"]]
    kinds = Counter(entry["kind"] for entry in entries)
    verdicts = Counter(entry["verdict"] for entry in entries)
    return " | ".join(str(n) for n in (*map(kinds.__getitem__, KINDS), *map(verdicts.__getitem__, VERDICTS)))


def _summary(data: Table) -> str:
    """How many entries each part of each source has, and with which verdicts."""
    lines = [
        "| Source | Algorithms | Tables | Figures | holds | in part | does not | not run |",
        "|---|" + "---:|" * 7,
    ]
    for source in data["sources"]:
        parts = [part for part in data["parts"] if part["source"] == source["key"]]
        lines.append(f"| [{source['title']}](#{_anchor(source['title'])}) | {_counts(parts)} |")
        if len(parts) > 1:
            lines += [
                f"| – [{part['title']}](#{_anchor(part['title'])}) | {_counts([part])} |" for part in parts
            ]
    return "\n".join([*lines, f"| **Together** | {_counts(data['parts'])} |", ""])


def _section(data: Table, source: Table) -> str:
    """A source: what it is, its counts, and a table for each part."""
    parts = [part for part in data["parts"] if part["source"] == source["key"]]
    count = ", ".join(f"{source[f'{kind}s']} {kind}{'s' * (source[f'{kind}s'] != 1)}" for kind in KINDS)
    lines = [f"## {source['title']}\n", f"{source['cite']}\n", f"**{count}.** {source['note'].strip()}\n"]
    for part in parts:
        if len(parts) > 1:
            lines.append(f"### {part['title']}\n")
        if part.get("note"):
            lines.append(part["note"].strip() + "\n")
        lines.append(_HEAD + "\n".join(map(_row, part["entries"])) + "\n")
    return "\n".join(lines)


def _row(entry: Table) -> str:
    cells = [
        f"{entry['kind'].capitalize()} {entry['number']}",
        entry["title"],
        ", ".join(map(_code, entry["code"])),
        ", ".join(f"[{_short(path)}](../{path})" for path in [*entry["runs"], *entry["tests"]]) or "none",
        f"**{entry['verdict']}**" if entry["verdict"] == "does not" else entry["verdict"],
        entry["reason"],
    ]
    return "| " + " | ".join(cells) + " |"


def _code(name: str) -> str:
    """A name as users write it, with a link to its file."""
    value = inspect.unwrap(named(name)) if callable(named(name)) else named(name)
    path = Path(inspect.getfile(value)).resolve()
    return f"[`{name.replace('evenhand.', 'eh.', 1)}`]({Path(os.path.relpath(path, DOCS)).as_posix()})"


def _short(path: str) -> str:
    """A path without the folders that all have."""
    if path.startswith("tests/"):
        return Path(path).name
    return path.removeprefix("experiments/").replace("results/", "")


def _anchor(title: str) -> str:
    """The name that a heading has in links on GitHub."""
    return "".join(letter for letter in title.lower().replace(" ", "-") if letter.isalnum() or letter in "-_")


if __name__ == "__main__":
    main()
