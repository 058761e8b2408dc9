"""The source of one Triton kernel for a fusion group and the strides of its operands, and the arguments of its launch.

Knows nothing of torch or Triton, nor of how elements are distributed over CTAs (`cuda.fused.form`). Sizes are
arguments, not text, so groups that differ in sizes share a kernel.
"""

from __future__ import annotations

from typing import NamedTuple

from tritium.backends.cuda.fused.code import TYPES, Listing, Node, listing, name
from tritium.backends.cuda.fused.form import LONGEST, MANY, Grid, Strides, form, power
from tritium.backends.fusion import UnfitError
from tritium.dtype import DType, iinfo
from tritium.fragment import Fragment
from tritium.layout import contiguous_strides


class Plan(NamedTuple):
    """A kernel and the arguments of its launch: operands, sizes, then constants of the compiler.

    The last two constants say whether it is started early and whether it may use inline PTX.
    """

    source: str
    sizes: tuple[int, ...]
    constants: tuple[int, ...]
    programs: int
    warps: int
    registers: int = 0  # of a thread at most; 0: as many as the compiler takes


# ---- axes


def _grid(shape: tuple[int, ...], strides: list[Strides], apart: bool) -> Grid:
    """Return the grid with axes merged where the strides of every operand allow it. The last stays apart where rows
    are reduced.
    """
    sizes: list[int] = []
    merged: list[list[int]] = [[] for _ in strides]
    last = len(shape) - 1
    for d, n in enumerate(shape):
        alone = apart and d == last
        if n == 1 and not alone:
            continue
        joins = bool(sizes) and not alone and all(k[-1] == s[d] * n for k, s in zip(merged, strides, strict=True))
        if joins:
            sizes[-1] *= n
        else:
            sizes.append(n)
        for k, s in zip(merged, strides, strict=True):
            if joins:
                k[-1] = s[d]
            else:
                k.append(s[d])
    if not sizes:
        return Grid((1,), tuple((0,) for _ in strides))
    return Grid(tuple(sizes), tuple(map(tuple, merged)))


def _shown(shape: tuple[int, ...], strides: Strides, whole: int) -> Strides:
    """Return strides for all axes: 0 along broadcast ones."""
    missing = whole - len(shape)
    if missing < 0:
        raise UnfitError(f"an operand of the shape {shape} has more axes than its body")
    return (0,) * missing + tuple(0 if n == 1 else s for n, s in zip(shape, strides, strict=True))


def _operands(body: Fragment, body_lines: Listing, input_strides: tuple[Strides, ...] | None) -> list[Strides]:
    """Return the strides of inputs and results, broadcast to the whole shape."""
    result, whole = [], len(body_lines.shape)
    for i, spec in enumerate(body.inputs):
        strides = contiguous_strides(spec.shape) if input_strides is None else input_strides[i]
        lead = len(body_lines.shown[i]) - len(spec.shape)
        after = 1 if _is_lead(spec.shape, body_lines.shown[i]) else 0
        shown = (0,) * (lead - after) + tuple(strides) + (0,) * after
        result.append(tuple(0 if n == 1 else s for n, s in zip(body_lines.shown[i], shown, strict=True)))
    for v in body.outputs:
        shape = body.spec(v).shape
        strides = contiguous_strides(shape)
        if len(shape) < whole:
            shape, strides = (*shape, 1), (*strides, 0)
        result.append(_shown(shape, strides, whole))
    return result


def _is_lead(shape: tuple[int, ...], shown: tuple[int, ...]) -> bool:
    """Return True if an input has no last axis: it was shown with one of size 1 after its own."""
    return len(shape) < len(shown) and (1,) * (len(shown) - 1 - len(shape)) + tuple(shape) + (1,) == shown


# ---- offsets of elements


class _Places:
    """Offsets as text. Strides and sizes that are neither 0, 1 nor those of columns become arguments."""

    def __init__(self, grid: Grid, widths: list[int], flat: bool) -> None:
        self.grid, self.widths, self.flat = grid, widths, flat
        self.values: list[int] = []
        self.names: list[str] = []
        self.head: list[str] = []  # lines that part the number of a row into its axes
        if any(not self._in_line(s) for s in grid.strides):
            self._part()

    def argument(self, what: str, value: int) -> str:
        self.names.append(f"{what}{len(self.names)}")
        self.values.append(value)
        return self.names[-1]

    def _in_line(self, strides: Strides) -> bool:
        """Return True if the rows of an operand have one stride."""
        outer, sizes = strides[:-1], self.grid.sizes
        return all(outer[d] == outer[d + 1] * sizes[d + 1] for d in range(len(outer) - 1))

    def _part(self) -> None:
        outer = self.grid.sizes[:-1]
        rest = "r"
        for d in range(len(outer) - 1, 0, -1):
            n = self.argument("n", outer[d])
            self.head += [f"i{d} = {rest} % {n}", f"r{d} = {rest} // {n}"]
            rest = f"r{d}"
        self.head.append(f"i0 = {rest}")

    def _term(self, index: str, stride: int) -> list[str]:
        if not stride:
            return []
        if stride == 1:
            return [index]
        by = "columns" if stride == self.grid.sizes[-1] and not self.flat else self.argument("s", stride)
        return [f"{index} * {by}"]

    def offset(self, k: int) -> tuple[str, str]:
        """Return the offset of operand k ("" for one number), and its load mask."""
        strides = self.grid.strides[k]
        if self._in_line(strides):
            rows = self._term("r", strides[-2]) if len(strides) > 1 else []
        else:
            rows = [t for d, s in enumerate(strides[:-1]) for t in self._term(f"i{d}", s)]
        along = self._term("c", strides[-1])
        mask = "inside" if rows and along else "here" if rows else "along" if along else ""
        offset = " + ".join(rows + along)
        if along and strides[-1] == 1 and self.widths[k] < self.widest:
            few = min(16 // self.widest, power(self.grid.sizes[-1]))
            offset = f"tl.max_contiguous({offset}, {few if self.flat else (1, few)})"
        return offset, mask

    @property
    def widest(self) -> int:
        """Return the bytes of the widest elements.

        Threads take 16 bytes of those at once, and as many of the narrower: if they took 16 bytes of narrower ones,
        Triton would spread the wide ones far apart.
        """
        return max((w for w, s in zip(self.widths, self.grid.strides, strict=True) if s[-1] == 1), default=16)


# ---- lines

MASKS = "here", "along", "inside"
_IDENTITY = {"max": "-", "min": ""}


def _start(fold: str, t: DType) -> str:
    """Return the identity of a reduction."""
    if fold == "sum":
        return f"tl.full((), 0, {TYPES[t]})"
    if t.is_float:
        return f"tl.full((), float('{_IDENTITY[fold]}inf'), {TYPES[t]})"
    info = iinfo(t)
    return f"tl.full((), {info.min if fold == 'max' else info.max}, {TYPES[t]})"


_JOIN = {"sum": "{} + {}", "max": "maximum({}, {})", "min": "minimum({}, {})"}
_FOLD = {
    "sum": "tl.sum({}, 1, keep_dims=True)",
    "max": "tl.reduce({}, 1, maximum, keep_dims=True)",
    "min": "tl.reduce({}, 1, minimum, keep_dims=True)",
}


class _Text:
    """Writes the lines of a kernel."""

    def __init__(self, body: Fragment, body_lines: Listing, places: _Places, even: bool, late: bool) -> None:
        self.body, self.body_lines, self.places = body, body_lines, places
        self.even = even  # CTAs are full: no element needs a mask
        self.late = late  # what all rows share is read where it is needed, not before
        self.lines: list[str] = []
        n = len(body.inputs)
        self.offsets = [places.offset(k) for k in range(n + len(body.outputs))]
        self.shared = places.grid.vectors(n)  # they may be far away, as weights are
        self.is_full = [bool(body_lines.shape) and body.spec(v).shape == body_lines.shape for v in body.outputs]

    def add(self, line: str, depth: int = 1) -> None:
        self.lines.append("    " * depth + line)

    def node(self, v: int, depth: int = 1) -> None:
        node = self.body_lines.nodes[v]
        if node.source >= 0:
            text = self._load(node)
        elif node.fold:
            text = _FOLD[node.fold].format(self._masked(node))
        else:
            text = node.text
        self.add(f"{name(v)} = {text}", depth)

    def _load(self, node: Node) -> str:
        offset, mask = self.offsets[node.source]
        text = (
            f"tl.load(x{node.source}{f' + {offset}' if offset else ''}{f', {mask}' if mask and not self.even else ''})"
        )
        stored = self.body.inputs[node.source].dtype
        return text if stored is node.dtype else f"{text}.to({TYPES[node.dtype]})"

    def _masked(self, node: Node) -> str:
        if self.even:  # an operand may have one element for a row
            return f"tl.broadcast_to({node.text}, (R, C))"
        return f"tl.where(inside, {node.text}, {_start(node.fold, node.dtype)})"

    def store(self, k: int, depth: int = 1) -> None:
        offset, mask = self.offsets[len(self.body.inputs) + k]
        if not offset:  # one number, which a CTA holds as a block
            offset, mask = ("c", "along") if self.places.flat else ("r", "here")
        v, t = self.body_lines.outputs[k], self.body.spec(self.body.outputs[k]).dtype
        value = name(v) if self.body_lines.nodes[v].dtype is t else f"{name(v)}.to({TYPES[t]})"
        self.add(f"tl.store(y{k} + {offset}, {value}{'' if self.even else f', {mask}'})", depth)

    def prefetches(self, kind: str) -> list[str]:
        return [f"ask(x{i}, columns, C, EARLY)" for i in self.shared] if kind == "kept" else []

    # -- the forms

    def straight(self) -> None:
        nodes, written = self.body_lines.nodes, set[int]()
        later = {v for v, n in enumerate(nodes) if self.late and n.source in self.shared}
        for v in (*(v for v in range(len(nodes)) if v not in later), *sorted(later)):
            for needed in (*nodes[v].args, v):
                if needed not in written:
                    written.add(needed)
                    self.node(needed)
        for k in range(len(self.body_lines.outputs)):
            self.store(k)

    def looped(self) -> None:
        """Write the loops: independent reductions share one; values of one number a row are computed between loops."""
        nodes, level = self.body_lines.nodes, self._levels()
        for depth in range(max(level) + 1):
            for v, n in enumerate(nodes):
                if level[v] == depth and not n.full and not n.fold:
                    self.node(v)
            folds = [v for v, n in enumerate(nodes) if n.fold and level[v] == depth + 1]
            if folds:
                self._fold(folds)
        whole = [k for k, full in enumerate(self.is_full) if full]
        if whole:
            self._loop([self.body_lines.outputs[k] for k in whole])
            for k in whole:
                self.store(k, 2)
        for k, full in enumerate(self.is_full):
            if not full:
                self.store(k)

    def _levels(self) -> list[int]:
        """Return how many loops must end before each node is known."""
        levels: list[int] = []
        for n in self.body_lines.nodes:
            levels.append(max((levels[a] for a in n.args), default=0) + bool(n.fold))
        return levels

    def _fold(self, folds: list[int]) -> None:
        nodes = self.body_lines.nodes
        for v in folds:
            self.add(f"a{v} = tl.zeros((R, C), {TYPES[nodes[v].dtype]}) + {_start(nodes[v].fold, nodes[v].dtype)}")
        self._loop([nodes[v].args[0] for v in folds])
        for v in folds:
            self.add(f"a{v} = {_JOIN[nodes[v].fold].format(f'a{v}', self._masked(nodes[v]))}", 2)
        for v in folds:
            self.add(f"{name(v)} = {_FOLD[nodes[v].fold].format(f'a{v}')}")

    def _loop(self, targets: list[int]) -> None:
        """Begin a loop along the row that computes the targets that differ along it."""
        needed: set[int] = set()
        left = list(targets)
        while left:
            v = left.pop()
            if self.body_lines.nodes[v].full and v not in needed:
                needed.add(v)
                left += self.body_lines.nodes[v].args
        self.add("for start in range(0, columns, C):")
        self.add("c = start + tl.arange(0, C)[None, :]", 2)
        if not self.even:
            self.add("along = c < columns", 2)
            self.add("inside = here & along", 2)
        for v in sorted(needed):
            self.node(v, 2)


# ---- all of a kernel


_HEADS = {
    "flat": ("c = pid * C + tl.arange(0, C)", "along = c < columns"),
    "tiles": (
        "blocks = tl.cdiv(columns, C)",
        "r = pid // blocks * R + tl.arange(0, R)[:, None]",
        "c = pid % blocks * C + tl.arange(0, C)[None, :]",
        "here = r < rows",
        "along = c < columns",
        "inside = here & along",
    ),
    "kept": (
        "r = pid * R + tl.arange(0, R)[:, None]",
        "c = tl.arange(0, C)[None, :]",
        "here = r < rows",
        "along = c < columns",
        "inside = here & along",
    ),
    "looped": ("r = pid * R + tl.arange(0, R)[:, None]", "here = r < rows"),
}


def plan(body: Fragment, strides: tuple[Strides, ...] | None = None) -> Plan:
    """Return the kernel of a fusion group for inputs of these strides (None: contiguous); UnfitError says why there
    is none.
    """
    body_lines = listing(body)
    grid = _grid(body_lines.shape, _operands(body, body_lines, strides), body_lines.rows)
    rows, columns = grid.rows, grid.columns
    if body_lines.rows and columns > LONGEST and rows < MANY:
        raise UnfitError(f"{rows} rows of {columns} elements are too few to be shared by all processors")
    widths = [s.dtype.nbytes for s in (*body.inputs, *(body.spec(v) for v in body.outputs))]
    tiling = form(body_lines, grid, widths)
    kind = tiling.kind
    reach = max(sum((n - 1) * s for n, s in zip(grid.sizes, steps, strict=True)) for steps in grid.strides)
    wide = max(reach, (rows + tiling.rows) * (columns + tiling.columns)) >= 2**31
    places = _Places(grid, widths, kind == "flat")
    even = columns % tiling.columns == 0 and rows % tiling.rows == 0
    text = _Text(body, body_lines, places, even, tiling.late)
    pid = f"pid = tl.program_id(0){'.to(tl.int64)' if wide else ''}"
    for line in (
        "let_next_start(EARLY)",
        pid,
        "columns = units * UNIT",
        *text.prefetches(kind),
        "wait(EARLY)",
        *(line for line in _HEADS[kind] if not (even and line.split()[0] in MASKS)),
    ):
        text.add(line)
    for line in places.head:
        text.add(line)
    if kind == "looped":
        text.looped()
    else:
        text.straight()
    unit = min(columns & -columns, 16)
    operands = [f"x{i}" for i in range(len(body.inputs))] + [f"y{k}" for k in range(len(body.outputs))]
    named = [
        *operands,
        "rows",
        "units",
        *places.names,
        *(f"{n}: tl.constexpr" for n in ("UNIT", "R", "C", "EARLY", "ASM")),
    ]
    source = "\n".join([f"def fused({', '.join(named)}):", *text.lines, ""])
    sizes = (rows, columns // unit, *places.values)
    return Plan(source, sizes, (unit, tiling.rows, tiling.columns), tiling.programs, tiling.warps, tiling.registers)
