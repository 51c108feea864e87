"""What ``evenhand doctor`` examines: packages, devices, the cache of compiled programs, and the extras.

It is outside the package ``evenhand``, because it also has to say what is wrong where that package cannot be imported.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Installation", "examine", "print_report", "without_package"]

PROJECT = "evenhand"
DEVELOPMENT = ("docs", "flower-test", "optional-test", "pytorch-test", "test")
"""Extras that only those need who develop the project."""
MODULES = {"scikit-learn": "sklearn", "orbax-checkpoint": "orbax.checkpoint"}
"""Packages whose modules have other names."""
FIRST = ("jax", "jaxlib")
"""Packages that a report shows first; JAX requires the second."""


class Installation(NamedTuple):
    """An installation, examined.

    Attributes:
      versions: the version of Python, of Evenhand and of each package that it requires; None if it is not installed.
      needs: the allowed versions of these packages, as pip writes them.
      devices: the kinds of devices that JAX uses, each with its ``platform``, its ``kind`` and their ``count``.
      cache: of compiled programs: its ``path``, whether it is ``writable``, how many ``files`` and ``bytes`` it has.
      extras: each extra with ``"installed"`` or the command that installs it.
      faults: sentences about what is broken.
      hints: sentences about what could be better.
    """

    versions: dict[str, str | None]
    needs: dict[str, str]
    devices: list[dict[str, Any]]
    cache: dict[str, Any]
    extras: dict[str, str]
    faults: list[str]
    hints: list[str]

    def as_json(self) -> str:
        """``versions``, ``devices``, ``cache``, ``extras`` and ``advice``, which begins with what is broken."""
        keys = ("versions", "devices", "cache", "extras")
        shown = {key: value for key, value in self._asdict().items() if key in keys}
        return json.dumps(shown | {"advice": self.faults + self.hints}, indent=2)

    def as_text(self) -> str:
        """A table for people, and sentences below it."""
        rows = [
            (name, "not installed" if version is None else version, self.needs.get(name, ""))
            for name, version in self.versions.items()
        ]
        wide, wider = (max(len(row[column]) for row in rows) for column in (0, 1))
        lines = [f"{name:{wide}}  {version:{wider}}  {needed}".rstrip() for name, version, needed in rows]
        path, state = _cache_in_words(self.cache)
        missing = {name: command for name, command in self.extras.items() if command != "installed"}
        extras = [name for name in self.extras if name not in missing]
        lines += ["", f"{'devices':{wide}}  {', '.join(map(_device_in_words, self.devices)) or 'none'}"]
        lines += [f"{'cache':{wide}}  {path}", *([f"{'':{wide}}  {state}"] if state else [])]
        names = f"{'extras':{wide}}  {', '.join(extras) or 'none'}"
        lines += textwrap.wrap(names, 80, subsequent_indent=" " * (wide + 2), break_on_hyphens=False)
        lines += [f"  {name:{wide - 2}}  {command}" for name, command in missing.items()]
        return "\n".join([*lines, "", *(self.faults or ["Nothing is broken."]), *self.hints])


def examine(failure: Exception | None = None) -> Installation:
    """Examines this installation.

    Args:
      failure: what importing Evenhand raised; None: it is imported.
    """
    versions, needs, faults = _packages()
    devices, no_device, idle = _devices(needs)
    cache, no_cache = _cache() if failure is None else (_NO_CACHE, [])
    extras, unfit = _extras() if needs else ({}, [])
    faults += no_device + no_cache
    if failure is not None and not faults:
        repair = f"pip install --force-reinstall {PROJECT}"
        faults = [f"Evenhand cannot be imported ({_in_one_line(failure)}): {repair}."]
    hints = _stale() + idle + unfit
    return Installation(
        versions, needs=needs, devices=devices, cache=cache, extras=extras, faults=faults, hints=hints
    )


def print_report(*, as_json: bool, failure: Exception | None = None) -> int:
    """Examines this installation, prints the report, and returns the exit code: 1 if something is broken."""
    installation = examine(failure)
    print(installation.as_json() if as_json else installation.as_text())
    return 1 if installation.faults else 0


def without_package(words: Sequence[str], failure: Exception) -> int:
    """What the command does where importing Evenhand raised ``failure``; the exit code.

    Raises:
      Exception: the failure, where it is no import that failed, and the words ask for something else than a report.
    """
    if words[:1] == ["doctor"]:
        return print_report(as_json="--json" in words, failure=failure)
    if isinstance(failure, ImportError):
        print(f"evenhand: {_in_one_line(failure)}: `evenhand doctor` shows what is missing.", file=sys.stderr)
        return 1
    failure.add_note("`evenhand doctor` shows whether a package is missing or does not fit.")
    raise failure


# --- packages -----------------------------------------------------------------------------------------------


def _packages() -> tuple[dict[str, str | None], dict[str, str], list[str]]:
    """The versions of what Evenhand requires, what it allows, and what is wrong with them."""
    versions, needs, faults = _bare_versions(), dict[str, str](), dict[str, str]()
    try:
        pairs = list(_requirements(PROJECT))
    except ImportError as error:
        return versions, needs, [f"No versions are checked ({_in_one_line(error)}): pip install packaging."]
    if versions[PROJECT] is None:
        return (
            versions,
            needs,
            [f"Evenhand is not installed, so no versions are checked: pip install {PROJECT}."],
        )
    for parent, requirement in pairs:
        name, allowed = requirement.name, _written(requirement.specifier)
        version, wanted = _version(name), f"{name}{allowed}"
        if parent == PROJECT or (parent, name) == FIRST:
            versions[name], needs[name] = version, allowed
        need = f"{'Evenhand' if parent == PROJECT else parent} needs {wanted}"
        # What is missing is reported once, however many packages need it.
        if version is None:
            faults.setdefault(name, f"{need}, which is not installed: pip install '{wanted}'.")
        elif not requirement.specifier.contains(version, prereleases=True):
            faults.setdefault(name, f"{need}, and {name} {version} is installed: pip install '{wanted}'.")
        elif parent == PROJECT and (error := _import_error(name)):
            command = f"pip install --force-reinstall '{wanted}'"
            problem = f"{name} {version} cannot be imported ({_in_one_line(error)})"
            faults.setdefault(name, f"{problem}: {command}.")
    return versions, needs, list(faults.values())


def _bare_versions() -> dict[str, str | None]:
    """What there is to know without reading requirements, in the order of a report."""
    system = f"{platform.system()} {platform.machine()}"
    versions = {PROJECT: _version(PROJECT), "python": platform.python_version(), "platform": system}
    return versions | {name: _version(name) for name in FIRST}


def _written(specifier: Any) -> str:
    """Allowed versions with the lowest first, as people write them."""
    return ",".join(sorted(map(str, specifier), reverse=True))


def _requirements(root: str, extras: frozenset[str] = frozenset()) -> Iterator[tuple[str, Any]]:
    """Each package that requires another, and how, from ``root`` on."""
    from packaging.requirements import Requirement

    pending, listed = [(root, extras)], set[tuple[str, frozenset[str]]]()
    while pending:
        parent, wanted = pending.pop(0)
        try:
            lines = metadata.requires(parent) or ()
        except metadata.PackageNotFoundError:
            continue  # it has been reported by its own requirement
        for requirement in map(Requirement, lines):
            marker = requirement.marker
            if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in ("", *wanted)):
                continue
            yield parent, requirement
            key = (re.sub(r"[-_.]+", "-", requirement.name).lower(), frozenset(requirement.extras))
            if key not in listed:
                listed.add(key)
                pending.append((requirement.name, frozenset(requirement.extras)))


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _import_error(package: str) -> Exception | None:
    """What importing a package raises."""
    try:
        import_module(MODULES.get(package, package))
    except Exception as error:  # packages that do not fit each other raise anything
        return error
    return None


def _in_one_line(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {error}".partition("\n")[0][:200].rstrip(".:")


def _stale() -> list[str]:
    """A hint where what pip has noted is not the version that is imported, as in a folder that has been updated."""
    package = sys.modules.get(PROJECT)
    version, noted = getattr(package, "__version__", None), _version(PROJECT)
    if version is None or noted in (None, version):
        return []
    return [
        f"Evenhand {version} runs, and pip has noted {noted}: install it again, as its requirements may differ."
    ]


# --- devices ------------------------------------------------------------------------------------------------


def _devices(needs: dict[str, str]) -> tuple[list[dict[str, Any]], list[str], list[str]]:
    """The devices of JAX; a fault where none of them computes; and a hint about a GPU that is left idle."""
    chosen = os.environ.get("JAX_PLATFORMS")
    try:
        jax = import_module("jax")
        devices: list[Any] = jax.devices()
        float(jax.numpy.add(1.0, 1.0))
    except Exception as error:  # a driver, a plug-in or a setting of JAX
        if _version("jax") is None:  # which has been reported
            return [], [], []
        cause = f" with JAX_PLATFORMS={chosen}" if chosen else ""
        problem = f"JAX finds no device that computes{cause} ({_in_one_line(error)})"
        return [], [f"{problem}: see https://docs.jax.dev/en/latest/installation.html."], []
    kinds = Counter((str(device.platform), str(device.device_kind)) for device in devices)
    listed = [{"platform": name, "kind": kind, "count": count} for (name, kind), count in kinds.items()]
    if not _has_nvidia() or any(device["platform"] != "cpu" for device in listed):
        return listed, [], []
    if chosen:
        return (
            listed,
            [],
            [f"JAX_PLATFORMS={chosen} keeps JAX from this machine's NVIDIA GPU: unset it to use the GPU."],
        )
    names = metadata.metadata("jax").get_all("Provides-Extra") or ()
    extra = max((name for name in names if re.fullmatch(r"cuda\d+", name)), default="cuda13")
    command = f"pip install 'jax[{extra}]{needs.get('jax', '')}'"
    return listed, [], [f"JAX does not use this machine's NVIDIA GPU: {command}."]


def _device_in_words(device: dict[str, Any]) -> str:
    """A kind of devices and their number."""
    platforms = "" if device["kind"] == device["platform"] else f" ({device['platform']})"
    return f"{device['count']} x {device['kind']}{platforms}"


def _has_nvidia() -> bool:
    """Whether the driver of NVIDIA shows a GPU to this machine or container."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


# --- the cache of compiled programs, and extras --------------------------------------------------------------


_NO_CACHE: dict[str, Any] = {"path": None, "writable": None, "files": 0, "bytes": 0}


def _cache() -> tuple[dict[str, Any], list[str]]:
    """Where compiled programs are kept; a fault where they cannot be, although nobody has switched that off."""
    setting, cost = "JAX_COMPILATION_CACHE_DIR", "each process compiles its programs again"
    folder = import_module("jax").config.jax_compilation_cache_dir  # which importing the package has set
    if not folder and setting in os.environ:
        return _NO_CACHE, []
    if not folder:
        problem = f"The folder for compiled programs cannot be made in XDG_CACHE_HOME or ~/.cache, and {cost}"
        return {**_NO_CACHE, "writable": False}, [
            f"{problem}: set {setting} to a folder that can be written."
        ]
    if "://" in folder:  # a bucket, of which only JAX knows
        return {**_NO_CACHE, "path": folder}, []
    files, size = _content(Path(folder))
    cache = {"path": folder, "writable": _is_writable(Path(folder)), "files": files, "bytes": size}
    if cache["writable"]:
        return cache, []
    problem = f"The cache of compiled programs, {folder}, cannot be written, and {cost}"
    return cache, [f"{problem}: mend its permissions, or set {setting} to another folder."]


def _is_writable(folder: Path) -> bool:
    """Whether a file can be made in the folder, or the folder itself where it does not exist yet."""
    if not folder.exists():
        above = next(parent for parent in folder.absolute().parents if parent.exists())
        return above.is_dir() and os.access(above, os.W_OK | os.X_OK)
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _content(folder: Path) -> tuple[int, int]:
    """How many files are in a folder, and their bytes; other processes may delete some meanwhile."""
    count = size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                size += os.stat(os.path.join(parent, name)).st_size
            except OSError:
                continue
            count += 1
    return count, size


def _cache_in_words(cache: dict[str, Any]) -> tuple[str, str]:
    """Where the cache is, and its state."""
    if cache["path"] is None or cache["writable"] is None:
        return cache["path"] or "none", ""
    state = "writable" if cache["writable"] else "NOT writable"
    files = f"{cache['files']:,} {'file' if cache['files'] == 1 else 'files'}"
    return cache["path"], f"{state}, {files}, {cache['bytes'] / 1e6:,.1f} MB"


def _extras() -> tuple[dict[str, str], list[str]]:
    """Each extra for users, and hints about packages of theirs that are installed in other versions."""
    extras, hints = dict[str, str](), list[str]()
    for name in metadata.metadata(PROJECT).get_all("Provides-Extra") or ():
        if name in DEVELOPMENT:
            continue
        command = f"pip install '{PROJECT}[{name}]'"
        extras[name] = "installed"
        for requirement in _needs_of(name):
            version, allowed = _version(requirement.name), _written(requirement.specifier)
            if version is None:
                extras[name] = command
            elif not requirement.specifier.contains(version, prereleases=True):
                extras[name] = command
                problem = f"The extra {name} needs {requirement.name}{allowed}, and {version} is installed"
                hints.append(f"{problem}: {command}.")
    return extras, hints


def _needs_of(extra: str) -> list[Any]:
    """What an extra requires besides the rest."""
    from packaging.requirements import Requirement

    requirements = map(Requirement, metadata.requires(PROJECT) or ())
    marked = [
        (requirement, requirement.marker) for requirement in requirements if requirement.marker is not None
    ]
    return [
        requirement
        for requirement, marker in marked
        if marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""})
    ]
