"""The grid of a fused kernel: how elements are distributed over its CTAs. The numbers were raced on an H200.

Four kinds:

    flat     every operand is contiguous, or is one number
    tiles    maps of operands that are broadcast or strided: rows and columns in tiles
    kept     rows that are reduced, each held whole by one CTA
    looped   longer rows: what a reduction needs is read and computed once more for each
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from tritium import dtype as dt
from tritium.backends.cuda.fused.code import Listing

Strides = tuple[int, ...]

KEPT = 16384  # elements of a row that one CTA holds
HALF = KEPT // 2
SMALL = 2048  # elements of a row that one CTA holds with registers to spare
LOOP = 4096  # elements of a row looked at together
LONGEST = 1 << 17  # of a row, unless there are rows enough for every processor
MANY = 256  # rows
PIECE = 1024  # elements of rows that one CTA reduces, if they are short
TILE = 2048  # bytes of a tile of maps: 16 for each thread of 4 warps, of f64 twice as many
SIDE = 64  # of a tile where an operand is column-major: whole lines are read of both
FEW = 1 << 18  # elements below which CTAs are smaller, so that all processors have some
REGISTERS = 128  # of a thread, where more would leave a processor to one CTA


class Grid(NamedTuple):
    """All elements as few axes: strides of each operand, inputs first; the last axis is the columns."""

    sizes: tuple[int, ...]
    strides: tuple[Strides, ...]

    @property
    def rows(self) -> int:
        return prod(self.sizes[:-1])

    @property
    def columns(self) -> int:
        return self.sizes[-1]

    def is_shared(self, k: int) -> bool:
        """Return True if all rows read the same elements of operand k."""
        return not any(self.strides[k][:-1])

    def vectors(self, count: int) -> list[int]:
        """Return which of the first operands are vectors that all rows share."""
        return [k for k in range(count) if self.is_shared(k) and self.strides[k][-1]]


class Form(NamedTuple):
    """The elements of one CTA, and how the kernel is launched."""

    kind: str
    rows: int
    columns: int  # that it looks at together
    programs: int
    warps: int
    late: bool = False  # what all rows share is read where it is needed, not before
    registers: int = 0  # at most, of a thread; 0: as many as the compiler takes


def power(n: int) -> int:
    """Return the least power of 2 that is not smaller."""
    return 1 << max(n - 1, 0).bit_length()


def form(body_lines: Listing, grid: Grid, widths: list[int]) -> Form:
    """Return the form of a fusion group; widths: bytes of an element of each operand."""
    if body_lines.rows:
        return _folded(body_lines, grid, widths)
    if len(grid.sizes) == 1 and all(s[0] in (0, 1) for s in grid.strides):
        return _flat(grid.columns, max(widths))
    turned = any(len(s) > 1 and s[-1] > 1 and s[-2] == 1 for s in grid.strides)
    return _tiles(grid.rows, grid.columns, max(widths), turned)


# ---- maps


def _flat(size: int, width: int) -> Form:
    block = max(4096 // width, 512) if size >= FEW else 256
    return Form("flat", 1, block, -(-size // block), 4 if size >= FEW else 2)


def _tiles(rows: int, columns: int, width: int, turned: bool) -> Form:
    most = max(TILE // width, TILE // 4)
    across = min(power(columns), SIDE if turned else most)
    down = min(max((SIDE * SIDE if turned else most) // across, 1), power(rows))
    warps = min(max(down * across * width // 512, 1), 8 if turned else 4)
    return Form("tiles", down, across, -(-rows // down) * -(-columns // across), warps)


# ---- rows that are folded


def _folded(body_lines: Listing, grid: Grid, widths: list[int]) -> Form:
    """Return the form where one CTA takes each row.

    A few long rows end soonest if each is held whole; with many rows it counts that several CTAs share a
    multiprocessor, so that one reads while another computes.
    """
    rows, columns, whole = grid.rows, grid.columns, power(grid.columns)
    if columns > KEPT:
        return _looped(rows, LOOP, _warps(LOOP))
    down = min(max(PIECE // whole, 1), power(rows))
    held = Form("kept", down, whole, -(-rows // down), _warps(down * whole))
    width = max(widths[: len(body_lines.shown)])
    if rows < MANY or columns <= SMALL or not _writes_rows(body_lines) or width > 4:
        return held
    folds = [n for n in body_lines.nodes if n.fold]
    wide = any(n.dtype is dt.f64 for n in folds)
    if len(folds) > 2:
        tight = width == 4 and columns > HALF and columns == whole and bool(grid.vectors(len(body_lines.shown)))
        return held._replace(late=True, warps=held.warps // 2) if tight else held
    once = sum(n.full for n in body_lines.nodes if n.source >= 0 and not grid.is_shared(n.source)) == 1
    if width == 2 and once and (wide or columns > HALF):
        chunk = next((c for c in (whole // 4, whole // 8) if c >= 512 and columns % c == 0), whole // 4)
        return _looped(rows, chunk, max(chunk // 256, 4))
    if width < 4 or not wide:
        return held
    if once and 4 * columns <= 3 * whole:  # to hold it whole would waste registers
        return _looped(rows, whole // 4, whole // 512)
    return held._replace(late=True, warps=whole // 1024, registers=REGISTERS)


def _looped(rows: int, chunk: int, warps: int) -> Form:
    return Form("looped", 1, chunk, rows, warps)


def _warps(elements: int) -> int:
    """Return the warps for about 16 elements a thread, so that each loads 16 bytes at once."""
    return min(max(power(elements) // 512, 1), 16)


def _writes_rows(body_lines: Listing) -> bool:
    """Return True if a result is as large as what is reduced."""
    return any(body_lines.nodes[v].full for v in body_lines.outputs)
