"""Suites: which cases, which arms and which metrics stand under a name. `tritium compare` and `tritium bench` read this table.

Knows nothing of measuring. A suite's settings are a BenchmarkConfig, so that a file or an option changes any of them; what
they ask for and this machine or an operation refuses becomes a note with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from math import prod
from pathlib import Path
from typing import Any

from tritium import backends
from tritium.buffer import native
from tritium.errors import ArgumentError, nearest
from tritium.op import OPS
from tritium.perf.engine import measuring
from tritium.perf.engine.measuring import Progress
from tritium.perf.records.case import Arm, Case
from tritium.perf.records.run import PLANS, Plan, Results
from tritium.perf.suites.config import FLOATS, BenchmarkConfig, EnergyConfig, Options
from tritium.perf.work import peers, recipes as work, registry
from tritium.perf.work.canary import is_canary
from tritium.perf.work.operations import HELD, MOVED, WORKLOADS

Shape = tuple[int, ...]
TIME = ("wall", "cpu", "peak_bytes")
MEMORY = (*TIME, "allocated_bytes", "rss_bytes")
SEQUENCES, TOKENS = 8, 64
ACTIVATIONS = ("relu", "gelu", "silu", "softmax")
STEPS = ("quantize", "dequantize", "matmul")  # of the suite quantization, as in perf.work.quantised


Made = tuple[list[Case], list[str]]
Cases = Callable[[Options], Made]


@dataclass(frozen=True)
class Suite:
    """One name of `tritium bench`."""

    name: str
    doc: str
    cases: Cases
    settings: dict[str, Any]  # of its BenchmarkConfig
    quick: dict[str, Any]  # instead of these, with --quick
    aliases: tuple[str, ...] = ()
    metrics: tuple[str, ...] = TIME
    peers: tuple[str, ...] | None = None  # who stands beside when nobody is named; None: what is installed
    listed: bool = False  # its cases come from a list of their own, with the sizes they have there
    everywhere: bool = False  # on every device that is here, where nobody names one; else on the default device


@dataclass(frozen=True)
class Grid:
    """What a run will measure, and what it leaves out."""

    cases: tuple[Case, ...]
    arms: tuple[Arm, ...]
    notes: tuple[str, ...] = ()

    def told(self, plan: Plan) -> str:
        """One line for a person who waits."""
        who = ", ".join(arm.name for arm in self.arms)
        cases, each = len(self.cases), plan.generations
        return (
            f"{cases} case{'s' * (cases != 1)} on {who}: {each} fresh process{'es' * (each != 1)} each, "
            f"{plan.rounds} round{'s' * (plan.rounds != 1)} in turn"
        )


# ---- cases


def names() -> list[str]:
    """Everything `operations` of a file or an option may name."""
    return [*work.operation_names(), *HELD, *MOVED]


def operations(options: Options) -> Made:
    """Operations x sizes x batches x data types, without their transfers or with them; what is refused is a note."""
    config, found, notes = options.config, [], []
    kinds = config.data_types
    known = names()
    for name in config.operations:
        if name not in known:
            raise ArgumentError(
                f"operations: {name!r} is not an operation.{nearest(name, known)} There are {', '.join(known)}; "
                "your own come from a file: --load FILE.py."
            )
        if name in (*HELD, *MOVED):
            found += _moves(name, options)
        else:
            for batch, sizes in _batches(name, options).items():
                found += _on_axes(name, sizes, batch, options)
                refused = [work.refuses(name, shape, kind) for shape in sizes for kind in kinds]
                notes += [f"left out: {reason}." for reason in refused if reason]
    return _once(found), [*notes, *_without_axes(options)]


def _moves(name: str, options: Options) -> list[Case]:
    """Return the cases of memory or of transfers under a name."""
    from tritium.perf.work import moves  # of these cases alone

    config = options.config
    if name in HELD:
        return moves.memory([(_size(s), 4 * prod(s)) for s in config.tensor_sizes], [name], **options.recipe)
    return moves.transfer(config.tensor_sizes, config.data_types, [name], **options.recipe)


def _batches(name: str, options: Options) -> dict[int | None, list[Shape]]:
    """The shapes of an operation by its batch; as the sizes say (None) where it has none or nobody asks."""
    config = options.config
    shapes = config.tensor_sizes
    if not config.batch_sizes or work.batched(name, 1, shapes[0]) is None:
        return {None: list(shapes)}
    made = {b: [work.batched(name, b, shape) for shape in shapes] for b in config.batch_sizes}
    return {b: list(dict.fromkeys(s for s in of if s is not None)) for b, of in made.items()}


def _on_axes(name: str, shapes: Sequence[Shape], batch: int | None, options: Options) -> list[Case]:
    """One operation with one batch: its cases without transfers, with them, or both."""
    config = options.config
    found: list[Case] = []
    if config.transfer != "included" or not work.transfers(name):
        found += work.grid([name], shapes, config.data_types, **options.recipe)
    if config.transfer != "excluded":
        found += work.grid([name], shapes, config.data_types, transfer=True, **options.recipe)
    if batch is None:
        return found
    return [replace(case, context=replace(case.context, batch=batch)) for case in found]


def _without_axes(options: Options, all_of_it: bool = False) -> list[str]:
    """Notes on operations that have no batch, or no transfers, where these were asked for."""
    config = options.config
    own = [name for name in config.operations if all_of_it or name in (*HELD, *MOVED)]
    rest = [name for name in config.operations if name not in own]
    whole = own + [n for n in rest if work.batched(n, 1, config.tensor_sizes[0]) is None]
    stay = own + [n for n in rest if not work.transfers(n)]
    notes = []
    if config.batch_sizes and whole:
        notes.append(f"measured without batch_sizes: {', '.join(whole)}: there is no batch in it.")
    if config.transfer != "excluded" and stay:
        notes.append(f"measured as ever, transfer={config.transfer} changes nothing: {', '.join(stay)}.")
    return notes


def _size(shape: Shape) -> str:
    return "x".join(map(str, shape))


def _once(cases: Iterable[Case]) -> list[Case]:
    return list({case.name: case for case in cases}.values())


def layouts(options: Options) -> Made:
    """The same operations on memory row by row, column by column, and with gaps."""
    config = options.config
    operations(options)  # unknown names are refused there
    found = work.layouts(config.operations, config.tensor_sizes, config.data_types, **options.recipe)
    return found, _without_axes(options, all_of_it=True)


def data_types(options: Options) -> Made:
    """One product with weights of every type, and the other operations in every float type."""
    config = options.config
    kinds = [*config.data_types, *(k for k in ("i8", "i4", "tern2") if k not in config.data_types)]
    products = work.dtypes(config.tensor_sizes, kinds, **options.recipe)
    others, notes = operations(options)
    return _once([*products, *others]), notes


def layers(options: Options) -> Made:
    """Workloads; sizes are (tokens, width). Several sequences are decoded together too."""
    config = options.config
    found, notes = operations(options)
    if "decode" in config.operations and not config.batch_sizes:
        from tritium.perf.work import workloads  # of these cases alone

        together = [(SEQUENCES, *shape) for shape in config.tensor_sizes if len(shape) == 2]
        found += workloads.cases("decode", together[-1:], **options.recipe)
    return _once(found), notes


def comprehensive(options: Options) -> Made:
    """Operations as elsewhere; workloads on a prompt of some tokens as wide as the sizes."""
    config = options.config
    own = tuple(name for name in config.operations if name in WORKLOADS)
    rest = tuple(name for name in config.operations if name not in own)
    found, notes = operations(options.changed(operations=rest)) if rest else ([], [])
    prompts = tuple(dict.fromkeys((TOKENS, shape[-1]) for shape in config.tensor_sizes))
    if own:
        more, said = layers(options.changed(operations=own, tensor_sizes=prompts, data_types=("f32",)))
        found, notes = [*found, *more], [*notes, *said]
    return _once(found), notes


def quantization(options: Options) -> Made:
    """Schemes x steps x sizes."""
    from tritium.perf.work import quantised  # of this suite alone

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
    made = quantised.quantisation(shapes, None, config.operations, **options.recipe)
    return made, [*notes, *_without_axes(options, all_of_it=True)]


def table_samples(options: Options) -> Made:
    """The samples of rows of the table; `operations` are rows. Small ones: what a call costs, more than what it computes."""
    from tritium.perf.work import rows  # it needs graphs

    config = options.config
    asked = config.operations if config.operations != ALL_ROWS else tuple(OPS)
    made = _once(case for row in asked for case in rows.cases(row, **options.recipe))
    return made, _without_axes(options, all_of_it=True)


def network_calls(options: Options) -> Made:
    """The distinct calls of the model in the package, for prompts of as many tokens as the sizes say."""
    from tritium.models.load import load
    from tritium.perf.work import rows

    config, model = options.config, load()
    return _once(
        replace(case, context=replace(case.context, sequence_length=shape[0]))
        for shape in config.tensor_sizes
        for case in rows.traced(model, tokens=shape[0], **options.recipe)
    ), _without_axes(options, all_of_it=True)


# ---- the suites

ALL_ROWS = ("all",)
TINY, SMALL, MIDDLE, LARGE = (64, 64), (256, 256), (512, 512), (1024, 1024)
LISTED = (
    Suite(
        "compare", "operations x sizes x types x devices", operations, {"tensor_sizes": (TINY, SMALL, LARGE)},
        {"tensor_sizes": (TINY, MIDDLE), "data_types": ("f32",),
         "operations": ("matmul", "add", "softmax", "quantize", "bitlinear")}, everywhere=True,
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
        "energy", "power, joules for an operation, operations for a joule and a degree, battery hours", operations,
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
        "memory", "allocating, cloning, writing, reusing; and the peak of operations", operations,
        {"operations": (*HELD, "matmul", "softmax", "bitlinear"), "tensor_sizes": ((16, 16), (2048, 2048)),
         "data_types": ("f32",)}, {"tensor_sizes": ((16, 16), LARGE)}, (), MEMORY, ("numpy",),
    ),
    Suite(
        "transfer", "from NumPy and back, to a device and back", operations,
        {"operations": MOVED, "tensor_sizes": (SMALL, (2048, 2048)), "data_types": ("f32", "f16")},
        {"data_types": ("f32",)}, (), TIME, ("numpy",), everywhere=True,
    ),
    Suite(
        "layout", "contiguous, transposed and strided memory", layouts,
        {"operations": ("add", "sum", "matmul"), "tensor_sizes": (LARGE,), "data_types": ("f32",)}, {}, (), TIME, ("numpy",),
    ),
    Suite(
        "dtype", "the same product with weights of every type", data_types,
        {"operations": ("add",), "tensor_sizes": (MIDDLE, LARGE), "data_types": ("f32", "f16", "bf16")},
        {"tensor_sizes": (MIDDLE,)}, (), TIME, ("numpy",),
    ),
    Suite(
        "table", "every sample of every row of the table", table_samples, {"operations": ALL_ROWS, "data_types": ("f32",)},
        {}, (), TIME, ("numpy",), True,
    ),
    Suite(
        "network", "every distinct call of the model in the package, and how often it occurs", network_calls,
        {"tensor_sizes": ((1,), (64,)), "data_types": ("f32",)}, {"tensor_sizes": ((1,),)}, (), TIME, ("numpy",), True,
    ),
    Suite(
        "regression", "few cases, often: what a gate compares with a baseline", operations,
        {"operations": ("matmul", "add", "softmax", "quantize", "bitlinear"), "tensor_sizes": (MIDDLE,),
         "data_types": ("f32",)}, {},
        ("regression_performance_tests",), TIME, ("numpy",),
    ),
)  # fmt: skip
COMPARE = LISTED[0]
SUITES: dict[str, Suite] = {suite.name: suite for suite in LISTED[1:]}
NAMES: dict[str, str] = {name: suite.name for suite in SUITES.values() for name in (suite.name, *suite.aliases)}
QUICK_PEERS = ("numpy", "torch")


def suite_named(name: str) -> Suite:
    """A suite by its name or the guides'."""
    if name == COMPARE.name:
        return COMPARE
    if name not in NAMES:
        raise ArgumentError(f"{name!r} is not a suite.{nearest(name, NAMES)} There are {', '.join(SUITES)}.")
    return SUITES[NAMES[name]]


def defaults(suite: str, quick: bool = False, devices: Sequence[str] | None = None) -> BenchmarkConfig:
    """Return the settings of a suite where nobody says otherwise. Other devices than those named are not looked for."""
    row = suite_named(suite)
    settings = row.settings | (row.quick if quick else {})
    if devices is not None:
        settings |= {"devices": devices}
    elif not row.everywhere:
        settings |= {"devices": (str(backends.default_device().device),)}
    return BenchmarkConfig(**settings)


def metrics(suite: str, plan: Plan, energy: EnergyConfig | None = None) -> tuple[str, ...]:
    """What is read beside the clock; no temperature where the settings turn that off."""
    off = ("temperature",) if energy is not None and not energy.thermal_monitoring else ()
    return tuple(m for m in dict.fromkeys((*plan.metrics[:2], *suite_named(suite).metrics)) if m not in off)


def energy_options(config: EnergyConfig, plan: Plan) -> dict[str, Any]:
    """For the meter: the watching is spread over the processes."""
    given = {f.name: getattr(config, f.name) for f in fields(EnergyConfig)}
    each = config.power_measurement_duration_s / plan.generations
    return given | {"power_measurement_duration_s": max(1.0, each)}


def load(path: str | Path) -> list[str]:
    """A file of the user's own benchmarks; their names are operations from then on."""
    return registry.load(path)


def options_of(
    suite: str, *, quick: bool = False, thorough: bool = False, plan: Plan | None = None, config: str | Path | None = None,
    devices: Sequence[str] | None = None, own: Sequence[str] = (),
) -> Options:  # fmt: skip
    """Return the options of a suite: its defaults and the user's own benchmarks, or the settings of a file."""
    name, energy = suite_named(suite).name, None
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
    options = Options(name, settings, replace(plan, metrics=metrics(name, plan, energy)), energy, quick=quick)
    return options.changed(devices=devices)


def grid(options: Options) -> Grid:
    """Return the cases and arms that the options ask for, and notes on what is left out."""
    suite, config = suite_named(options.suite), options.config
    devices, notes = config.usable_devices()
    if not devices:
        raise ArgumentError(
            f"{options.suite}: none of the devices {', '.join(config.devices)} is here. {' '.join(notes)}"
        )
    beside = options.peers if options.peers is not None else _usual(suite, options.quick)
    arms, absent = arms_of(devices, beside, options.plan.threads)
    cases, left = suite.cases(options)
    return Grid(tuple(cases), tuple(arms), tuple(dict.fromkeys([*notes, *absent, *left])))


def measure(
    options: Options, grid: Grid, *, kind: str | None = None, progress: Progress | None = None, journal: Path | None = None
) -> Results:  # fmt: skip
    """Measure a grid as the options ask. With a journal it can be interrupted and resumed."""
    return measuring.measure(
        grid.cases, grid.arms, options.plan, kind=kind or options.kind, suite=options.suite, notes=grid.notes,
        progress=progress, journal=journal, resume=options.resume,
        options=energy_options(options.energy, options.plan) if options.energy is not None else None,
    )  # fmt: skip


def like(before: Results, options: Options | None = None) -> Grid:
    """The cases and arms of earlier results, made again; what cannot be made here is a note."""
    threads = options.plan.threads if options is not None else None
    name = before.suite if before.suite in (COMPARE.name, *SUITES) else "regression"
    try:
        arms, notes = peers.arms(before.arms, threads)
    except ArgumentError:
        raise ArgumentError(
            f"what ran on {', '.join(before.arms)} was measured by another program; compare files: tritium regression-check."
        ) from None
    wanted = {run.case: run.context for run in before if run.status == "ok" and not is_canary(run.case)}
    known = names() if name != "quantization" else STEPS
    asked: dict[str, Any] = {
        "operations": [c.operation for c in wanted.values() if c.operation in known],
        "tensor_sizes": [c.shape for c in wanted.values() if c.shape],
        "data_types": [c.precision for c in wanted.values() if c.precision in FLOATS],
        "transfer": "both" if any(c.transfer for c in wanted.values()) else "",
    }
    usual = options_of(name).changed(threads=threads, seed=before.plan.seed)
    listed = suite_named(name).listed
    if listed:
        read = {c.sequence_length for c in wanted.values() if c.sequence_length}
        asked = {"tensor_sizes": [(n,) for n in sorted(read)]}
    own = usual.changed(**{k: v for k, v in asked.items() if v})
    brief = replace(usual, config=defaults(name, quick=True))
    made = [case for each in (usual, brief, own) for case in suite_named(name).cases(each)[0]]
    made += operations(own)[0] if name != "quantization" and not listed else []
    cases = tuple(
        replace(case, context=replace(case.context, batch=wanted[case.name].batch))
        for case in _once(made)
        if case.name in wanted
    )
    lost = [case for case in wanted if case not in {c.name for c in cases}]
    if lost:
        notes.append(
            f"not made again: {', '.join(lost[:3])}{' …' * (len(lost) > 3)}; your own come from a file: --load FILE.py."
        )
    return Grid(cases, tuple(arms), tuple(notes))


def _usual(suite: Suite, quick: bool) -> tuple[str, ...]:
    """Who stands beside where nobody is named."""
    if suite.peers is not None:
        return suite.peers
    own = () if native is None else ("portable",) if native.isa() != "portable" else ()
    if quick:
        return (*own, *(p for p in QUICK_PEERS if not peers.PEERS[p].absence()))
    return (*own, *(p.name for p in peers.PEERS.values() if p.usual and not p.absence()))


def arms_of(devices: Sequence[str], beside: Iterable[str], threads: int | None) -> tuple[list[Arm], list[str]]:
    """Tritium on every device first, then who stands beside it; absent libraries are notes."""
    named = list(beside)
    if named == ["none"]:
        named = []
    elif "all" in named:
        own = [i for i in (native.isas() if native is not None else ()) if i != native.isa()]
        named = [*own, "reference", *(p.name for p in peers.PEERS.values() if not p.absence())]
    elif "none" in named:
        raise ArgumentError(f"--peers: none and others were given: {', '.join(named)}; choose.")
    first = [peers.arm_of(device) for device in devices]
    return peers.arms([*first, *(n for n in named if n not in first)], threads)


def compare_devices(
    operation: str, sizes: Sequence[Any] = (256, 512, 1024), devices: Sequence[str] | None = None, *,
    data_types: Sequence[str] = ("f32",), batch_sizes: Sequence[int] = (), transfer: str = "excluded",
    plan: Plan = PLANS["quick"], threads: int | None = None, seed: int = 0, progress: Progress | None = None,
) -> Results:  # fmt: skip
    """One operation on every device that is here, or on these; nobody stands beside. See `run_comparison`."""
    asked: dict[str, Any] = {
        "operations": (operation,), "tensor_sizes": sizes, "data_types": data_types, "batch_sizes": batch_sizes, "transfer": transfer,
    }  # fmt: skip
    config = BenchmarkConfig(**asked if devices is None else asked | {"devices": devices})
    return run_comparison(config, plan=plan, peers=("none",), threads=threads, seed=seed, progress=progress)


def run_comparison(
    config: BenchmarkConfig | None = None, *, suite: str = "compare", quick: bool = False, plan: Plan | None = None,
    peers: Sequence[str] | None = None, threads: int | None = None, seed: int = 0, energy: EnergyConfig | None = None,
    progress: Progress | None = None,
) -> Results:  # fmt: skip
    """Measure a suite. A config given by the caller also says how long; a plan comes before it."""
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
