"""A program in a safetensors file: the graph as written and as optimised, in text, and the tensors it captured.

Everything is checked before it is used: sizes, a checksum of the description and one of each tensor, and every line of the
graphs by the shape rule of its op. Nothing is evaluated or unpickled.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tritium import backends, dtype as dt, ops
from tritium.backends import Device
from tritium.buffer import native
from tritium.compiler import tree
from tritium.compiler.saved.structure import CallStructure, count_tensors, decode, encode, plain_structure
from tritium.dtype import DType
from tritium.errors import ArgumentError, DeviceError, FormatError, TritiumError, shown
from tritium.escape import visible
from tritium.fragment import Fragment
from tritium.garbage import no_collections
from tritium.graph.graph import Graph, Names, Node
from tritium.graph.text import parse
from tritium.interop import from_numpy
from tritium.io import safetensors
from tritium.io.reader import fault, map_file
from tritium.io.stream import Piece, appearing
from tritium.layout import MAX_ELEMENTS, Layout
from tritium.machine.facts import sealed, unsealed
from tritium.machine.tuned import version
from tritium.op import SCALARS, Spec, exact
from tritium.tensor import Tensor

FORMAT = "tritium program"
SCHEMA = 1
DESCRIPTION = "program"  # the tensor of bytes that holds the JSON text
MAX_DESCRIPTION = 1 << 26  # bytes: some 500,000 calls
SPREAD = 4  # a captured tensor keeps its strides if they span at most so many times its elements
Numbered = dict[int, tuple[int, Tensor]]  # captured tensors by id, each with its number in the file
ATTRIBUTES = (*SCALARS, str, DType, Spec, Layout, Fragment, Device, type(None))


class SavedProgram(NamedTuple):
    """A program as a file describes it."""

    source: Callable[[], Graph]  # reads the graph as written: a program that is only run does not need it
    optimised: Graph | None  # None: it was saved elsewhere, or by another version
    why_not: str  # optimised: the reason why it is optimised again
    layouts: tuple[Layout, ...]
    device: Device
    name: str
    disabled: tuple[str, ...]
    structure: CallStructure
    text: Callable[[], str]  # of the graph as written


class Origin(NamedTuple):
    """The facts that the optimised form of a program depends on: it is used again only where all are the same."""

    version: str
    kernels: str  # the instruction set of the native library, or numpy
    device: str


def origin_of(device: Device) -> Origin:
    """Return the origin of a program that is compiled in this process."""
    return Origin(version(), "numpy" if native is None else str(native.isa()), str(device))


# ---- writing


def write(
    path: str | os.PathLike[str],
    graphs: tuple[Graph, Graph | None],
    layouts: Sequence[Layout],
    device: Device,
    name: str,
    disabled: Sequence[str],
    structure: CallStructure | None,
    overwrite: bool,
    known: Sequence[Tensor] = (),
) -> None:
    """Write a program: its graph as written and, if there is one, as optimised.

    `known`: captured tensors that are not stored; whoever reads the program has them.
    """
    tensors: Numbered = {}  # by id: both graphs capture most of them
    for x in known:
        tensors.setdefault(id(x), (len(tensors), x))
    first = len(tensors)
    texts = [None if g is None else _describe_graph(g, tensors, device) for g in graphs]
    body: dict[str, Any] = {
        "name": name,
        "origin": origin_of(device)._asdict(),
        "graph": texts[0],
        "optimised": texts[1],
        "layouts": [[list(lay.strides), lay.offset] for lay in layouts],
        "disabled": sorted(disabled),
        "structure": None if structure is None else encode(structure),
    }
    stored = [_bytes_of(x, i) for i, x in list(tensors.values())[first:]]
    body["given"] = first
    body["tensors"] = [[list(strides), _checksum(data)] for strides, data in stored]
    text = json.dumps(sealed(SCHEMA, "program", body), allow_nan=False).encode()
    if len(text) > MAX_DESCRIPTION or len(stored) >= safetensors.MAX_TENSORS:
        raise ArgumentError(
            f"save: a description of {len(text)} bytes and {len(stored)} captured tensors do not fit into a file of at most "
            f"{MAX_DESCRIPTION} bytes and {safetensors.MAX_TENSORS - 1} tensors; save its parts."
        )
    pieces = [_piece(f"captured.{i}", data) for i, (_, data) in enumerate(stored, first)]
    pieces.append(_piece(DESCRIPTION, np.frombuffer(text, np.uint8)))
    pieces.sort(key=lambda p: -safetensors.DTYPES[p.type].itemsize)
    with appearing(Path(path), folder=False, overwrite=overwrite) as temporary, open(temporary, "wb") as file:
        safetensors.write(file, {"format": FORMAT}, pieces)


def _checksum(data: np.ndarray[Any, Any]) -> int:
    return zlib.crc32(data.reshape(-1).view(np.uint8).data)


def _piece(name: str, data: np.ndarray[Any, Any]) -> Piece:
    return Piece(name, data.shape, safetensors.NAMES[data.dtype], data.nbytes, lambda: [data])


def _in_order(graph: Graph) -> list[Node]:
    """Return the nodes of captured tensors in the order in which a text takes them."""
    return sorted(graph.captured, key=lambda n: -dict(n.attrs)["index"])


def in_order(graph: Graph) -> list[Tensor]:
    """Return the captured tensors of a graph in the order in which its text takes them."""
    return [graph.captured[n] for n in _in_order(graph)]


def graph_text(graph: Graph, device: Device) -> str:
    """Return a graph as text, without names; raise for an attribute that no text holds."""
    for n in graph.order():
        for key, value in n.attrs:
            _check_attribute(n, key, value)
    return _without_device(graph, device).text({})


def _describe_graph(graph: Graph, tensors: Numbered, device: Device) -> dict[str, Any]:
    captured = []
    for n in _in_order(graph):
        x = graph.captured[n]
        captured.append(tensors.setdefault(id(x), (len(tensors), x))[0])
    names = {str(i): graph.names[n] for i, n in enumerate(_numbered(graph)) if n in graph.names}
    text = graph_text(graph, device)
    return {"text": text, "captured": captured, "returned": list(graph.returned), "names": names}


def _without_device(graph: Graph, device: Device) -> Graph:
    """Return the graph without the device that it runs on as an attribute, so that it can be loaded for another one."""
    others: dict[Node | None, Node] = {}
    for n in graph.order():
        attrs = tuple((k, v) for k, v in n.attrs if k != "device" or v is None or backends.device(v) is not device)
        inputs = tuple(others.get(i, i) for i in n.inputs)
        if inputs != n.inputs or len(attrs) != len(n.attrs):
            others[n] = Node(n.op, inputs, attrs, n.spec, exact(attrs))
    if not others:
        return graph
    writes = tuple((i, others.get(n, n)) for i, n in graph.writes)
    return graph._replace(outputs=tuple(others.get(n, n) for n in graph.outputs), writes=writes)


def _numbered(graph: Graph) -> Iterator[Node]:
    """Return the nodes in the order of the lines of the graph's text."""
    return iter(dict.fromkeys((*graph.order(), *graph.inputs, *graph.captured)))


def _check_attribute(n: Node, key: str, value: Any) -> None:
    if type(value) is tuple:
        for part in value:
            _check_attribute(n, key, part)
    elif not isinstance(value, ATTRIBUTES):
        raise ArgumentError(
            f"save: {key} of {n.op.name} is {shown(value)}, and a graph's text has no {type(value).__name__}; use numbers, "
            f"strings, dtypes or tuples of them as attributes."
        )


def _bytes_of(captured: Tensor, index: int) -> tuple[tuple[int, ...], np.ndarray[Any, Any]]:
    """Return the strides that a captured tensor is loaded with, and its elements or, where no file has its dtype, its bytes."""
    x = captured._computed(f"save: captured tensor {index}")
    strides = x.strides if _spans(x.spec, x.strides) else x.spec.strides
    if x.dtype.is_packed:
        whole = ops.copy(x.to(device="cpu"))
        x, strides = Tensor(whole.storage, dt.u8, (whole.spec.nbytes,), (1,), 0), x.spec.strides
    # The pool may use the memory of a tensor that ends here again before the file is written.
    data = np.ascontiguousarray(x._host()) if x is captured else np.array(x._host(), order="C")
    if data.dtype not in safetensors.NAMES or data.ndim > safetensors.MAX_DIMS:
        data = data.reshape(-1).view(np.uint8)
    return strides, data


def _spans(spec: Spec, strides: tuple[int, ...]) -> bool:
    """Return True if a tensor with these strides takes a bounded part of memory, and no element lies at two places."""
    if spec.dtype.is_packed or not spec.size:
        return strides == spec.strides
    end, order = 1, sorted(zip(map(abs, strides), spec.shape, strict=True))
    for stride, n in order:
        if n > 1 and stride < end:
            return False
        end += (n - 1) * stride
    return end <= SPREAD * spec.size


# ---- reading


def read(
    path: str | os.PathLike[str], device: Any = None, has_patterns: bool = False, known: Sequence[Tensor] = ()
) -> SavedProgram:
    """Read a program and check all of it but its graph as written, which is checked when it is first needed.

    `known`: the captured tensors that the file does not store, in the order in which it was written.
    """
    where = visible(Path(path).name)
    file = safetensors.parse(map_file(Path(path)))
    body = _description(file, where)
    try:
        with no_collections():  # many small objects and no garbage
            return _read_body(body, file, where, device, has_patterns, known)
    except DeviceError:
        raise
    except (TritiumError, KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        if isinstance(error, FormatError) and str(error).startswith(where):
            raise
        reason = (
            str(error).rstrip(".") if isinstance(error, TritiumError) else "a part of it is missing or of another type"
        )
        raise FormatError(f"{where}: the program cannot be read: {reason}. Save it again.") from None


def _description(file: safetensors.SafetensorsFile, where: str) -> dict[str, Any]:
    """Return the description of a program; raise where the file holds none, or one that was changed."""
    entry = file.tensors.get(DESCRIPTION)
    if file.metadata.get("format") != FORMAT or entry is None or entry.dtype != "U8":
        remedy = "Read tensors with tritium.load_tensors(…), models with tritium.load(…)."
        raise fault(where, "no program", f"a file of the format {FORMAT!r}", remedy)
    if entry.nbytes > MAX_DESCRIPTION:
        raise fault(where, f"a description of {entry.nbytes} bytes", f"at most {MAX_DESCRIPTION}")
    try:
        return unsealed(json.loads(str(file.data(DESCRIPTION), "ascii")), SCHEMA, "program")
    except RecursionError:
        raise fault(where, "a description nested without end", "the description of a program") from None
    except ValueError as error:
        reason = "it is not JSON" if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)) else str(error)
        raise FormatError(f"{where}: the description of the program cannot be used: {reason}. Save it again.") from None


def _read_body(
    body: dict[str, Any],
    file: safetensors.SafetensorsFile,
    where: str,
    device: Any,
    has_patterns: bool,
    known: Sequence[Tensor],
) -> SavedProgram:
    origin = Origin(**{k: str(v) for k, v in body["origin"].items()})
    there = backends.device(origin.device if device is None else device)
    loaded = _Loaded(body, file, there, where)
    loaded.tensors |= enumerate(dict.fromkeys(known))
    if body.get("given", 0) != len(loaded.tensors):
        raise FormatError(
            f"{body.get('given', 0)} captured tensors are not in the file, {len(loaded.tensors)} were given"
        )
    mine = origin_of(there)
    changes = [
        f"{name} {old} is {new} here" for name, old, new in zip(Origin._fields, origin, mine, strict=True) if old != new
    ]
    why_not = ", ".join(changes) or ("fusion patterns are registered" if has_patterns else "")
    if not why_not and body["optimised"] is None:
        why_not = "it was saved without its optimised form"
    optimised = None if why_not else loaded.graph(body["optimised"])
    if optimised is not None and (reason := _refused(optimised, there)):
        optimised, why_not = None, f"{there} does not run a part of it as one call: {reason}"
    graph = loaded.graph(body["graph"]) if optimised is None else optimised
    specs = [n.spec for n in graph.inputs]
    structure = plain_structure(graph) if body["structure"] is None else decode(body["structure"])
    for what, part, nodes in (
        ("arguments", structure.call, graph.inputs),
        ("results", structure.result, graph.outputs),
    ):
        if count_tensors(part) != len(nodes):
            raise FormatError(
                f"the structure of a call has {count_tensors(part)} tensors as {what}, the graph {len(nodes)}"
            )
    if graph.single != isinstance(structure.result, tree.Leaf):
        raise FormatError("the structure of a call and the graph differ in whether there is one result")
    layouts = tuple(_layout(s, data) for s, data in zip(specs, body["layouts"], strict=True))
    disabled = tuple(body["disabled"])
    return SavedProgram(
        lambda: loaded.source(specs), optimised, why_not, layouts, there, str(body["name"]), disabled, structure,
        lambda: str(body["graph"]["text"]),
    )  # fmt: skip


def _refused(graph: Graph, device: Device) -> str:
    """Return why a device would not have fused what a file says is fused; "": it would."""
    bodies = {dict(n.attrs)["body"] for n in graph.order() if n.op is ops.fused}
    return next((reason for b in bodies if (reason := device.backend.refuses(b))), "")


def _layout(spec: Spec, data: Any) -> Layout:
    strides, offset = _integers(data[0]), _integers([data[1]])[0]
    if len(strides) != spec.ndim:
        raise FormatError(f"an argument {spec} has {len(strides)} strides")
    return Layout(spec.shape, strides, offset)


def _integers(data: Any) -> tuple[int, ...]:
    if not isinstance(data, list) or not all(type(n) is int and abs(n) <= MAX_ELEMENTS for n in data):
        raise FormatError("strides and offsets must be whole numbers that a memory can hold")
    return tuple(data)


class _Loaded:
    """The graphs of a file, over tensors that are loaded once."""

    def __init__(self, body: dict[str, Any], file: safetensors.SafetensorsFile, device: Device, where: str) -> None:
        self.body, self.file, self.device, self.where = body, file, device, where
        self.tensors: dict[int, Tensor] = {}

    def source(self, specs: list[Spec]) -> Graph:
        """Return the graph as written."""
        try:
            graph = self.graph(self.body["graph"])
        except (TritiumError, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise FormatError(f"{self.where}: the graph as written cannot be read: {error}") from None
        if [n.spec for n in graph.inputs] != specs:
            raise FormatError(f"{self.where}: the graph as written takes other arguments than the optimised one.")
        return graph

    def graph(self, data: Any) -> Graph:
        """Return a graph of the file; every line of its text is checked."""
        text, indices, returned, names = data["text"], data["captured"], data["returned"], data["names"]
        if not all(isinstance(t, str) for t in (text, *names, *names.values())):
            raise FormatError("a text of the graph is no text")
        graph = parse(text, lambda specs: [self.tensor(i, s) for i, s in zip(indices, specs, strict=True)])
        _check_returned(graph, returned)
        for n in graph.order():
            there = dict(n.attrs).get("device")
            if there is not None and backends.device(there) is not self.device:
                raise FormatError(f"{n.op.name} makes a tensor on {there}, the program runs on {self.device}")
        nodes = list(_numbered(graph)) if names else []
        known = {nodes[int(i)]: name for i, name in names.items()}
        return graph._replace(returned=tuple(returned), names=Names(lambda: known, bool(known)))

    def tensor(self, index: Any, spec: Spec) -> Tensor:
        """Return a captured tensor in memory of its own."""
        if type(index) is not int:
            raise FormatError("the number of a captured tensor is no integer")
        x = self.tensors.get(index)
        if x is None:
            x = self.tensors[index] = self._load(index, spec)
        if x.spec != spec:
            raise FormatError(f"captured tensor {index} is {x.spec}, the graph takes {spec}")
        return x

    def _load(self, index: int, spec: Spec) -> Tensor:
        strides, checksum = self.body["tensors"][index - self.body.get("given", 0)]
        strides = _integers(strides)
        name = f"captured.{index}"
        raw = np.frombuffer(self.file.data(name), np.uint8) if self.file.tensors[name].nbytes else np.empty(0, np.uint8)
        if raw.nbytes != spec.nbytes or _checksum(raw) != checksum:
            raise FormatError(f"the bytes of captured tensor {index}, {spec}, do not match their checksum or size")
        if spec.dtype is dt.bool_ and raw.size and raw.max() > 1:
            raise FormatError(f"captured tensor {index} has a byte above 1 among its bools")
        if len(strides) != spec.ndim or not (strides == spec.strides or _spans(spec, strides)):
            raise FormatError(f"captured tensor {index}, {spec}, has the strides {list(strides)}")
        if spec.dtype.is_packed:
            whole = from_numpy(raw.copy(), device="cpu", copy=True)
            x = Tensor(whole.storage, spec.dtype, spec.shape, spec.strides, 0)
        else:
            x = from_numpy(raw.view(spec.dtype.numpy).reshape(spec.shape), device="cpu", copy=True)
            x = x if strides == spec.strides else _restride(x, strides)
        return x if self.device.type == "cpu" else x.to(device=self.device)


def _restride(x: Tensor, strides: tuple[int, ...]) -> Tensor:
    """Return a copy with these strides: kernels may add in another order along other strides."""
    reach = [(n - 1) * s for n, s in zip(x.shape, strides, strict=True)]
    base = ops.empty((sum(map(abs, reach)) + 1,), dtype=x.dtype, device=x.device)
    strided = Tensor(base.storage, x.dtype, x.shape, strides, -sum(r for r in reach if r < 0))
    return ops.copy(x, out=strided)


def _check_returned(graph: Graph, returned: Any) -> None:
    """Raise unless every result that is said to be a donated argument is what the graph writes to it."""
    writes = dict(graph.writes)
    if not isinstance(returned, list) or len(returned) not in (0, len(graph.outputs)):
        raise FormatError("results and the arguments that they are differ in number")
    for n, index in zip(graph.outputs, returned, strict=False):
        if index is not None and (type(index) is not int or getattr(writes.get(index), "spec", None) != n.spec):
            raise FormatError(f"result {index!r} is said to be an argument that the graph does not write")
