"""Suites: the cases, contenders and metrics under a name, for `tritium compare` and `tritium bench`.

A suite's settings are a BenchmarkConfig, so that a file or an option changes any of them; what this machine or an op does
not support becomes a note with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from math import prod
from pathlib import Path
from typing import Any

from tritium import backends
from tritium.arguments import checked
from tritium.buffer import native
from tritium.errors import ArgumentError, nearest
from tritium.op import OPS
from tritium.perf.engine import measuring
from tritium.perf.engine.measuring import Progress
from tritium.perf.records import json_io
from tritium.perf.records.case import Arm, Case
from tritium.perf.records.run import PLANS, Plan, Results
from tritium.perf.suites.config import FLOATS, BenchmarkConfig, EnergyConfig, Options
from tritium.perf.work import peers, recipes as work, registry
from tritium.perf.work.canary import is_canary
from tritium.perf.work.operations import MEMORY_ACTS, TRANSFER_ACTS, WORKLOADS

Shape = tuple[int, ...]
TIME = ("wall", "cpu", "peak_bytes")
MEMORY = (*TIME, "allocated_bytes", "rss_bytes")
SEQUENCES, TOKENS = 8, 64
FLAGSHIP = ((1, 2560), (64, 2560))  # tokens and width of BitNet 2B
FLAGSHIP_TOKENS = 32
ACTIVATIONS = ("relu", "gelu", "silu", "softmax")
STEPS = ("quantize", "dequantize", "matmul")  # of the suite quantization, as in perf.work.quantised


CasesAndNotes = tuple[list[Case], list[str]]
Cases = Callable[[Options], CasesAndNotes]


@dataclass(frozen=True)
class Suite:
    """One suite of `tritium bench`."""

    name: str
    doc: str
    cases: Cases
    settings: dict[str, Any]  # of its BenchmarkConfig
    quick: dict[str, Any]  # overrides with --quick
    aliases: tuple[str, ...] = ()
    metrics: tuple[str, ...] = TIME
    peers: tuple[str, ...] | None = None  # default libraries to compare with; None: those installed
    listed: bool = False  # its cases are a fixed list with its own sizes
    everywhere: bool = False  # by default on every device present; else on the default device
    quick_s: float | None = None  # time of a quick run; None: it takes what it takes


@dataclass(frozen=True)
class Grid:
    """The cases and contenders of a run, and notes on what is left out."""

    cases: tuple[Case, ...]
    arms: tuple[Arm, ...]
    notes: tuple[str, ...] = ()
    requested: tuple[str, ...] = ()  # contenders that were named; others are measured because they are here

    def summary(self, plan: Plan) -> str:
        """Return one line for a person who waits."""
        contenders = ", ".join(arm.name for arm in self.arms)
        cases, each = len(self.cases), plan.generations
        processes = f"{each} fresh process{'es' * (each != 1)} each"
        if plan.budget_s is not None:
            processes = f"within {plan.budget_s:g} s, at most {processes}"
        return (
            f"{cases} case{'s' * (cases != 1)} on {contenders}: {processes}, "
            f"{plan.rounds} round{'s' * (plan.rounds != 1)} interleaved"
        )


# ---- cases


def names() -> list[str]:
    """Return every name that `operations` of a file or an option accepts."""
    return [*work.operation_names(), *MEMORY_ACTS, *TRANSFER_ACTS]


def operations(options: Options) -> CasesAndNotes:
    """Return ops x sizes x batches x dtypes, without their transfers or with them; what is refused is a note."""
    config, cases, notes = options.config, [], []
    kinds = config.data_types
    known = names()
    for name in config.operations:
        if name not in known:
            raise ArgumentError(
                f"operations: {name!r} is not an op.{nearest(name, known)} There are {', '.join(known)}; "
                "your own come from a file: --load FILE.py."
            )
        if name in (*MEMORY_ACTS, *TRANSFER_ACTS):
            cases += _moves(name, options)
        else:
            for batch, sizes in _batches(name, options).items():
                cases += _with_options(name, sizes, batch, options)
                refused = [work.refuses(name, shape, kind) for shape in sizes for kind in kinds]
                notes += [f"left out: {reason}." for reason in refused if reason]
    return _unique(cases), [*notes, *_unused_options(options)]


def comparison(options: Options) -> CasesAndNotes:
    """Return ops as elsewhere; of a quick comparison that nobody narrowed, the flagship too."""
    cases, notes = operations(options)
    config, quick = options.config, COMPARE.quick
    if options.quick and (config.operations, config.tensor_sizes) == (quick["operations"], quick["tensor_sizes"]):
        cases += work.grid(["bitlinear"], FLAGSHIP, **options.recipe)
        cases += work.grid(["model_decode"], [(FLAGSHIP_TOKENS,)], **options.recipe)
    return cases, notes


def _moves(name: str, options: Options) -> list[Case]:
    """Return the cases of memory or of transfers under a name."""
    from tritium.perf.work import moves  # of these cases alone

    config = options.config
    if name in MEMORY_ACTS:
        return moves.memory([(_size(s), 4 * prod(s)) for s in config.tensor_sizes], [name], **options.recipe)
    return moves.transfer(config.tensor_sizes, config.data_types, [name], **options.recipe)


def _batches(name: str, options: Options) -> dict[int | None, list[Shape]]:
    """Return the shapes of an op by its batch; None: as in the sizes, if it has no batch or none is requested."""
    config = options.config
    shapes = config.tensor_sizes
    if not config.batch_sizes or work.batched(name, 1, shapes[0]) is None:
        return {None: list(shapes)}
    shapes_of = {b: [work.batched(name, b, shape) for shape in shapes] for b in config.batch_sizes}
    return {b: list(dict.fromkeys(s for s in batched if s is not None)) for b, batched in shapes_of.items()}


def _with_options(name: str, shapes: Sequence[Shape], batch: int | None, options: Options) -> list[Case]:
    """Return the cases of one op with one batch: without transfers, with them, or both."""
    config = options.config
    cases: list[Case] = []
    if config.transfer != "included" or not work.transfers(name):
        cases += work.grid([name], shapes, config.data_types, **options.recipe)
    if config.transfer != "excluded":
        cases += work.grid([name], shapes, config.data_types, transfer=True, **options.recipe)
    if batch is None:
        return cases
    return [replace(case, context=replace(case.context, batch=batch)) for case in cases]


def _unused_options(options: Options, every_op: bool = False) -> list[str]:
    """Return notes on ops that have no batch, or no transfers, if these were requested."""
    config = options.config
    own = [name for name in config.operations if every_op or name in (*MEMORY_ACTS, *TRANSFER_ACTS)]
    rest = [name for name in config.operations if name not in own]
    unbatched = own + [n for n in rest if work.batched(n, 1, config.tensor_sizes[0]) is None]
    without_transfer = own + [n for n in rest if not work.transfers(n)]
    notes = []
    if config.batch_sizes and unbatched:
        notes.append(f"measured without batch_sizes: {', '.join(unbatched)}: they have no batch.")
    if config.transfer != "excluded" and without_transfer:
        notes.append(
            f"measured without transfer={config.transfer}, which does not apply: {', '.join(without_transfer)}."
        )
    return notes


def _size(shape: Shape) -> str:
    """Return a shape as text."""
    return "x".join(map(str, shape))


def _unique(cases: Iterable[Case]) -> list[Case]:
    """Return the cases with each name once."""
    return list({case.name: case for case in cases}.values())


def layouts(options: Options) -> CasesAndNotes:
    """Return the same ops on row-major, column-major and strided memory."""
    config = options.config
    operations(options)  # raises for unknown names
    cases = work.layouts(config.operations, config.tensor_sizes, config.data_types, **options.recipe)
    return cases, _unused_options(options, every_op=True)


def data_types(options: Options) -> CasesAndNotes:
    """Return one product with weights of every dtype, and the other ops in every float dtype."""
    config = options.config
    kinds = [*config.data_types, *(k for k in ("i8", "i4", "tern2") if k not in config.data_types)]
    products = work.dtypes(config.tensor_sizes, kinds, **options.recipe)
    others, notes = operations(options)
    return _unique([*products, *others]), notes


def layers(options: Options) -> CasesAndNotes:
    """Return workloads; sizes are (tokens, width). Several sequences are decoded together too."""
    config = options.config
    cases, notes = operations(options)
    if "decode" in config.operations and not config.batch_sizes:
        from tritium.perf.work import workloads  # of these cases alone

        together = [(SEQUENCES, *shape) for shape in config.tensor_sizes if len(shape) == 2]
        cases += workloads.cases("decode", together[-1:], **options.recipe)
    return _unique(cases), notes


def comprehensive(options: Options) -> CasesAndNotes:
    """Return ops as elsewhere, and workloads on a prompt of some tokens as wide as the sizes."""
    config = options.config
    own = tuple(name for name in config.operations if name in WORKLOADS)
    rest = tuple(name for name in config.operations if name not in own)
    cases, notes = operations(options.changed(operations=rest)) if rest else ([], [])
    prompts = tuple(dict.fromkeys((TOKENS, shape[-1]) for shape in config.tensor_sizes))
    if own:
        more, more_notes = layers(options.changed(operations=own, tensor_sizes=prompts, data_types=("f32",)))
        cases, notes = [*cases, *more], [*notes, *more_notes]
    return _unique(cases), notes


def quantization(options: Options) -> CasesAndNotes:
    """Return schemes x steps x sizes."""
    from tritium.perf.work import quantised  # only this suite needs it

    config = options.config
    wrong = next((step for step in config.operations if step not in STEPS), None)
    if wrong is not None:
        raise ArgumentError(
            f"operations: {wrong!r} is no step of this suite; there are {', '.join(STEPS)}.{nearest(wrong, STEPS)}"
        )
    shapes = [shape for shape in config.tensor_sizes if len(shape) == 2]
    notes = [
        f"left out: {_size(s)}: a matrix of weights has two sizes." for s in config.tensor_sizes if s not in shapes
    ]
    cases = quantised.quantisation(shapes, None, config.operations, **options.recipe)
    return cases, [*notes, *_unused_options(options, every_op=True)]


def table_samples(options: Options) -> CasesAndNotes:
    """Return the samples of ops; `operations` are op names. They are small: the overhead of a call more than its work."""
    from tritium.perf.work import rows  # it needs graphs

    config = options.config
    requested = config.operations if config.operations != ALL_ROWS else tuple(OPS)
    cases = _unique(case for row in requested for case in rows.cases(row, **options.recipe))
    return cases, _unused_options(options, every_op=True)


def network_calls(options: Options) -> CasesAndNotes:
    """Return the distinct calls of the bundled model, for prompts of as many tokens as the sizes say."""
    from tritium.models.load import load
    from tritium.perf.work import rows

    config, model = options.config, load()
    return _unique(
        replace(case, context=replace(case.context, sequence_length=shape[0]))
        for shape in config.tensor_sizes
        for case in rows.traced(model, tokens=shape[0], **options.recipe)
    ), _unused_options(options, every_op=True)


def own_benchmarks(options: Options) -> CasesAndNotes:
    """Return the cases of the user's own benchmarks that were loaded; `operations` are their names."""
    config, registered = options.config, registry.registered()
    chosen = config.operations if config.operations != ALL_ROWS else tuple(registered)
    cases = [
        case for name in chosen for case in registry.cases(name, config.tensor_sizes, config.data_types, **options.recipe)
    ]  # fmt: skip
    return _unique(cases), _unused_options(options, every_op=True)


# ---- the suites

ALL_ROWS = ("all",)
TINY, SMALL, MIDDLE, LARGE = (64, 64), (256, 256), (512, 512), (1024, 1024)
LISTED = (
    Suite(
        "compare", "ops x sizes x dtypes x devices", comparison, {"tensor_sizes": (TINY, SMALL, LARGE)},
        {"tensor_sizes": (TINY, MIDDLE), "data_types": ("f32",),
         "operations": ("matmul", "add", "softmax", "quantize", "bitlinear")}, everywhere=True, quick_s=60.0,
    ),
    Suite(
        "comprehensive", "matrix products, quantisation, BitLinear, activations, memory and workloads", comprehensive,
        {"operations": ("matmul", "add", "multiply", "quantize", "dequantize", "bitlinear", *ACTIVATIONS, "allocate", "clone",
                        "transformer_layer", "decode", "batch_processing"),
         "tensor_sizes": (SMALL, LARGE)},
        {"tensor_sizes": (SMALL,), "data_types": ("f32",)},
        ("comprehensive_performance_comparison",), MEMORY,
    ),
    Suite(
        "quantization", "schemes x granularity x sizes: times, bytes, error, throughput", quantization,
        {"operations": STEPS, "tensor_sizes": (MIDDLE, LARGE, (2048, 2048))},
        {"tensor_sizes": (MIDDLE,)},
        ("quantization_performance",), TIME, ("numpy",),
    ),
    Suite(
        "energy", "power, joules per op, ops per joule and per degree, battery hours", operations,
        {"operations": ("matmul", "bitlinear", "quantize", "add"), "tensor_sizes": (LARGE,), "data_types": ("f32",)},
        {"operations": ("matmul", "bitlinear")},
        ("energy_efficiency_comparison",), ("wall", "cpu", "energy", "temperature"), ("numpy",),
    ),
    Suite(
        "workloads", "a transformer layer with BitLinear: prefill and decode; batches of items", layers,
        {"operations": ("prefill", "decode", "batch_processing"), "tensor_sizes": ((64, 1024), (256, 1024)), "data_types": ("f32",)},
        {"tensor_sizes": ((TOKENS, 512),)}, (), TIME,
    ),
    Suite(
        "memory", "allocating, cloning, writing, reusing; and the peak memory of ops", operations,
        {"operations": (*MEMORY_ACTS, "matmul", "softmax", "bitlinear"), "tensor_sizes": ((16, 16), (2048, 2048)),
         "data_types": ("f32",)}, {"tensor_sizes": ((16, 16), LARGE)}, (), MEMORY, ("numpy",),
    ),
    Suite(
        "transfer", "from NumPy and back, to a device and back", operations,
        {"operations": TRANSFER_ACTS, "tensor_sizes": (SMALL, (2048, 2048)), "data_types": ("f32", "f16")},
        {"data_types": ("f32",)}, (), TIME, ("numpy",), everywhere=True,
    ),
    Suite(
        "layout", "contiguous, transposed and strided memory", layouts,
        {"operations": ("add", "sum", "matmul"), "tensor_sizes": (LARGE,), "data_types": ("f32",)}, {}, (), TIME, ("numpy",),
    ),
    Suite(
        "dtype", "the same product with weights of every dtype", data_types,
        {"operations": ("add",), "tensor_sizes": (MIDDLE, LARGE), "data_types": ("f32", "f16", "bf16")},
        {"tensor_sizes": (MIDDLE,)}, (), TIME, ("numpy",),
    ),
    Suite(
        "table", "every sample of every op", table_samples, {"operations": ALL_ROWS, "data_types": ("f32",)},
        {}, (), TIME, ("numpy",), True,
    ),
    Suite(
        "network", "every distinct call of the bundled model, and how often it occurs", network_calls,
        {"tensor_sizes": ((1,), (64,)), "data_types": ("f32",)}, {"tensor_sizes": ((1,),)}, (), TIME, ("numpy",), True,
    ),
    Suite(
        "regression", "few cases for frequent runs: what a gate compares with a baseline", operations,
        {"operations": ("matmul", "add", "softmax", "quantize", "bitlinear"), "tensor_sizes": (MIDDLE,),
         "data_types": ("f32",)}, {},
        ("regression_performance_tests",), TIME, ("numpy",),
    ),
)  # fmt: skip
COMPARE = LISTED[0]
SUITES: dict[str, Suite] = {suite.name: suite for suite in LISTED[1:]}
NAMES: dict[str, str] = {name: suite.name for suite in SUITES.values() for name in (suite.name, *suite.aliases)}
QUICK_PEERS = ("numpy", "torch")
PROJECT = Suite(  # not one of Tritium's: its cases are whatever the project in this folder has
    "project", "benchmarks of your own project: @tt.perf.benchmark in files bench_*.py and *_bench.py", own_benchmarks,
    {"operations": ALL_ROWS, "tensor_sizes": (SMALL,), "data_types": ("f32",)}, {}, (), TIME, ("none",), True,
)  # fmt: skip


def suite_named(name: str) -> Suite:
    """Return a suite by its name or the guides' name."""
    for other in (COMPARE, PROJECT):
        if name == other.name:
            return other
    if name not in NAMES:
        raise ArgumentError(f"{name!r} is not a suite.{nearest(name, NAMES)} There are {', '.join(SUITES)}.")
    return SUITES[NAMES[name]]


def defaults(suite: str, quick: bool = False, devices: Sequence[str] | None = None) -> BenchmarkConfig:
    """Return the default settings of a suite. Devices other than those named are not probed."""
    row = suite_named(suite)
    settings = row.settings | (row.quick if quick else {})
    if devices is not None:
        settings |= {"devices": devices}
    elif not row.everywhere:
        settings |= {"devices": (str(backends.default_device().device),)}
    return BenchmarkConfig(**settings)


def metrics(suite: str, plan: Plan, energy: EnergyConfig | None = None) -> tuple[str, ...]:
    """Return the metrics of a suite beside time; no temperature if the settings turn it off."""
    off = ("temperature",) if energy is not None and not energy.thermal_monitoring else ()
    return tuple(m for m in dict.fromkeys((*plan.metrics[:2], *suite_named(suite).metrics)) if m not in off)


def energy_options(config: EnergyConfig, plan: Plan) -> dict[str, Any]:
    """Return the options of the energy meter: the measuring time is divided among the processes."""
    values = {f.name: getattr(config, f.name) for f in fields(EnergyConfig)}
    each = config.power_measurement_duration_s / plan.generations
    return values | {"power_measurement_duration_s": max(1.0, each)}


def load(path: str | Path) -> list[str]:
    """Load a file of user benchmarks; their names are ops from then on."""
    return registry.load(path)


def options_of(
    suite: str, *, quick: bool = False, thorough: bool = False, plan: Plan | None = None, config: str | Path | None = None,
    devices: Sequence[str] | None = None, own: Sequence[str] = (), minutes: float | None = None,
) -> Options:  # fmt: skip
    """Return the options of a suite: its defaults and the user's own benchmarks, or the settings of a file."""
    name, energy = suite_named(suite).name, None
    budget_s = 60 * minutes if minutes is not None else suite_named(suite).quick_s if quick and plan is None else None
    plan = plan or PLANS["quick" if quick else "thorough" if thorough else "default"]
    if name == "energy":
        energy = EnergyConfig.load(config) if config else EnergyConfig()
    if config and name != "energy":
        settings = BenchmarkConfig.load(config)
        plan = settings.plan(plan)
    else:
        settings = defaults(name, quick, devices)
    if own and not config:
        settings = replace(settings, operations=(*settings.operations, *own))
    if budget_s is not None:
        most = plan.generations if plan.gates else PLANS["thorough"].generations
        plan = replace(plan, budget_s=budget_s, generations=most)
    options = Options(name, settings, replace(plan, metrics=metrics(name, plan, energy)), energy, quick=quick)
    in_file = config is not None and "devices" in json_io.loads(Path(config).read_bytes(), Path(config).name)
    return options.changed(devices=devices, named_devices=bool(devices) or in_file)


def grid(options: Options) -> Grid:
    """Return the cases and contenders of the options, and notes on what is left out."""
    suite, config = suite_named(options.suite), options.config
    devices, notes = config.usable_devices()
    if not devices:
        raise ArgumentError(
            f"{options.suite}: none of the devices {', '.join(config.devices)} is here. {' '.join(notes)}"
        )
    beside = options.peers if options.peers is not None else _default_peers(suite, options.quick)
    arms, absent = arms_of(devices, beside, options.plan.threads)
    cases, case_notes = suite.cases(options)
    named = (*arms[: len(devices) * options.named_devices], *(arms[len(devices) :] if options.peers else ()))
    notes = tuple(dict.fromkeys([*notes, *absent, *case_notes]))
    return Grid(tuple(cases), tuple(arms), notes, tuple(arm.name for arm in named))


def measure(
    options: Options, grid: Grid, *, kind: str | None = None, progress: Progress | None = None, journal: Path | None = None,
    spent_s: float = 0.0,
) -> Results:  # fmt: skip
    """Measure a grid as the options say. With a journal it can be interrupted and resumed."""
    return measuring.measure(
        grid.cases, grid.arms, options.plan, kind=kind or options.kind, suite=options.suite, notes=grid.notes,
        progress=progress, journal=journal, resume=options.resume, spent_s=spent_s,
        options=energy_options(options.energy, options.plan) if options.energy is not None else None,
    )  # fmt: skip


def like(before: Results, options: Options | None = None) -> Grid:
    """Return the cases and contenders of earlier results, built again; what cannot be built here is a note."""
    threads = options.plan.threads if options is not None else None
    name = before.suite if before.suite in (COMPARE.name, PROJECT.name, *SUITES) else "regression"
    try:
        arms, notes = peers.arms(before.arms, threads)
    except ArgumentError:
        raise ArgumentError(
            f"what ran on {', '.join(before.arms)} was measured by another program; compare files: tritium regression-check."
        ) from None
    contexts = {run.case: run.context for run in before if run.status == "ok" and not is_canary(run.case)}
    known = names() if name != "quantization" else STEPS
    settings: dict[str, Any] = {
        "operations": [c.operation for c in contexts.values() if c.operation in known],
        "tensor_sizes": [c.shape for c in contexts.values() if c.shape],
        "data_types": [c.precision for c in contexts.values() if c.precision in FLOATS],
        "transfer": "both" if any(c.transfer for c in contexts.values()) else "",
    }
    usual = options_of(name).changed(threads=threads, seed=before.plan.seed)
    listed = suite_named(name).listed
    if listed:
        read = {c.sequence_length for c in contexts.values() if c.sequence_length}
        settings = {"tensor_sizes": [(n,) for n in sorted(read)]}
    own = usual.changed(**{k: v for k, v in settings.items() if v})
    brief = replace(usual, config=defaults(name, quick=True))
    candidates = [case for each in (usual, brief, own) for case in suite_named(name).cases(each)[0]]
    candidates += operations(own)[0] if name != "quantization" and not listed else []
    cases = tuple(
        replace(case, context=replace(case.context, batch=contexts[case.name].batch))
        for case in _unique(candidates)
        if case.name in contexts
    )
    lost = [case for case in contexts if case not in {c.name for c in cases}]
    if lost:
        notes.append(
            f"not measured again: {', '.join(lost[:3])}{' …' * (len(lost) > 3)}; your own come from a file: --load FILE.py."
        )
    return Grid(cases, tuple(arms), tuple(notes))


def _default_peers(suite: Suite, quick: bool) -> tuple[str, ...]:
    """Return the libraries to compare with if none is named."""
    if suite.peers is not None:
        return suite.peers
    if quick:
        return tuple(p for p in QUICK_PEERS if not peers.PEERS[p].absence())
    own = () if native is None else ("portable",) if native.isa() != "portable" else ()
    return (*own, *(p.name for p in peers.PEERS.values() if p.usual and not p.absence()))


def arms_of(devices: Sequence[str], beside: Iterable[str], threads: int | None) -> tuple[list[Arm], list[str]]:
    """Return Tritium on every device first, then the libraries beside it; absent ones are notes."""
    named = list(beside)
    if named == ["none"]:
        named = []
    elif "all" in named:
        own = [i for i in (native.isas() if native is not None else ()) if i != native.isa()]
        named = [*own, "reference", *(p.name for p in peers.PEERS.values() if not p.absence())]
    elif "none" in named:
        raise ArgumentError(
            f"--peers: none cannot be combined with others, given {', '.join(named)}; pass none alone, or only names."
        )
    first = [peers.arm_of(device) for device in devices]
    return peers.arms([*first, *(n for n in named if n not in first)], threads)


@checked
def compare_devices(
    operation: str, sizes: Sequence[Any] = (256, 512, 1024), devices: Sequence[str] | None = None, *,
    data_types: Sequence[str] = ("f32",), batch_sizes: Sequence[int] = (), transfer: str = "excluded",
    plan: Plan = PLANS["quick"], threads: int | None = None, seed: int = 0, progress: Progress | None = None,
) -> Results:  # fmt: skip
    """Measure one op on every device present, or on these, without other libraries. See `run_comparison`."""
    settings: dict[str, Any] = {
        "operations": (operation,), "tensor_sizes": sizes, "data_types": data_types, "batch_sizes": batch_sizes, "transfer": transfer,
    }  # fmt: skip
    config = BenchmarkConfig(**settings if devices is None else settings | {"devices": devices})
    return run_comparison(config, plan=plan, peers=("none",), threads=threads, seed=seed, progress=progress)


@checked
def run_comparison(
    config: BenchmarkConfig | None = None, *, suite: str = "compare", quick: bool = False, plan: Plan | None = None,
    peers: Sequence[str] | None = None, threads: int | None = None, seed: int = 0, energy: EnergyConfig | None = None,
    progress: Progress | None = None,
) -> Results:  # fmt: skip
    """Measure a suite. A config passed by the caller also sets the duration; a plan takes precedence."""
    chosen = plan if plan is not None else PLANS["quick" if quick else "default"]
    if config is not None and plan is None:
        chosen = config.plan(chosen)
    chosen = replace(chosen, threads=threads, seed=seed)
    options = options_of(suite, quick=quick, plan=chosen, devices=None if config is None else config.devices)
    chosen = replace(chosen, metrics=metrics(suite, chosen, energy))
    options = options.changed(config=config, plan=chosen, peers=None if peers is None else tuple(peers))
    if options.energy is not None:
        options = options.changed(energy=energy)
    return measure(options, grid(options), progress=progress)
