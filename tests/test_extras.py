"""Remedies name packages that an index has: Tritium itself is on none, so its extras cannot be installed by name."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tritium.errors import EXTRAS, install_command

ROOT = Path(__file__).parents[1]
OF_A_CHECKOUT = ("test", "bench", "docs")  # installed as '.[test]', by people who have the sources


def test_the_table_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {name: tuple(of) for name, of in project["optional-dependencies"].items() if name not in OF_A_CHECKOUT}
    assert declared == EXTRAS


@pytest.mark.parametrize(
    ("extra", "platform", "command"),
    [
        ("model", "linux", "pip install tokenizers jinja2"),
        ("hub", "linux", "pip install huggingface_hub"),
        ("serve", "darwin", "pip install h11 tokenizers jinja2 llguidance"),
        ("torch", "linux", "pip install torch"),
        ("cuda", "linux", "pip install torch triton nvidia-ml-py"),
        ("cuda", "darwin", "pip install torch"),  # Triton has no build there
        ("mlx", "linux", "pip install 'mlx[cpu]'"),  # quoted: a shell may expand brackets
        ("mlx", "darwin", "pip install mlx"),
        ("png", "linux", "pip install resvg_py"),
    ],
)
def test_a_command_names_the_packages_of_a_platform(extra: str, platform: str, command: str) -> None:
    assert install_command(extra, platform) == command


def test_a_command_is_never_empty() -> None:
    assert install_command("mlx", "emscripten") == "pip install mlx 'mlx[cpu]'"


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
