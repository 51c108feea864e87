"""The structure of the source: what each package may import, how long files and functions may be, what is exported.

Each rule is a function from a module's source to its violations, and is tested on a source that breaks it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import evenhand

ROOT = Path(evenhand.__file__).parent
FILES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))

# What each package may import, bottom up; each may also import its own modules.
_BASE = {"_platform", "_paths", "_low_rank", "errors", "text", "types", "tree", "_jaxpr", "streams"}
_WORK = _BASE | {"local", "lowering", "sampling", "systems", "server_opt"}
_METHODS = _WORK | {"risks", "secure", "aggregators", "algorithms"}
_MEASURED = _METHODS | {
    "attacks",
    "centralized",
    "communication",
    "data",
    "exchange",
    "models",
    "evaluation",
    "devices",
    "rounds",
}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "text": set(),
    "_platform": {"errors"},
    "_version": set(),
    "types": {"text"},
    "tree": {"types"},
    "_jaxpr": {"types"},
    "_paths": {"errors", "types"},
    "_low_rank": {"_paths", "errors", "types"},
    "streams": {"types"},
    "devices": set(),
    "rounds": _WORK | {"aggregators", "risks", "devices"},
    "communication": _BASE | {"rounds"},
    "exchange": _BASE | {"rounds"},
    "lowering": {"_jaxpr"},
    "local": _BASE | {"lowering"},
    "sampling": _BASE,
    "systems": _BASE,
    "server_opt": _BASE,
    "notebook": {"text"},
    "live": {"notebook"},
    "records": {"_version", "errors"},
    "memory": set(),
    "_figure": set(),
    "data": {"_figure", "errors", "memory", "notebook", "records", "text", "types"},
    "models": {"_jaxpr", "_low_rank", "_paths", "_platform", "errors", "text", "types"},
    "risks": {"errors", "types"},
    "secure": {"errors", "types"},
    "theory": {"errors"},
    "aggregators": _WORK | {"risks", "secure"},
    "attacks": _BASE | {"aggregators"},
    "centralized": _WORK | {"aggregators", "evaluation", "live", "models", "report", "risks"},
    "algorithms": _WORK | {"risks", "aggregators"},
    "personalization": _WORK | {"aggregators", "algorithms", "rounds"},  # MOCHA runs its own rounds
    "privacy": _WORK | {"aggregators", "algorithms", "risks", "secure"},
    "build": {"aggregators", "algorithms", "privacy"},
    "evaluation": _METHODS | {"data", "devices", "models"},
    "report": {"_figure", "errors", "evaluation", "notebook", "records", "text", "_version"},
    "watch": {"errors"},
    "simulation": _MEASURED | {"_version", "live", "memory", "privacy", "records", "report", "watch"},
    "sklearn": {"errors"},
    "studies": {
        "_platform",
        "_version",
        "data",
        "errors",
        "evaluation",
        "live",
        "memory",
        "notebook",
        "records",
        "report",
        "simulation",
        "systems",
        "text",
        "types",
        "watch",
    },
    "wire": {"errors", "secure", "types"},
    "network": _MEASURED | {"_version", "privacy", "records", "report", "simulation", "wire"},
    "testing": _MEASURED | {"network", "report", "simulation"},
    "expressions": _METHODS | {"attacks", "centralized", "models", "personalization", "privacy"},
    "cli": _MEASURED
    | {
        *(
            "expressions",
            "memory",
            "network",
            "personalization",
            "privacy",
            "records",
            "report",
            "simulation",
            "studies",
            "testing",
            "theory",
            "watch",
        ),
        "_version",
    },
}
METHODS = ("algorithms/", "personalization/")
NUMPY_RANDOM = {"BitGenerator", "Generator", "PCG64", "Philox", "SeedSequence", "default_rng"}
Rule = Callable[[str, str], list[str]]


# --- the rules: (path below src/evenhand, source) -> violations --------------------------------------------------


def imports_point_down(path: str, source: str) -> list[str]:
    owner = _package(path)
    if owner in ("__init__", "__main__"):
        return []
    if owner not in MAY_IMPORT:
        return [f"{owner} has no place in the order of imports"]
    allowed = MAY_IMPORT[owner] | {owner}
    return [f"{owner} imports {name}" for name in _imported(path, source) if name not in allowed]


def private_names_stay_private(path: str, source: str) -> list[str]:
    """A name that begins with ``_`` is for its own package; those directly under ``evenhand`` are for every package."""
    owner, found = _package(path), list[str]()
    for node in _nodes(source):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("evenhand."):
            package, *inner = (node.module or "").split(".")[1:]
            names = [*inner, *(alias.name for alias in node.names)]
            if package != owner and not package.startswith("_"):
                found += [
                    f"line {node.lineno}: {name} of {package}" for name in names if name.startswith("_")
                ]
    return found


def files_are_short(path: str, source: str) -> list[str]:
    # A method's file also holds its documentation; the ``__init__`` of the package only lists names.
    method = path.startswith(METHODS) and not path.endswith("__init__.py")
    lines, most = len(source.splitlines()), 250 if method else 700
    return [f"{lines} lines, more than {most}"] if lines > most else []


def functions_are_short(path: str, source: str) -> list[str]:
    found = []
    for node in _functions(source):
        lines = _lines(node) - sum(_lines(doc) for doc in _docstrings(node))
        if lines > 60:
            found.append(f"{node.name} has {lines} lines")
    return found


def no_keyword_pass_through(path: str, source: str) -> list[str]:
    nodes = _nodes(source)
    # JAX calls the rule of a primitive with the parameters of each equation by keyword.
    if path == "_platform.py":
        return []
    return [
        f"line {node.lineno}: **{node.args.kwarg.arg}"
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and node.args.kwarg
    ]


def no_computed_attribute_names(path: str, source: str) -> list[str]:
    return [
        f"line {node.lineno}: {name}() of a computed name"
        for node, name in _calls(source)
        if name in {"getattr", "setattr", "delattr"}
        and not (len(node.args) > 1 and isinstance(node.args[1], ast.Constant))
    ]


def no_global_randomness(path: str, source: str) -> list[str]:
    found = []
    for node in _nodes(source):
        match node:
            case ast.Attribute(
                attr=name, value=ast.Attribute(attr="random", value=ast.Name(id="np" | "numpy"))
            ) if name not in NUMPY_RANDOM:
                found.append(f"line {node.lineno}: np.random.{name}")
            case ast.ImportFrom(module="numpy.random", names=names):
                bad = [alias.name for alias in names if alias.name not in NUMPY_RANDOM]
                found += [f"line {node.lineno}: numpy.random.{name}" for name in bad]
            case ast.Import(names=names):
                found += [f"line {node.lineno}: random" for alias in names if alias.name == "random"]
            case ast.ImportFrom(module="random"):
                found.append(f"line {node.lineno}: random")
            case _:
                pass
    return found


def nothing_left_undone(path: str, source: str) -> list[str]:
    words = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
    return [
        f"line {number}: {match[0]}"
        for number, line in enumerate(source.splitlines(), start=1)
        if (match := words.search(line))
    ]


def methods_know_no_engine(path: str, source: str) -> list[str]:
    if not path.startswith(METHODS):
        return []
    forbidden = {"simulation", "data", "cli", "evaluation", "testing", "models", "deploy"}
    return [f"imports {name}" for name in _imported(path, source) if name in forbidden]


def methods_inherit_nothing(path: str, source: str) -> list[str]:
    allowed = {"NamedTuple", "Protocol", "IntEnum", "Enum"}
    classes = [node for node in _nodes(source) if isinstance(node, ast.ClassDef)]
    return [
        f"{node.name} inherits {ast.unparse(base)}"
        for node in classes
        for base in node.bases
        if path.startswith((*METHODS, "aggregators/")) and ast.unparse(base) not in allowed
    ]


# Words that say nothing of what a value is: a reader of ``found`` has to look for what was found.
FUNCTION_WORDS = {"each", "found", "how", "known", "lies", "of", "one", "slow", "told", "what", "who"}
# Arguments that users write already.
KEPT_WORDS = {("simulation/results.py", "who")}


def names_are_nouns(path: str, source: str) -> list[str]:
    """Assigned names and arguments; names that a comprehension or a pattern binds are assigned, too."""
    names = []
    for node in _nodes(source):
        match node:
            case ast.Name(id=name, ctx=ast.Store(), lineno=line) | ast.arg(arg=name, lineno=line):
                names.append((line, name))
            case ast.MatchAs(name=str(name), lineno=line) | ast.MatchStar(name=str(name), lineno=line):
                names.append((line, name))
            case _:
                pass
    return [
        f"line {line}: {name} is no noun"
        for line, name in names
        if name.lstrip("_") in FUNCTION_WORDS and (path, name) not in KEPT_WORDS
    ]


def long_values_are_given_by_keyword(path: str, source: str) -> list[str]:
    """Of six values or more at most the first has no name, in a class of the package with more than five fields."""
    found = []
    for node in _nodes(source):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=values, keywords=named):
                unpacked = any(isinstance(value, ast.Starred) for value in values) or any(
                    keyword.arg is None for keyword in named
                )
                many = len(values) > 1 and len(values) + len(named) > 5
                if many and not unpacked and name in _long_classes():
                    found.append(f"line {node.lineno}: {name} of {len(values)} values without a name")
            case _:
                pass
    return found


RULES: list[Rule] = [
    imports_point_down,
    private_names_stay_private,
    files_are_short,
    functions_are_short,
    no_keyword_pass_through,
    no_computed_attribute_names,
    no_global_randomness,
    nothing_left_undone,
    methods_know_no_engine,
    methods_inherit_nothing,
    names_are_nouns,
    long_values_are_given_by_keyword,
]


# --- reading source ----------------------------------------------------------------------------------------------


@cache  # each file is read by all rules
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


@cache
def _nodes(source: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(_parsed(source)))


@pytest.fixture(autouse=True, scope="module")
def _forgotten() -> Iterator[None]:
    """The other tests of this process have no use for so many nodes."""
    yield
    _nodes.cache_clear()
    _parsed.cache_clear()


@cache
def _long_classes() -> frozenset[str]:
    """The named tuples and dataclasses of the package with more than five fields."""
    sources = ((ROOT / path).read_text("utf-8") for path in FILES)
    classes = [node for source in sources for node in _nodes(source) if isinstance(node, ast.ClassDef)]
    return frozenset(
        node.name
        for node in classes
        if any(
            re.match(r"NamedTuple\b|dataclass\b", ast.unparse(x)) for x in (*node.bases, *node.decorator_list)
        )
        and sum(isinstance(field, ast.AnnAssign) for field in node.body) > 5
    )


def _package(path: str) -> str:
    return path.split("/")[0].removesuffix(".py")


def _imported(path: str, source: str) -> Iterator[str]:
    """The first name below ``evenhand`` of each import anywhere in the file."""
    for node in _nodes(source):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "evenhand":
                    yield [*alias.name.split("."), "(everything)"][1]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                folder = ["evenhand", *path.split("/")[:-1]]
                module = [*folder[: len(folder) - node.level + 1], *(node.module or "").split(".")]
            else:
                module = (node.module or "").split(".")
            module = [part for part in module if part]
            if module[:1] == ["evenhand"]:
                yield from module[1:2] or [alias.name for alias in node.names]


def _functions(source: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    nodes = _nodes(source)
    return [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def _docstrings(function: ast.AST) -> Iterator[ast.AST]:
    """The docstrings of a function and of what is defined inside it."""
    for node in ast.walk(function):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and ast.get_docstring(
            node
        ):
            yield node.body[0]


def _lines(node: Any) -> int:
    return node.end_lineno - node.lineno + 1


def _calls(source: str) -> Iterator[tuple[ast.Call, str]]:
    for node in _nodes(source):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node, node.func.id


# --- the source obeys them ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_source_obeys_the_rule(rule: Rule) -> None:
    found = [f"{path}: {what}" for path in FILES for what in rule(path, (ROOT / path).read_text("utf-8"))]
    assert not found, "\n".join(found)


def test_all_of_the_source_is_read() -> None:
    assert len(FILES) > 40
    assert {"types/__init__.py", "algorithms/fedavg.py", "simulation/engine.py", "cli/__main__.py"} <= set(
        FILES
    )
    packages = {_package(path) for path in FILES} - {"__init__", "__main__"}
    assert packages == set(MAY_IMPORT), "MAY_IMPORT must list exactly the packages that exist"


def test_the_map_lists_the_packages_in_the_order_of_their_imports() -> None:
    page = ROOT.parent.parent / "docs" / "architecture.md"
    table = page.read_text("utf-8").split("| package |")[1].split("\n\n")[0]
    listed = [name for row in table.split("\n")[2:] for name in re.findall(r"`(\w+)/?`", row.split("|")[1])]
    assert sorted(listed) == sorted(MAY_IMPORT), "docs/architecture.md lists each package once"
    place = {name: position for position, name in enumerate(listed)}
    for package, others in MAY_IMPORT.items():
        assert not [name for name in others if place[name] > place[package]], package


def test_the_order_of_imports_has_no_cycle() -> None:
    rank: dict[str, int] = {}
    while len(rank) < len(MAY_IMPORT):
        ready = {name for name, below in MAY_IMPORT.items() if name not in rank and below <= set(rank)}
        assert ready, "a cycle"
        rank |= dict.fromkeys(ready, len(rank))
    assert (
        rank["cli"]
        > rank["simulation"]
        > rank["algorithms"]
        > rank["aggregators"]
        > rank["local"]
        > rank["types"]
    )


# --- rooms: packages whose files are few, large and read from the bottom up ---------------------------------------

SPLINTER = 120
"""Lines below which a module needs a second user, or a comment at its top that says why it is alone."""
LEVELS = 5
"""The most levels of imports inside a room."""
METHOD_ROOMS = ("aggregators", "algorithms", "attacks", "centralized", "personalization", "privacy", "risks")
"""Rooms whose public modules are methods, one a file, however short."""
EXPLAINED_ROOMS = ("simulation", "studies", "rounds")
"""Rooms whose code is the hardest to follow: at least two comments for 100 lines of it."""

Sources = dict[str, str]


def _users(sources: Sources) -> dict[str, set[str]]:
    """Module -> the modules that import it or a name of it, all as paths."""
    by_name = {_dotted(path): path for path in sources}
    users: dict[str, set[str]] = {path: set() for path in sources}
    for path, source in sources.items():
        for node in _nodes(source):
            names = list[str]()
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                inner = [f"{node.module}.{alias.name}" for alias in node.names]
                names = [name if name in by_name else node.module for name in inner]
            for name in names:
                if name in by_name and by_name[name] != path:
                    users[by_name[name]].add(path)
    return users


def _dotted(path: str) -> str:
    return ".".join(["evenhand", *path.removesuffix(".py").removesuffix("__init__").rstrip("/").split("/")])


def splinters(sources: Sources) -> list[str]:
    """Short modules of a room with one user, which they should join."""
    users, violations = _users(sources), []
    for path, source in sources.items():
        room, *inner = path.split("/")
        is_method = room in METHOD_ROOMS and not inner[-1:][0].startswith("_") if inner else False
        if not inner or inner[-1] in ("__init__.py", "__main__.py") or is_method:
            continue
        lines = source.splitlines()
        if len(lines) < SPLINTER and len(users[path]) < 2 and not lines[0].startswith("#"):
            violations.append(f"{path} has {len(lines)} lines and one user")
    return violations


def depths(sources: Sources) -> dict[str, int]:
    """Room -> levels of imports inside it; a circle counts as 99."""
    users = _users(sources)
    below: dict[str, set[str]] = {path: set() for path in sources}
    for path, importers in users.items():
        for importer in importers:
            if "/" in path and _package(importer) == _package(path) and not path.endswith("__init__.py"):
                below[importer].add(path)
    levels: dict[str, int] = {}

    def level(path: str, above: tuple[str, ...]) -> int:
        if path in above:
            return 99
        if path not in levels:
            levels[path] = 1 + max([level(inner, (*above, path)) for inner in below[path]], default=0)
        return levels[path]

    rooms: dict[str, int] = {}
    for path in sources:
        if "/" in path and not path.endswith("__init__.py"):
            rooms[_package(path)] = max(rooms.get(_package(path), 0), level(path, ()))
    return rooms


def comments_and_code(source: str) -> tuple[int, int]:
    """Lines that are comments, and lines of code: no docstrings, blank lines or comments."""
    documented = {
        line
        for node in _nodes(source)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = [
        line.strip() for number, line in enumerate(source.splitlines(), start=1) if number not in documented
    ]
    comments = sum(line.startswith("#") and not line.startswith("# ---") for line in lines)
    return comments, sum(bool(line) and not line.startswith("#") for line in lines)


def repeated_classes(sources: Sources) -> list[str]:
    """Public classes of one name in different packages."""
    homes: dict[str, set[str]] = {}
    for path, source in sources.items():
        for node in _parsed(source).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, set()).add(_package(path))
    return [f"{name}: {sorted(rooms)}" for name, rooms in homes.items() if len(rooms) > 1]


SOURCES = {path: (ROOT / path).read_text("utf-8") for path in FILES}


def test_rooms_have_few_files_and_no_splinters() -> None:
    # 212 with the federated methods; each method of central training that came since is one more, and so are three for
    # what a notebook shows and what a dry run estimates, ten for models and data of other libraries, three for low-rank
    # factors, one for texts in tables, and one for studies on several machines.
    assert len(FILES) <= 302, f"{len(FILES)} files"
    assert not splinters(SOURCES), "\n".join(splinters(SOURCES))


def test_rooms_are_read_from_the_bottom_up() -> None:
    deep = {room: levels for room, levels in depths(SOURCES).items() if levels > LEVELS}
    assert not deep, f"levels of imports inside a room (99: a circle): {deep}"


@pytest.mark.parametrize("room", EXPLAINED_ROOMS)
def test_what_is_not_obvious_has_a_comment(room: str) -> None:
    counts = [comments_and_code(source) for path, source in SOURCES.items() if _package(path) == room]
    comments, code = map(sum, zip(*counts, strict=True))
    assert comments >= 0.02 * code, f"{comments} comments in {code} lines of code"


def test_a_class_has_a_name_of_its_own() -> None:
    assert not repeated_classes(SOURCES), "\n".join(repeated_classes(SOURCES))


def test_imports_are_a_small_part_of_the_code() -> None:
    imports = code = 0
    for source in SOURCES.values():
        code += comments_and_code(source)[1]
        nodes = [node for node in _nodes(source) if isinstance(node, ast.Import | ast.ImportFrom)]
        imports += sum(_lines(node) for node in nodes)
    assert imports <= 0.11 * code, f"{imports} lines of imports in {code} lines of code"


def test_the_rules_on_rooms_catch() -> None:
    assert splinters({"local/_a.py": "x = 1", "local/_b.py": "from evenhand.local._a import x"})
    assert splinters({"local/_a.py": "x = 1", "local/_b.py": "from evenhand.local import _a"})
    assert depths(
        {"local/_a.py": "from evenhand.local import _b", "local/_b.py": "from evenhand.local import _a"}
    ) == {"local": 101}
    chain = {f"local/_{k}.py": f"from evenhand.local._{k + 1} import x" for k in range(5)} | {
        "local/_5.py": ""
    }
    assert depths(chain) == {"local": 6}
    assert comments_and_code('"""Text.\n# no comment\n"""\n# why\n\nx = 1  # beside\n# --- part ---\n') == (
        1,
        1,
    )
    assert repeated_classes({"local/_a.py": "class Plan: pass", "data/_a.py": "class Plan: pass"})


def test_the_rules_on_rooms_allow() -> None:
    two = {f"local/_{name}.py": "from evenhand.local._a import x" for name in "bc"}
    long = "x = 1\n" * SPLINTER
    assert not splinters(
        {"local/_a.py": "x = 1", **{path: source + "\n" * SPLINTER for path, source in two.items()}}
    )
    assert not splinters({"local/_a.py": long}) and not splinters({"risks/mean.py": "x = 1"})
    assert not splinters({"local/_a.py": "# Alone, so that no test of it imports JAX.\nx = 1"})
    assert splinters({"risks/_mean.py": "x = 1"})
    private = {"local/_a.py": "class _Plan: pass", "data/_a.py": "class _Plan: pass"}
    assert not repeated_classes(private)


# --- what is exported --------------------------------------------------------------------------------------------


def unfinished_exports(module: ModuleType) -> list[str]:
    """What is wrong with a module's ``__all__``."""
    names = vars(module).get("__all__")
    if names is None:
        return [f"{module.__name__} has no __all__"]
    found = []
    for name in names:
        # Not vars(module), as the package itself imports a name when it is asked for.
        if not hasattr(module, name):
            found.append(f"{module.__name__}.{name} does not exist")
        elif not _is_documented(getattr(module, name), name):
            found.append(f"{module.__name__}.{name} has no docstring")
    if sorted(set(names)) != sorted(names):
        found.append(f"{module.__name__}.__all__ repeats itself")
    return found


def _is_documented(value: Any, name: str) -> bool:
    home = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None)
    if not (inspect.ismodule(value) or callable(value)) or not str(home).startswith("evenhand"):
        return True  # a constant, or an alias of another library's object
    documentation = inspect.getdoc(value) or ""
    # Named tuples and dataclasses without a docstring are given their signature as one.
    return bool(documentation) and not documentation.startswith(f"{name}(")


def _modules(public: bool) -> list[str]:
    names = []
    for path in FILES:
        parts = path.removesuffix(".py").split("/")
        is_public = not any(part.startswith("_") and part != "__init__" for part in parts)
        if is_public == public and parts[-1] != "__main__":
            names.append(".".join(["evenhand", *(part for part in parts if part != "__init__")]))
    return names


def test_every_public_module_exports_what_its_all_lists() -> None:
    found = [flaw for name in _modules(True) for flaw in unfinished_exports(importlib.import_module(name))]
    assert not found, "\n".join(found)


def test_private_modules_leave_the_list_of_names_to_their_package() -> None:
    modules = [importlib.import_module(name) for name in _modules(False)]
    assert not [
        each.__name__ for each in modules if hasattr(each, "__all__") and not hasattr(each, "__path__")
    ]


def test_what_private_modules_lend_is_documented() -> None:
    for name in _modules(False):
        for found, value in vars(importlib.import_module(name)).items():
            if not found.startswith("_") and getattr(value, "__module__", None) == name:
                assert _is_documented(value, found), f"{name}.{found} has no docstring"


def test_public_modules_are_documented() -> None:
    assert not [name for name in _modules(True) if not importlib.import_module(name).__doc__]


def test_the_top_level_package_exports_few_names() -> None:
    packages = [name for name in evenhand.__all__ if isinstance(getattr(evenhand, name), ModuleType)]
    assert len(evenhand.__all__) - len(packages) <= 10  # what needs no package's name before it
    assert len(packages) <= 29
    assert list(evenhand.__all__) == sorted(evenhand.__all__)


# --- each rule catches what it forbids ---------------------------------------------------------------------------

_LONG = "def long():\n" + "    x = 1\n" * 60
_LONG_TEXT = 'def short():\n    """' + "text\n" * 80 + '"""\n    return 1\n'
_INNER_TEXT = (
    'def short():\n    def inner():\n        """'
    + "text\n" * 80
    + '"""\n        return 1\n    return inner\n'
)


@pytest.mark.parametrize(
    ("rule", "path", "source"),
    [
        (imports_point_down, "types.py", "from evenhand import tree"),
        (imports_point_down, "types.py", "import evenhand"),
        (imports_point_down, "tree.py", "def f():\n    import evenhand.local"),
        (imports_point_down, "local.py", "from evenhand.aggregators import mean"),
        (imports_point_down, "data/_dataset.py", "from evenhand.tree import add"),
        (imports_point_down, "data/_dataset.py", "from ..tree import add"),
        (imports_point_down, "models/_linear.py", "from evenhand.data import load"),
        (imports_point_down, "aggregators/mean.py", "from evenhand import algorithms, tree"),
        (imports_point_down, "algorithms/fedavg.py", "from evenhand.simulation import Run"),
        (imports_point_down, "evaluation/_evaluate.py", "from evenhand.simulation._run import Run"),
        (imports_point_down, "simulation/engine.py", "from evenhand.testing import toy_data"),
        (imports_point_down, "testing/_algorithm.py", "from evenhand.cli import main"),
        (imports_point_down, "novel.py", ""),
        (private_names_stay_private, "cli/_run.py", "from evenhand.report._view import RunView"),
        (private_names_stay_private, "cli/_run.py", "from evenhand.simulation import _simulate"),
        (private_names_stay_private, "tree.py", "def f():\n    from evenhand.local._work import Work"),
        (files_are_short, "types.py", "\n" * 701),
        (files_are_short, "algorithms/fedavg.py", "\n" * 251),
        (functions_are_short, "local.py", _LONG),
        (functions_are_short, "local.py", "class C:\n    async " + _LONG.replace("\n", "\n    ")),
        (no_keyword_pass_through, "local.py", "def f(x, **options): pass"),
        (no_keyword_pass_through, "local.py", "f = lambda **options: options"),
        (no_computed_attribute_names, "local.py", "getattr(module, name)"),
        (no_computed_attribute_names, "local.py", "setattr(module, 'a' + name, 1)"),
        (no_global_randomness, "local.py", "import numpy as np\nx = np.random.normal()"),
        (no_global_randomness, "local.py", "np.random.seed(0)"),
        (no_global_randomness, "local.py", "np.random.RandomState(0)"),
        (no_global_randomness, "local.py", "from numpy.random import rand"),
        (no_global_randomness, "local.py", "import random"),
        (no_global_randomness, "local.py", "from random import choice"),
        (nothing_left_undone, "local.py", "x = 1  # TODO"),
        (nothing_left_undone, "local.py", "raise NotImplementedError"),
        (methods_know_no_engine, "algorithms/fedavg.py", "from evenhand.data import FederatedDataset"),
        (methods_know_no_engine, "algorithms/fedavg.py", "from evenhand import cli"),
        (methods_inherit_nothing, "algorithms/fedprox.py", "class FedProx(FedAvg): pass"),
        (names_are_nouns, "local.py", "found = 1"),
        (names_are_nouns, "local.py", "def f(*, of): pass"),
        (names_are_nouns, "local.py", "x = [each for each in y]"),
        (names_are_nouns, "local.py", "class C:\n    known: int"),
        (names_are_nouns, "local.py", "for _one in y:\n    pass"),
        (names_are_nouns, "local.py", "match x:\n    case [what]:\n        pass"),
        (names_are_nouns, "local.py", "def summary(who): pass"),
        (long_values_are_given_by_keyword, "rounds.py", "ClientData(x, y, start, size, progress, 8)"),
        (long_values_are_given_by_keyword, "rounds.py", "types.ClientData(x, y, start, size, progress, 8)"),
        (
            long_values_are_given_by_keyword,
            "studies/_store.py",
            "Outcome(a, b, status=c, reason=d, view=e, measures=f)",
        ),
        (long_values_are_given_by_keyword, "cli/_run.py", "DataOptions(a, b, c, d, e, f)"),
    ],
)
def test_the_rule_catches(rule: Rule, path: str, source: str) -> None:
    assert rule(path, source)


@pytest.mark.parametrize(
    ("rule", "path", "source"),
    [
        (
            imports_point_down,
            "local.py",
            "import jax\nfrom evenhand import tree\nfrom evenhand.types import Model",
        ),
        (imports_point_down, "simulation/_run.py", "from evenhand.simulation._round import Rows"),
        (imports_point_down, "__init__.py", "from evenhand import cli"),
        (private_names_stay_private, "report/_page.py", "from evenhand.report._view import RunView"),
        (private_names_stay_private, "cli/_main.py", "from evenhand._version import __version__"),
        (files_are_short, "types.py", "\n" * 700),
        (functions_are_short, "local.py", _LONG.replace("    x = 1\n", "", 1)),
        (functions_are_short, "local.py", _LONG_TEXT),
        (functions_are_short, "local.py", _INNER_TEXT),
        (no_keyword_pass_through, "local.py", "def f(x, *, a): g(**{'a': a})"),
        (no_computed_attribute_names, "local.py", "getattr(module, 'name', None)"),
        (
            no_global_randomness,
            "local.py",
            "np.random.default_rng(0)\njax.random.normal(key)\nrandom.normal()",
        ),
        (nothing_left_undone, "local.py", "TODOS = 1"),
        (methods_know_no_engine, "cli/_run.py", "from evenhand.data import load"),
        (methods_inherit_nothing, "algorithms/fedavg.py", "class State(NamedTuple):\n    x: int"),
        (names_are_nouns, "local.py", "ones = found_rows = f(of=1).known"),
        (names_are_nouns, "simulation/results.py", "def summary(who): pass"),
        (
            long_values_are_given_by_keyword,
            "rounds.py",
            "ClientData(x, y=y, start=a, size=b, progress=c, capacity=8)\n"
            "ClientData(*windows, jnp.float32(1.0), 8, 9, 10, 11)\n"
            "Effort(1, 2, 3, 4, 5, 6)\nModel(init, apply, losses, metrics)",
        ),
    ],
)
def test_the_rule_allows(rule: Rule, path: str, source: str) -> None:
    assert not rule(path, source)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x = 1", "no __all__"),
        ("__all__ = ['x']", "does not exist"),
        ("__all__ = ['f']\ndef f(): pass", "no docstring"),
        ("__all__ = ['C']\nclass C: pass", "no docstring"),
        ("__all__ = ['C']\nfrom typing import NamedTuple\nclass C(NamedTuple):\n    x: int", "no docstring"),
        (
            "__all__ = ['C']\nfrom dataclasses import dataclass\n@dataclass\nclass C:\n    x: int",
            "no docstring",
        ),
        ("__all__ = ['f', 'f']\ndef f():\n    'It does.'", "repeats itself"),
    ],
)
def test_unfinished_exports_are_caught(source: str, words: str) -> None:
    assert any(words in what for what in unfinished_exports(_module(source)))


def test_finished_exports_are_allowed() -> None:
    source = "import jax\n__all__ = ['Array', 'LIMIT', 'f']\nArray = jax.Array\nLIMIT = 3\ndef f():\n    'It does.'"
    assert not unfinished_exports(_module(source))


def _module(source: str) -> ModuleType:
    module = ModuleType("evenhand.made_up")
    exec(compile(source, "made_up", "exec", dont_inherit=True), vars(module))
    return module
