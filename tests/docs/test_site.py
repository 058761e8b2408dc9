"""The docs site: every page is in its navigation, links that leave docs/ lead to the repository, and it builds without a warning."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from doc_pages import ROOT

DOCS = ROOT / "docs"
INDEX = (DOCS / "index.md").read_text(encoding="utf-8")
GROUPS = ["Start", "Run", "Tensors and compile", "Measure", "See", "Extend", "Reference", "Guides"]
HOME = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]


@pytest.fixture
def site_pages(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("sphinx", reason="needs sphinx: pip install sphinx myst-parser furo")
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    import site_pages

    return site_pages


def all_pages() -> set[str]:
    return {f.relative_to(DOCS).with_suffix("").as_posix() for f in DOCS.rglob("*.md")} - {"index"}


def test_every_page_is_in_the_navigation_once(site_pages: ModuleType) -> None:
    navigation = site_pages.navigation(INDEX, all_pages())
    assert list(navigation) == GROUPS
    entries = [page for group in navigation.values() for page in group]
    assert sorted(entries) == sorted(all_pages())


def test_a_page_that_is_not_listed_is_put_into_the_reference(site_pages: ModuleType) -> None:
    navigation = site_pages.navigation(INDEX, {*all_pages(), "new-page"})
    assert navigation["Reference"][-1] == "new-page"


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("compile.md", "compile.md"),
        ("../README.md", "index.md"),
        ("../examples/train_bytes.py", f"{HOME}/blob/main/examples/train_bytes.py"),
        ("../csrc", f"{HOME}/tree/main/csrc"),
        ("img/report.png", "img/report.png"),
    ],
)
def test_links_that_leave_the_pages_lead_to_the_repository(site_pages: ModuleType, link: str, target: str) -> None:
    links = site_pages.Links(ROOT, HOME)
    page = DOCS / "run.md"
    assert links.rewrite(f"[`a`]({link}#b) `[c](d)`\n", page, page) == f"[`a`]({target}#b) `[c](d)`\n"


def test_a_dead_link_stops_the_build(site_pages: ModuleType) -> None:
    page = DOCS / "run.md"
    with pytest.raises(Exception, match=r"docs/run\.md: the link \.\./nowhere\.py leads to no file"):
        site_pages.Links(ROOT, HOME).rewrite("[a](../nowhere.py)", page, page)


def test_code_is_left_alone(site_pages: ModuleType) -> None:
    text = "```python\nx[0](y.z)\n```\n`[a](nowhere)`\n"
    assert site_pages.Links(ROOT, HOME).rewrite(text, DOCS / "run.md", DOCS / "run.md") == text


def test_a_reference_page_has_its_names_and_commands(tmp_path: Path) -> None:
    """A site of two pages is built as strictly as the whole one; `./check site` builds that."""
    for library in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(library, reason=f"needs {library}: pip install sphinx myst-parser furo")
    docs = tmp_path / "docs"
    docs.mkdir()
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    for name in ("conf.py", "_ext", "_static"):
        (docs / name).symlink_to(DOCS / name)
    (docs / "index.md").write_text(
        "# Index\n\n## Pages\n\n### Reference\n\n- [a](nn.md)\n- [b](commands.md)\n", encoding="utf-8"
    )
    (docs / "nn.md").write_text("# nn\n\n```{public-api} tritium.nn\n```\n", encoding="utf-8")
    (docs / "commands.md").write_text("# commands\n\n```{command-line} tritium\n```\n", encoding="utf-8")
    command = [sys.executable, "-m", "sphinx", "-W", "-n", "-q", "-b", "html", str(docs), str(tmp_path / "site")]
    build = subprocess.run(command, check=False, capture_output=True, text=True)
    assert build.returncode == 0, build.stderr
    names = (tmp_path / "site" / "nn.html").read_text(encoding="utf-8")
    assert 'id="tritium.nn.BitLinear"' in names
    commands = (tmp_path / "site" / "commands.html").read_text(encoding="utf-8")
    assert "--api-key-file" in commands
    assert 'id="tritium-regression-test"' in commands
