"""The code of a fusion group, as lines of Triton: loads, maps written from the ops' `expr`, and reductions of whole
rows.

Each value of f16 or bf16 is held in f32 and rounded where the op by itself would round; a norm or softmax becomes its
maps and reductions.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tritium import dtype as dt, ops
from tritium.backends.fusion import EXACT, HALVES, UnfitError
from tritium.backends.reference.cast import number
from tritium.backends.reference.quantized import TINY
from tritium.dtype import DType
from tritium.fragment import Fragment, Step
from tritium.layout import axes_of
from tritium.op import Kind, Op, Spec

# The functions an expr of the table may call. `cuda.functions` is read, not imported: it needs Triton.
FUNCTIONS = frozenset(
    re.findall(r"^def ([a-z]\w*)", (Path(__file__).parents[1] / "functions.py").read_text("utf-8"), re.M)
)
WRITTEN = {  # rows without expr that a function of `cuda.functions` carries out
    ops.floor_divide: "floor_divide({0}, {1})",
    ops.remainder: "remainder({0}, {1})",
    ops.nextafter: "nextafter({0}, {1})",
    ops.bitwise_left_shift: "bitwise_left_shift({0}, {1})",
    ops.bitwise_right_shift: "bitwise_right_shift({0}, {1})",
    ops.copy: "{0}",
}
TYPES = {dt.bool_: "tl.int1"} | {t: f"tl.{t.long_name}" for t in dt.ALL if t is not dt.bool_}
FOLDS = {ops.sum: "sum", ops.mean: "sum", ops.max: "max", ops.min: "min"}


def lane_of(t: DType) -> DType:
    """Return the dtype in which elements of a dtype are computed."""
    return dt.f32 if t in HALVES else t


class Node(NamedTuple):
    """One line: a load of an input, a map of earlier nodes, or a reduction of a node along its row."""

    text: str  # with the names of other nodes in it; of a fold that of what is folded
    args: tuple[int, ...]
    dtype: DType  # of its lanes
    full: bool  # whether it differs along a row
    fold: str = ""  # sum, max or min
    source: int = -1  # which input is read


class Listing(NamedTuple):
    """The lines of a fusion group in order, and which of them are its results."""

    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    shape: tuple[int, ...]  # of the whole elements
    rows: bool  # whether anything is reduced: one CTA must see a whole row
    shown: tuple[tuple[int, ...], ...]  # the shape of each input, with an axis for each of `shape`


def name(v: int) -> str:
    return f"v{v}"


# ---- the text of a map


class _Rewritten(ast.NodeTransformer):
    """An expr in Triton: quotients rounded, signs of zeros kept, numbers of the lane's dtype."""

    def __init__(self, lane: DType) -> None:
        self.lane = lane

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        self.generic_visit(node)
        return _call("divide", node.left, node.right) if isinstance(node.op, ast.Div) else node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        self.generic_visit(node)
        return _call("negative", node.operand) if isinstance(node.op, ast.USub) else node

    def visit_Constant(self, node: ast.Constant) -> Any:
        return ast.parse(constant(node.value, self.lane), mode="eval").body

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id not in FUNCTIONS:
            raise UnfitError(f"{node.func.id} is not a function of `cuda.functions`")
        return node


def _call(function: str, *args: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(function, ast.Load()), list(args), [])


def constant(value: Any, t: DType) -> str:
    """Return the text of a number of the dtype, rounded once."""
    exact = number(value, t)
    if t.is_float:
        near = float(exact)
        if near == 0 and np.signbit(near):  # Triton drops the sign
            return f"negative({constant(0.0, t)})"
        text = f"{near!r}" if np.isfinite(near) else f"float('{near}')"
    else:
        text = str(int(exact))
    return f"tl.full((), {text}, {TYPES[lane_of(t)]})"


def expression(expr: str, names: list[str], lane: DType) -> str:
    """Return an expr of the op table with the names of its operands."""
    tree = _Rewritten(lane).visit(ast.parse(expr.format(*names), mode="eval"))
    return ast.unparse(ast.fix_missing_locations(tree))


def cast(x: str, a: DType, b: DType) -> str:
    """Return the text that casts elements, in lanes, from one dtype to another; the caller rounds to half floats."""
    x_lane, to = lane_of(a), lane_of(b)
    if b is dt.bool_:
        return x if a is dt.bool_ else f"({x} != 0)"
    if a.is_float and b.is_integer:
        info = dt.iinfo(b)
        return f"whole({x}, {float(info.min)!r}, {float(info.max + 1)!r}, {info.min}, {info.max}, {TYPES[b]})"
    if a is dt.f64 and b in HALVES:
        return f"odd({x})"
    return x if x_lane is to else f"{x}.to({TYPES[to]})"


def _template(step: Step, kind: DType) -> str:
    """Return the expr of an op for these operands."""
    operands = [i for i in step.inputs if i is not None]
    if step.op is ops.gelu:
        return "gelu({0}, ASM)" if dict(step.attrs)["approximate"] == "none" else "gelu_tanh({0})"
    if step.op is ops.clip and len(operands) < 3:
        row = ops.positive if len(operands) == 1 else ops.maximum if step.inputs[1] is not None else ops.minimum
        return row.expr or ""
    if step.op is ops.pow and not kind.is_float:
        raise UnfitError("pow of integers must look for negative powers")
    if step.op is ops.nextafter and kind in HALVES:
        raise UnfitError(f"nextafter of {kind} is not that of its lanes")
    return step.op.expr or ""


# ---- a body, step by step


class _Lines:
    """Writes the nodes of a fusion group."""

    def __init__(self, body: Fragment) -> None:
        self.body = body
        self.nodes: list[Node] = []
        self.node_of: dict[int, int] = {}  # the node of each value
        self.parts: dict[int, tuple[int, ...]] = {}  # the nodes of a step with several results
        self.whole = [s for s in body.steps if s.op in WHOLE]
        self.shape = self._shape()
        self.shown: dict[int, tuple[int, ...]] = {}  # the shape of an input, with an axis for each of `shape`
        for v, step in body.numbered():
            self._step(v, step)

    def _shape(self) -> tuple[int, ...]:
        if self.whole:
            return tuple(self.body.spec(self.whole[0].inputs[0] or 0).shape)
        shapes = {s.spec.shape for s in self.body.steps if s.op is not ops.const and isinstance(s.spec, Spec)}
        if len(shapes) != 1:
            raise UnfitError(f"its steps have {len(shapes)} shapes")
        return tuple(shapes.pop())

    # -- nodes

    def put(self, text: str, args: tuple[int, ...], t: DType) -> int:
        self.nodes.append(Node(text, args, t, any(self.nodes[a].full for a in args)))
        return len(self.nodes) - 1

    def map(self, expr: str, args: tuple[int, ...], t: DType) -> int:
        return self.put(expr.format(*map(name, args)), args, t)

    def fold(self, how: str, x: int) -> int:
        self.nodes.append(Node(name(x), (x,), self.nodes[x].dtype, False, how))
        return len(self.nodes) - 1

    def rounded(self, x: int, t: DType, exact: bool = False) -> int:
        """Return a node rounded as an element of the dtype, in lanes."""
        lane = lane_of(t)
        if self.nodes[x].dtype is not lane:
            x = self.map(f"{{0}}.to({TYPES[lane]})", (x,), lane)
        return x if t not in HALVES or exact else self.map(f"{{0}}.to({TYPES[t]}).to(tl.float32)", (x,), dt.f32)

    def read(self, v: int, target: tuple[int, ...]) -> int:
        """Return the node of a value; an input is loaded once, with the shape its reader expects."""
        if v >= len(self.body.inputs):
            return self.node_of[v]
        shape = self.body.inputs[v].shape
        shown = tuple(shape) if len(target) == len(self.shape) else (*shape, 1)
        shown = (1,) * (len(self.shape) - len(shown)) + shown
        if self.shown.setdefault(v, shown) != shown:
            raise UnfitError(f"input {v} is read in two ways")
        if len(shown) > len(self.shape) or any(a not in (1, b) for a, b in zip(shown, self.shape, strict=True)):
            raise UnfitError(f"an input of the shape {shape} does not fit {self.shape}")
        if v not in self.node_of:
            full = bool(shown) and shown[-1] != 1
            self.nodes.append(Node("", (), lane_of(self.body.inputs[v].dtype), full, "", v))
            self.node_of[v] = len(self.nodes) - 1
        return self.node_of[v]

    # -- steps

    def _step(self, v: int, step: Step) -> None:
        if step.op is ops.const:
            t = step.spec.dtype
            self.node_of[v] = self.put(constant(dict(step.attrs)["value"], t), (), lane_of(t))
        elif step.op is ops.item:
            self.node_of[v] = self.parts[step.inputs[0] or 0][dict(step.attrs)["index"]]
        elif step.op.kind is Kind.VIEW:
            self._look(v, step)
        elif step.op in WHOLE:
            self._whole(v, step)
        elif step.op.kind is Kind.MAP and isinstance(step.spec, Spec):
            self._map(v, step)
        else:
            raise UnfitError(f"{step.op.name} is neither elementwise nor a function of rows")

    def _look(self, v: int, step: Step) -> None:
        source = step.inputs[0] or 0
        if (
            source < len(self.body.inputs)
            or self.body.spec(source).shape == self.shape
            or step.spec.shape == self.shape
        ):
            raise UnfitError(f"{step.op.name} of {self.body.spec(source)} among rows of {self.shape}")
        self._fits(step.spec)
        self.node_of[v] = self.node_of[source]

    def _fits(self, spec: Spec) -> None:
        lead = self.shape[:-1]
        if spec.shape not in (self.shape, (*lead, 1), lead) or (not self.whole and spec.shape != self.shape):
            raise UnfitError(f"a step makes {spec}, neither all rows nor one element for each")

    def _map(self, v: int, step: Step) -> None:
        self._fits(step.spec)
        operands = [i for i in step.inputs if i is not None]
        kinds = [self.body.spec(i).dtype for i in operands]
        t, out = kinds[1] if step.op is ops.where else kinds[0], step.spec.dtype
        if any(k.is_packed for k in (*kinds, out)):
            raise UnfitError(f"{step.op.name} reads packed elements")
        args = tuple(self.read(i, step.spec.shape) for i in operands)
        if step.op is ops.astype:
            node = self.put(cast(name(args[0]), t, out), args, lane_of(out))
            self.node_of[v] = self.rounded(node, out, exact=t is out)
            return
        if any(k is not t for k in kinds[step.op is ops.where :]):
            raise UnfitError(f"{step.op.name} of {', '.join(map(str, kinds))} mixes dtypes")
        template = _template(step, t)
        if (
            step.op is ops.silu
        ):  # in f64, rounded once: between the quantisers of a network every device has the same bits
            wide = self.wide(args[0])
            y = self.put(expression(template, [name(wide)], dt.f64), (wide,), dt.f64)
            self.node_of[v] = self.rounded(self.put(cast(name(y), dt.f64, out), (y,), lane_of(out)), out)
            return
        if step.op in WRITTEN:
            text = WRITTEN[step.op].format(*map(name, args))
        elif step.op is ops.gelu:
            text = template.format(*map(name, args))
        elif template:
            text = expression(template, [name(a) for a in args], lane_of(t))
        else:
            raise UnfitError(f"{step.op.name} has no expr")
        self.node_of[v] = self.rounded(self.put(text, args, lane_of(out)), out, exact=step.op.name in EXACT)

    # -- functions of whole rows

    def _whole(self, v: int, step: Step) -> None:
        what, x = step.op.name, self.body.spec(step.inputs[0] or 0)
        axis = dict(step.attrs).get("axis", -1)
        if x.shape != self.shape or x.dtype.is_packed:
            raise UnfitError(f"{what} of {x} among rows of {self.shape}")
        if axis is None or axes_of(axis, x.ndim, what) != (x.ndim - 1,):
            raise UnfitError(f"{what} along axis {axis}, not the last alone")
        if any(i is not None and self.body.spec(i).dtype is not x.dtype for i in step.inputs):
            raise UnfitError(f"{what} of several dtypes")
        args = [None if i is None else self.read(i, self.shape) for i in step.inputs]
        result = WHOLE[step.op](self, step, *args)
        if isinstance(step.spec, Spec):
            self.node_of[v] = self.rounded(result, step.spec.dtype, exact=step.op in (ops.max, ops.min))
        else:
            self.parts[v] = result

    def wide(self, x: int) -> int:
        """Return a node as f64, in which floats are summed."""
        return self.rounded(x, dt.f64)

    def mean(self, x: int) -> int:
        """Return the mean in f64; `columns` is the number of elements of a row, which may be a constant of the
        compiler.
        """
        return self.map("{0} / (tl.full((), 0.0, tl.float64) + columns)", (self.fold("sum", self.wide(x)),), dt.f64)


def _folded(lines: _Lines, step: Step, x: int) -> int:
    t, lane = step.spec.dtype, lines.nodes[x].dtype
    if t is dt.bool_ or lane is dt.bool_:
        raise UnfitError(f"{step.op.name} of bools")
    if step.op is ops.mean:
        return lines.mean(x)
    if step.op is ops.sum:
        if t.is_float:
            return lines.fold("sum", lines.wide(x))
        wide = t if t.nbytes >= 4 else dt.i32
        return lines.fold("sum", lines.rounded(x, wide))
    return lines.fold(FOLDS[step.op], x)


def _softmax(lines: _Lines, step: Step, x: int) -> int:
    t = lines.nodes[x].dtype
    apart = lines.map("{0} - {1}", (x, lines.fold("max", x)), t)
    e = lines.map("exp({0})", (apart,), t)
    total = lines.fold("sum", e)
    if step.op is ops.log_softmax:
        return lines.map("{0} - log({1})", (apart, total), t)
    return lines.map("{0} * {1}", (e, lines.map(expression("1 / {0}", [name(total)], t), (total,), t)), t)


def _scale(lines: _Lines, squares: int, eps: float, t: DType) -> int:
    """Return 1 / sqrt(mean of squares + eps), computed in f64 and rounded once.

    Slow steps wait for nothing: 1 / columns comes before the sum, and 1 / sqrt is one step where the last bit of f64 is
    rounded away.
    """
    each = lines.put("tl.full((), 1.0, tl.float64) / columns", (), dt.f64)
    mean = lines.map(f"{{0}} * {{1}} + {constant(eps, dt.f64)}", (lines.fold("sum", lines.wide(squares)), each), dt.f64)
    return lines.map("1 / sqrt({0})" if t is dt.f64 else f"tl.rsqrt({{0}}).to({TYPES[t]})", (mean,), t)


def _rms_norm(lines: _Lines, step: Step, x: int, weight: int | None) -> int:
    t, wide = lines.nodes[x].dtype, lines.wide(x)
    squares = lines.map("{0} * {0}", (wide,), dt.f64)
    y = lines.map("{0} * {1}", (x, _scale(lines, squares, dict(step.attrs)["eps"], t)), t)
    return y if weight is None else lines.map("{0} * {1}", (y, weight), t)


def _layer_norm(lines: _Lines, step: Step, x: int, weight: int | None, bias: int | None) -> int:
    """Return the layer norm; the low part of the mean is subtracted separately: x - centre is exact near the centre."""
    t, mean = lines.nodes[x].dtype, lines.mean(x)
    apart = lines.map("{0} - {1}", (lines.wide(x), mean), dt.f64)
    scale = _scale(lines, lines.map("{0} * {0}", (apart,), dt.f64), dict(step.attrs)["eps"], t)
    centre = lines.rounded(mean, t)
    rest = lines.map(f"({{0}} - {{1}}.to(tl.float64)).to({TYPES[t]})", (mean, centre), t)
    y = lines.map("(({0} - {1}) - {2}) * {3}", (x, centre, rest, scale), t)
    y = y if weight is None else lines.map("{0} * {1}", (y, weight), t)
    return y if bias is None else lines.map("{0} + {1}", (y, bias), t)


def _quantized(lines: _Lines, step: Step, x: int) -> tuple[int, int, int]:
    """Return (q, scale, sum) of each token, as `quantized.tokens` does."""
    if lines.nodes[x].dtype is not dt.f32:
        raise UnfitError("tokens of f64 are not quantised")
    most, tiny, zero = (constant(n, dt.f32) for n in (127.0, float(TINY), 0.0))
    size = lines.fold("max", lines.map("abs({0})", (x,), dt.f32))
    amax = lines.map(f"maximum(where(isfinite({{0}}), {{0}}, {zero}), {tiny})", (size,), dt.f32)
    factor = lines.map(f"divide({most}, {{0}})", (amax,), dt.f32)
    q = lines.map(f"nearest(where(isfinite({{1}}), {{0}}, {zero}) * {{2}})", (x, size, factor), dt.i32)  # 127 at most
    scale = lines.map(f"where(isfinite({{1}}), divide({{0}}, {most}), float('nan'))", (amax, size), dt.f32)
    return lines.map("{0}.to(tl.int8)", (q,), dt.i8), scale, lines.fold("sum", q)


WHOLE: dict[Op, Callable[..., Any]] = {
    **dict.fromkeys(FOLDS, _folded),
    ops.softmax: _softmax,
    ops.log_softmax: _softmax,
    ops.rms_norm: _rms_norm,
    ops.layer_norm: _layer_norm,
    ops.quantize_activations: _quantized,
}


def listing(body: Fragment) -> Listing:
    """Return the lines of a fusion group; UnfitError says why there are none."""
    if not body.inputs:
        raise UnfitError("it has no inputs")
    lines = _Lines(body)
    if 0 in lines.shape:
        raise UnfitError("it has no elements")
    inputs = range(len(body.inputs))
    outputs = tuple(lines.read(v, body.spec(v).shape) for v in body.outputs)
    for v in body.outputs:
        lines._fits(body.spec(v))
    if unread := [v for v in inputs if v not in lines.node_of]:
        raise UnfitError(f"input {unread[0]} is read by nobody")
    shown = tuple(lines.shown[v] for v in inputs)
    return Listing(tuple(lines.nodes), outputs, lines.shape, bool(lines.whole), shown)
