"""Remedies name packages that an index has: Tritium itself is on none, so its extras cannot be installed by name."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from tritium.errors import EXTRAS, PackageError, absent, imported, install_command, require

ROOT = Path(__file__).parents[1]
OF_A_CHECKOUT = ("test", "bench", "docs")  # installed as '.[test]', by people who have the sources


def test_the_table_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {name: tuple(of) for name, of in project["optional-dependencies"].items() if name not in OF_A_CHECKOUT}
    assert declared == EXTRAS


def test_the_table_of_the_readme_names_every_extra_and_what_it_brings() -> None:
    rows = re.findall(
        r"^\| ((?:`\w+`(?:, )?)+) \|[^|]+\| ([^|]+) \|$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    told = {
        name.strip("`"): of
        for names, brought in rows
        for name, of in zip(names.split(", "), brought.split("; "), strict=True)
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(told) == set(project["optional-dependencies"])
    for name, packages in EXTRAS.items():
        assert set(told[name].split(", ")) == {re.split(r"[^\w-]", package)[0] for package in packages}


@pytest.mark.parametrize(
    ("extra", "platform", "command"),
    [
        ("run", "linux", "pip install tokenizers jinja2 huggingface_hub h11 llguidance"),
        ("run", "darwin", "pip install tokenizers jinja2 huggingface_hub h11 llguidance"),
        ("torch", "linux", "pip install torch"),
        ("cuda", "linux", "pip install torch triton nvidia-ml-py"),
        ("cuda", "darwin", "pip install torch"),  # Triton has no build there
        ("mlx", "linux", "pip install 'mlx[cpu]'"),  # quoted: a shell may expand brackets
        ("mlx", "darwin", "pip install mlx"),
        ("png", "linux", "pip install resvg_py"),
    ],
)
def test_a_command_names_the_packages_of_a_platform(extra: str, platform: str, command: str) -> None:
    assert install_command(extra, platform=platform) == command


def test_a_command_is_never_empty() -> None:
    assert install_command("mlx", platform="emscripten") == "pip install mlx 'mlx[cpu]'"


def test_a_command_for_several_extras_names_each_package_once() -> None:
    assert install_command("torch", "cuda", "torch", platform="linux") == "pip install torch triton nvidia-ml-py"


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away packages, three of them installed or not."""
    for name in ("jinja2", "h11", "opentelemetry"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.usefixtures("without")
@pytest.mark.parametrize(
    ("packages", "says"),
    [
        (("jinja2",), "the package 'jinja2', which is not installed; pip install jinja2."),
        (("numpy", "h11", "jinja2"), "the packages 'h11' and 'jinja2', which are not installed; pip install h11 jinja2."),
        (("jinja2", "opentelemetry-api", "h11", "jinja2"),
         "the packages 'jinja2', 'opentelemetry-api' and 'h11', which are not installed; pip install jinja2 opentelemetry-api h11."),
    ],
)  # fmt: skip
def test_one_sentence_names_all_packages_that_are_missing(packages: tuple[str, ...], says: str) -> None:
    with pytest.raises(PackageError) as caught:
        require("A cake", *packages)
    assert str(caught.value) == f"A cake needs {says}"


def test_nothing_is_imported_to_find_out_what_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_package_that_stops.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    assert absent(["a_package_that_stops", "no_such_package"]) == ["no_such_package"]
    require("A cake", "a_package_that_stops", "numpy")


def test_a_package_that_cannot_be_imported_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_damaged_package.py").write_text("raise ImportError('GLIBC_2.99 was not found')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PackageError) as caught:
        imported("A cake", "a_damaged_package")
    assert str(caught.value) == (
        "A cake needs the package 'a_damaged_package', which cannot be imported (GLIBC_2.99 was not found); "
        "pip install a_damaged_package --force-reinstall."
    )


def test_an_extra_that_a_page_names_exists() -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    files = [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "Dockerfile",
        *(ROOT / ".github").rglob("*.yml"),
    ]
    named = {
        (file.name, extra)
        for file in files
        for extra in re.findall(r"(?:'\.|\.whl\))\[(\w+)\]", file.read_text(encoding="utf-8"))
    }
    assert {
        ("README.md", "run"),
        ("start.md", "run"),
        ("models.md", "run"),
        ("serve.md", "run"),
        ("Dockerfile", "run"),
    } <= named
    assert [pair for pair in named if pair[1] not in known] == []


def test_nothing_says_to_install_tritium_from_an_index() -> None:
    files = [
        *ROOT.glob("*.md"),
        *(f for ending in ("md", "html", "json") for f in (ROOT / "docs").rglob(f"*.{ending}")),
    ]
    files += [f for folder in ("src", "tests", "bench", "examples") for f in (ROOT / folder).rglob("*.py")]
    by_name = re.compile(r"tritium" + r"\[\w+\]")
    wrong = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in files
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
        if by_name.search(line)
    ]
    assert not wrong, "\n".join(wrong)
