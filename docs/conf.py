"""How the documentation site is built: `make docs`, from the files of this folder and the package itself."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent / "src")]  # the package of this checkout, installed or not

from sphinx.application import Sphinx  # noqa: E402

import recap  # noqa: E402

project = "ReCAP"
author = "The ReCAP engineers"
copyright = f"2026, {author}"
version = release = recap.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "commands", "docstrings"]
exclude_patterns = ["_build", "results/findings.md"]  # `recap report` makes the findings a part of results.md

# Markdown
myst_heading_anchors = 3  # the same anchors as GitHub's
nb_execution_mode = "off"  # notebooks are shown as they were saved
nb_ipywidgets_js: dict[str, dict[str, str]] = {}  # nothing is loaded from elsewhere

# Python API
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
maximum_signature_line_length = 100
python_use_unqualified_type_names = True
nitpick_ignore_regex = [  # other people's names, which are not looked up anywhere, and names of unions of types
    ("py:class", r"(torch|numpy|PIL|pathlib|collections)\..*|Tensor"),
    ("py:class", "Asked|Callback|Cancelled|Generators|Labels|Picture|.*WriteRequest|.*TextFrame|.*Gated"),
]

# HTML
html_theme = "furo"
smartquotes = False  # two hyphens begin an option
html_title = f"ReCAP {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "monokai"

SOMETIMES = ("notebooks/quickstart", "studio")  # pages of the table of contents that a checkout may be without


def without_missing(app: Sphinx, page: str, source: list[str]) -> None:
    """Leave pages out of the table of contents that are not there."""
    if page == "index":
        missing = {name for name in SOMETIMES if not list(HERE.glob(f"{name}.*"))}
        source[0] = "\n".join(line for line in source[0].split("\n") if line not in missing)


def setup(app: Sphinx) -> None:
    app.connect("source-read", without_missing)
