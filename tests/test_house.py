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
    0: "errors escape settings dtype layout garbage",
    1: "pure buffer op fragment",
    2: "ops",
    3: "backends backends.fusion backends.reference.attention backends.reference.cast backends.reference.fused "
    "backends.cpu.fused_product backends.reference.packed backends.reference.philox backends.reference.quantized "
    "backends.reference.kernels backends.cpu.tape backends.cpu.tape_code backends.cpu.tape_listing "
    "backends.cpu.tape_rows backends.cpu.device backends.values.device backends.values.missing "
    "backends.values.namespace backends.values.elements backends.values.attention backends.values.packed "
    "backends.values.quantized backends.values.random backends.mlx.device backends.mlx.metal backends.mlx.rows "
    "backends.mlx.space backends.torch.probe backends.torch.attention backends.torch.device backends.torch.maps "
    "backends.torch.products backends.torch.rows backends.torch.space backends.torch.unsigned backends.cuda.probe "
    "backends.cuda.capability backends.cuda.gpu "
    "backends.cuda.attention.attend backends.cuda.device backends.cuda.graph backends.cuda.linear.products "
    "backends.cuda.rows backends.cuda.linear.fragments backends.cuda.linear.gemv backends.cuda.linear.plain "
    "backends.cuda.linear.quantise backends.cuda.linear.ternary backends.cuda.linear.choice backends.cuda.counts "
    "backends.cuda.attention.decode backends.cuda.doubts backends.cuda.linear.halves backends.cuda.order "
    "backends.cuda.take backends.cuda.argmax backends.cuda.attention.cache backends.cuda.linear.measured "
    "backends.cuda.linear.spread backends.cuda.linear.weights backends.cuda.linear.wgmma backends.cuda.functions "
    "backends.cuda.fused.kernel backends.cuda.fused.code backends.cuda.fused.form backends.cuda.fused.text "
    "machine.facts recording machine.tuned backends.reference backends.cpu backends.values backends.mlx "
    "backends.torch backends.cuda backends.cuda.attention backends.cuda.linear backends.cuda.fused",
    4: "launch machine.ceilings machine",
    5: "tensor interop functions indexing eager compiler.tree",
    6: "graph.graph graph.text graph.picture graph.placement",
    7: "compiler.passes compiler.fuse compiler.patterns graph.batch compiler.plan compiler.order compiler.cost "
    "compiler.new_token graph",
    8: "compiler.steps compiler.foreign compiler.program compiler.compile compiler.lazy "
    "compiler.explain compiler.builder compiler",
    9: "quant counts contract.lowering contract.einsum nn.linear nn.transformer nn memory threads batching.pipeline "
    "batching.batches models.vocabulary models.tokenizer models.chat models.chat_budget models.chat_sandbox "
    "models.sampling models.config models.weights models.session models.load models.prepacked models.generation io "
    "io.codecs io.convert io.dequantize io.model.entry io.formats io.ggml io.gguf io.model.gguf "
    "io.model.huggingface io.inspect io.model.opening io.model.names io.reader io.safetensors io.stream "
    "io.model.supported io.ternary io.model.tokenizer io.verify contract batching models io.model",
    10: "testing perf.suites.model serve.scheduler serve.server serve.access serve.answers serve.fields serve.http "
    "serve.openai torch torch.writer torch.layer perf perf.meters.absent perf.gate.against perf.store.baseline "
    "perf.work.canary perf.records.case perf.engine.cells perf.stats.changes perf.gate.compare perf.suites.config "
    "perf.records.context perf.meters.counters perf.tables.crossover perf.gate.drift perf.meters.energy "
    "perf.records.environment perf.formats.exports perf.files perf.formats.github perf.store.history "
    "perf.formats.imports perf.gate.judge perf.work.libraries perf.engine.measuring perf.meters.meter "
    "perf.work.moves perf.gate.noise perf.work.operations perf.tables.pages perf.work.peers perf.plugin "
    "perf.engine.process perf.work.quantised perf.suites.quick perf.records.json_io perf.work.registry "
    "perf.gate.regression perf.stats.resample perf.work.rows perf.records.run perf.tables.selection "
    "perf.gate.selftest perf.gate.selftest_cases perf.meters.sensors perf.meters.apple perf.meters.nvidia "
    "perf.stats.estimates perf.store.results perf.suites.suites perf.tables.table perf.tables.tables perf.amounts perf.store.trends "
    "perf.tune.racing perf.tune.choices perf.tune.cuda perf.tune.file perf.gate.verdict perf.gate.page "
    "perf.work.recipes perf.engine.worker perf.work.workloads perf.suites serve perf.meters perf.gate perf.store "
    "perf.work perf.records perf.engine perf.stats perf.tables perf.formats perf.tune",
    11: "see see.profile.attribution see.profile.critical see.profile.hotspots see.profile.op_table see.profile.profile "
    "see.profile.diff see.profile.file see.profile.page see.profile.roofline see.trace.sampler see.trace.spans "
    "see.doctor.diagnosis see.doctor.checks see.doctor.readings see.doctor.script see.doctor.watch "
    "see.targets.targets see.targets.file see.targets.page see.memory.accounts see.memory.advice "
    "see.memory.allocations see.memory.hub see.memory.leaks see.memory.records see.memory.file see.memory.page "
    "see.memory.pressure see.memory.plugin see.memory.python see.trace.chrome see.trace.flame see.trace.flame_diff "
    "see.trace.flame_frames see.trace.flame_look see.trace.folded see.trace.nvtx see.trace.speedscope "
    "see.trace.check see.trace.tracks see.monitor.alerts see.monitor.collector see.monitor.counters "
    "see.monitor.sources see.monitor.tensor_metrics "
    "see.monitor.endpoint see.monitor.metrics_file see.monitor.monitor see.trace.timeline see.trace.tree "
    "see.reports.data see.reports.html see.reports.text see.reports.report see.reports.cases see.reports.crossovers "
    "see.reports.export see.reports.machine see.reports.resources see.reports.summary see.reports.sections "
    "see.reports.blocks see.reports.inputs see.reports.words see.charts.bars "
    "see.charts.distribution see.charts.heat see.charts.plot see.charts.ratios see.charts.roofline see.charts.rows "
    "see.charts.stacks see.charts.time see.charts.trend see.charts.charts see.charts.palette see.png "
    "see.charts.scale see.charts.svg see.profile see.trace see.doctor see.targets see.memory see.monitor "
    "see.reports see.charts",
    12: "__init__ __main__ cli.root cli.bench cli.doctor cli.history cli.memory cli.model cli.monitor cli.profile "
    "cli.regression cli.report cli.results cli.selftest cli.target cli.text cli.tune cli",
}
LAYER = {
    f"tritium.{name}" if name != "__init__" else "tritium": n for n, names in LAYERS.items() for name in names.split()
}
UP_ALLOWED = {
    ("tritium.perf.engine.worker", "tritium"),  # what is measured is the package as its users import it
    ("tritium.perf.gate.selftest_cases", "tritium"),
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
        assert not prints or module == "tritium.cli.root", f"{file}:{prints}"


def test_only_launch_has_a_kernel_run_and_only_backends_call_one() -> None:
    for module, file in MODULES.items():
        run = [line for line, fn in calls(file) if fn == "backend.run"]
        called = [line for line, fn in calls(file) if fn == "kernel.fn"]
        assert bool(run) == (module == "tritium.launch"), f"{file}:{run}"
        assert bool(called) == (module in ("tritium.backends", "tritium.backends.values.device")), f"{file}:{called}"


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_a_file_begins_by_saying_what_it_is(file: Path) -> None:
    assert ast.get_docstring(parsed(file))


@pytest.mark.parametrize("file", [f for f in FILES if f.name != "ops.py"], ids=lambda f: f.name)
def test_a_file_is_at_most_600_lines_long(file: Path) -> None:
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 600


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
