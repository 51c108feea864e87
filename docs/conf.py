"""How Sphinx builds the site: ``scripts/docs`` calls it."""

import os
import re
import sys
from pathlib import Path

_DOCS = Path(__file__).parent
sys.path.insert(0, str(_DOCS / "_ext"))

project = "Evenhand"
author = "The Evenhand authors"
copyright = "The Evenhand authors"  # the name that Sphinx wants
_VERSION = re.search(r'"(.+)"', (_DOCS.parent / "src/evenhand/_version.py").read_text())
assert _VERSION is not None
version = release = _VERSION[1]

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "myst_nb",
    "mathml",  # the two of docs/_ext
    "reference",
]
exclude_patterns = ["_build", "_ext", "images"]

# --- Markdown and notebooks ----------------------------------------------------------------------------------------
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4  # pages link to each other's headings, as on GitHub
nb_execution_mode = "cache"
nb_execution_cache_path = str(_DOCS.parent / "site" / ".notebooks")
nb_execution_timeout = 300
nb_execution_in_temp = True  # they write tables and runs
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True

# --- docstrings ----------------------------------------------------------------------------------------------------
autodoc_preserve_defaults = True  # else `aggregator=mean()` becomes the address of a function
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
maximum_signature_line_length = 80
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_custom_sections = [
    ("Edge cases", "notes_style"),
    ("Cost", "notes_style"),
    ("Robustness", "notes_style"),
    ("Source", "notes_style"),
]
python_use_unqualified_type_names = True
add_module_names = False
# A reference to a name of ours that does not exist is an error; those of other libraries are not linked.
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!evenhand\b).*")]

# --- the pages -----------------------------------------------------------------------------------------------------
html_theme = "furo"
highlight_language = "text"  # of blocks that name none: what commands print
html_title = f"Evenhand {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "source_repository": "https://github.com/evenhand/evenhand/",
    "source_branch": "main",
    "source_directory": "docs/",
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


# --- links ---------------------------------------------------------------------------------------------------------
_ON_GITHUB = "https://github.com/evenhand/evenhand/blob/main/"


def _relinked(app, name, source):
    """Links to files that are no pages (code, experiments, the README) lead to the repository."""
    folder = Path(app.srcdir, name).parent
    if name == "changelog":  # the file of the repository, whose links start there
        folder, source[0] = _DOCS.parent, (_DOCS.parent / "CHANGELOG.md").read_text(encoding="utf-8")

    def relinked(match: re.Match[str]) -> str:
        path, mark, anchor = match[1].partition("#")
        file = (folder / path).resolve()
        if not file.exists():
            return match[0]
        if file.is_relative_to(app.srcdir):
            return f"]({os.path.relpath(file, Path(app.srcdir, name).parent)}{mark}{anchor})"
        return f"]({_ON_GITHUB}{file.relative_to(_DOCS.parent)}{mark}{anchor})"

    source[0] = re.sub(r"\]\((?!https?:|#)([^)\s]+)\)", relinked, source[0])


def _without_source(app, name, template, context, tree):
    """Pages of the reference are made by the build: there is no file to view or to edit."""
    if name.startswith("reference/"):
        context["theme_top_of_page_buttons"] = []


def setup(app):
    """Called by Sphinx."""
    app.connect("html-page-context", _without_source)
    app.connect("source-read", _relinked)
