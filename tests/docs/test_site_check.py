"""What examines the built site finds each kind of fault, and nothing in a site without any."""

import importlib.util
from pathlib import Path

import pytest

_FILE = Path(__file__).parents[2] / "docs" / "_ext" / "site_check.py"
_SPEC = importlib.util.spec_from_file_location("site_check", _FILE)
assert _SPEC is not None and _SPEC.loader is not None
site_check = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(site_check)

_WANTED = (
    "install",
    "tutorials/first-run",
    "tutorials/my-table",
    "explain/privacy-model",
    "faq",
    "which-method",
)


def site(folder: Path, index: str = "", page: str = "") -> Path:
    """A site with what a reader looks for: the first page links all guides and the reference, which links one name."""
    links = "".join(f'<a href="{name}.html">{name}</a>' for name in (*_WANTED, "reference/index"))
    pages = dict.fromkeys(_WANTED, "<p id='top'>text</p>") | {
        "index": links + index,
        "reference/index": "<a href='api/evenhand.simulate.html#x'>simulate</a>",
        "reference/api/evenhand.simulate": "<h1 id='x'>simulate</h1>" + page,
    }
    for name, body in pages.items():
        path = folder / f"{name}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"<!doctype html><body>{body}</body>", encoding="utf-8")
    return folder


def complaints(folder: Path) -> list[str]:
    pages = site_check.pages_of(folder)
    return site_check.dead_links(pages) + site_check.leftovers(pages) + site_check.hidden(folder, pages)


def test_a_good_site_has_no_faults(tmp_path: Path) -> None:
    good = "<a href='#'>top</a><a href='https://example.org/none'>other</a><code>:math:`x` .. note:: ``y``</code>"
    assert complaints(site(tmp_path, page=good + "<a href='../index.html?v=1'>reference</a>")) == []


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("<a href='none.html'>gone</a>", "none.html leads nowhere"),
        ("<a href='../../faq.html#none'>gone</a>", "#none leads nowhere"),
        ("<img src='none.png'>", "none.png leads nowhere"),
        ("<p>with :math:`x`</p>", "':math:`'"),
        ("<p>see :func:`simulate`</p>", "':func:`'"),
        ("<p>\n.. note:: text</p>", "'.. n'"),
        ("<p>the ``code</p>", "'``c'"),
    ],
)
def test_faults_of_a_page_are_listed(tmp_path: Path, page: str, words: str) -> None:
    [complaint] = complaints(site(tmp_path, page=page))
    assert words in complaint and "evenhand.simulate.html" in complaint


def test_a_page_that_takes_three_clicks_is_listed(tmp_path: Path) -> None:
    folder = site(tmp_path)
    far = folder / "reference" / "api" / "evenhand.far.html"
    far.write_text("<p>far</p>", encoding="utf-8")
    (folder / "reference" / "api" / "evenhand.simulate.html").write_text(
        "<h1 id='x'></h1><a href='evenhand.far.html'></a>"
    )
    [complaint] = complaints(folder)
    assert "evenhand.far.html" in complaint and "two clicks" in complaint
