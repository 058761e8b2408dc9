"""docs/architecture.md: its sentences that can be checked, checked. Those about calls and recording have tests of their own."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import tritium as tt
from doc_pages import NOT_EDITABLE, ROOT, parse
from structure import calls, statements, structure_of
from tritium import buffer

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PROSE = parse(PAGE)[1]
PACKAGE = ROOT / "src" / "tritium"
HOUSE = structure_of(ROOT)
SPAN = re.compile(r"`([^`]+)`")
PATH = re.compile(r"(?:src|csrc|tests)/[\w/]+\.(?:py|h|cpp)")
DOTTED = re.compile(r"(?:tt|tritium|[a-z]+)(?:\.\w+)+(?:\(\))?")


def table(head: str) -> list[list[str]]:
    """Return the cells of the rows below the head of a table."""
    lines = PROSE.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"| {head} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def names(cell: str) -> list[str]:
    return SPAN.findall(cell)


@cache
def imported(package: str) -> dict[str, set[str]]:
    """Return which neighbours each module or package inside a package imports, by their last names."""
    return {
        child.rpartition(".")[2]: {target.rpartition(".")[2] for target in targets}
        for child, targets in HOUSE.children(package).items()
    }


def on_disk(package: str) -> set[str]:
    folder = ROOT / "src" / package.replace(".", "/")
    return {file.parent.name for file in folder.glob("*/__init__.py")}


ROWS = [(name, n) for n, row in enumerate(table("package or module")) for name in names(row[0])]
LINE = dict(ROWS)
DENIED = {
    package: {name: names(row[2]) for row in table(head) for name in names(row[0])}
    for package, head in (
        ("tritium", "package or module"),
        ("tritium.perf", "package of `perf`"),
        ("tritium.see", "package of `see`"),
    )
}


def test_the_table_of_packages_has_every_package_and_module_once() -> None:
    modules = {file.stem for file in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert sorted(name for name, _ in ROWS) == sorted(modules | on_disk("tritium"))


@pytest.mark.parametrize("name", LINE)
def test_a_line_imports_from_the_lines_above_only(name: str) -> None:
    up = {other for other in imported("tritium")[name] if LINE[other] > LINE[name]}
    assert not up


@pytest.mark.parametrize(("package", "name"), [(package, name) for package in DENIED for name in DENIED[package]])
def test_a_package_does_not_import_what_the_page_denies(package: str, name: str) -> None:
    denied = set(DENIED[package][name])
    children = imported(package)
    assert denied <= set(children), "the page names what there is"
    wrong = denied & children[name]
    assert not wrong


@pytest.mark.parametrize("package", ["perf", "see", "backends"])
def test_the_tables_of_packages_inside_have_all_of_them(package: str) -> None:
    listed = [name for row in table(f"package of `{package}`") for name in names(row[0])]
    assert sorted(listed) == sorted(on_disk(f"tritium.{package}"))


@pytest.mark.parametrize("row", table("package of `backends`"), ids=lambda row: row[0])
def test_a_backend_imports_the_backends_its_line_names(row: list[str]) -> None:
    (name,) = names(row[0])
    more = imported("tritium.backends")[name] & on_disk("tritium.backends") - set(names(row[2]))
    assert not more
    assert set(names(row[2])) <= imported("tritium.backends")[name]


def others_imported(file: Path) -> set[str]:
    """Return the first names of all modules a file imports, at its top or in a function."""
    result: set[str] = set()
    for node in statements(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            result |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            result.add((node.module or "").partition(".")[0])
    return result


@pytest.mark.parametrize(("library", "allowed"), [("mlx", {"mlx", "probes.py"}), ("torch", {"torch", "cuda"})])
def test_only_the_backends_named_import_a_library(library: str, allowed: set[str]) -> None:
    users = {file.relative_to(PACKAGE / "backends").parts[0] for file in (PACKAGE / "backends").rglob("*.py")
             if library in others_imported(file)}  # fmt: skip
    assert users == allowed


def test_only_launch_has_a_kernel_run() -> None:
    users = [
        file.relative_to(PACKAGE).as_posix()
        for file in PACKAGE.rglob("*.py")
        if re.search(r"\bbackend\.run\(", file.read_text(encoding="utf-8"))
    ]
    assert users == ["launch.py"]


def test_only_the_command_line_prints_and_exits() -> None:
    speaking = ("print", "click.echo", "click.secho", "sys.exit")
    users = {file.relative_to(PACKAGE).parts[0] for file in PACKAGE.rglob("*.py") if calls(file, *speaking)}
    assert users == {"cli"}


def test_import_brings_in_what_the_page_says() -> None:
    code = "import sys, tritium; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    modules = done.stdout.split()
    roots = {name.partition(".")[0] for name in modules}
    assert {"numpy", "ml_dtypes"} <= roots
    assert not roots & {"torch", "jax", "mlx", "triton", "click", "threadpoolctl"}
    (sentence,) = re.findall(r"What most programs do not need \((.*?)\)", PROSE, re.DOTALL)
    late = [*names(sentence), "torch", "serve", "cli"]
    assert len(late) == 11
    assert [name for name in late if f"tritium.{name}" in modules] == []


@pytest.mark.parametrize("step", table("step"), ids=lambda row: row[0])
def test_the_steps_of_the_compiler_name_modules(step: list[str]) -> None:
    (module, *_) = names(step[1])
    assert f"tritium.{module}" in HOUSE.modules


def test_five_files_explain_the_idea() -> None:
    (sentence,) = re.findall(r"Five files explain the idea: (.*?)\. For", PROSE, re.DOTALL)
    files = names(sentence)
    assert len(files) == 5
    assert all((ROOT / file).is_file() for file in files)


@pytest.mark.parametrize("page", ["architecture.md", *sorted(file.name for file in (ROOT / "docs").glob("add-*.md"))])
def test_paths_on_a_page_exist(page: str) -> None:
    text = parse((ROOT / "docs" / page).read_text(encoding="utf-8"))[1]
    spans = {span for span in SPAN.findall(text) if re.fullmatch(r"[\w/]+/[\w/]*\.(?:py|h|cpp)", span)}
    new = {"src/tritium/see/charts/lollipop.py", "src/tritium/cli/hello.py"}
    places = (ROOT, PACKAGE)
    assert sorted(s for s in spans - new if not any((place / s).exists() for place in places)) == []


def resolves(name: str) -> bool:
    """Return True if a dotted name is one of the package: a module, or something in it."""
    whole = name.removesuffix("()").split(".")
    whole = ["tritium", *whole[1:]] if whole[0] == "tt" else whole if whole[0] == "tritium" else ["tritium", *whole]
    for cut in range(len(whole), 0, -1):
        try:
            value = importlib.import_module(".".join(whole[:cut]))
        except ModuleNotFoundError:
            continue
        for part in whole[cut:]:
            if not hasattr(value, part):
                return False
            value = getattr(value, part)
        return True
    return False


@pytest.mark.parametrize("name", sorted({s for s in SPAN.findall(PROSE) if DOTTED.fullmatch(s)}))
def test_names_on_the_page_exist(name: str) -> None:
    if name in ("mx.add", "time.perf_counter_ns", "tritium.torch"):
        return  # MLX's, Python's, and one that needs PyTorch
    if name.startswith("native."):
        assert buffer.native is None or hasattr(buffer.native, name.removeprefix("native."))
        return
    assert resolves(name), name


def test_spans_are_recorded_by_the_files_named() -> None:
    files = {path for row in table("what runs") for path in PATH.findall(row[1])}
    native = {file for file in files if file.startswith("csrc")}
    adds = {
        f"csrc/python/{file.name}"
        for file in (ROOT / "csrc" / "python").glob("*.cpp")
        if re.search(r"globals\.recorder.*now_ns", file.read_text(encoding="utf-8"))
    }
    assert native == adds
    python = {file for file in files if file.startswith("src")}
    recording = {
        file.relative_to(ROOT).as_posix()
        for file in PACKAGE.rglob("*.py")
        if re.search(r"\brecording\.(?:active|add|record)\b|^active\b", file.read_text(encoding="utf-8"), re.MULTILINE)
        and "see" not in file.parts
    }
    assert python == recording


@pytest.mark.parametrize("package", ["profile", "monitor", "doctor"])
def test_profiles_counters_and_the_doctor_record(package: str) -> None:
    inside = [targets for name, targets in HOUSE.edges.items() if name.startswith(f"tritium.see.{package}")]
    assert any("tritium.recording" in targets for targets in inside)


def test_both_builds_have_the_same_three_classes() -> None:
    from tritium import pure

    for name in ("Storage", "Array", "Row"):
        assert hasattr(pure, name)
        assert buffer.native is None or hasattr(buffer.native, name)
    assert issubclass(tt.Tensor, buffer.Array)
    assert issubclass(tt.Op, buffer.Row)


def test_instruction_sets_are_those_of_the_native_library() -> None:
    (sentence,) = re.findall(r"\*\*Instruction sets\.\*\* (.*?) hold only", PROSE, re.DOTALL)
    source = (ROOT / "csrc" / "isa.cpp").read_text(encoding="utf-8")
    assert sorted(name for name in names(sentence) if f'"{name}"' not in source) == []


def test_the_worker_takes_perf_from_its_own_folder_and_the_rest_from_the_other(tmp_path: Path) -> None:
    """One worker for two versions: the other one is a package without a perf of its own."""
    other = tmp_path / "tritium"
    other.mkdir()
    (other / "__init__.py").write_text("__version__ = 'other'\n")
    for name in ("errors", "escape", "settings"):
        (other / f"{name}.py").write_text((PACKAGE / f"{name}.py").read_text(encoding="utf-8"))
    code = (
        f"{NOT_EDITABLE}import importlib.util\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        f"spec = importlib.util.spec_from_file_location('worker', {str(PACKAGE / 'perf/engine/worker.py')!r})\n"
        "worker = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(worker)\n"
        "worker.load_perf()\n"
        "import tritium\n"
        "print(tritium.__version__, sys.modules['tritium.perf'].__file__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["other", str(PACKAGE / "perf" / "__init__.py")], done.stderr


def test_the_door_of_the_pytest_plugin_is_outside_the_package() -> None:
    file = next((ROOT / "src").glob("tritium_pytest*"))
    file = file if file.is_file() else file / "__init__.py"
    tree = ast.parse(file.read_text(encoding="utf-8"))
    top = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert not [node for node in top if "tritium" in ast.unparse(node).replace("tritium_pytest", "")]


def test_equal_calls_share_one_object_that_says_what_ran() -> None:
    from tritium import recording

    x = tt.ones(8)
    with recording.Recorder() as recorder:
        for _ in range(3):
            tt.exp(x)
    whats, times = recorder.read()
    assert len(whats) == 3
    assert len({id(what) for what in whats}) == 1
    assert times.itemsize * times.shape[1] <= 32
