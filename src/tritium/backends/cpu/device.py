"""The CPU: native kernels for this machine's instruction set, then NumPy on the same memory.

Without the native library every kernel is the reference's.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tritium import buffer, ops, settings
from tritium.backends import Backend, Device, Kernel
from tritium.backends.cpu import fused_product, restored, tape
from tritium.backends.reference import kernels as reference, packed
from tritium.backends.reference.packed import seen
from tritium.buffer import Array, Storage, host, native
from tritium.dtype import DType, i4, i4_r32, i8, i8_r16, tern2, tern2_r16, tern2_r64, tern5, tern5_r80
from tritium.fragment import Fragment
from tritium.layout import AT, Layout
from tritium.machine import tuned
from tritium.machine.facts import processor, usable_threads
from tritium.op import OPS, Axes, Kind, Op, Specs

Accepts = Callable[[Specs, Mapping[str, Any], tuple[Layout | None, ...]], bool]


def on_numpy(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a NumPy kernel that runs on our memory."""

    def kernel(*ins: Array | None, out: Any, **attrs: Any) -> None:
        results = tuple(seen(o) for o in out) if isinstance(out, tuple) else seen(out)
        fn(*(None if x is None else seen(x) for x in ins), out=results, **attrs)

    return kernel


def takes(row: Op, kernel: Any, variant: Mapping[str, Any]) -> Accepts:
    """Return the predicate of a native kernel: it takes a call by the dtype of one input (or of the result) and by its variant."""
    codes = frozenset(kernel.dtypes)

    def accepts(specs: Specs, attrs: Mapping[str, Any], layouts: tuple[Layout | None, ...]) -> bool:
        if any(s is not None and s.dtype.code < 0 for s in specs) or getattr(attrs.get("dtype"), "code", 0) < 0:
            return False
        if kernel.decides >= 0:
            specs = (specs[kernel.decides],)
        kind = next((s.dtype for s in reversed(specs) if s is not None), attrs.get("dtype"))
        return (
            kind is not None
            and kind.code in codes
            and all(attrs.get(k, row.defaults.get(k)) == v for k, v in variant.items())
        )

    return accepts


LONGEST_GROUP = 1 << 14  # columns that kernels on tiles add before they make floats of sums


def short_groups(accepts: Accepts) -> Accepts:
    """Return a predicate that also limits groups to the longest that kernels on tiles take."""

    def also(specs: Specs, attrs: Mapping[str, Any], layouts: tuple[Layout | None, ...]) -> bool:
        w, group = specs[1], attrs.get("group", 0)
        if w is None or not group:
            return accepts(specs, attrs, layouts)
        return min(group, w.shape[1]) <= LONGEST_GROUP and accepts(specs, attrs, layouts)

    return also


def with_axes(least: int, most: int, accepts: Accepts) -> Accepts:
    """Return a predicate that also limits the axes of the first operand."""

    def also(specs: Specs, attrs: Mapping[str, Any], layouts: tuple[Layout | None, ...]) -> bool:
        return specs[0] is not None and least <= specs[0].ndim <= most and accepts(specs, attrs, layouts)

    return also


def of_integers(accepts: Accepts) -> Accepts:
    """Return a predicate that also refuses integers made of floats, which the native arange does not make."""

    def also(specs: Specs, attrs: Mapping[str, Any], layouts: tuple[Layout | None, ...]) -> bool:
        numbers = (0 if attrs["stop"] is None else attrs["start"], attrs["step"])
        whole = all(isinstance(v, int) for v in numbers)
        return (whole or attrs["dtype"].is_float) and accepts(specs, attrs, layouts)

    return also


def whole_axes(accepts: Accepts) -> Accepts:
    """Return a predicate that also needs a key of whole axes and 'at'; other parts are views, taken beforehand."""

    def also(specs: Specs, attrs: Mapping[str, Any], layouts: tuple[Layout | None, ...]) -> bool:
        shape = () if specs[0] is None else specs[0].shape
        whole = len(attrs["key"]) == len(shape) and all(
            p in (AT, (0, n, 1)) for p, n in zip(attrs["key"], shape, strict=True)
        )
        return whole and len(specs) <= native.MAX_INPUTS and accepts(specs, attrs, layouts)

    return also


def few_shifts(accepts: Accepts) -> Accepts:
    """Return a predicate that also limits roll to four axes or, over all of them, to one shift."""

    def also(specs: Specs, attrs: Mapping[str, Any], layouts: tuple[Layout | None, ...]) -> bool:
        shift, axis = attrs["shift"], attrs["axis"]
        shifts = shift if isinstance(shift, tuple) else (shift,)
        few = isinstance(shift, int) if axis is None else 1 <= len(axis if isinstance(axis, tuple) else (axis,)) <= 4
        return few and all(abs(s) < 2**63 for s in shifts) and accepts(specs, attrs, layouts)

    return also


def check_codes(w: Array) -> None:
    """Raise for bytes from outside that are no codes, naming the first. Products trust their weights."""
    if w.dtype.is_ternary and native.first_illegal(w) >= 0:
        packed.decode(seen(w))  # raises


def checked_repack(kernel: Any) -> Callable[..., Any]:
    """Return a repack kernel that first checks integers against the range of the packed dtype, and bytes for being codes."""

    def repack(w: Array, *, out: Array, dtype: DType) -> None:
        check_codes(w)
        if w.dtype is i8 and dtype is not i8 and w.size:
            low, high = dtype.values
            values = host(w)
            if int(values.min()) < low or int(values.max()) > high:
                packed.pack(values, dtype)  # raises, naming the element
        kernel(w, out=out)

    return repack


def runner(body: Fragment) -> Any:
    """Return the module that makes a native call of a body: it quantises and dequantises, has a product, or is a tape."""
    if any(s.op is ops.dequantize for s in body.steps):
        return restored
    return fused_product if any(s.op.kind is Kind.CONTRACT for s in body.steps) else tape


@lru_cache(maxsize=1024)
def fused_call(body: Fragment) -> tuple[Any, dict[str, Any]] | str:
    """Return the native kernel that runs a body in one pass, and its attributes; or why there is none."""
    call: tuple[Any, dict[str, Any]] | str = runner(body).native_call(body)
    return call


@lru_cache(maxsize=4096)
def fused_overwrites(body: Fragment, index: int) -> bool:
    return bool(runner(body).overwrites(body, index))


def run_fused(*ins: Array | None, out: Any, body: Fragment) -> None:
    call = fused_call(body)
    assert not isinstance(call, str)
    kernel, attrs = call
    kernel(*ins, out=out, **attrs)


def is_one_pass(specs: Specs, attrs: Mapping[str, Any], layouts: tuple[Layout | None, ...]) -> bool:
    return not isinstance(fused_call(attrs["body"]), str)


# Numbers for which a row may have a native kernel of its own, named after them.
SPECIAL_KINDS = ("complex", "whole")

# Rows whose attribute picks among native kernels.
VARIANTS: dict[Op, list[tuple[str, dict[str, Any]]]] = {
    ops.searchsorted: [("searchsorted", {"side": "left"}), ("searchsorted_right", {"side": "right"})],
    ops.scatter: [("scatter", {"mode": "set"}), ("scatter_add", {"mode": "add"})],
    ops.quantized_matmul: [
        ("quantized_matmul", {"activations": "token"}),
        ("quantized_matmul_group", {"activations": "group"}),
        ("quantized_matmul_float", {"activations": "float"}),
    ],
    ops.expert_matmul: [
        ("expert_matmul", {"activations": "token"}),
        ("expert_matmul_group", {"activations": "group"}),
        ("expert_matmul_float", {"activations": "float"}),
    ],
    ops.gelu: [("gelu", {"approximate": "none"}), ("gelu_tanh", {"approximate": "tanh"})],
    ops.matmul: [
        ("matmul", {"algorithm": "blas"}),
        ("matmul_naive", {"algorithm": "naive"}),
        ("matmul_blocked", {"algorithm": "blocked"}),
        ("matmul_parallel", {"algorithm": "parallel"}),
    ],
}


def of_reals(accepts: Accepts) -> Accepts:
    """Return a predicate that also refuses complex numbers, which the native full does not repeat."""

    def also(specs: Specs, attrs: Mapping[str, Any], layouts: tuple[Layout | None, ...]) -> bool:
        return not isinstance(attrs["fill_value"], complex) and accepts(specs, attrs, layouts)

    return also


def of_slots(accepts: Accepts) -> Accepts:
    """Return a predicate that also refuses places that name blocks: native caches have a slot for each sequence."""

    def also(specs: Specs, attrs: Mapping[str, Any], layouts: tuple[Layout | None, ...]) -> bool:
        places = specs[-1]
        return (places is None or places.shape[-1:] == (3,)) and accepts(specs, attrs, layouts)

    return also


# Rows whose native kernel does not take every call of its dtypes.
LIMITED: dict[Op, Callable[[Accepts], Accepts]] = {
    ops.gather: whole_axes,
    ops.put: whole_axes,
    ops.roll: few_shifts,
    ops.arange: of_integers,
    ops.full: of_reals,
}
CACHED: dict[Op, Callable[[Accepts], Accepts]] = {ops.update_cache: of_slots, ops.attention: of_slots}

# The fewest and the most axes of the first operand that a row's native kernel takes.
AXES: dict[Op, tuple[int, int]] = {ops.dequantize: (2, 2), ops.quantize: (1, 5)}


def kernel_lists() -> dict[Op, list[Kernel]]:
    """Return the kernels of every op, best first."""
    out: dict[Op, list[Kernel]] = {}
    for row in OPS.values():
        listed = [] if native is None else list(_native(row))
        if row in reference.KERNELS:
            listed.append(Kernel("numpy", on_numpy(reference.KERNELS[row])))
        if listed:
            out[row] = listed
    return out


def _native(row: Op, isa: str | None = None) -> Iterator[Kernel]:
    """Yield the native kernels of an op, best first; those of another instruction set where one is named."""
    if row is ops.fused:
        yield Kernel(native.isa_base(native.isa()), run_fused, is_one_pass)
        return
    names: list[tuple[str, dict[str, Any]]] = [(row.name, {}), *((f"{kind}_{row.name}", {}) for kind in SPECIAL_KINDS)]
    for name, variant in VARIANTS.get(row, names):
        for kernel in native.kernels(name, isa):
            accepts = takes(row, kernel, variant)
            if row is ops.repack:
                yield Kernel(kernel.isa, checked_repack(kernel), with_axes(2, 2, accepts))
            elif row in AXES:
                yield Kernel(kernel.isa, kernel, with_axes(*AXES[row], accepts))
            elif row in LIMITED or row in CACHED:
                yield Kernel(kernel.isa, kernel, (LIMITED | CACHED)[row](accepts))
            elif tern2_r64.code <= min(kernel.dtypes) <= i4_r32.code:
                yield Kernel(kernel.isa, kernel, short_groups(accepts))
            else:
                yield Kernel(kernel.isa, kernel, accepts)


def alternatives(row: Op, isa: str) -> list[Kernel]:
    """Return the kernels of an op for another instruction set, if they give the same bits: only exact ops have any."""
    if native is None or row.ulps or row is ops.fused or isa not in native.isas():
        return []
    return list(_native(row, isa))


TILINGS = {tern2: (tern2_r64, tern2_r16), tern5: (tern5_r80, tern2_r16), i8: (i8_r16,), i4: (i4_r32,)}


def _has_own_kernel(t: DType) -> bool:
    """Return True if there is a kernel for such tiles here; the plain kernel reads them too, but no faster."""
    tiled = [] if native is None else native.kernels("integer_matmul")
    return any(tern2_r64.code <= min(k.dtypes) and t.code in k.dtypes for k in tiled)


def tilings(t: DType) -> dict[str, DType]:
    """Return the packings of these integers that kernels here read, by name; the plain one last."""
    return {tiled.name: tiled for tiled in (*(x for x in TILINGS.get(t, ()) if _has_own_kernel(x)), t)}


STORAGES = {t.name: t for t in (tern2, tern5)}


def shipped_storage() -> DType:
    """Return the packing of ternary weights that is used untuned.

    Memory bounds a single token; AVX-512 has instructions to spare for the denser packing, others do not.
    """
    wide = native is not None and native.isa() in ("avx512vnni", "amx")
    return tern5 if wide else tern2


def unbuilt() -> list[str]:
    """Return the instruction sets that this CPU runs and this build has no kernels for, narrow to wide."""
    return [] if native is None else [isa for isa in native.isas_detected() if isa not in native.isas_built()]


def faster_unbuilt() -> str:
    """Return the one of them that would be preferred to what is used; "" if there is none."""
    known = [] if native is None else native.isas_detected()
    return next((isa for isa in reversed(unbuilt()) if known.index(isa) > known.index(native.isas()[-1])), "")


def _followed() -> Mapping[str, tuned.Choice]:
    """Return the choices that were tuned; none where TRITIUM_ISA sets the kernels."""
    return {} if native is None or os.environ.get("TRITIUM_ISA") else tuned.choices()


class Cpu(Backend):
    """This machine's cores."""

    has_complex = True

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        if native is not None:
            load_blas()
            if isa := native.isa_rejected():
                known = ", ".join(native.isas())
                settings.log.warning("TRITIUM_ISA=%s is not available here (%s); using %s", isa, known, native.isa())
            if better := faster_unbuilt():
                settings.log.warning(
                    "this build has kernels for %s, and this CPU runs %s; using %s, which is slower. Build it on this machine: "
                    "pip install --force-reinstall --no-deps --no-cache-dir, and the folder or address it came from",
                    ", ".join(native.isas_built()), better, native.isa(),
                )  # fmt: skip
            threads = os.environ.get("TRITIUM_NUM_THREADS", "1")
            if not threads.isdigit() or int(threads) < 1:
                settings.log.warning(
                    "TRITIUM_NUM_THREADS=%s is not a number of threads; using %d", threads, usable_threads()
                )
        self.kernels = kernel_lists()
        self._tuned = _followed()
        self.dynamic = {row: _adopting(fn) for row, fn in reference.DYNAMIC.items()}

    def allocate(self, nbytes: int) -> Storage:
        return Storage(nbytes)

    def upload(self, data: np.ndarray[Any, Any], to: Array) -> None:
        host(to)[...] = data

    def download(self, a: Array) -> np.ndarray[Any, Any]:
        return host(a)

    def listed(self, op: Op, specs: Specs) -> Sequence[Kernel]:
        """Return the kernels of an op, the one tuned for such operands first. Called once for each kind of call."""
        listed = self.kernels.get(op, ())
        choice = self._tuned.get(tuned.kernel_key(op.name, specs)) if self._tuned else None
        return listed if choice is None else [*alternatives(op, str(choice.value)), *listed]

    def chooses_by_shape(self, op: Op) -> bool:
        is_elementwise = op.kind is Kind.MAP and op.axes is Axes.EACH
        return not (is_elementwise or op in (ops.concat, ops.stack)) or bool(self._tuned)

    def retuned(self) -> None:
        super().retuned()
        self._tuned = _followed()
        fused_call.cache_clear()

    def tiling(self, t: DType) -> DType:
        """Return the packing of these integers that the product kernels here read fastest."""
        if native is None:
            return t
        choice = self._tuned.get(f"tiling/{t.name}")
        if choice is not None and (packing := tilings(t).get(str(choice.value))) is not None:
            return packing
        return next((tiled for tiled in TILINGS.get(t, ()) if _has_own_kernel(tiled)), t)

    def densest(self) -> DType:
        choice = self._tuned.get("storage")
        return STORAGES.get(str(choice.value), shipped_storage()) if choice is not None else shipped_storage()

    def first_illegal(self, a: Array) -> int:
        plain = native is None or a.ndim != 2
        return super().first_illegal(a) if plain else int(native.first_illegal(a))

    def refuses(self, body: Fragment) -> str | None:
        outcome = fused_call(body) if native is not None else super().refuses(body)
        return outcome if isinstance(outcome, str) else None

    def overwrites(self, op: Op, attrs: Mapping[str, Any], index: int) -> bool:
        return fused_overwrites(attrs["body"], index) if op is ops.fused else super().overwrites(op, attrs, index)

    def native_call(
        self, op: Op, specs: Specs, attrs: Mapping[str, Any], layouts: tuple[Layout | None, ...]
    ) -> tuple[Any, dict[str, Any]] | str:
        if native is None:
            return f"there is no native library: {buffer.native_absence}"
        if op is ops.fused:
            return fused_call(attrs["body"])
        kernel = self.choose(op, specs, attrs, layouts)
        if kernel is None or not isinstance(kernel.fn, native.Kernel):
            operands = ", ".join(str(s) for s in specs if s is not None)
            return f"{op.name} of {operands or 'nothing'} has no kernel that runs without Python"
        return kernel.fn, dict(attrs)

    def describe(self) -> dict[str, str]:
        facts = {
            "processor": processor(),
            "cores": f"{os.cpu_count()} ({usable_threads()} usable)",
            "memory": _memory(),
        }
        if native is None:
            return facts | {"kernels": f"numpy {np.__version__} only: {buffer.native_absence}"}
        products = native.kernels("quantized_matmul")[0].isa
        return (
            facts
            | {
                "isa": f"{native.isa()} (of {', '.join(native.isas())})",
                **(
                    {"not built": f"{', '.join(left)}: TRITIUM_ISAS=all pip install . has them"}
                    if (left := unbuilt())
                    else {}
                ),
                "kernels": f"{native.isa_base(native.isa())}; products with packed weights: {products}",
                "threads": str(native.num_threads()),
                "blas": blas(),
            }
            | ({"tuned": f"{len(self._tuned)} choices followed, see tritium tune --list"} if self._tuned else {})
        )


def _adopting(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *ins, **attrs: fn(*(host(x) for x in ins), **attrs)


def make(device: Device) -> Backend:
    return Cpu(device)


def load_blas() -> None:
    """Give the native kernels the C BLAS of the scipy-openblas32 wheel; macOS has Accelerate linked."""
    spec = importlib.util.find_spec("scipy_openblas32")
    if spec is None or spec.origin is None:
        return
    folder = Path(spec.origin).parent / "lib"
    for library in sorted(folder.glob("libscipy_openblas*")):
        if native.blas_load(str(library)):
            return
    settings.log.warning("no usable BLAS in %s; matmul runs on our own blocked kernel", folder)


def blas() -> str:
    info = native.blas_info()
    if info["vendor"] == "none":
        return "none: our own blocked kernel (pip install scipy-openblas32)"
    return f"{info['vendor']} {info['config']}".strip() + ", split over our threads"


def _memory() -> str:
    pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return f"{pages * page / 2**30:.1f} GiB"
