"""The configuration of the docs site: `./check site` builds it into build/site, and every warning is an error."""

import sys
import tomllib
from pathlib import Path

import tritium

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "docs" / "_ext")]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = "Tritium"
author = PROJECT["authors"][0]["name"]
copyright = author
version = release = tritium.__version__
repository_url = PROJECT["urls"]["Repository"]

extensions = ["myst_parser", "site_pages", "site_reference"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_ext", "results/*"]
nitpicky = True
nitpick_ignore_regex = [("py:class", ".*")]  # types in signatures: links where the type has an entry, else plain text
suppress_warnings = ["ref.python"]  # a type of that name in two modules: the link may lead to either
highlight_language = "text"
pygments_style = "friendly"

myst_heading_anchors = 6  # links to headings, with the names that GitHub gives them
myst_enable_extensions = ["attrs_block"]

html_theme = "furo"
html_title = f"Tritium {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "source_repository": repository_url,
    "source_branch": "main",
    "source_directory": "docs/",
    "top_of_page_buttons": [],
}
