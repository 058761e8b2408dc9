"""The house: imports point down, calls are shallow, files are small and say what they are."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import traceback
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tritium as tt
from null import Null
from tritium import buffer, ops
from tritium.backends import Device, Kernel
from tritium.op import OPS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "tritium"
FILES = sorted(PACKAGE.rglob("*.py"))

# A module may import those of its own layer and of the layers before it.
LAYERS = {
    0: "errors extras settings dtype layout garbage",
    1: "pure buffer op fragment",
    2: "ops",
    3: "backends backends.attention backends.cast backends.fused backends.fused_product backends.packed backends.philox backends.quantized "
    "backends.reference backends.tape backends.tape_code backends.tape_listing backends.tape_rows backends.cpu "
    "backends.values backends.missing backends.namespace backends.elements backends.elements_attention backends.elements_packed "
    "backends.elements_quantized backends.elements_random backends.mlx backends.mlx_metal backends.mlx_rows backends.mlx_space "
    "backends.torch backends.torch_attention backends.torch_device backends.torch_maps backends.torch_products "
    "backends.torch_rows backends.torch_space "
    "backends.torch_unsigned "
    "backends.cuda backends.cuda_attention backends.cuda_device backends.cuda_graph backends.cuda_products backends.cuda_rows "
    "backends.cuda_fragments backends.cuda_gemv backends.cuda_plain backends.cuda_quantise backends.cuda_ternary backends.cuda_tuned "
    "backends.cuda_counts backends.cuda_decode backends.cuda_doubts backends.cuda_linear backends.cuda_order backends.cuda_take "
    "backends.cuda_argmax backends.cuda_cache backends.cuda_measured backends.cuda_spread backends.cuda_weights backends.cuda_wgmma "
    "backends.cuda_functions backends.cuda_fused backends.cuda_fused_code backends.cuda_fused_form backends.cuda_fused_text "
    "machine recording tuned",
    4: "launch ceilings",
    5: "tensor interop functions indexing eager tree",
    6: "graph graph_text graph_picture placement",
    7: "passes fuse patterns batch plan schedule cost new_token",
    8: "steps value_steps foreign program compiled deferred analysis builder",
    9: "quant counts contract contraction layers network nn memory threads pipeline batching "
    "text tokens chat chat_budget chat_sandbox sampling config weights session model prepacked generation "
    "io io.codecs io.convert io.dequantize io.entry io.formats io.ggml io.gguf io.gguf_model io.hf_model io.inspect io.model "
    "io.names io.reader io.safetensors io.stream io.supported io.ternary io.tokenizer io.verify",
    10: "testing bench_model scheduler serve serve_access serve_answers serve_fields serve_http serve_openai torch torch_export torch_linear "
    "perf perf.absent perf.against perf.baseline perf.canary perf.case perf.cells perf.changes perf.compare "
    "perf.config perf.context perf.counters perf.crossover perf.drift perf.energy perf.environment perf.exports perf.files "
    "perf.github perf.history perf.imports perf.judge perf.libraries perf.measuring perf.meter perf.moves "
    "perf.names perf.noise perf.operations perf.pages perf.peers perf.plugin perf.process perf.quantised perf.quick "
    "perf.records perf.registry perf.regression perf.resample perf.rows perf.run perf.selection perf.selftest "
    "perf.selftest_cases perf.sensors perf.sensors_apple perf.sensors_nvidia perf.stats perf.store perf.suites "
    "perf.tables perf.trends perf.tune perf.tune_choices perf.tune_cuda perf.tune_file perf.verdict perf.verdict_page perf.work "
    "perf.worker perf.workloads",
    11: "see see.attribution see.critical see.hotspots see.op_table see.profile see.profile_diff see.profile_file see.profile_page "
    "see.roofline see.sampler see.spans see.doctor see.doctor_checks see.doctor_readings see.doctor_script see.doctor_watch see.targets "
    "see.targets_file see.targets_page "
    "see.accounts see.advice see.allocations see.hub see.leaks see.memory_file see.memory_page see.memory_pressure see.plugin "
    "see.python_memory "
    "see.chrome see.escape see.flame see.flame_diff see.flame_frames see.flame_look see.folded see.nvtx see.speedscope "
    "see.trace_check see.tracks "
    "see.alerts see.collector see.counters see.endpoint see.metrics_file see.monitor see.timeline see.tree "
    "see.report_data see.report_html see.report_text see.reports see.section_cases see.section_crossovers see.section_machine "
    "see.section_resources "
    "see.section_summary see.sections "
    "see.chart_bars see.chart_distribution see.chart_heat see.chart_plot see.chart_ratios see.chart_roofline see.chart_rows "
    "see.chart_stacks see.chart_time see.chart_trend see.charts see.palette see.png see.scale see.svg",
    12: "__init__ __main__ cli cli_bench cli_doctor cli_history cli_memory cli_model cli_monitor cli_profile cli_regression "
    "cli_report cli_results cli_selftest cli_target cli_text cli_tune",
}
LAYER = {
    f"tritium.{name}" if name != "__init__" else "tritium": n for n, names in LAYERS.items() for name in names.split()
}
UP_ALLOWED = {
    ("tritium.interop", "tritium"),  # __array_namespace__ answers with the package itself
    ("tritium.perf.worker", "tritium"),  # what is measured is the package as its users import it
    ("tritium.perf.selftest_cases", "tritium"),
    ("tritium.perf.pages", "tritium.see.reports"),  # export_results(fmt="html") is the page, which is made above
}


def name_of(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(f): f for f in FILES}


def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def calls(file: Path) -> list[tuple[int, str]]:
    """Line and function of each call. A tree that is kept would be looked through by every `gc.collect()` of a later test."""
    return [(n.lineno, ast.unparse(n.func)) for n in ast.walk(parsed(file)) if isinstance(n, ast.Call)]


@cache
def imports(file: Path) -> list[tuple[str, bool]]:
    """The modules of the package a file imports, and whether it does so at its top."""
    tree = parsed(file)
    inner = {n for f in ast.walk(tree) if isinstance(f, (ast.FunctionDef, ast.AsyncFunctionDef)) for n in ast.walk(f)}
    found: list[tuple[str, bool]] = []
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: write the whole name of the module"
            for a in node.names:
                whole = f"{node.module}.{a.name}"
                names.append(whole if whole in MODULES else node.module or "")
        found += [(n, node not in inner) for n in names if n.partition(".")[0] == "tritium"]
    return found


@pytest.mark.parametrize("module", MODULES)
def test_every_module_has_its_layer(module: str) -> None:
    assert module in LAYER, f"{module}: say in LAYERS where it stands"


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module: str) -> None:
    up = [
        name for name, _ in imports(MODULES[module]) if LAYER[name] > LAYER[module] and (module, name) not in UP_ALLOWED
    ]
    assert not up, f"{module} (layer {LAYER[module]}) imports {', '.join(up)}"


def test_imports_at_the_top_have_no_circle() -> None:
    needs = {m: {n for n, top in imports(f) if top and n != m} for m, f in MODULES.items()}
    while ready := [m for m, of in needs.items() if not of]:
        for m in ready:
            del needs[m]
        needs = {m: of - set(ready) for m, of in needs.items()}
    assert not needs, f"these import each other: {needs}"


def test_nobody_but_the_command_line_prints() -> None:
    for module, file in MODULES.items():
        prints = [line for line, fn in calls(file) if fn == "print"]
        assert not prints or module == "tritium.cli", f"{file}:{prints}"


def test_only_launch_has_a_kernel_run_and_only_backends_call_one() -> None:
    for module, file in MODULES.items():
        run = [line for line, fn in calls(file) if fn == "backend.run"]
        called = [line for line, fn in calls(file) if fn == "kernel.fn"]
        assert bool(run) == (module == "tritium.launch"), f"{file}:{run}"
        assert bool(called) == (module in ("tritium.backends", "tritium.backends.values")), f"{file}:{called}"


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_a_file_begins_by_saying_what_it_is(file: Path) -> None:
    assert ast.get_docstring(parsed(file))


@pytest.mark.parametrize("file", [f for f in FILES if f.name != "ops.py"], ids=lambda f: f.name)
def test_a_file_is_at_most_500_lines_long(file: Path) -> None:
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 500


def test_nothing_is_left_for_later() -> None:
    later = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    sources = [
        f for folder in ("src", "csrc") for f in (ROOT / folder).rglob("*") if f.suffix in (".py", ".h", ".cpp", ".txt")
    ]
    found = [
        f"{f}:{i}"
        for f in sources
        for i, line in enumerate(f.read_text(encoding="utf-8").splitlines(), 1)
        if later.search(line)
    ]
    assert not found


def test_at_most_four_python_frames_lead_to_a_kernel() -> None:
    stacks: list[list[str]] = []

    class Recording(Null):
        def __init__(self, device: Device) -> None:
            super().__init__(device)
            self.kernels = dict(self.kernels) | {ops.add: [Kernel("recording", record)]}

    def record(x1: Any, x2: Any, *, out: Any) -> None:
        stacks.append([f.name for f in traceback.extract_stack()])
        np.add(x1, x2, out=out)

    tt.register("recording", Recording)
    try:
        a = tt.ones(3, device="recording")
        tt.add(a, a)
        tt.add(a, a, out=a)
        assert len(stacks) == 2
        here = traceback.extract_stack()[-1].name
        own = buffer.native is None  # then a row is called through a frame of Python's
        for stack, allowed in zip(stacks, (4, 5), strict=True):  # writing into out= takes one more
            between = stack[len(stack) - stack[::-1].index(here) : -1]
            assert 1 <= len(between) <= allowed + own, between
    finally:
        tt.unregister("recording")


def test_import_brings_in_no_other_framework() -> None:
    code = "import sys, tritium; print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert not {"torch", "mlx", "jax", "triton", "tensorflow", "cupy", "click", "pytest"} & set(done.stdout.split())


def test_the_rows_are_the_public_names() -> None:
    hidden = {
        "const",
        "given",
        "item",
        "index",
        "fused",
        "gather",
        "put",
        "update",
        "masked",
        "random_uniform",
        "random_normal",
        "random_integers",
    }
    known = {name for name, value in vars(tt).items() if isinstance(value, tt.Op)} | {
        "astype",
        "reshape",
        "searchsorted",
    }
    missing = set(OPS) - known - hidden
    assert not missing, f"rows without a public name: {sorted(missing)}"


def test_every_public_name_is_listed_for_type_checkers() -> None:
    # pytest rewrites the assertions of a package that ships a plugin, and leaves names such as "@pytest_ar" behind.
    names = {n for n in dir(tt) if n.isidentifier() and not n.startswith("_")}
    public = {n for n in names if not (n in LAYER_NAMES and n not in tt.__all__)}
    assert public - set(tt.__all__) <= {"TYPE_CHECKING", "Any", "import_module", "sys"}
    for name in tt.__all__:
        assert hasattr(tt, name), name


LAYER_NAMES = {name.partition(".")[0] for names in LAYERS.values() for name in names.split()} | {"_native"}
