"""Downloads: resumed, checked and kept under a name only when they are right."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from evenhand.data import download
from evenhand.data.loaders import _download
from evenhand.data.loaders._download import Remote, cache_folder, fetch
from evenhand.errors import EvenhandError, EvenhandWarning

CONTENT = bytes(range(256)) * 300
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves ``content`` at every address and remembers the ranges that it was asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content = CONTENT
        self.breaks_after: int | None = None
        self.knows_ranges = True
        self.ranges: list[str | None] = []
        self.lies_about_ranges = False

    def remote(self, sha256: str | None = SHA256, size: int | None = None) -> Remote:
        return Remote(f"http://127.0.0.1:{self.server_address[1]}/some/data%20set.bin?a=1", sha256, size)


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.ranges.append(wanted)
        begin = int(re.findall(r"\d+", wanted)[0]) if wanted and self.server.knows_ranges else 0
        if begin >= len(self.server.content) > 0 and begin:
            self.send_error(416)
            return
        content = self.server.content[begin:]
        self.send_response(206 if begin else 200)
        if begin:
            first = 0 if self.server.lies_about_ranges else begin
            self.send_header("Content-Range", f"bytes {first}-{len(self.server.content) - 1}/*")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: self.server.breaks_after])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_a_file_is_fetched_once_under_its_name(server: Server, tmp_path: Path) -> None:
    path = fetch(server.remote(size=len(CONTENT)), tmp_path / "a/b")
    assert path == tmp_path / "a/b/data set.bin" and path.read_bytes() == CONTENT
    assert fetch(server.remote(), tmp_path / "a/b") == path
    assert server.ranges == [None] and names(tmp_path / "a/b") == ["data set.bin"]


def test_a_transfer_that_broke_off_goes_on_where_it_ended(server: Server, tmp_path: Path) -> None:
    server.breaks_after = 30_000
    with pytest.raises(
        EvenhandError, match=r"broke off after 30,000 of 76,800 bytes.*put the file there yourself"
    ):
        fetch(server.remote(), tmp_path)
    assert names(tmp_path) == ["data set.bin.part"]
    server.breaks_after = None
    assert fetch(server.remote(), tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=30000-"] and names(tmp_path) == ["data set.bin"]


@pytest.mark.parametrize("fault", ["knows_ranges", "lies_about_ranges"])
def test_a_server_without_ranges_begins_anew(server: Server, tmp_path: Path, fault: str) -> None:
    """What such a server sends is not appended to what is there."""
    (tmp_path / "data set.bin.part").write_bytes(CONTENT[:500])
    setattr(server, fault, fault == "lies_about_ranges")
    assert fetch(server.remote(), tmp_path).read_bytes() == CONTENT
    # Of one that sends the rest and calls it the whole, the checksum tells, and the whole is asked for.
    assert server.ranges == ["bytes=500-", *[None] * server.lies_about_ranges]


def test_a_begin_of_another_version_is_thrown_away(server: Server, tmp_path: Path) -> None:
    (tmp_path / "data set.bin.part").write_bytes(b"other" * 100)
    assert fetch(server.remote(), tmp_path).read_bytes() == CONTENT
    assert server.ranges == ["bytes=500-", None]


def test_a_part_that_is_complete_is_only_checked(server: Server, tmp_path: Path) -> None:
    (tmp_path / "data set.bin.part").write_bytes(CONTENT)
    assert fetch(server.remote(), tmp_path).read_bytes() == CONTENT
    assert server.ranges == ["bytes=76800-"]


@pytest.mark.parametrize(
    ("sha256", "size", "words"),
    [
        ("0" * 64, None, f"its SHA-256 is {SHA256}, not 000"),
        (SHA256, 9, "bytes, not 9"),
        (None, 10**6, "76,800 bytes"),
    ],
)
def test_another_file_than_the_published_one_is_refused(
    server: Server, tmp_path: Path, sha256: str | None, size: int | None, words: str
) -> None:
    with pytest.raises(EvenhandError, match="not the published one") as caught:
        fetch(server.remote(sha256, size), tmp_path)
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert names(tmp_path) == []


def test_a_file_without_a_checksum_is_trusted_and_says_so(server: Server, tmp_path: Path) -> None:
    with pytest.warns(EvenhandWarning, match=f"trusted as it is: its SHA-256 is {SHA256}"):
        path = download(server.remote().url, folder=tmp_path)
    assert path.read_bytes() == CONTENT
    assert download(server.remote().url, folder=tmp_path / "b", sha256=SHA256.upper()).is_file()


def test_without_a_checksum_the_begin_of_what_may_be_another_file_is_thrown_away(
    server: Server, tmp_path: Path
) -> None:
    """Also one that is longer than the file, of which the server would say that nothing is missing."""
    for left in (b"other" * 100, CONTENT + b"more"):
        (tmp_path / "data set.bin.part").write_bytes(left)
        with pytest.warns(EvenhandWarning, match="no checksum"):
            path = fetch(server.remote(None), tmp_path)
        assert path.read_bytes() == CONTENT
        path.unlink()
    assert server.ranges == [None, None]


def test_a_file_that_is_there_must_have_the_checksum(tmp_path: Path) -> None:
    site = tmp_path / "data.csv"
    site.write_bytes(CONTENT)
    kept = tmp_path / "kept"
    assert download(site.as_uri(), sha256=SHA256.upper(), folder=kept).read_bytes() == CONTENT
    (kept / "data.csv").write_bytes(b"another")
    assert download(site.as_uri(), folder=kept).read_bytes() == b"another"
    with pytest.raises(
        EvenhandError, match=r"another file of this name is there \(its SHA-256 is .*delete it"
    ):
        download(site.as_uri(), sha256=SHA256, folder=kept)
    assert (kept / "data.csv").read_bytes() == b"another"


def test_files_of_two_sites_with_one_name_are_kept_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_download, "cache_folder", lambda: tmp_path / "cache")
    contents: list[bytes] = []
    for content in (b"one", b"two"):
        site = tmp_path / content.decode()
        site.mkdir()
        (site / "data.csv").write_bytes(content)
        checksum = hashlib.sha256(content).hexdigest()
        contents.append(download((site / "data.csv").as_uri(), sha256=checksum).read_bytes())
    assert contents == [b"one", b"two"]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:9/x.csv", "connect to the internet"),
        ("no://such.scheme/x.csv", "unknown url type"),
        ("x.csv", "unknown url type"),
        ("https://example.org/", "ends in no file name"),
        ("https://example.org/..", "ends in no file name"),
    ],
)
def test_an_address_that_leads_nowhere_gives_one_sentence(tmp_path: Path, url: str, words: str) -> None:
    with pytest.raises(EvenhandError, match=words) as caught:
        download(url, sha256="0" * 64, folder=tmp_path)
    assert "\n" not in str(caught.value)


def test_the_name_of_a_file_leads_to_no_other_folder() -> None:
    assert Remote("https://example.org/a/%2e%2e%2fx%20y?z=/w").name == "x y"


def test_a_checksum_that_is_none_is_refused() -> None:
    with pytest.raises(EvenhandError, match="64 hexadecimal digits"):
        download("https://example.org/x.csv", sha256="abc")


def test_the_part_of_a_killed_process_is_taken_over_once_it_is_old(server: Server, tmp_path: Path) -> None:
    part = tmp_path / "data set.bin.99999.part"
    part.write_bytes(CONTENT[:700])
    fetch(server.remote(), tmp_path)
    assert server.ranges == [None] and part.exists(), "its process may still be writing"
    (tmp_path / "data set.bin").unlink()
    an_hour_ago = time.time() - 3600
    os.utime(part, (an_hour_ago, an_hour_ago))
    fetch(server.remote(), tmp_path)
    assert server.ranges == [None, "bytes=700-"] and names(tmp_path) == ["data set.bin"]


def test_an_interrupted_process_leaves_its_part(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(remote: Remote, part: Path) -> None:
        part.write_bytes(CONTENT[:123])
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(_download, "_transfer", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetch(server.remote(), tmp_path)
    assert names(tmp_path) == ["data set.bin.part"]
    assert fetch(server.remote(), tmp_path).read_bytes() == CONTENT
    assert server.ranges == ["bytes=123-"]


def test_the_cache_is_where_the_platform_keeps_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_folder() == tmp_path / "Library/Caches/evenhand"
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache_folder() == tmp_path / ".cache/evenhand"
    (tmp_path / ".cache/evenhand").mkdir(parents=True)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_folder() == tmp_path / ".cache/evenhand", "where earlier versions kept the files"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert cache_folder() == tmp_path / "local/evenhand"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "named"))
    assert cache_folder() == tmp_path / "named/evenhand"
