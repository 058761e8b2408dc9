"""Every op of the table at two sizes beside NumPy and PyTorch: `python bench/dense.py --all`.

Knows no op by name. A call is a sample of the op's row, with its sizes multiplied until the largest tensor has about as
many elements as asked for; a peer is the function of the same name in the other library, and takes part where it accepts
the same call and returns the same numbers.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from results import Entry, compared, compared_columns, write

import tritium as tt
from tritium.errors import TritiumError
from tritium.op import OPS, Kind, Op, Spec, Trait, outputs
from tritium.ops import Draw, Sample
from tritium.testing import arrays

SIZES = (8, 1_000_000)
NAMES = {"axis": "dim", "keepdims": "keepdim", "shape": "size"}  # attributes under PyTorch's names
WORST = 5  # ops that a summary names
REASONS = {  # why an op is slower than the best peer, where that is known
    "sort": "keys are made of the elements and turned back, so that NaN come last and equal zeros keep their order",
    "silu": "it is computed in f64 and rounded once, so that every device returns the same bits",
    "prod": "every factor of floats is multiplied in f64, which does not overflow where a product of f32 would",
    "linear": "a row has the same bits in any batch and on every instruction set: products and sums are rounded apart",
}
EVERYWHERE = "it is computed as on every instruction set; NumPy's code is written for AVX-512"
REASONS_OF = {  # the same of one kind of machine
    "x86_64": dict.fromkeys(("acosh", "asinh", "atanh", "expm1"), EVERYWHERE),
    "aarch64": {
        "prod": "every factor of floats is multiplied in f64, and a core converts two of them in a cycle, where it could multiply eight f32",
        "silu": "it is computed in f64, two at a time, and rounded once, so that every device returns the same bits",
        "clip": "its loop alone takes as long as PyTorch's whole call; where the rest goes was not found",
        "gelu": "the negative tail keeps its digits, which takes a quotient and a longer polynomial",
        "erf": "both of its polynomials and the exponential are computed for all elements",
    },
}
TOLERANCE = 1e-3  # of the largest magnitude: enough to tell the same function from another


@dataclass(frozen=True)
class Case:
    """One op at one size: its tensors as NumPy arrays, and its attributes."""

    op: Op
    elements: int
    data: list[Any]
    attrs: dict[str, Any]


# ---- samples of other sizes


def scaled_shape(shape: Sequence[int], factor: float, only: int | None) -> tuple[int, ...]:
    return tuple(max(1, round(n * factor)) if n > 1 and only in (None, n) else n for n in shape)


def scaled(sample: Sample, factor: float, only: int | None, numbers: bool) -> Sample:
    """Return a sample whose sizes (those equal to `only`) and, with `numbers`, integer attributes are multiplied."""
    inputs = tuple(
        d and Draw(Spec(scaled_shape(d.spec.shape, factor, only), d.spec.dtype), d.low, d.high) for d in sample.inputs
    )
    if not numbers:
        return Sample(inputs, sample.attrs)

    def larger(value: Any) -> Any:
        if isinstance(value, tuple) and value and all(type(n) is int for n in value):
            return scaled_shape(value, factor, only)
        return max(1, round(value * factor)) if type(value) is int and value > 1 else value

    return Sample(inputs, tuple((name, value if name == "seed" else larger(value)) for name, value in sample.attrs))


def elements_of(op: Op, sample: Sample) -> int:
    """Return the elements of the largest tensor of a call; 0 where the rule refuses it."""
    specs = tuple(None if d is None else d.spec for d in sample.inputs)
    try:
        decision = op.decide(specs, op.complete(dict(sample.attrs)))
    except (TritiumError, ValueError, TypeError):
        return 0
    sizes = [s.size for s in (*specs, *outputs(decision.out)) if s is not None and None not in s.shape]
    return max(sizes, default=0)


def fitted(op: Op, sample: Sample, elements: int, only: int | None, numbers: bool) -> Sample | None:
    """Return the sample with about as many elements, by bisection of the factor; None where that cannot be reached."""
    low, high = 1e-3, 2.0 * elements
    best: Sample | None = None
    for _ in range(60):
        middle = (low * high) ** 0.5
        candidate = scaled(sample, middle, only, numbers)
        size = elements_of(op, candidate)
        if size > elements:
            high = middle
        else:
            low = middle
            best = candidate if size else best
    return best if best is not None and elements_of(op, best) >= elements / 4 else None


def case_of(op: Op, elements: int) -> Case | None:
    """Return a call of about so many elements: the first sample and way of scaling it that the op accepts."""
    for sample in op.samples:
        shapes = [d.spec.shape for d in sample.inputs if d is not None]
        sizes = sorted({n for shape in shapes for n in shape if n > 1}, reverse=True)
        ways = [(None, False), *((n, False) for n in sizes), (None, True)]
        for only, numbers in ways:
            fit = fitted(op, sample, elements, only, numbers)
            if fit is None:
                continue
            case = Case(op, elements, arrays(op, fit), dict(fit.attrs))
            with suppress(TritiumError):  # an index that is outside of a smaller tensor
                ours(case)()
                return case
    return None


def cases(names: Sequence[str]) -> Iterator[tuple[Op, int, Case | None]]:
    for op in OPS.values():
        if (
            op.samples
            and op.kind is not Kind.FUSED
            and Trait.INTERNAL not in op.traits
            and (not names or op.name in names)
        ):
            for elements in SIZES:
                yield op, elements, case_of(op, elements)


# ---- calls


def spread(op: Op, function: Callable[..., Any], tensors: list[Any], attrs: Mapping[str, Any]) -> Callable[[], Any]:
    return partial(function, tensors, **attrs) if op.variadic else partial(function, *tensors, **attrs)


def ours(case: Case) -> Callable[[], Any]:
    tensors = [None if x is None else tt.repack(tt.tensor(np.asarray(x)), x.packed) if hasattr(x, "packed") else tt.tensor(x)
               for x in case.data]  # fmt: skip
    return spread(case.op, case.op, tensors, case.attrs)


def numbers_of(result: Any) -> list[Any]:
    parts = result if isinstance(result, (tuple, list)) else (result,)
    return [np.asarray(part.numpy() if hasattr(part, "numpy") else part) for part in parts]


def agree(result: Any, expected: Any) -> bool:
    got, want = numbers_of(result), numbers_of(expected)
    if [g.shape for g in got] != [w.shape for w in want]:
        return False
    for g, w in zip(got, want, strict=True):
        a, b = g.astype(np.float64), w.astype(np.float64)
        scale = np.abs(b[np.isfinite(b)]).max(initial=0)
        if not np.allclose(a, b, rtol=0, atol=TOLERANCE * scale + 1e-12, equal_nan=True):
            return False
    return True


def namespaces(name: str) -> list[Any]:
    if name == "numpy":
        return [np]
    import torch

    return [torch, torch.nn.functional, torch.special]


def theirs(case: Case, name: str) -> Callable[[], Any] | None:
    """Return the same call of another library; None where it has none that returns the same."""
    if any(hasattr(x, "packed") for x in case.data):
        return None
    mine = ours(case)()
    if any(part.dtype.is_packed for part in (mine if isinstance(mine, tuple) else (mine,))):
        return None
    tensors = [x for x in case.data if x is not None]
    if name == "torch":
        import torch

        try:
            tensors = [torch.from_numpy(np.ascontiguousarray(x)) for x in tensors]
        except TypeError:  # a dtype that it does not take from NumPy
            return None
    kind = (mine[0] if isinstance(mine, tuple) else mine).dtype
    for space in namespaces(name):
        function = getattr(space, case.op.name, None)
        for args, attrs in ways_to_say(case, name, space, kind) if callable(function) else ():
            call = spread(case.op, function, [*tensors, *args], attrs)
            with suppress(Exception):  # whatever another library says to a call it does not know
                if agree(call(), mine):
                    return call
    return None


def ways_to_say(case: Case, name: str, space: Any, kind: Any) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Yield the attributes of a call as another library may want them: those of the sample, or the defaults too; by name, or
    the leading ones by place."""
    for attrs in (case.attrs, {k: v for k, v in case.op.complete(case.attrs).items() if v is not None}):
        said = {NAMES.get(k, k) if name == "torch" else k: v for k, v in attrs.items()}
        if case.op.kind is Kind.SOURCE or "dtype" in said:
            twin = kind.numpy if name == "numpy" else getattr(space, kind.numpy.name, None)
            said |= {"dtype": twin}
        yield [], said
        if case.op.kind is not Kind.VIEW and not case.op.variadic:
            leading = [k for k in case.op.params[: case.op.positional] if k in attrs and k != "dtype"]
            yield [attrs[k] for k in leading], {k: v for k, v in said.items() if k == "dtype" or k not in leading}


# ---- the run


def measure(
    names: Sequence[str], libraries: Sequence[str], interleave: Callable[..., Any], quick: bool
) -> dict[str, Any]:
    """Time every op at every size; ns a call by library, one value a round."""
    results: dict[str, dict[str, list[float]]] = {}
    fixed: dict[int, list[str]] = {}
    with np.errstate(all="ignore"):
        for op, elements, case in cases(names):
            if case is None:
                fixed.setdefault(elements, []).append(op.name)
                continue
            calls = {libraries[0]: ours(case)}
            for name in libraries[1:]:
                if (call := theirs(case, name)) is not None:
                    calls[name] = call
            results[f"{op.name} {elements}"] = interleave(calls, *((0.1, 4, 6) if quick else (1.0, 8, 20)))
    notes = [f"no sample has {elements:,} elements of {', '.join(ops)}" for elements, ops in fixed.items()]
    return {"ns": results, "notes": notes}


def ratios(results: Mapping[str, Mapping[str, Sequence[float]]], base: str, elements: int) -> dict[str, float]:
    """Return our time over that of the best peer, by op."""
    out = {}
    for key, samples in results.items():
        op, size = key.split()
        peers = [median(values) for name, values in samples.items() if name != base]
        if int(size) == elements and peers:
            out[op] = median(samples[base]) / min(peers)
    return out


def report(results: Mapping[str, Mapping[str, Sequence[float]]], libraries: Sequence[str], notes: Sequence[str]) -> str:
    """Return the table, and for each size the median ratio and the worst five."""
    base = libraries[0]
    lines = [
        f"{'op':24}{'elements':>10}" + "".join(f"{name + ' µs':>20}" for name in libraries) + f"{'ours / best':>13}"
    ]
    for key, samples in results.items():
        op, elements = key.split()
        cells = ""
        for name in libraries:
            values = sorted(samples.get(name, ()))
            middle = median(values) / 1000 if values else 0.0
            spread_ = (
                50 * (values[-1 - len(values) // 4] - values[len(values) // 4]) / median(values) if values else 0.0
            )
            cells += f"{f'{middle:.4g} ±{spread_:.0f}%' if values else '':>20}"
        peers = [median(v) for n, v in samples.items() if n != base]
        lines.append(f"{op:24}{elements:>10}{cells}{f'{median(samples[base]) / min(peers):.2f}' if peers else '':>13}")
    for elements in SIZES:
        found = ratios(results, base, elements)
        if found:
            worst = sorted(found.items(), key=lambda entry: -entry[1])[:WORST]
            told = ", ".join(f"{op} {value:.2f}" for op, value in worst)
            lines.append(f"\n{elements:,} elements: {base}'s time over the best peer's: median {median(found.values()):.2f} of "
                         f"{len(found)} ops; worst: {told}")  # fmt: skip
    return "\n".join([*lines, *(f"Note: {note}." for note in notes)])


def summaries(results: Mapping[str, Mapping[str, Sequence[float]]], base: str) -> list[str]:
    """Return for each size the median ratio, and the reasons of ops among the worst five that are slower than the best peer."""
    lines = []
    reasons = REASONS | REASONS_OF.get(platform.machine(), {})
    for elements in SIZES:
        known = ratios(results, base, elements)
        if not known:
            continue
        behind = sum(ratio > 1 for ratio in known.values())
        lines.append(
            f"{elements:,} elements: time of {base} / that of the best peer: median {median(known.values()):.2f} of "
            f"{len(known)} ops, {behind} of them above 1"
        )
        worst = sorted(known, key=lambda op: -known[op])[:WORST]
        lines += [f"{op}: {reasons[op]}" for op in worst if known[op] > 1 and op in reasons]
    return list(dict.fromkeys(lines))


def write_results(path: Path, result: Mapping[str, Any], libraries: Sequence[str], threads: int) -> None:
    rows = [Entry(tuple(key.split()), compared(s, libraries[0], 1e-3)) for key, s in result["ns"].items()]
    columns = compared_columns(libraries, libraries[0], "µs", "median time of a call")
    notes = [f"{note}." for note in (*summaries(result["ns"], libraries[0]), *result["notes"])]
    write(path, "Every op beside other libraries", ("op", "elements"), columns, rows, threads=threads, notes=notes)
