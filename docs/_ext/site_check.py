"""Examines the built site: ``python site_check.py SITE [--no-browser]`` exits with 1 and a list of what is wrong."""

from __future__ import annotations

import argparse
import functools
import http.server
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urldefrag, urlparse

# What an author's markup leaves behind where Sphinx did not understand it.
_LEFTOVERS = re.compile(r":(?:math|func|class|meth|attr|mod|doc|ref|data):`|^\s*\.\. \w|``\w", re.M)
_WIDTHS = (390, 1280)
_CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


class Page(NamedTuple):
    """What a page has that others may point at, what it points at, and its text outside code."""

    anchors: set[str]
    links: list[str]
    text: str


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.anchors, self.links, self.text = set[str](), list[str](), list[str]()
        self._silent = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._silent += tag in ("code", "pre", "script", "style")
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.links.append(value)

    def handle_endtag(self, tag: str) -> None:
        self._silent -= tag in ("code", "pre", "script", "style")

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.text.append(data)


def read(path: Path) -> Page:
    """One page."""
    reader = _Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    return Page(reader.anchors, reader.links, "".join(reader.text))


def pages_of(site: Path) -> dict[Path, Page]:
    """All pages of ours; those in the gallery were made by the package, and have tests of their own."""
    paths = (path for path in sorted(site.rglob("*.html")) if "_static" not in path.parts)
    return {path: read(path) for path in paths}


def local_target(path: Path, link: str) -> tuple[Path, str] | None:
    """The file and the anchor that a link leads to; None, if it leaves the site."""
    if urlparse(link).scheme or link.startswith("//"):
        return None
    address, anchor = urldefrag(link)
    file = unquote(urlparse(address).path)  # without the query that names a version of a style sheet
    target = (path.parent / file).resolve() if file else path
    return (target / "index.html" if target.is_dir() else target), unquote(anchor)


def dead_links(pages: dict[Path, Page]) -> list[str]:
    """Links to files and anchors that are not there."""
    dead: list[str] = []
    for path, page in pages.items():
        for link in page.links:
            target = local_target(path, link)
            if target is None:
                continue
            file, anchor = target
            there = file.exists() and (not anchor or file not in pages or anchor in pages[file].anchors)
            if not there:
                dead.append(f"{path}: the link {link} leads nowhere.")
    return dead


def leftovers(pages: dict[Path, Page]) -> list[str]:
    """Markup that stands in the text."""
    return [
        f"{path}: the text has {match[0]!r}."
        for path, page in pages.items()
        for match in _LEFTOVERS.finditer(page.text)
    ]


def reached(pages: dict[Path, Page], start: Path, depth: int) -> set[Path]:
    """The pages that a reader gets to from the first one with so many clicks."""
    seen = border = {start}
    for _ in range(depth):
        targets = (local_target(path, link) for path in border if path in pages for link in pages[path].links)
        border = {target[0] for target in targets if target is not None} - seen
        seen = seen | border
    return seen


def hidden(site: Path, pages: dict[Path, Page]) -> list[str]:
    """Pages that two clicks do not lead to: what a stranger looks for, and every public name."""
    wanted = [
        "install",
        "tutorials/first-run",
        "tutorials/my-table",
        "explain/privacy-model",
        "faq",
        "which-method",
    ]
    paths = [site / f"{name}.html" for name in wanted] + sorted((site / "reference" / "api").glob("*.html"))
    seen = reached(pages, site / "index.html", 2)
    return [
        f"{path}: two clicks from the first page do not lead there." for path in paths if path not in seen
    ]


# --- widths --------------------------------------------------------------------------------------------------------

# Each page is laid out in a frame of the given width; what is wider than its frame scrolls sideways on a telephone.
_HARNESS = """<!doctype html><pre id="result">pending</pre><script>
const pages = PAGES, widths = WIDTHS, wide = [];
async function measure(page) {
  const frame = document.createElement("iframe");
  frame.style.cssText = `width:${widths[0]}px;height:800px;border:0`;
  document.body.append(frame);
  await new Promise(done => { frame.onload = done; frame.src = page; });
  for (const width of widths) {
    frame.style.width = `${width}px`;
    const have = frame.contentDocument.documentElement.scrollWidth;
    if (have > width) wide.push([page, width, have]);
  }
  frame.remove();
}
async function worker() { while (pages.length) await measure(pages.pop()); }
(async () => {
  await Promise.all([...Array(4)].map(worker));
  await fetch("/result", {method: "POST", body: JSON.stringify(wide)});
})();
</script>"""


_CONTROL = "/control.html"
"""A page that is too wide at every width: a browser that does not say so measures nothing."""


class _Server(http.server.SimpleHTTPRequestHandler):
    result: str | None = None
    done = threading.Event()
    harness = ""

    def do_GET(self) -> None:
        made = {"/harness": self.harness, _CONTROL: "<!doctype html><div style='width: 3000px'>wide</div>"}
        if self.path not in made:
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(made[self.path].encode())

    def do_POST(self) -> None:
        _Server.result = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.send_response(204)
        self.end_headers()
        _Server.done.set()

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


def too_wide(site: Path, pages: dict[Path, Page], browser: str) -> list[str]:
    """Pages that are wider than the window, at the widths of a telephone and of a laptop."""
    addresses = [_CONTROL, *(f"/{path.relative_to(site)}" for path in pages)]
    _Server.harness = _HARNESS.replace("PAGES", json.dumps(addresses)).replace("WIDTHS", json.dumps(_WIDTHS))
    with (
        http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), functools.partial(_Server, directory=site)
        ) as server,
        tempfile.TemporaryDirectory() as profile,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
        ]
        address = f"http://127.0.0.1:{server.server_address[1]}/harness"
        process = subprocess.Popen(
            [browser, *flags, "--remote-debugging-port=0", f"--user-data-dir={profile}", address],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            if not _Server.done.wait(600) or _Server.result is None:
                return [f"{browser} did not lay out the pages within ten minutes."]
        finally:
            process.terminate()
            process.wait()
            server.shutdown()
    wide = json.loads(_Server.result)
    if [width for page, width, _ in wide if page == _CONTROL] != list(_WIDTHS):
        return [f"{browser} did not notice a page that is too wide."]
    return [
        f"{site}{page}: {have} pixels wide in a window of {width}."
        for page, width, have in wide
        if page != _CONTROL
    ]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site", type=lambda text: Path(text).resolve())
    parser.add_argument("--no-browser", action="store_true", help="do not measure the widths of pages")
    arguments = parser.parse_args()
    pages = pages_of(arguments.site)
    complaints = dead_links(pages) + leftovers(pages) + hidden(arguments.site, pages)
    if not arguments.no_browser:
        browser = next((path for name in _CHROMIUM if (path := shutil.which(name))), None)
        if browser is None:
            complaints.append("No Chromium to measure widths with: install it, or pass --no-browser.")
        else:
            complaints += too_wide(arguments.site, pages, browser)
    sys.stdout.write("\n".join([*complaints[:50], f"{len(pages)} pages, {len(complaints)} complaints", ""]))
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
