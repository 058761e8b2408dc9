"""The matrices of experts, which GGUF and MLX store as one tensor of a layer, and Hugging Face each by itself.

Knows nothing of containers: it makes entries of the one kind from entries of the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache, partial

from tritium.errors import FormatError
from tritium.escape import visible
from tritium.families import BY_ARCH
from tritium.io.model.entry import Entry
from tritium.io.reader import fault
from tritium.io.ternary import Ternary, stack_rows

_ONE = re.compile(r"(model\.layers\.\d{1,5}\.mlp\.experts\.)(\d{1,5})\.(.+)")
_ALL = re.compile(r"(model\.layers\.\d{1,5}\.)(mlp\.experts\..+)\.weight")


def split(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries with one for each expert in the place of a stack."""
    out: list[Entry] = []
    decode = lru_cache(maxsize=1)(Entry.ternary)  # the experts of a stack are asked for one after another
    for e in entries:
        match = _ALL.fullmatch(e.common)
        if match is None or e.arch is None or match[2] not in BY_ARCH[e.arch.gguf].stacked or len(e.shape) != 3:
            out.append(e)
            continue
        count, *shape = e.shape
        kind = match[2].removeprefix("mlp.experts.")
        for i in range(count):
            out.append(replace(
                e, name=f"{match[1]}mlp.experts.{i}.{kind}.weight", shape=tuple(shape), nbytes=e.nbytes // count, role="ternary",
                decode=partial(_one, decode, e, i), numbers=None, some=None, decode_rows=None, scale=None,
            ))  # fmt: skip
    return out


def _one(decode: Callable[[Entry], Ternary], stack: Entry, index: int) -> Ternary:
    """Return the matrix of one expert of a stack."""
    whole = decode(stack)
    rows = stack.shape[1]
    part = slice(index * rows, (index + 1) * rows)
    return Ternary(
        whole.codes[part], (rows, stack.shape[2]), whole.scale[part] if whole.scale.ndim else whole.scale, whole.group
    )


def stack(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries with one stack in the place of the matrices of all experts of a layer."""
    listed = list(entries)
    kinds: dict[str, dict[int, Entry]] = {}
    for e in listed:
        if match := _ONE.fullmatch(e.common):
            kinds.setdefault(f"{match[1]}{match[3]}", {})[int(match[2])] = e
    out: list[Entry] = []
    for e in listed:
        match = _ONE.fullmatch(e.common)
        if match is None:
            out.append(e)
        elif (each := kinds.pop(f"{match[1]}{match[3]}", None)) is not None:
            out.append(_stacked(f"{match[1]}{match[3]}", each))
    return out


def _stacked(name: str, each: dict[int, Entry]) -> Entry:
    experts = [each[i] for i in sorted(each)]
    if sorted(each) != list(range(len(each))):
        missing = next(i for i in range(len(each) + 1) if i not in each)
        raise fault(f"{visible(name)}", f"{len(each)} experts without number {missing}", "all experts of the layer")
    if len({e.shape for e in experts}) > 1 or len(experts[0].shape) != 2:
        raise fault(f"{visible(name)}", "experts of different shapes", "one shape for all experts of the layer")

    def decode() -> Ternary:
        return stack_rows([e.ternary() for e in experts])

    first = experts[0]
    return replace(
        first, name=name, shape=(len(experts), *first.shape), nbytes=sum(e.nbytes for e in experts), role="ternary", decode=decode,
        numbers=None, some=None, decode_rows=None, scale=None, raw=_no_bytes,
    )  # fmt: skip


def _no_bytes() -> memoryview:
    raise FormatError("A stack of experts that were stored apart has no bytes of its own.")


def has_stacks(entries: Iterable[Entry]) -> bool:
    """Return True if matrices of experts are stored as stacks."""
    return any(len(e.shape) == 3 and _ALL.fullmatch(e.common) for e in entries)
