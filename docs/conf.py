"""The documentation site: `make docs` builds it into build/site, and warnings are errors."""

from __future__ import annotations

import sys
from pathlib import Path

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
html_extra_path = sorted(f"reproduction/{page.name}" for page in HERE.glob("reproduction/*.html"))

reference_pages.write(HERE / "reference")
