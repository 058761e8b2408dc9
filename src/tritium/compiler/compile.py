"""compile: a Python function becomes a Program for each combination of argument specs it is called with.

Knows nothing of perf. Programs are cached (LRU) by the specs, layouts and devices of tensors and by the values of all other
arguments.
"""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from weakref import WeakSet

from tritium import backends, ops
from tritium.buffer import Caller
from tritium.compiler import patterns, tree
from tritium.compiler.explain import ExecutionPlan, FusionOpportunity, generate_execution_plan, opportunity
from tritium.compiler.patterns import FusionPattern, compose, count_operands
from tritium.compiler.program import Program, compare_tensors
from tritium.eager import check_out
from tritium.errors import ArgumentError, TraceError, checked, nearest, shown
from tritium.functions import asarray
from tritium.graph.graph import Graph, trace
from tritium.op import OPS, Op, exact, interpreter
from tritium.tensor import Tensor

MAX_PROGRAMS = 64
Donate = int | str | Iterable[int | str]


class CacheInfo(NamedTuple):
    """Statistics of the cache of programs: hits, misses, size and limit."""

    hits: int
    misses: int
    programs: int
    limit: int


class Entry(NamedTuple):
    """A cached program, and the structure of the function's result."""

    program: Program
    result: tree.Tree
    plain: bool  # the result is a tensor, or a tuple of tensors
    guards: tuple[tree.Guards, ...]  # for each object: its attributes that the function read while it was traced
    owners: tuple[weakref.ref[Any], ...]  # objects among the arguments: the entry is dropped with the first of them


class Bound(functools.partial[Any]):
    """A compiled function bound to an object as its method. Programs do not keep the object alive."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.func(tree.Instance(self.args[0]), *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "run_many":
            return lambda inputs: getattr(self.func, name)(inputs, tree.Instance(self.args[0]))
        if name not in ("program", "graph", "explain", "find_fusion_opportunities", "generate_execution_plan"):
            return getattr(self.func, name)
        return functools.partial(getattr(self.func, name), tree.Instance(self.args[0]))


instances: WeakSet[Compiled] = WeakSet()  # all compiled functions, for the totals of `stats`


class Compiled(Caller):
    """A function whose calls run as programs. Call it like the function; tensors may be nested in tuples, lists and dicts."""

    def __init__(self, fn: Callable[..., Any], *, donate: Donate = (), verify: bool = False) -> None:
        if not callable(fn):
            raise ArgumentError(f"compile: a function is needed, given {type(fn).__name__}.")
        functools.update_wrapper(self, fn)
        self.fn, self.verifies = fn, verify
        self.donated = _donated(fn, donate)
        self._entries: OrderedDict[Any, Entry] = OrderedDict()
        self._lock = threading.Lock()
        self._hits = self._misses = 0
        instances.add(self)

    def __repr__(self) -> str:
        return f"<compiled {_name(self.fn)}: {len(self._entries)} programs>"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else Bound(self, instance)

    def __copy__(self) -> Compiled:
        return Compiled(self.fn, donate=[name for _, name, _ in self.donated], verify=self.verifies)

    def __deepcopy__(self, memo: Any) -> Compiled:
        """Return a new wrapper of the same function: captured tensors are not copied."""
        return self.__copy__()

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Run a call that the fast path of the last call does not fit."""
        if interpreter.get() is not None:  # inside another trace: recorded there
            return self.fn(*(x.value if isinstance(x, tree.Instance) else x for x in args), **kwargs)
        entry, leaves = self._entry(args, kwargs)
        result = entry.program(*leaves)
        if entry.plain:
            plain = not (kwargs or entry.guards) and len(leaves) == len(args)
            plain = plain and all(x is y for x, y in zip(leaves, args, strict=True))
            self.ready = entry.program.ready(args) if plain else None
            return result
        return tree.unflatten(entry.result, result)

    def _entry(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Entry, list[Tensor]]:
        values: list[Any] = []
        shape = tree.flatten((args, kwargs), values)
        leaves = [x if isinstance(x, Tensor) else asarray(x) for x in values]
        for x in leaves:
            x._memory("compile: an argument")
        signature = tuple((x.dtype, x.shape, _layout_key(x), x.storage.device) for x in leaves)
        key = (signature, tree.key(shape), patterns.generation)
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and (not entry.guards or self._holds(entry, shape)):
                self._hits += 1
                self._entries.move_to_end(key)
                return entry, leaves
            self._misses += 1
        entry = self._compile(shape, leaves, key)
        with self._lock:
            self._entries[key] = entry
            while len(self._entries) > MAX_PROGRAMS:
                self._entries.popitem(last=False)
        return entry, leaves

    def _compile(self, shape: tree.Tree, leaves: list[Tensor], key: Any) -> Entry:
        form: list[tree.Tree] = []

        def flat(*tensors: Tensor) -> tuple[Tensor, ...]:
            args, kwargs = tree.unflatten(shape, tensors)
            out: list[Any] = []
            form.append(tree.flatten(self.fn(*args, **kwargs), out))
            return tuple(x if isinstance(x, Tensor) else asarray(x) for x in out)

        graph = trace(flat, *leaves, donate=self._donated_leaves(shape))
        single = isinstance(form[0], tree.Leaf)
        plain = single or (
            isinstance(form[0], tree.Branch)
            and form[0].key is tuple
            and all(isinstance(c, tree.Leaf) for c in form[0].children)
        )
        if not graph.roots:
            raise TraceError(
                f"compile: {self.fn!r} returned no tensor; return a tensor, or a tuple, list or dict of them."
            )
        for i, _ in graph.writes:
            check_out(ops.copy, leaves[i].spec, leaves[i])
        graph = graph._replace(single=single)
        device = next((x.device for x in (*leaves, *graph.captured.values())), backends.device(None))
        layouts = tuple(x.layout for x in leaves)
        program = Program(graph, device.backend, layouts, verify=self.verifies, name=_name(self.fn))
        objects = list(tree.objects(shape))
        guards = tuple(tree.guards(x, self.fn, graph.captured.values()) for x in (*objects, *tree.owner(self.fn)))
        owners = tuple(weakref.ref(x, self._forgetter(key)) for x in objects)
        return Entry(program, form[0], plain, guards if any(guards) else (), owners)

    def _holds(self, entry: Entry, shape: tree.Tree) -> bool:
        """Return True if the attributes that the function read are as they were when it was traced."""
        objects = (*tree.objects(shape), *tree.owner(self.fn))
        return all(tree.holds(x, guards) for x, guards in zip(objects, entry.guards, strict=True))

    def _forgetter(self, key: Any) -> Callable[[Any], None]:
        """Return a callback that drops an entry; it takes no lock, since an object may end while one is held."""
        entries = weakref.ref(self._entries)

        def forget(_: Any) -> None:
            if (known := entries()) is not None:
                known.pop(key, None)

        return forget

    def _donated_leaves(self, shape: tree.Tree) -> list[int]:
        """Return the leaf positions of the tensors in donated arguments."""
        assert isinstance(shape, tree.Branch)
        args, kwargs = shape.children
        assert isinstance(args, tree.Branch)
        assert isinstance(kwargs, tree.Branch)
        names = list(kwargs.key)
        out: list[int] = []
        for position, name, many in self.donated:
            if position < len(args.children):
                for part in args.children[position:] if many else args.children[position : position + 1]:
                    out += tree.leaf_positions(part)
            elif name in names:
                out += tree.leaf_positions(kwargs.children[names.index(name)])
        return out

    # -- inspection

    def program(self, *args: Any, **kwargs: Any) -> Program:
        """Return the program that a call with these arguments runs; compile it if it is not cached."""
        return self._entry(args, kwargs)[0].program

    def graph(self, *args: Any, **kwargs: Any) -> Graph:
        """Return the optimised graph of a call with these arguments."""
        return self.program(*args, **kwargs).graph

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """Return a report of the rewrites and fusions applied to such a call, and of those that were not, with the reason."""
        return self.program(*args, **kwargs).explain()

    def find_fusion_opportunities(self, *args: Any, **kwargs: Any) -> list[FusionOpportunity]:
        """Return the fusion opportunities of such a call, with the bytes and the time that each should save."""
        return [opportunity(o) for o in self.program(*args, **kwargs).opportunities]

    def generate_execution_plan(self, *args: Any, **kwargs: Any) -> ExecutionPlan:
        """Return the steps of such a call, their memory and estimated time, and the time of the last one."""
        return generate_execution_plan(self.program(*args, **kwargs))

    @checked
    def run_many(self, inputs: Iterable[Any], *first: Any) -> list[Any]:
        """Return the results for many inputs, stacked and run at once if possible and faster; see Program.run_many.

        `first` are arguments that come before those of each input.
        """
        samples = [(*first, *x) if isinstance(x, tuple) else (*first, x) for x in inputs]
        if not samples:
            return []
        entry, first_leaves = self._entry(samples[0], {})
        if isinstance(entry.program.stacked(len(samples)), str):
            return [self(*sample) for sample in samples]
        if all(type(x) is Tensor for x in samples[0]) and _are_alike(samples):
            entries = [(entry, first_leaves), *((entry, list(sample)) for sample in samples[1:])]
        else:
            entries = [self._entry(sample, {}) for sample in samples]
        if any(other is not entry for other, _ in entries):  # different specs
            return [self(*sample) for sample in samples]
        results = entry.program.run_many([tuple(leaves) for _, leaves in entries])
        return results if entry.plain else [tree.unflatten(entry.result, r) for r in results]

    @checked
    def cache_info(self) -> CacheInfo:
        return CacheInfo(self.hits + self._hits, self._misses, len(self._entries), MAX_PROGRAMS)

    @checked
    def cache_clear(self) -> None:
        """Drop all programs, with their captured tensors, and reset the counts."""
        with self._lock:
            self._entries.clear()
            self.ready = None
            self.hits = self._hits = self._misses = 0


def _name(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__name__", "function"))


def _forget_ready() -> None:
    """Reset the fast path of every compiled function: the patterns have changed."""
    for c in list(instances):
        c.ready = None


patterns.listeners.append(_forget_ready)


def _are_alike(samples: list[tuple[Any, ...]]) -> bool:
    """Return True if all samples are contiguous tensors of the specs and devices of the first, which have one program."""
    first = [(x.dtype, x.shape, x.storage.device) for x in samples[0]]
    return all(
        len(sample) == len(first)
        and all(
            type(x) is Tensor and (x.dtype, x.shape, x.storage.device) == spec and x.is_contiguous()
            for x, spec in zip(sample, first, strict=True)
        )
        for sample in samples
    )


def _layout_key(x: Tensor) -> Any:
    """Return the part of a layout that programs are cached by: None if contiguous, else strides and if a clone copies."""
    return None if x.is_contiguous() else (x.strides, 2 * x.nbytes < x.storage.nbytes)


def _donated(fn: Callable[..., Any], donate: Donate) -> tuple[tuple[int, str, bool], ...]:
    """Return donated arguments as (position, name, True if all that follow are donated too: *args)."""
    try:
        requested = (donate,) if isinstance(donate, (int, str)) else tuple(donate)
    except TypeError:
        raise ArgumentError(f"compile: donate={donate!r} must be names or numbers of parameters.") from None
    if not requested:
        return ()
    parameters = list(inspect.signature(fn).parameters.values())
    names = [p.name for p in parameters]
    many = next((i for i, p in enumerate(parameters) if p.kind is p.VAR_POSITIONAL), len(names))
    out = []
    for w in requested:
        if isinstance(w, str) and w not in names:
            raise ArgumentError(
                f"compile: donate={w!r} is not a parameter; there are {', '.join(names)}.{nearest(w, names)}"
            )
        if not isinstance(w, (int, str)) or (
            isinstance(w, int) and (w < 0 or (w >= len(names) > 0 and many == len(names)))
        ):
            raise ArgumentError(f"compile: donate={w!r} does not exist; parameters are numbered 0 to {len(names) - 1}.")
        position = w if isinstance(w, int) else names.index(w)
        out.append((position, names[min(position, len(names) - 1)], isinstance(w, str) and position == many))
    return tuple(out)


@checked
def compile(fn: Callable[..., Any] | None = None, *, donate: Donate = (), verify: bool = False) -> Any:
    """Compile a function to one optimised program; also a decorator, with or without options.

    `donate` names (or numbers) the parameters whose tensors the function may write: they are updated in place, which is
    how a KV cache grows. `verify` compares every node of each new program with the function as written. Tensors that the
    function reads besides its arguments are captured by identity and read at each call.
    """
    if fn is None:
        return functools.partial(Compiled, donate=donate, verify=verify)
    return Compiled(fn, donate=donate, verify=verify)


# ---- one chain of ops


@checked
def try_fuse(operations: Iterable[Any], tensors: Iterable[Any]) -> Tensor | None:
    """Run a chain of ops as one call; return None if it is neither a user's pattern nor fusible.

    `operations` are names of ops, or (name, attributes); each op takes the result before it, then its share of the
    `tensors` left, in order; after a quantiser, dequantize takes its scales and zero points too. Wrong shapes, and an
    implementation that fails, raise.
    """
    rows = _parse_operations(operations)
    operands = [x if isinstance(x, (Tensor, bool, int, float)) else asarray(x) for x in tensors]
    needed = count_operands(rows)
    if len(operands) != needed:
        names = ", ".join(op.name for op, _ in rows)
        raise ArgumentError(f"try_fuse: {names} read {needed} operands, {len(operands)} were given.")
    chain = compose(rows)
    pattern = patterns.find(tuple(op.name for op, _ in rows))
    if pattern is not None:
        return _run_pattern(pattern, chain, rows, operands)
    arguments = [x for x in operands if isinstance(x, Tensor)]

    def flat(*placeholders: Tensor) -> Any:
        remaining = iter(placeholders)
        return chain(*(next(remaining) if isinstance(x, Tensor) else x for x in operands))

    graph = trace(flat, *arguments)
    device = arguments[0].device if arguments else backends.device(None)
    program = Program(graph, device.backend, tuple(x.layout for x in arguments), name="try_fuse")
    fused = program.graph.outputs[0].op is ops.fused and program.launches == 1
    return program(*arguments) if fused and len(rows) > 1 else None


def _parse_operations(operations: Iterable[Any]) -> tuple[tuple[Op, dict[str, Any]], ...]:
    if isinstance(operations, str):
        raise ArgumentError(f"try_fuse: a list of ops is needed, given {operations!r}; write [{operations!r}, …].")
    if not isinstance(operations, Iterable) or getattr(operations, "ndim", 1) == 0:
        raise ArgumentError(f"try_fuse: a list of ops is needed, given {shown(operations)}.")
    rows = []
    for o in operations:
        pair = (o, {}) if isinstance(o, str) else o
        if not (
            isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], Mapping)
        ):
            raise ArgumentError(f"try_fuse: an op is a name, or a name and its attributes, given {shown(o)}.")
        name, attrs = pair
        if name not in OPS:
            raise ArgumentError(f"try_fuse: there is no op {name!r}.{nearest(name, OPS)}")
        rows.append((OPS[name], dict(attrs)))
    if not rows:
        raise ArgumentError("try_fuse: at least one op is needed, none was given.")
    return tuple(rows)


def _run_pattern(
    pattern: FusionPattern, chain: Callable[..., Any], rows: tuple[Any, ...], operands: list[Any]
) -> Tensor:
    result = pattern.implementation(*operands)
    if not isinstance(result, Tensor):
        raise ArgumentError(
            f"FusionPattern {pattern.name!r}: its implementation returned {type(result).__name__}, not a tensor."
        )
    signature = (
        tuple(exact(tuple(attrs.items())) for _, attrs in rows),
        tuple(getattr(x, "spec", type(x)) for x in operands),
    )
    if not patterns.is_checked(pattern, signature):
        ulps = sum(OPS[o].ulps for o in pattern.operations)
        compare_tensors(chain(*operands), result, f"The pattern {pattern.name!r}", ulps)
        patterns.mark_checked(pattern, signature)
    return result
