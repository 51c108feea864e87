"""Clients' states on disk, in segments of those that changed between two saves."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from evenhand.simulation._host_store import HostStore, chunks
from evenhand.types import PyTree

__all__ = ["Segments"]

NDArray = npt.NDArray[Any]

_MOST = 2
"""Saved states for each client that has one, before they are written anew."""


class Segments:
    """A folder of segments; the states at a save are those of its segments, in order, the later ones over the earlier.

    A save writes the states that have changed since the last one.  Where segments hold more than twice as many states
    as there are clients with one, it writes a single new one.  The two latest saves keep their segments.

    Args:
      folder: for the segments only.
      store: the states; None: they are on the device, and saved with everything else.
    """

    def __init__(self, folder: Path, store: HostStore | None) -> None:
        self._folder, self._store = folder, store
        self._listed: list[dict[str, Any]] = []
        found = {path.name for path in folder.iterdir()} if folder.is_dir() else set[str]()
        self._kept = [found]

    def save(self, done: int) -> list[dict[str, Any]] | None:
        """Writes what has changed; all segments that now make the states, to be given to :meth:`restored`."""
        if (store := self._store) is None:
            return None
        listed, ids, touched = self._listed, np.flatnonzero(store.changed), np.flatnonzero(store.touched)
        if sum(each["clients"] for each in listed) + len(ids) > _MOST * len(touched):
            listed, ids = [], touched
        return [*listed, self._write(store, f"{done:010d}", ids)] if len(ids) else listed

    def saved(self, listed: list[dict[str, Any]] | None) -> None:
        """These segments are those of a whole checkpoint; others that no checkpoint needs are deleted."""
        self._listed = listed or []
        if self._store is not None:
            self._store.settle()
        self._kept = [self._kept[-1], {each["name"] for each in self._listed}]
        needed = set[str]().union(*self._kept)
        for path in self._folder.iterdir() if self._folder.is_dir() else ():
            if path.name not in needed:
                path.unlink(missing_ok=True)

    def restored(self, listed: list[dict[str, Any]] | None, clients: PyTree, one: PyTree) -> PyTree:
        """The clients' states of a checkpoint, where this run keeps them: in the store, or on the device.

        Args:
          listed: its segments; None: all states are in ``clients``.
          clients: leaves ``(N, ...)``, or the shapes of these.
          one: the state of a new client.

        Raises:
          ValueError: a segment is damaged.
          OSError: it cannot be read.
        """
        store = self._store
        if listed is not None:
            if store is None:
                store = HostStore(one, jax.tree.leaves(clients)[0].shape[0])
            store.reset()
            for each in listed:
                self._read(store, each)
            store.settle()
            self._listed = listed if self._store is not None else []
            return store.whole() if self._store is None else ()
        if store is None:
            return clients
        store.reset()
        store.put(np.arange(store.clients), clients)
        return ()

    def _write(self, store: HostStore, name: str, ids: NDArray) -> dict[str, Any]:
        self._folder.mkdir(parents=True, exist_ok=True)
        first = jax.process_index() == 0  # it writes for all processes of the run
        digest, part = hashlib.sha256(), self._folder / f"{name}.part" if first else Path(os.devnull)
        with part.open("wb") as file:

            def put(values: NDArray) -> None:
                piece = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
                digest.update(piece)
                file.write(piece)

            put(ids.astype("<i8"))
            for some in chunks(store, ids):
                for array in store.arrays:
                    put(array[some])
            file.flush()
            if first:
                os.fsync(file.fileno())
        if first:
            part.replace(self._folder / name)
        return {"name": name, "clients": len(ids), "sha256": digest.hexdigest()}

    def _read(self, store: HostStore, segment: Mapping[str, Any]) -> None:
        digest, path = hashlib.sha256(), self._folder / segment["name"]
        with path.open("rb") as file:

            def get(shape: tuple[int, ...], dtype: Any) -> NDArray:
                values = np.empty(shape, dtype)
                piece = values.reshape(-1).view(np.uint8).data
                if file.readinto(piece) != len(piece):
                    raise ValueError(f"{path.name} of the clients' states is cut off")
                digest.update(piece)
                return values

            ids = get((segment["clients"],), "<i8")
            if len(ids) and not 0 <= ids.min() <= ids.max() < store.clients:
                raise ValueError(f"{path.name} of the clients' states has clients that do not exist")
            for some in chunks(store, ids):
                for array, one in zip(store.arrays, store.one, strict=True):
                    array[some] = get((len(some), *one.shape), one.dtype)
            store.touched[ids] = True
        if digest.hexdigest() != segment["sha256"]:
            raise ValueError(f"{path.name} of the clients' states does not match its checksum")
