"""The language: docstrings say what a thing does, names say what it is. `tests/helpers/language.py` counts."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

import language

ROOT = Path(__file__).parents[1]
PACKAGES = (  # with their subpackages
    "", "batching", "cli", "compiler", "contract", "families", "graph", "io", "machine", "nn", "perf", "see",
    "backends", "models", "parallel", "serve", "torch", "vllm",
)  # fmt: skip
PUBLIC = {  # documented names, and keys of file formats: these stay
    "dtype.py": "of", "ops.py": "given", "backends/__init__.py": "given", "machine/ceilings.py": "of",
    "models/text/constraints.py": "of", "perf/engine/measuring.py": "kept",
    "perf/gate/verdict.py": "of", "perf/records/run.py": "of", "perf/suites/quick.py": "taken", "perf/tune/file.py": "of",
    "perf/tune/racing.py": "found", "perf/work/registry.py": "made", "see/png.py": "found", "see/doctor/diagnosis.py": "of",
    "see/memory/records.py": "of", "see/monitor/alerts.py": "at", "see/monitor/metrics_file.py": "of",
    "see/monitor/monitor.py": "at", "see/reports/report.py": "found", "see/targets/file.py": "asked",
    "see/targets/targets.py": "asked", "torch/recipes.py": "at",
}  # fmt: skip
REPORT_KEYS = {"told", "about"}  # of the JSON report: see/reports/blocks.py


@cache
def remarks() -> dict[str, list[language.Remark]]:
    """Return the remarks of each package: read when a test runs, not when tests are collected."""
    return language.read(ROOT)


def is_public(place: language.Remark) -> bool:
    file = place.file.relative_to(ROOT / "src" / "tritium").as_posix()
    named = PUBLIC.get(file) == place.text or (file == "see/reports/blocks.py" and place.text in REPORT_KEYS)
    return place.kind == "name" and named


def is_inside(name: str, package: str) -> bool:
    return name == package or (package != "" and name.startswith(f"{package}."))


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_and_names_of_a_package_are_in_the_language_of_the_field(package: str) -> None:
    inside = [name for name in remarks() if is_inside(name, package)]
    assert inside
    places = [place for name in inside for place in remarks()[name]]
    shown = [f"{p.file.relative_to(ROOT)}:{p.line}: {p.kind}: {p.text}" for p in places if not is_public(p)]
    assert not shown, "\n".join(shown)


def test_what_is_counted(tmp_path: Path) -> None:
    file = tmp_path / "example.py"
    file.write_text(
        '"""What it is."""\n\ndef told(at, x):\n    """Return x."""\n    found: int = x\n    return found\n'
    )
    places = language.remarks(file)
    assert [(p.kind, p.line, p.text) for p in sorted(places, key=lambda p: (p.line, p.text))] == [
        ("docstring", 1, "What it is."),
        ("name", 3, "at"),
        ("name", 3, "told"),
        ("name", 5, "found"),
    ]
