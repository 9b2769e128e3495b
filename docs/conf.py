"""The documentation site: `make docs` builds it into build/site, and warnings are errors."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tools"))

import reference_pages  # noqa: E402

import hitbox  # noqa: E402

project = "hitbox"
author = "the hitbox authors"
copyright = "the hitbox authors, Apache-2.0"
version = release = hitbox.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
exclude_patterns = ["reproduction/*.html"]
myst_heading_anchors = 3
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "inherited-members": "Exception,BaseException"}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = "hitbox"
html_show_sourcelink = False

reference_pages.write(HERE / "reference")


def link_reports(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Links to pages of the report lead to those pages, which stand beside each other, not to single downloads."""
    for link in list(doctree.findall(addnodes.download_reference)):
        if link["reftarget"].endswith(".html"):
            link.replace_self(nodes.reference("", "", *link.children, refuri=Path(link["reftarget"]).name))


def copy_reports(app: Sphinx, problem: Exception | None) -> None:
    """The pages of the report are complete with the files that they share. They have a folder of their own: one is
    called symmetric.html, as is a chapter."""
    for file in () if problem else sorted(HERE.glob("reproduction/*")):
        if file.suffix in (".html", ".css", ".js"):
            shutil.copy(file, app.outdir / "reproduction")


def setup(app: Sphinx) -> None:
    app.connect("doctree-resolved", link_reports)
    app.connect("build-finished", copy_reports)
