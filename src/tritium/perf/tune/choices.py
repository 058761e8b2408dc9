"""Tuning of what the runtime can choose on this machine: kernels, tiles, storage, GPU products, batch, threads, device.

A choice is stored only if its interval is below that of the shipped default and its median is at least 3 % lower; otherwise
the default stays. Candidates for kernels, tiles, storage and GPU products must return the bits of the default; one that does
not has failed.

Left out, because they would cost time in every call or need a new native library: threads for each size of an op (the kernels'
own grain decides that), NumPy in place of a native kernel (a program with it is no longer one native call), and block sizes
inside the kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tritium import backends, dtype as dt, ops, quant, threads
from tritium.backends import Kernel
from tritium.backends.cpu import device as cpu
from tritium.batching import batches as batching
from tritium.buffer import native, native_absence
from tritium.dtype import DType
from tritium.errors import ArgumentError, nearest
from tritium.functions import asarray, ones
from tritium.launch import launch
from tritium.machine import tuned
from tritium.machine.facts import processor, usable_threads
from tritium.op import OPS, Op, Spec, Specs, outputs
from tritium.perf.tables.crossover import meeting
from tritium.perf.tune import cuda as tune_cuda, file as tune_file, racing as tune
from tritium.perf.tune.file import Tuning
from tritium.tensor import Tensor, wrap

GAIN = 1.03  # the smallest speedup worth a choice
WIDTH = 2560  # of a layer of the reference model
STREAMED_BYTES = 64 << 20  # weights read one after another for one token: more than most caches hold
TOKENS = (1, 16, 128)
ELEMENTS = (1 << 12, 1 << 18, 1 << 22)
SIDES = (128, 256, 512, 1024)  # of the square products by which devices are chosen
MAPS = ("add", "multiply", "relu", "relu2", "copy")  # the exact ops besides products that models run most


@dataclass(frozen=True)
class Race:
    """One question: the configurations, the shipped default, and how they are measured."""

    op: str
    choice: str  # its name in the file
    configs: tuple[Any, ...]
    default: Any
    make: Callable[[], Callable[[Any], Any]]  # allocates its data when the race begins
    shape: str = ""
    dtype: str = ""
    device: str = "cpu"
    exact: bool = True
    absent: str = ""  # reason for having nothing to choose
    always: bool = False  # stored even if it is the shipped default: similar cases follow it

    @property
    def title(self) -> str:
        """Return the op, shape and dtype as one line."""
        return " ".join(x for x in (self.op, self.shape, self.dtype) if x)


@dataclass(frozen=True)
class Outcome:
    """The end of a race: its record, and what the runtime does from now on."""

    race: Race
    tuning: Tuning | None
    value: Any
    why: str

    @property
    def changed(self) -> bool:
        """Return True if the choice differs from the shipped default."""
        return self.tuning is not None and self.value != self.race.default


# ---- kernels


def kernel_races(quick: bool) -> Iterator[Race]:
    """Yield races between instruction sets for the ops that models run most, by dtype and size of their operands."""
    if native is None:
        yield Race("kernel", "kernel", (), None, _nothing, absent=f"there is no native library: {native_absence}")
        return
    for w in _weight_dtypes(quick):
        for m in TOKENS[:2] if quick else TOKENS:
            x, scale = Spec((m, WIDTH), dt.f32), Spec((), dt.f32)
            yield kernel_race(ops.quantized_matmul, (x, Spec((WIDTH, WIDTH), w), scale, None), {"group": 0})
    for name in MAPS:
        op = OPS[name]
        for n in ELEMENTS[1:2] if quick else ELEMENTS:
            yield kernel_race(op, (Spec((n,), dt.f32),) * op.arity, {})


def _weight_dtypes(quick: bool) -> list[DType]:
    """Return the packed dtypes in which the CPU stores ternary weights."""
    backend = backends.device("cpu").backend
    tiled = [backend.tiling(t) for t in (dt.tern2, dt.tern5)]
    return tiled if quick else list(dict.fromkeys([*tiled, dt.tern2]))


def kernel_race(op: Op, specs: Specs, attrs: dict[str, Any]) -> Race:
    """Return the race between the kernels of an op for these operands."""
    kernels = kernels_of(op, specs, attrs)
    shape = ",".join("-" if s is None else "x".join(map(str, s.shape)) or "()" for s in specs)
    dtype = ",".join("-" if s is None else s.dtype.name for s in specs)
    default = next(iter(kernels), None)
    absent = (
        ""
        if len(kernels) > 1
        else f"{op.name} has {'only one kernel' if kernels else 'no kernel'} with the same bits here"
    )
    return Race(
        f"kernel/{op.name}", tuned.kernel_key(op.name, specs), tuple(kernels), default,
        lambda: _kernel_runner(op, specs, attrs, kernels), shape, dtype, absent=absent,
    )  # fmt: skip


def kernels_of(op: Op, specs: Specs, attrs: dict[str, Any]) -> dict[str, Kernel]:
    """Return kernels by instruction set, the shipped choice first; a kernel shared by several sets once, by its own name."""

    def first(isa: str) -> tuple[tuple[str, bool], Kernel] | None:
        listed = [k for k in cpu.alternatives(op, isa) if k.accepts is None or k.accepts(specs, attrs, layouts)]
        return ((listed[0].name, len(listed) > 1), listed[0]) if listed else None  # the first of two is for tiles

    layouts = (None,) * len(specs)
    kernels: dict[tuple[str, bool], tuple[str, Kernel]] = {}
    for isa in (native.isa(), *reversed(native.isas())):
        match = first(isa)
        if match is not None and match[0] not in kernels:
            own = match[1].name
            same = own in native.isas() and (own_match := first(own)) is not None and own_match[0] == match[0]
            kernels[match[0]] = (own if same else isa, match[1])
    return dict(kernels.values())


def _kernel_runner(op: Op, specs: Specs, attrs: dict[str, Any], kernels: dict[str, Kernel]) -> Callable[[str], None]:
    """Return a function that runs the kernel of an instruction set; for a single token it reads many weights one after another."""
    backend = backends.device("cpu").backend
    ins = [None if s is None else _filled(s, i) for i, s in enumerate(specs)]
    calls = [ins]
    w = specs[1] if len(specs) > 1 else None
    if w is not None and w.dtype.is_packed and specs[0] is not None and specs[0].shape[0] == 1:
        assert ins[1] is not None
        calls += [[ins[0], ops.copy(ins[1]), *ins[2:]] for _ in range(STREAMED_BYTES // w.nbytes)]
    results = tuple(wrap(backend.new(s)) for s in outputs(op.decide(specs, attrs).out))
    out = results if len(results) > 1 else results[0]
    expected: list[bytes] = []
    checked: set[str] = set()

    def call(isa: str) -> None:
        for operands in calls:
            launch(backend, kernels[isa], op, out, tuple(operands), attrs)
        if isa not in checked:
            checked.add(isa)
            bits = b"".join(o.numpy().tobytes() for o in results)
            expected.append(bits)
            if bits != expected[0]:
                raise ArgumentError(f"the kernel of {isa} returns different bits")

    return call


def _filled(spec: Spec, seed: int) -> Tensor:
    """Return a tensor with random values."""
    rng = np.random.default_rng(seed)
    if spec.dtype.is_packed:
        return ops.repack(asarray(rng.integers(-1, 2, spec.shape, np.int8)), spec.dtype)
    return asarray(rng.standard_normal(spec.shape).astype(np.float32))


# ---- packing of weights


def tiling_races(quick: bool) -> Iterator[Race]:
    """Yield races between packings of weights, for one token and for sixteen."""
    for t in (dt.tern2,) if quick else (dt.tern2, dt.tern5, dt.i8):
        names = tuple(cpu.tilings(t))
        absent = "" if len(names) > 1 else f"{t} has no tiles with a kernel of their own here"
        shape = f"{WIDTH}x{WIDTH}"
        yield Race(
            "tiling", f"tiling/{t.name}", names, names[0], partial(_tile_runner, t), shape, t.name, absent=absent
        )


def _tile_runner(t: DType) -> Callable[[str], Any]:
    """Return a function that multiplies by weights in the tiles of a name."""
    rng = np.random.default_rng(0)
    plain = ops.repack(asarray(rng.integers(-1, 2, (WIDTH, WIDTH), np.int8)), t)
    weights = {name: plain if tiled is t else ops.repack(plain, tiled) for name, tiled in cpu.tilings(t).items()}
    few, many = (asarray(rng.standard_normal((m, WIDTH)).astype(np.float32)) for m in TOKENS[:2])
    scale = asarray(np.float32(0.02))
    call = _same_bits(lambda name: ops.quantized_matmul(many, weights[name], scale, None))

    def both(name: str) -> Any:
        ops.quantized_matmul(few, weights[name], scale, None)
        return call(name)

    return both


def _same_bits(fn: Callable[[str], Tensor]) -> Callable[[str], Tensor]:
    """Return the function with a check: the first result of each configuration must equal the first of all."""
    expected: list[bytes] = []
    checked: set[str] = set()

    def call(config: str) -> Tensor:
        result = fn(config)
        if config not in checked:
            checked.add(config)
            expected.append(result.numpy().tobytes())
            if expected[-1] != expected[0]:
                raise ArgumentError(f"{config} returns different bits")
        return result

    return call


def storage_races(quick: bool) -> Iterator[Race]:
    """Yield the race between 2 and 1.6 bits for weights read one token at a time, for `tritium prepack`."""
    default = cpu.shipped_storage().name
    absent = "" if native is not None else f"there is no native library: {native_absence}"
    nbytes = STREAMED_BYTES // (4 if quick else 1)
    names = (default, *(n for n in cpu.STORAGES if n != default))
    yield Race(
        "storage", "storage", names, default, lambda: _storage_runner(nbytes), f"{nbytes >> 20} MiB", absent=absent
    )


def _storage_runner(nbytes: int) -> Callable[[str], Any]:
    """Return a function that passes one token through all weights of a model: the same number of weights in each packing."""
    rng = np.random.default_rng(0)
    codes = asarray(rng.integers(-1, 2, (WIDTH, WIDTH), np.int8))
    x, scale = asarray(rng.standard_normal((1, WIDTH)).astype(np.float32)), asarray(np.float32(0.02))
    layers: dict[str, list[Tensor]] = {}
    for name, t in cpu.STORAGES.items():
        first = quant.Quantized("ternary", ops.repack(codes, t), scale, None, 0).tiled().data
        count = nbytes // Spec((WIDTH, WIDTH), dt.tern2).nbytes
        layers[name] = [first, *(ops.copy(first) for _ in range(count - 1))]

    def one_token(name: str) -> Tensor:
        for w in layers[name]:
            y = ops.quantized_matmul(x, w, scale, None)
        return y

    return _same_bits(one_token)


# ---- GPU products


def cuda_races(quick: bool, sizes: Sequence[tune_cuda.Size] = (), batches: Sequence[int] = ()) -> Iterator[Race]:
    """Yield races between kernels of ternary products on a GPU, for these sizes and batches or the reference model's."""
    if absent := tune_cuda.absence():
        yield Race(tuned.PRODUCT, tuned.PRODUCT, (), None, _nothing, device="cuda", absent=absent)
        return
    gpu = tune_cuda.gpu()
    for case in tune_cuda.cases(quick, sizes, batches):
        n, k, m = case[:3]
        names = tune_cuda.candidates(case, quick)
        make = partial(tune_cuda.Contest, case, names)
        key = tuned.product_key(n, k, m, gpu)
        yield Race(tuned.PRODUCT, key, names, names[0], make, f"{m}x{k},{n}x{k}", "tern2", gpu, always=True)


# ---- choices that may change bits, followed only on request


def thread_races(quick: bool) -> Iterator[Race]:
    """Yield the race between thread counts: a token, a prompt, and a map."""
    usable = usable_threads()
    counts = tuple(sorted({usable, *(1 << i for i in range(usable.bit_length()) if 1 << i <= usable)}, reverse=True))
    absent = "" if usable > 1 and native is not None else "this process may use one CPU, or has no native library"
    yield Race("threads", "threads", counts, usable, _thread_runner, exact=False, absent=absent)


def _thread_runner() -> Callable[[int], Any]:
    rng = np.random.default_rng(0)
    w = quant.Quantized(
        "ternary", ops.repack(asarray(rng.integers(-1, 2, (WIDTH, WIDTH), np.int8)), dt.tern2), asarray(np.float32(0.02)), None, 0
    ).tiled()  # fmt: skip
    few, many = (asarray(rng.standard_normal((m, WIDTH)).astype(np.float32)) for m in (1, 64))

    def call(count: int) -> Any:
        before = threads.get_num_threads()
        threads.set_num_threads(count)
        try:
            for _ in range(16):
                ops.quantized_matmul(few, w.data, w.scale, None)
            return ops.relu(ops.quantized_matmul(many, w.data, w.scale, None))
        finally:
            threads.set_num_threads(before)

    return call


def device_races(quick: bool) -> Iterator[Race]:
    """Yield races between devices: dense products of several sizes, without transfers. `_choose_device` combines them."""
    here = tuple(d.name for d in backends.devices() if d.available)
    if len(here) == 1:
        absence = f"{here[0]} is the only device here"
        yield Race("device", "device", here, "cpu", _nothing, device="", exact=False, absent=absence)
        return
    for n in SIDES[::2] if quick else SIDES:
        yield Race("device", "device", here, "cpu", partial(_device_runner, here, n), f"{n}x{n}", "f32", "", False)


def _device_runner(names: Sequence[str], size: int) -> Callable[[str], Any]:
    """Return a function that multiplies two square matrices on a device."""
    a = {name: ones((size, size), device=name) for name in names}
    return lambda name: ops.matmul(a[name], a[name])


def _choose_device(done: Sequence[Outcome]) -> None:
    """Store the device of each size, and that of the largest if it is clearly faster than the CPU, with the size from
    which it is."""
    raced = [o for o in done if o.race.op == "device" and o.tuning is not None]
    if not raced:
        return
    last = raced[-1]
    by_size = tuned.device_key(tuned.DEVICE_OP, 0).removesuffix("0")
    new: dict[str, tuned.Choice | None] = dict.fromkeys(n for n in tune_file.choices() if n.startswith(by_size))
    for o in raced:
        side = int(o.race.shape.partition("x")[0])
        new[tuned.device_key(tuned.DEVICE_OP, side * side)] = _device_choice(o)
    new[tuned.DEVICE] = _device_choice(last, f", {_since(raced)}") if last.changed else None
    tune_file.choose(new)


def _device_choice(o: Outcome, since: str = "") -> tuned.Choice:
    """Return the choice of a race between devices, with what was measured, when and where."""
    assert o.tuning is not None
    product = f"the product of two {o.race.shape} {o.race.dtype} matrices"
    source = f"measured {o.tuning.created[:10]} on {processor()}, without transfers"
    return tuned.Choice(o.value, f"{o.why} in {product}{since}; {source}", exact=False)


def _since(raced: Sequence[Outcome]) -> str:
    """Return from which size on the device of the last race is faster, by the intervals of these races."""
    name = raced[-1].value
    before = next((o for o in reversed(raced) if o.value != name), None)
    if before is None:
        return f"at every size from {raced[0].race.shape} on"
    first = raced[raced.index(before) + 1]
    (low, slower), (high, faster) = ((float(o.race.shape.partition("x")[0]), _ratio(o, name)) for o in (before, first))
    if not slower > 1 > faster > 0 or math.isinf(slower):  # it failed there, or was only not clearly faster
        return f"clearly from {first.race.shape} on"
    size = round(meeting(low, slower, high, faster))
    return f"from about {size}x{size} on (between {before.race.shape} and {first.race.shape})"


def _ratio(o: Outcome, device: str) -> float:
    """Return the time of a device relative to the default one; 0 or infinite if one did not run."""
    assert o.tuning is not None
    candidate, shipped = o.tuning.of(device), o.tuning.of(o.race.default)
    if candidate is None or not candidate.seconds:
        return math.inf
    return 0.0 if shipped is None else candidate.median / shipped.median


def _nothing() -> Callable[[Any], Any]:
    """Return a runner that does nothing."""
    return lambda config: None


TARGETS: dict[str, Callable[[bool], Iterator[Race]]] = {
    "kernel": kernel_races,
    "tiling": tiling_races,
    "storage": storage_races,
    "cuda": cuda_races,
    "threads": thread_races,
    "device": device_races,
}
BATCH = "quantized_matmul"  # the name under which `fill` stores the batch size of a product


# ---- all races


def races(
    names: Sequence[str] = (), quick: bool = False, sizes: Sequence[tune_cuda.Size] = (), batches: Sequence[int] = ()
) -> list[Race]:
    """Return the races of some targets, or of all; "kernel/add" is those of one op. sizes and batches: of GPU products."""
    listed: list[Race] = []
    for name in names or TARGETS:
        target, _, op = name.partition("/")
        if target not in TARGETS or (op and target != "kernel" and name != tuned.PRODUCT):
            known = [*TARGETS, "batch", tuned.PRODUCT, *(f"kernel/{r}" for r in ("quantized_matmul", *MAPS))]
            raise ArgumentError(f"tune: {name!r} cannot be tuned; there are {', '.join(known)}.{nearest(name, known)}")
        target_races = cuda_races(quick, sizes, batches) if target == "cuda" else TARGETS[target](quick)
        listed += [r for r in target_races if not op or r.op == name] or _op_races(op, quick)
    return listed


def _op_races(name: str, quick: bool) -> list[Race]:
    """Return the races of an op that is not tuned by default: element-wise ones have them."""
    if name not in OPS:
        raise ArgumentError(f"tune: {name!r} is not an op.{nearest(name, OPS)}")
    op = OPS[name]
    if native is None or op.ulps or not 1 <= op.arity <= 2 or op.kind.value not in ("map", "move"):
        absence = (
            "there is no native library" if native is None else "only exact ops of one or two operands have a choice"
        )
        return [Race(f"kernel/{name}", f"kernel/{name}", (), None, _nothing, absent=absence)]
    return [kernel_race(op, (Spec((n,), dt.f32),) * op.arity, {}) for n in (ELEMENTS[1:2] if quick else ELEMENTS)]


def fill(
    names: Sequence[str] = (), *, quick: bool = False, progress: Callable[[int, int, str], None] | None = None,
    sizes: Sequence[tune_cuda.Size] = (), batches: Sequence[int] = (),
) -> list[Outcome]:  # fmt: skip
    """Race what the runtime can choose and store the choices; the runtime of this process follows them at once.

    sizes (rows and columns of weights) and batches (of tokens): for GPU products, in place of the reference model's.
    """
    targets = [n for n in names if n != "batch"]
    listed = races(targets, quick, sizes, batches) if targets or not names else []
    batch = not names or "batch" in names
    done: list[Outcome] = []
    for i, r in enumerate(listed):
        if progress is not None:
            progress(i, len(listed) + batch, r.title)
        done.append(_run_race(r, quick))
    _choose_device(done)
    if batch:
        if progress is not None:
            progress(len(listed), len(listed) + 1, "batch")
        done.append(_batch(quick))
    return done


def _run_race(r: Race, quick: bool) -> Outcome:
    """Run one race and store its record and choice."""
    if r.absent:
        return Outcome(r, None, r.default, r.absent)
    plan: dict[str, Any] = {"rounds": 9, "budget_s": 1.0} if quick else {"rounds": tune.ROUNDS, "budget_s": 4.0}
    tuning, objects = tune.run(r.op, r.configs, r.make(), shape=r.shape, dtype=r.dtype, device=r.device, **plan)
    value, reason = decided(tuning, r.default, objects)
    keep = value != r.default or (r.always and tuning.best is not None)
    tune_file.add(tuning, {r.choice: tuned.Choice(value, reason, r.exact) if keep else None})
    return Outcome(r, tuning, value, reason)


def decided(tuning: Tuning, default: Any, objects: dict[str, Any]) -> tuple[Any, str]:
    """Return the choice after a race, and the reason: the shipped default, unless another is clearly faster."""
    best, shipped = tuning.best, tuning.of(default)
    if best is None:
        return default, "nothing ran"
    if shipped is None or not shipped.seconds or shipped.status == "failed":
        return objects[
            best.config
        ], f"{default!r} did not run: {shipped.reason if shipped else 'it was not in the race'}"
    gain = shipped.median / best.median
    if best is shipped:
        return default, "as shipped: the fastest"
    if shipped.interval[0] <= best.interval[1] or gain < GAIN:
        return default, f"as shipped: {best.config} is not clearly faster ({gain:.2f} times)"
    return objects[best.config], f"{gain:.2f} times as fast as {default!r}"


def _batch(quick: bool) -> Outcome:
    """Race batch sizes of a product with ternary weights."""
    rng = np.random.default_rng(0)
    w = quant.Quantized(
        "ternary", ops.repack(asarray(rng.integers(-1, 2, (WIDTH, WIDTH), np.int8)), dt.tern2), asarray(np.float32(0.02)), None, 0
    ).tiled()  # fmt: skip
    most = 64 if quick else 256
    x = asarray(rng.standard_normal((most, WIDTH)).astype(np.float32))
    tuning, best = tune.race_batches(BATCH, most, lambda n: ops.quantized_matmul(x[:n], w.data, w.scale, None))
    sizes, shape = tuple(t.size for t in best.trials), f"{WIDTH}x{WIDTH}"
    r = Race(f"batch/{BATCH}", f"batch/{BATCH}", sizes, batching.DEFAULT, _nothing, shape, "tern2")
    rate = max(t.items_per_s for t in best.trials)
    single = next(t for t in best.trials if t.size == 1).items_per_s
    return Outcome(r, tuning, best.size, f"the smallest within 2 % of {rate:.3g} tokens/s; one at a time {single:.3g}")


def revalidate(names: Sequence[str] = (), *, quick: bool = False) -> list[tune.Drift]:
    """Run every stored race of the runtime again, the winner beside the runner-up."""
    out = []
    for r in races([n for n in names if n != "batch"], quick):
        stored = None if r.absent else tune.latest(r.op, r.shape, r.dtype, r.device)
        if stored is None:
            continue
        objects = {repr(c): c for c in r.configs}
        pair = [objects[c.config] for c in stored.ranked[:2] if c.config in objects]
        if stored.best is not None and stored.best.config in objects:
            repeat, _ = tune.run(r.op, pair, r.make(), shape=r.shape, dtype=r.dtype, device=r.device, budget_s=2.0)
            out.append(tune.drift_of(stored, repeat))
    return out
