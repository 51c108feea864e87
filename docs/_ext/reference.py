"""The reference: a page for each public name, made from its docstring before Sphinx reads the pages."""

from __future__ import annotations

import importlib
import inspect
import pprint
import re
from pathlib import Path
from types import ModuleType
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode

# Which packages belong together, in the order in which a reader meets them.
GROUPS = {
    "Train": ["algorithms", "local", "models", "data", "simulation", "sampling", "server_opt", "systems"],
    "Fair, robust, personal, private": [
        "risks",
        "aggregators",
        "attacks",
        "personalization",
        "privacy",
        "secure",
        "centralized",
        "sklearn",
    ],
    "Measure and compare": ["evaluation", "report", "studies", "watch", "theory", "communication"],
    "Deploy": ["network", "network.deployed", "network.files", "exchange", "wire"],
    "Extend": ["build", "types", "rounds", "tree", "streams", "expressions", "testing", "lowering", "errors"],
}
# Only their own names: what they share with the package above is there.
_SUBMODULES = {
    "models": ["losses"],
    "data": ["loaders", "partition"],
    "evaluation": ["metrics", "private_metrics"],
    "report": ["figures"],
}


def modules() -> dict[str, ModuleType]:
    """The public modules by their full names, in the order of the groups."""
    names = ["evenhand"]
    for group in GROUPS.values():
        for name in group:
            names += [
                f"evenhand.{name}",
                *(f"evenhand.{name}.{inner}" for inner in _SUBMODULES.get(name, [])),
            ]
    return {name: importlib.import_module(name) for name in names}


def first_paths(public: dict[str, ModuleType]) -> dict[int, str]:
    """The path under which each value is indexed, by identity: the first of those that export it."""
    paths: dict[int, str] = {}
    for module, contents in public.items():
        for name, value in entries(contents).items():
            paths.setdefault(id(value), f"{module}.{name}")
    return paths


def entries(module: ModuleType) -> dict[str, Any]:
    """What a module exports, but for modules."""
    names = sorted((name for name in module.__all__ if not name.startswith("__")), key=str.lower)
    exported = {name: getattr(module, name) for name in names}
    return {name: value for name, value in exported.items() if not isinstance(value, ModuleType)}


def first_sentence(value: Any) -> str:
    """What a name is, in one line."""
    text = inspect.getdoc(value) if callable(value) or inspect.isclass(value) else None
    paragraph = " ".join((text or "").split("\n\n")[0].split())
    return re.sub(r"(?<=[.:]) .*", "", paragraph) if len(paragraph) > 160 else paragraph


# --- pages ---------------------------------------------------------------------------------------------------------


def _directive(path: str, value: Any, first: str) -> str:
    """The directive that shows a value, whose index entry is on the page of its first path."""
    unlisted = "" if path == first else "   :no-index:\n"
    if inspect.isclass(value):
        members = "" if issubclass(value, BaseException) else "   :members:\n"
        return f".. autoclass:: {path}\n{members}{unlisted}"
    if callable(value):
        return f".. autofunction:: {path}\n{unlisted}"
    # The docstring of a dictionary is that of all dictionaries.
    return f".. autodata:: {path}\n   :no-value:\n{unlisted}"


def _title(text: str, line: str = "=") -> str:
    return f"{text}\n{line * len(text)}\n\n"


def _table(module: str, values: dict[str, Any]) -> str:
    rows = ""
    for name, value in values.items():
        rows += f"   * - :doc:`{name} <api/{module}.{name}>`\n     - {first_sentence(value)}\n"
    return ".. list-table::\n   :widths: 30 70\n   :class: names\n\n" + rows + "\n" if rows else ""


def _module_page(name: str, module: ModuleType) -> str:
    return (
        _title(name)
        + f".. module:: {name}\n\n{inspect.getdoc(module) or ''}\n\n"
        + _table(name, entries(module))
    )


def _name_page(module: str, name: str, value: Any, first: str) -> str:
    path = f"{module}.{name}"
    same = "" if first == path else f"The same as :doc:`{first} <{first}>`.\n\n"
    head = f":orphan:\n\n{_title(name)}:doc:`{module} </reference/{module}>`\n\n{same}"
    return f"{head}.. currentmodule:: {module}\n\n{_directive(path, value, first)}"


def _index(public: dict[str, ModuleType]) -> str:
    text = _title("Reference")
    text += "Every public name, with its equations, arguments, an example and its source.\n\n"
    groups = {"Start": ["evenhand"]} | {
        group: [name for name in public if name.removeprefix("evenhand.").split(".")[0] in names]
        for group, names in GROUPS.items()
    }
    for group, names in groups.items():
        text += _title(group, "-")
        text += (
            ".. toctree::\n   :maxdepth: 1\n   :hidden:\n\n"
            + "".join(f"   {name}\n" for name in names)
            + "\n"
        )
        for name in names:
            links = [f":doc:`{entry} <api/{name}.{entry}>`" for entry in entries(public[name])]
            text += f":doc:`{name} <{name}>`\n   " + " · ".join(links) + "\n\n"
    return text


def write_pages(folder: Path) -> None:
    """Writes the pages whose text has changed, so that Sphinx reads only those again, and removes old ones."""
    public, pages = modules(), dict[Path, str]()
    pages[folder / "index.rst"] = _index(public)
    first = first_paths(public)
    for name, module in public.items():
        pages[folder / f"{name}.rst"] = _module_page(name, module)
        for entry, value in entries(module).items():
            pages[folder / "api" / f"{name}.{entry}.rst"] = _name_page(name, entry, value, first[id(value)])
    for old in folder.rglob("*.rst"):
        if old not in pages:
            old.unlink()
    for path, text in pages.items():
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def _value(path: str) -> Any:
    """What a path such as ``evenhand.types.Sum.weigh`` leads to; None, if it leads nowhere."""
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for part in parts[count:]:
            # A field that only instances have leads to its class.
            value = getattr(value, part, value if part in getattr(value, "__annotations__", {}) else None)
        return value
    return None


def _link(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, text: nodes.Node
) -> nodes.Node | None:
    """Links a name under another of its paths; one that is there, but has no page, stays as it is."""
    target = node.get("reftarget", "")
    if node.get("refdomain") != "py":
        return None
    paths = [target, f"{node.get('py:module')}.{target}"] if not target.startswith("evenhand") else [target]
    for value in (value for path in paths if (value := _value(path)) is not None):
        if path := env.config.evenhand_paths.get(id(value)):
            return make_refnode(app.builder, node["refdoc"], f"reference/api/{path}", path, text, path)
        return text if target.startswith("evenhand") else None
    return None


# --- docstrings ----------------------------------------------------------------------------------------------------

_ENTRY = re.compile(r"^ {2}(\*{0,2}\w+(?:, \*{0,2}\w+)*): (.*)$")
_AS_IN = re.compile(
    r"^as (?:in|for|of) (?:``(\w+)``|:(?:func|class|meth|attr):`~?([\w.]+)`)[,;.]?\s*(.*)$", re.S
)


def arguments(doc: str) -> dict[str, str]:
    """The descriptions in the section ``Args`` of a docstring, by names as written, such as ``"a, b"``."""
    lines, inside, described, key = doc.splitlines(), False, dict[str, str](), ""
    for line in lines:
        if line.strip() in ("Args:", "Attributes:"):
            inside = True
        elif inside and line.strip() and not line.startswith(" "):
            inside = False
        elif inside and (match := _ENTRY.match(line)):
            key = match[1]
            described[key] = match[2]
        elif inside and key and line.startswith("    "):
            described[key] += "\n" + line.strip()
    return described


def _target(module: ModuleType, name: str) -> Any:
    """What ``fedavg`` or ``evenhand.algorithms.fedavg`` in a docstring of a module refers to."""
    if name.startswith("evenhand."):
        return _value(name)
    spaces = [
        module,
        *(importlib.import_module(f"evenhand.{each}") for each in ("algorithms", "personalization")),
    ]
    return next((getattr(space, name) for space in spaces if hasattr(space, name)), None)


def resolved(value: Any, name: str, text: str, depth: int = 0) -> str:
    """The description of an argument, in which "as in ``fedavg``" is replaced by what stands there."""
    match = _AS_IN.match(text)
    module = inspect.getmodule(value)
    if match is None or module is None or depth > 4:
        return text
    other = _target(module, match[1] or match[2])
    for names, described in arguments(inspect.getdoc(other) or "").items():
        if name in names.split(", "):
            text = resolved(other, name, described, depth + 1)
            rest = match[3]
            return f"{text.rstrip()}  {rest[:1].upper()}{rest[1:]}" if rest else text
    return text


def _resolve(app: Sphinx, kind: str, path: str, value: Any, options: Any, lines: list[str]) -> None:
    """Replaces "as in ``fedavg``" in the descriptions of arguments, one entry for each of the names."""
    doc = "\n".join(lines)
    for names, text in arguments(doc).items():
        if not _AS_IN.match(text):
            continue
        described: dict[str, list[str]] = {}
        for name in names.split(", "):
            described.setdefault(resolved(value, name, text), []).append(name)
        entry = f"  {names}: " + text.replace("\n", "\n    ")
        new = "\n".join(
            f"  {', '.join(some)}: " + full.replace("\n", "\n    ") for full, some in described.items()
        )
        # Lines of the docstring are indented by more than ours where they continue.
        pattern = r"\n\s+".join(re.escape(line.strip()) for line in entry.splitlines())
        doc = re.sub(r"^  " + pattern, lambda match: new, doc, count=1, flags=re.M)  # noqa: B023
    lines[:] = doc.splitlines()


def _no_words(app: Sphinx, kind: str, path: str, value: Any, options: Any, lines: list[str]) -> None:
    """A constant without words of its own would get those of its type, which are about all dictionaries."""
    if kind == "data" and "\n".join(lines).strip() == (inspect.getdoc(type(value)) or "").strip():
        lines[:] = [
            "::",
            "",
            *(f"   {line}" for line in pprint.pformat(value, width=80).splitlines()[:20]),
            "",
        ]


def _skip(app: Sphinx, kind: str, name: str, value: Any, skip: bool, options: Any) -> bool | None:
    """Fields of a NamedTuple stand among its arguments; their descriptors would say it again."""
    plain = type(value).__name__ == "_tuplegetter" or name in ("count", "index")
    foreign = (getattr(value, "__module__", None) or "evenhand").split(".")[0] != "evenhand"
    return True if plain or foreign else None


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_config_value("evenhand_paths", first_paths(modules()), "")
    app.connect("builder-inited", lambda app: write_pages(Path(app.srcdir) / "reference"))
    app.connect("missing-reference", _link)
    app.connect("autodoc-process-docstring", _resolve, priority=400)  # before napoleon
    app.connect("autodoc-process-docstring", _no_words, priority=400)
    app.connect("autodoc-skip-member", _skip)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
