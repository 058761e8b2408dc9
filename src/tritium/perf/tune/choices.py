"""What the runtime can choose on this machine, raced: kernels, tiles, storage, products of a GPU, batch, threads, device.

Knows nothing of the command line. A choice is kept only if its interval lies below that of what is shipped and its median
is at least 3 % lower: else the shipped default stays. Candidates for kernels, tiles, storage and products of a GPU must give the
bits of the default; one that does not has failed.

Left out, because they would cost time in every call or a new native library: threads for each size of an operation (the
kernels' own grain decides that), NumPy in place of a native kernel (a program with it is no longer one native call), and
the sizes of blocks inside the kernels.
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

GAIN = 1.03  # the least worth a choice
WIDTH = 2560  # of a layer of the reference model
STREAMED_BYTES = 64 << 20  # weights that are read in turn for one token: more than most caches hold
TOKENS = (1, 16, 128)
ELEMENTS = (1 << 12, 1 << 18, 1 << 22)
SIDES = (128, 256, 512, 1024)  # of the square products by which devices are chosen
MAPS = ("add", "multiply", "relu", "relu2", "copy")  # the exact rows beside products that models run most


@dataclass(frozen=True)
class Race:
    """One question: what may be chosen, what is shipped, and how it is measured."""

    op: str
    choice: str  # its name in the file
    configs: tuple[Any, ...]
    default: Any
    make: Callable[[], Callable[[Any], Any]]  # data is made when the race begins
    shape: str = ""
    dtype: str = ""
    device: str = "cpu"
    exact: bool = True
    absent: str = ""  # why there is nothing to choose
    always: bool = False  # kept even if it is the shipped default: cases near it follow

    @property
    def title(self) -> str:
        return " ".join(x for x in (self.op, self.shape, self.dtype) if x)


@dataclass(frozen=True)
class Outcome:
    """How a race ended: the record, and what the runtime does from now on."""

    race: Race
    tuning: Tuning | None
    value: Any
    why: str

    @property
    def changed(self) -> bool:
        return self.tuning is not None and self.value != self.race.default


# ---- kernels


def kernel_races(quick: bool) -> Iterator[Race]:
    """Every instruction set's kernel of the rows that models run most, by kind and size of their operands."""
    if native is None:
        yield Race("kernel", "kernel", (), None, _nothing, absent=f"there is no native library: {native_absence}")
        return
    for w in _weights_kept(quick):
        for m in TOKENS[:2] if quick else TOKENS:
            x, scale = Spec((m, WIDTH), dt.f32), Spec((), dt.f32)
            yield kernel_race(ops.quantized_matmul, (x, Spec((WIDTH, WIDTH), w), scale, None), {"group": 0})
    for name in MAPS:
        row = OPS[name]
        for n in ELEMENTS[1:2] if quick else ELEMENTS:
            yield kernel_race(row, (Spec((n,), dt.f32),) * row.arity, {})


def _weights_kept(quick: bool) -> list[DType]:
    backend = backends.device("cpu").backend
    tiled = [backend.tiling(t) for t in (dt.tern2, dt.tern5)]
    return tiled if quick else list(dict.fromkeys([*tiled, dt.tern2]))


def kernel_race(row: Op, specs: Specs, attrs: dict[str, Any]) -> Race:
    """The kernels of a row for these operands."""
    found = kernels_of(row, specs, attrs)
    shape = ",".join("-" if s is None else "x".join(map(str, s.shape)) or "()" for s in specs)
    dtype = ",".join("-" if s is None else s.dtype.name for s in specs)
    default = next(iter(found), None)
    absent = "" if len(found) > 1 else f"{row.name} has {'one kernel' if found else 'no kernel'} of the same bits here"
    return Race(
        f"kernel/{row.name}", tuned.kernel_key(row.name, specs), tuple(found), default,
        lambda: _with_kernels(row, specs, attrs, found), shape, dtype, absent=absent,
    )  # fmt: skip


def kernels_of(row: Op, specs: Specs, attrs: dict[str, Any]) -> dict[str, Kernel]:
    """By instruction set, the shipped choice first; those that are one and the same kernel once, by its own name."""

    def first(isa: str) -> tuple[tuple[str, bool], Kernel] | None:
        listed = [k for k in cpu.alternatives(row, isa) if k.accepts is None or k.accepts(specs, attrs, layouts)]
        return ((listed[0].name, len(listed) > 1), listed[0]) if listed else None  # of two, the first is for tiles

    layouts = (None,) * len(specs)
    found: dict[tuple[str, bool], tuple[str, Kernel]] = {}
    for isa in (native.isa(), *reversed(native.isas())):
        which = first(isa)
        if which is not None and which[0] not in found:
            own = which[1].name
            same = own in native.isas() and (of_own := first(own)) is not None and of_own[0] == which[0]
            found[which[0]] = (own if same else isa, which[1])
    return dict(found.values())


def _with_kernels(row: Op, specs: Specs, attrs: dict[str, Any], kernels: dict[str, Kernel]) -> Callable[[str], None]:
    """A function of an instruction set that runs its kernel; for a single token it reads many weights in turn."""
    backend = backends.device("cpu").backend
    ins = [None if s is None else _filled(s, i) for i, s in enumerate(specs)]
    turns = [ins]
    w = specs[1] if len(specs) > 1 else None
    if w is not None and w.dtype.is_packed and specs[0] is not None and specs[0].shape[0] == 1:
        assert ins[1] is not None
        turns += [[ins[0], ops.copy(ins[1]), *ins[2:]] for _ in range(STREAMED_BYTES // w.nbytes)]
    made = tuple(wrap(backend.new(s)) for s in outputs(row.decide(specs, attrs).out))
    out = made if len(made) > 1 else made[0]
    right: list[bytes] = []
    looked: set[str] = set()

    def call(isa: str) -> None:
        for operands in turns:
            launch(backend, kernels[isa], row, out, tuple(operands), attrs)
        if isa not in looked:
            looked.add(isa)
            bits = b"".join(o.numpy().tobytes() for o in made)
            right.append(bits)
            if bits != right[0]:
                raise ArgumentError(f"the kernel of {isa} gives other bits")

    return call


def _filled(spec: Spec, seed: int) -> Tensor:
    rng = np.random.default_rng(seed)
    if spec.dtype.is_packed:
        return ops.repack(asarray(rng.integers(-1, 2, spec.shape, np.int8)), spec.dtype)
    return asarray(rng.standard_normal(spec.shape).astype(np.float32))


# ---- how weights wait


def tiling_races(quick: bool) -> Iterator[Race]:
    """In which packing weights wait: for one token and for sixteen."""
    for t in (dt.tern2,) if quick else (dt.tern2, dt.tern5, dt.i8):
        names = tuple(cpu.tilings(t))
        absent = "" if len(names) > 1 else f"{t} has no tiles with a kernel of their own here"
        shape = f"{WIDTH}x{WIDTH}"
        yield Race("tiling", f"tiling/{t.name}", names, names[0], partial(_with_tiles, t), shape, t.name, absent=absent)


def _with_tiles(t: DType) -> Callable[[str], Any]:
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
    """The function; the first result of each configuration is held against the first of all."""
    right: list[bytes] = []
    looked: set[str] = set()

    def call(config: str) -> Tensor:
        made = fn(config)
        if config not in looked:
            looked.add(config)
            right.append(made.numpy().tobytes())
            if right[-1] != right[0]:
                raise ArgumentError(f"{config} gives other bits")
        return made

    return call


def storage_races(quick: bool) -> Iterator[Race]:
    """Two bits or 1.6 for weights that one token at a time reads: `tritium prepack` asks."""
    default = cpu.shipped_storage().name
    absent = "" if native is not None else f"there is no native library: {native_absence}"
    nbytes = STREAMED_BYTES // (4 if quick else 1)
    names = (default, *(n for n in cpu.STORAGES if n != default))
    yield Race("storage", "storage", names, default, lambda: _stored(nbytes), f"{nbytes >> 20} MiB", absent=absent)


def _stored(nbytes: int) -> Callable[[str], Any]:
    """A pass over the weights of a model, one token: the same number of weights in each packing."""
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


# ---- products of a GPU


def cuda_races(quick: bool, sizes: Sequence[tune_cuda.Size] = (), batches: Sequence[int] = ()) -> Iterator[Race]:
    """The kernels of ternary products on a GPU, for the sizes and batches given or those of the reference model."""
    if absent := tune_cuda.absence():
        yield Race(tuned.PRODUCT, tuned.PRODUCT, (), None, _nothing, device="cuda", absent=absent)
        return
    gpu = tune_cuda.gpu()
    for case in tune_cuda.cases(quick, sizes, batches):
        n, k, m = case[:3]
        names = tune_cuda.candidates(case, quick)
        make = partial(tune_cuda.Contest, case, names)
        at = tuned.product_key(n, k, m, gpu)
        yield Race(tuned.PRODUCT, at, names, names[0], make, f"{m}x{k},{n}x{k}", "tern2", gpu, always=True)


# ---- what may change bits, and is followed only where that is asked for


def thread_races(quick: bool) -> Iterator[Race]:
    """How many threads: a token, a prompt, and a map in turn."""
    usable = usable_threads()
    counts = tuple(sorted({usable, *(1 << i for i in range(usable.bit_length()) if 1 << i <= usable)}, reverse=True))
    absent = "" if usable > 1 and native is not None else "this process may use one CPU, or has no native library"
    yield Race("threads", "threads", counts, usable, _with_threads, exact=False, absent=absent)


def _with_threads() -> Callable[[int], Any]:
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
    """Which device: dense products of several sizes there, without transfers. `_devices_chosen` makes one choice of them."""
    here = tuple(d.name for d in backends.devices() if d.available)
    if len(here) == 1:
        why = f"{here[0]} is the only device here"
        yield Race("device", "device", here, "cpu", _nothing, device="", exact=False, absent=why)
        return
    for n in SIDES[::2] if quick else SIDES:
        yield Race("device", "device", here, "cpu", partial(_on_devices, here, n), f"{n}x{n}", "f32", "", False)


def _on_devices(names: Sequence[str], size: int) -> Callable[[str], Any]:
    a = {name: ones((size, size), device=name) for name in names}
    return lambda name: ops.matmul(a[name], a[name])


def _devices_chosen(done: Sequence[Outcome]) -> None:
    """Keep the device of the largest size where that is clearly faster than the CPU, and say from which size on it is."""
    raced = [o for o in done if o.race.op == "device" and o.tuning is not None]
    if not raced:
        return
    last = raced[-1]
    assert last.tuning is not None
    choice = None
    if last.changed:
        product = f"the product of two {last.race.shape} {last.race.dtype} matrices"
        where = f"measured {last.tuning.created[:10]} on {processor()}, without transfers"
        choice = tuned.Choice(last.value, f"{last.why} in {product}, {_since(raced)}; {where}", exact=False)
    tune_file.choose({"device": choice})


def _since(raced: Sequence[Outcome]) -> str:
    """From which size on the device of the last race is the faster one, by the intervals of these races."""
    name = raced[-1].value
    before = next((o for o in reversed(raced) if o.value != name), None)
    if before is None:
        return f"at every size from {raced[0].race.shape} on"
    first = raced[raced.index(before) + 1]
    (low, slower), (high, faster) = ((float(o.race.shape.partition("x")[0]), _ratio(o, name)) for o in (before, first))
    if not slower > 1 > faster > 0 or math.isinf(slower):  # it failed there, or was not slower, only not clearly faster
        return f"clearly from {first.race.shape} on"
    about = round(meeting(low, slower, high, faster))
    return f"from about {about}x{about} on (between {before.race.shape} and {first.race.shape})"


def _ratio(o: Outcome, device: str) -> float:
    """The time of a device to that of the default one; 0 or without end where one did not run."""
    assert o.tuning is not None
    found, shipped = o.tuning.of(device), o.tuning.of(o.race.default)
    if found is None or not found.seconds:
        return math.inf
    return 0.0 if shipped is None else found.median / shipped.median


def _nothing() -> Callable[[Any], Any]:
    return lambda config: None


TARGETS: dict[str, Callable[[bool], Iterator[Race]]] = {
    "kernel": kernel_races,
    "tiling": tiling_races,
    "storage": storage_races,
    "cuda": cuda_races,
    "threads": thread_races,
    "device": device_races,
}
BATCH = "quantized_matmul"  # the name under which `fill` keeps how many tokens a product takes at once


# ---- all of it


def races(
    names: Sequence[str] = (), quick: bool = False, sizes: Sequence[tune_cuda.Size] = (), batches: Sequence[int] = ()
) -> list[Race]:
    """The races of some targets, or of all; "kernel/add" is those of one row. sizes and batches: of the products of a GPU."""
    listed: list[Race] = []
    for name in names or TARGETS:
        target, _, row = name.partition("/")
        if target not in TARGETS or (row and target != "kernel" and name != tuned.PRODUCT):
            known = [*TARGETS, "batch", tuned.PRODUCT, *(f"kernel/{r}" for r in ("quantized_matmul", *MAPS))]
            raise ArgumentError(f"tune: {name!r} cannot be tuned; there are {', '.join(known)}.{nearest(name, known)}")
        found = cuda_races(quick, sizes, batches) if target == "cuda" else TARGETS[target](quick)
        listed += [r for r in found if not row or r.op == name] or _row_races(row, quick)
    return listed


def _row_races(row: str, quick: bool) -> list[Race]:
    """Races of a row that is not among those tuned by themselves: element-wise ones have them."""
    if row not in OPS:
        raise ArgumentError(f"tune: {row!r} is not an operation.{nearest(row, OPS)}")
    found = OPS[row]
    if native is None or found.ulps or not 1 <= found.arity <= 2 or found.kind.value not in ("map", "move"):
        why = "there is no native library" if native is None else "only exact rows of one or two operands have a choice"
        return [Race(f"kernel/{row}", f"kernel/{row}", (), None, _nothing, absent=why)]
    return [kernel_race(found, (Spec((n,), dt.f32),) * found.arity, {}) for n in (ELEMENTS[1:2] if quick else ELEMENTS)]


def fill(
    names: Sequence[str] = (), *, quick: bool = False, progress: Callable[[int, int, str], None] | None = None,
    sizes: Sequence[tune_cuda.Size] = (), batches: Sequence[int] = (),
) -> list[Outcome]:  # fmt: skip
    """Race what the runtime can choose and keep the choices; the runtime of this process follows them at once.

    sizes (rows and columns of weights) and batches (of tokens): for the products of a GPU, in place of the reference model's.
    """
    asked = [n for n in names if n != "batch"]
    listed = races(asked, quick, sizes, batches) if asked or not names else []
    batch = not names or "batch" in names
    done: list[Outcome] = []
    for i, r in enumerate(listed):
        if progress is not None:
            progress(i, len(listed) + batch, r.title)
        done.append(_raced(r, quick))
    _devices_chosen(done)
    if batch:
        if progress is not None:
            progress(len(listed), len(listed) + 1, "batch")
        done.append(_batch(quick))
    return done


def _raced(r: Race, quick: bool) -> Outcome:
    if r.absent:
        return Outcome(r, None, r.default, r.absent)
    plan: dict[str, Any] = {"rounds": 9, "budget_s": 1.0} if quick else {"rounds": tune.ROUNDS, "budget_s": 4.0}
    made, objects = tune.run(r.op, r.configs, r.make(), shape=r.shape, dtype=r.dtype, device=r.device, **plan)
    value, why = decided(made, r.default, objects)
    keep = value != r.default or (r.always and made.best is not None)
    tune_file.add(made, {r.choice: tuned.Choice(value, why, r.exact) if keep else None})
    return Outcome(r, made, value, why)


def decided(made: Tuning, default: Any, objects: dict[str, Any]) -> tuple[Any, str]:
    """What to choose after a race, and why: the shipped default, unless another is clearly faster."""
    best, shipped = made.best, made.of(default)
    if best is None:
        return default, "nothing ran"
    if shipped is None or not shipped.seconds or shipped.status == "failed":
        return objects[best.config], f"{default!r} did not run: {shipped.reason if shipped else 'it was not there'}"
    gain = shipped.median / best.median
    if best is shipped:
        return default, "as shipped: the fastest"
    if shipped.interval[0] <= best.interval[1] or gain < GAIN:
        return default, f"as shipped: {best.config} is not clearly faster ({gain:.2f} times)"
    return objects[best.config], f"{gain:.2f} times as fast as {default!r}"


def _batch(quick: bool) -> Outcome:
    """How many tokens a product with ternary weights takes at once."""
    rng = np.random.default_rng(0)
    w = quant.Quantized(
        "ternary", ops.repack(asarray(rng.integers(-1, 2, (WIDTH, WIDTH), np.int8)), dt.tern2), asarray(np.float32(0.02)), None, 0
    ).tiled()  # fmt: skip
    most = 64 if quick else 256
    x = asarray(rng.standard_normal((most, WIDTH)).astype(np.float32))
    made, found = tune.race_batches(BATCH, most, lambda n: ops.quantized_matmul(x[:n], w.data, w.scale, None))
    sizes, shape = tuple(t.size for t in found.trials), f"{WIDTH}x{WIDTH}"
    r = Race(f"batch/{BATCH}", f"batch/{BATCH}", sizes, batching.DEFAULT, _nothing, shape, "tern2")
    rate = max(t.items_per_s for t in found.trials)
    one = next(t for t in found.trials if t.size == 1).items_per_s
    return Outcome(r, made, found.size, f"the smallest within 2 % of {rate:.3g} tokens/s; one at a time {one:.3g}")


def revalidate(names: Sequence[str] = (), *, quick: bool = False) -> list[tune.Drift]:
    """Every kept race of the runtime again, the winner beside the runner-up."""
    out = []
    for r in races([n for n in names if n != "batch"], quick):
        found = None if r.absent else tune.latest(r.op, r.shape, r.dtype, r.device)
        if found is None:
            continue
        objects = {repr(c): c for c in r.configs}
        pair = [objects[c.config] for c in found.ranked[:2] if c.config in objects]
        if found.best is not None and found.best.config in objects:
            now, _ = tune.run(r.op, pair, r.make(), shape=r.shape, dtype=r.dtype, device=r.device, budget_s=2.0)
            out.append(tune.drift_of(found, now))
    return out
