"""Methods, aggregators and attacks of other packages, which register factories as entry points.

A package lists them in its ``pyproject.toml``::

    [project.entry-points."evenhand.methods"]
    mine = "my_package:mine"

and ``mine(...)`` is a method of every expression, ``evenhand run mine`` works, and ``evenhand list`` shows it.  The
groups are ``evenhand.methods``, ``evenhand.aggregators`` and ``evenhand.attacks``.

Names are read from the metadata of the installed packages; a package is imported once one of its plug-ins is used or
listed, so that a broken one harms nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from functools import cache
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from typing import Any, NamedTuple

from evenhand.errors import EvenhandError

__all__ = ["Plugin", "find", "ignored", "moved", "names", "registered"]


class Plugin(NamedTuple):
    """A factory that another package registers.

    Attributes:
      name: what an expression calls it.
      distribution: the installed package that registers it.
      version: of that package.
      entry: where the factory is, and how it is imported.
    """

    name: str
    distribution: str
    version: str
    entry: EntryPoint

    @property
    def package(self) -> str:
        """The package with its version, in words."""
        return f"{self.distribution} {self.version}"

    def __str__(self) -> str:
        return f"The plug-in {self.name} of {self.package} ({self.entry.value})"

    def load(self) -> Any:
        """Imports the factory.

        Raises:
          EvenhandError: the import fails; the sentence names the package.
        """
        try:
            return self.entry.load()
        except (Exception, SystemExit) as error:  # whatever a module may do when it is imported
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise EvenhandError(
                f"{self} cannot be imported: {reason:.200}; repair or uninstall {self.distribution}."
            ) from error


def registered(group: str) -> Mapping[str, tuple[Plugin, ...]]:
    """The plug-ins of a group of entry points, by name; more than one if packages registered the same name."""
    return _registered(group, tuple(sys.path))


@cache
def _registered(group: str, path: tuple[str, ...]) -> Mapping[str, tuple[Plugin, ...]]:
    plugins: dict[str, tuple[Plugin, ...]] = {}
    for entry in entry_points(group=group):
        if entry.dist is not None:
            plugin = Plugin(entry.name, entry.dist.name, entry.dist.version, entry)
            plugins[entry.name] = (*plugins.get(entry.name, ()), plugin)
    return plugins


def names(group: str, built_in: Collection[str] = ()) -> list[str]:
    """The names that a group adds to those that are built in."""
    return sorted(name for name in set(registered(group)) - set(built_in) if name.isidentifier())


def find(group: str, name: str) -> Plugin | None:
    """The plug-in of this name, not imported; None if there is none.

    Raises:
      EvenhandError: several packages registered the name.
    """
    plugins = registered(group).get(name, ())
    if len(plugins) > 1:
        owners = " and ".join(sorted(plugin.distribution for plugin in plugins))
        raise EvenhandError(
            f"The plug-in {name} is ambiguous, as {owners} both register it: uninstall one of them."
        )
    return plugins[0] if plugins else None


def ignored(group: str, built_in: Collection[str]) -> dict[str, str]:
    """Name -> a sentence, for plug-ins with a name that no expression can call, or that is built in."""
    sentences: dict[str, str] = {}
    for name, plugins in sorted(registered(group).items()):
        if name in built_in:
            sentences[name] = (
                f"{plugins[0]} has the name of a built-in one, which it cannot replace: it is ignored."
            )
        elif not name.isidentifier():
            sentences[name] = f"{plugins[0]} has a name that is no name in Python: it is ignored."
    return sentences


def moved(owner: object, versions: Mapping[str, str]) -> str | None:
    """A sentence about packages that a run used in other versions than those installed; None if there are none.

    Args:
      owner: the file that records the versions.
      versions: package -> the version that was used.

    Raises:
      EvenhandError: one of them is not installed.
    """
    changes: list[str] = []
    for name, before in versions.items():
        try:
            now = version(name)
        except PackageNotFoundError:
            raise EvenhandError(
                f"{owner} needs the plug-ins of {name} {before}, which is not installed: install it."
            ) from None
        if now != before:
            changes.append(f"{name} {before}, which is {now} now")
    if not changes:
        return None
    return f"{owner} used the plug-ins of {' and '.join(changes)}: the numbers may differ."
