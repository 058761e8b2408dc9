"""compile: a Python function becomes a Program for each combination of argument specs it is called with.

Programs are cached (LRU) by the specs, layouts and devices of tensors and by the values of all other arguments.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter, is_
from types import MethodType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar, overload
from weakref import WeakSet

from tritium import backends, buffer, ops, settings
from tritium.arguments import checked
from tritium.backends import Device
from tritium.buffer import BoundCaller, Caller
from tritium.compiler import patterns, tree
from tritium.compiler.explain import ExecutionPlan, FusionOpportunity, generate_execution_plan, opportunity
from tritium.compiler.patterns import FusionPattern, compose, count_operands
from tritium.compiler.program import Inputs, Program, Stacking, check_passes, compare_tensors
from tritium.compiler.sized import lengths
from tritium.compiler.sized.lengths import Lengths
from tritium.compiler.sized.program import SizedProgram, settled_graph
from tritium.compiler.steps import UnableError
from tritium.eager import check_out, constant
from tritium.errors import ArgumentError, DeviceError, ShapeError, TraceError, nearest, shown
from tritium.functions import asarray
from tritium.garbage import no_collections
from tritium.graph.graph import (
    Graph,
    Names,
    Node,
    SizedTrace,
    Trace,
    append_inputs,
    constant_node,
    is_same,
    name_nodes,
    record,
    trace,
)
from tritium.graph.number import KINDS, Number, Numbers, Slot, ValueNeededError
from tritium.graph.size import SizeNeededError, Sizes
from tritium.layout import Layout, contiguous
from tritium.op import OPS, Op, Spec, exact, interpreter, make_room
from tritium.tensor import Tensor

if TYPE_CHECKING:
    from tritium.compiler.saved.cache import ProgramCache
    from tritium.compiler.saved.file import SavedProgram

MAX_PROGRAMS = 256  # of a function: about 100 KB each for a block of a transformer
MAX_PLANS = 32  # kinds of many inputs, by their number and specs
MAX_VALUES = 3  # of a Python number with a program each; with one more it becomes an argument
MAX_LAYOUTS = 16  # of the arguments of a loaded function with a program each
MAX_STRUCTURES = 256  # of calls whose numbers are counted
Donate = int | str | Iterable[int | str]
Feed = Callable[[list[Any]], list[Tensor] | None]


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
    slots: tuple[Slot, ...]  # numbers that the program takes as inputs, after the tensors
    feed: Feed  # from the numbers of a call to those inputs
    arguments: frozenset[int]  # positions of the numbers of a call that are no constants of the program
    description: dict[str, str]  # of each tensor and value of the call, by its name


class TracedCall(NamedTuple):
    """The graph of a call, the structure of its result, and the numbers that are inputs after the tensors."""

    graph: Graph
    form: tree.Tree
    slots: tuple[Slot, ...] = ()


class NewCall(NamedTuple):
    """A call that needs a program."""

    key: Any  # of a program for its sizes alone
    shape: tree.Tree
    general: tree.Tree  # with the numbers that are arguments marked
    leaves: list[Tensor]
    numbers: list[Any]
    arguments: frozenset[int]  # positions of the numbers that are arguments


class Varying:
    """The Python numbers of calls of one structure: constants of a program each, or arguments once they vary."""

    def __init__(self, count: int) -> None:
        self.values: list[set[Any]] = [set() for _ in range(count)]
        self.constants: dict[int, str] = {}  # by position: why the number cannot be an argument
        self.arguments: frozenset[int] = frozenset()

    def see(self, numbers: list[Any]) -> None:
        """Count the values of a call that needs a new program: a number that took several becomes an argument."""
        for position, (value, values) in enumerate(zip(numbers, self.values, strict=True)):
            if position not in self.constants and len(values) <= MAX_VALUES:
                values.add(exact(value))
                if len(values) > MAX_VALUES:
                    self.arguments |= {position}

    @classmethod
    def constant(cls, count: int, reason: str) -> Varying:
        """Return numbers of which each is a constant."""
        result = cls(count)
        result.fix(dict.fromkeys(range(count), reason))
        return result

    def fix(self, reasons: Mapping[int, str]) -> None:
        """Keep numbers as constants from now on."""
        self.constants |= reasons
        self.arguments = self.arguments.difference(reasons)


NO_NUMBERS = Varying(0)


def is_plain(form: tree.Tree) -> bool:
    """Return True for the structure of one tensor or of a tuple of tensors: what a program returns."""
    if isinstance(form, tree.Branch):
        return form.key is tuple and all(isinstance(c, tree.Leaf) for c in form.children)
    return isinstance(form, tree.Leaf)


class Many(NamedTuple):
    """The program of many inputs of one kind, and the choice of how they run."""

    entry: Entry
    stacking: Stacking


class Bound(BoundCaller):
    """A compiled function bound to an object as its method. Programs do not keep the object alive."""

    def call(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run a call that the fast path of this object does not fit."""
        return self.func(tree.Instance(self.__self__), *args, **kwargs)

    def __repr__(self) -> str:
        return f"<compiled method {_name(self.func.fn)} of {self.__self__!r}>"

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(MethodType(self.func.fn, self.__self__))

    def __getattr__(self, name: str) -> Any:
        if name == "run_many":
            return lambda inputs: getattr(self.func, name)(inputs, tree.Instance(self.__self__))
        if name == "save":
            return lambda path, *args, **kwargs: self.func.save(path, tree.Instance(self.__self__), *args, **kwargs)
        if name not in ("program", "graph", "explain", "find_fusion_opportunities", "generate_execution_plan"):
            return getattr(self.func, name)
        return functools.partial(getattr(self.func, name), tree.Instance(self.__self__))


class Methods(dict[int, Any]):
    """The fast paths of objects, by their ids."""


instances: WeakSet[Compiled] = WeakSet()  # all compiled functions, for the totals of `stats`


class Compiled(Caller):
    """A function whose calls run as programs. Call it like the function; tensors may be nested in tuples, lists and dicts."""

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        donate: Donate = (),
        verify: bool = False,
        disable: str | Iterable[str] = (),
        cache: str | os.PathLike[str] | None = None,
    ) -> None:
        if not callable(fn):
            raise ArgumentError(f"compile: a function is needed, given {type(fn).__name__}.")
        functools.update_wrapper(self, fn)
        self.fn, self.verifies, self.disabled = fn, verify, check_passes(disable)
        self.donated = _donated(fn, donate)
        self.folder = cache
        self._cache = _program_cache(cache)
        self._entries: OrderedDict[Any, Entry] = OrderedDict()
        self._lock = threading.Lock()
        self._varying: dict[Any, Varying] = {}
        self._lengths: dict[Any, Lengths] = {}
        self._hits = self._misses = 0
        self.methods = Methods()
        self._plans: dict[Any, Many] = {}  # of run_many, by number and specs of the inputs
        self._warned = False  # that programs are dropped for new ones
        self._ready_key: Any = None  # of the entry that calls run without a look at the cache
        self._ready_hits = 0  # when it was last marked as used
        instances.add(self)

    def __repr__(self) -> str:
        return f"<compiled {_name(self.fn)}: {len(self._entries)} programs>"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else Bound(self, instance)

    def __copy__(self) -> Compiled:
        donated = [name for _, name, _ in self.donated]
        return Compiled(self.fn, donate=donated, verify=self.verifies, disable=self.disabled, cache=self.folder)

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
            if not kwargs:
                self._prepare(entry, args, leaves)
            return result
        return tree.unflatten(entry.result, result)

    def _prepare(self, entry: Entry, args: tuple[Any, ...], leaves: list[Tensor]) -> None:
        """Set the fast path for calls like this one: tensors and numbers, after an object if the entry has one."""
        program = self._fast_path(entry, leaves, args[len(entry.owners) :])
        if program is None:
            return
        roots = [*(owner() for owner in entry.owners), *tree.owner(self.fn)]
        if roots:
            program = tree.guarded(program, roots, entry.guards or ({},) * len(roots), self._forget_method)
        if not entry.owners:
            self.ready = program
        elif program is not None:
            if len(self.methods) >= MAX_PROGRAMS:
                self.methods.pop(next(iter(self.methods)), None)
            self.methods[id(roots[0])] = program

    @property
    def _forget_method(self) -> Callable[[int], None]:
        """Return a callback that drops the fast path of an object that has ended, and keeps nothing alive."""
        known = weakref.ref(self.methods)

        def forget(number: int) -> None:
            if (methods := known()) is not None:
                methods.pop(number, None)

        return forget

    def _fast_path(self, entry: Entry, leaves: list[Tensor], args: tuple[Any, ...]) -> Any:
        """Return what runs calls like this one without a look at the cache, or None."""
        tensors = leaves[: len(leaves) - len(entry.slots)]
        rest = iter(tensors)
        kinds = tuple(None if isinstance(x, Tensor) else type(x) for x in args)
        if not all(k in KINDS if k is not None else x is next(rest, None) for x, k in zip(args, kinds, strict=True)):
            return None
        if next(rest, None) is not None:
            return None
        native = entry.program.ready(tuple(leaves))
        if len(tensors) == len(args) or native is None:
            return native
        if len(entry.arguments) < len(args) - len(tensors):
            return None  # one of the numbers is a constant of the program
        return _caller_with_numbers(native, kinds, entry.feed)

    def _entry(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Entry, list[Tensor]]:
        shape, leaves = _read_call(args, kwargs, "compile: an argument")
        numbers = tree.numbers(shape)
        if not numbers:
            return self._find(shape, leaves, numbers, NO_NUMBERS), leaves
        entry = self._find(shape, leaves, numbers, self._varying_of(shape, numbers))
        tensors = entry.feed(numbers) if entry.slots else []
        if tensors is None:  # arithmetic on these values has results of other kinds: they are constants of a program
            fixed = Varying.constant(len(numbers), "arithmetic on it has results of several kinds")
            entry, tensors = self._find(shape, leaves, numbers, fixed), []
        return entry, [*leaves, *tensors]

    def _exact_entry(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Entry, list[Tensor]]:
        """Return the entry of a call with a program for its sizes alone."""
        entry, leaves = self._entry(args, kwargs)
        return entry._replace(program=entry.program.for_call(leaves)), leaves

    def _varying_of(self, shape: tree.Tree, numbers: list[Any]) -> Varying:
        structure = tree.key(tree.with_numbers(shape, dict(enumerate(numbers))))
        varying = self._varying.get(structure)
        if varying is None:
            with self._lock:
                _drop_ended(self._varying)
                varying = self._varying.setdefault(structure, Varying(len(numbers)))
        return varying

    def _find(
        self, shape: tree.Tree, leaves: list[Tensor], numbers: list[Any], varying: Varying, *, is_exact: bool = False
    ) -> Entry:
        """Return the entry of a call, compiled now if there is none. `is_exact`: its program is for these sizes alone."""
        signature = tuple((x.dtype, x.shape, _layout_key(x), x.storage.device) for x in leaves)
        varies = not is_exact and self._may_vary(leaves)
        sizes = tuple(x.shape for x in leaves)
        counted = False
        while True:
            arguments = varying.arguments
            general = tree.with_numbers(shape, {p: numbers[p] for p in arguments})
            rest = (tree.key(general), patterns.generation)
            key: Any = (signature, *rest)
            seen = (
                self._lengths_of((tuple((t, len(n), lay, d) for t, n, lay, d in signature), *rest)) if varies else None
            )
            with self._lock:
                if self.hits != self._ready_hits and self._ready_key in self._entries:  # calls have used it meanwhile
                    self._entries.move_to_end(self._ready_key)
                self._ready_hits = self.hits
                key, entry = self._lookup(key, seen, leaves)
                if entry is not None and (not entry.guards or self._holds(entry, shape)):
                    self._hits += not counted
                    self._entries.move_to_end(key)
                    self._ready_key = key
                    return entry
                if not counted:
                    counted = True
                    self._misses += 1
                    varying.see(numbers)
                    if seen is not None:
                        seen.see(sizes)
                    continue
            with no_collections():
                call = NewCall(key, shape, general, leaves, numbers, arguments)
                groups = seen.groups(sizes) if seen is not None else []
                if seen is not None and groups:
                    entry = self._compile_sized(call, varying, seen, groups, entry)
                else:
                    entry = self._compile_exact(call, varying, entry)
                if entry is not None:
                    break
        with self._lock:
            if seen is not None and isinstance(entry.program, SizedProgram):
                key = entry.program.key
                seen.keys.insert(0, key)
            self._entries[key] = entry
            self._ready_key = key
            while len(self._entries) > MAX_PROGRAMS:
                self._entries.popitem(last=False)
        return entry

    def _may_vary(self, leaves: list[Tensor]) -> bool:
        """Return True if sizes of these tensors may vary in one program: a native one, which is not verified for each size."""
        if buffer.native is None or self.verifies or self.disabled & {"sizes", "native"} or patterns.patterns():
            return False
        return bool(leaves) and all(type(x.storage) is buffer.Storage and x.dtype.code >= 0 for x in leaves)

    def _lengths_of(self, structure: Any) -> Lengths:
        known = self._lengths.get(structure)
        if known is None:
            with self._lock:
                _drop_ended(self._lengths)
                known = self._lengths.setdefault(structure, Lengths())
        return known

    def _lookup(self, key: Any, seen: Lengths | None, leaves: list[Tensor]) -> tuple[Any, Entry | None]:
        """Return the cached entry of a call and its key: one for its sizes alone, or one whose sizes vary."""
        entry = self._entries.get(key)
        if entry is not None or seen is None:
            return key, entry
        seen.keys = [k for k in seen.keys if k in self._entries]
        for known in seen.keys:
            entry = self._entries[known]
            if isinstance(entry.program, SizedProgram) and entry.program.fits(leaves):
                return known, entry
        return key, None

    def _compile_exact(self, call: NewCall, varying: Varying, stale: Entry | None) -> Entry | None:
        """Compile a call for its sizes alone; return None if the function needs the value of a number that varies."""
        traced = self._trace(call.general, call.leaves, call, varying)
        if traced is None:
            return None
        self._log_recompile(call.shape, self._describe(call.shape, call.leaves, call.arguments), stale)
        return self._compile(call, traced)

    def _compile_sized(
        self,
        call: NewCall,
        varying: Varying,
        seen: Lengths,
        groups: list[list[lengths.Place]],
        stale: Entry | None,
    ) -> Entry | None:
        """Compile a call for all sizes of these groups; return None, and note why, if the function needs one or another number."""
        sizes = Sizes()
        names = self._leaf_names(call.shape)
        places = dict.fromkeys((p for places in groups for p in places), "")
        try:
            if len(seen.keys) >= lengths.MAX_PROGRAMS:
                raise UnableError(f"it has {len(seen.keys)} programs already, each for some sizes")
            with sizes.trusted():
                described = lengths.describe(call.leaves, groups, names, sizes)
                traced = self._trace(call.general, described, call, varying, sizes)
                if traced is None:
                    return None
                self._check_same(call, traced, sizes)
                layouts = tuple(Layout(x.shape, lengths.strides_of(x), 0) for x in described)
                entry = self._compile(call, traced, (sizes, layouts))
            if sizes.is_single:  # by chance a size equals a constant of the function: a case of its own
                return self._compile_exact(call, varying, stale)
            self._log_recompile(call.shape, entry.description, stale)
            self._log_varying(entry.program)
            return entry
        except SizeNeededError:
            reasons = {p: why for i, why in sizes.needed.items() for p in groups[i]}
        except Exception as error:  # raised again for these sizes alone if it is the function's own
            why = str(error) if isinstance(error, UnableError) else f"{type(error).__name__}: {error}"
            reasons = dict.fromkeys(places, why)
        finally:
            sizes.is_open = False
        seen.fix(reasons)
        self._log_fixed_sizes(names, reasons)
        return None

    def _check_same(self, call: NewCall, traced: TracedCall, sizes: Sizes) -> None:
        """Raise if the function computes something else where its sizes are plain integers."""
        plain = self._trace_function(call.general, call.leaves)[0] if not call.arguments else None
        if plain is not None and not is_same(settled_graph(traced.graph, sizes.values), plain, {}):
            raise UnableError("the function asks for its type, or computes something else each time")

    def _trace(
        self, shape: tree.Tree, leaves: list[Any], call: NewCall, varying: Varying, sizes: Sizes | None = None
    ) -> TracedCall | None:
        """Trace a call with some of its numbers as inputs; return None if the function needs the value of one."""
        arguments = call.arguments
        if not arguments:
            return TracedCall(*self._trace_function(shape, leaves, sizes))
        session = Numbers(len(leaves))
        symbols = {p: Number(session, p, call.numbers[p]) for p in arguments}
        reasons = session.needed
        try:
            graph, form = self._trace_function(tree.with_numbers(shape, symbols), leaves, sizes)
            session.is_open = False
            if not reasons:
                graph = append_inputs(graph, [Spec((), slot.dtype) for slot in session.slots])
                nodes = [constant_node(slot.number.traced, slot.dtype) for slot in session.slots]
                constants = dict(zip(graph.inputs[len(leaves) :], nodes, strict=True))
                if is_same(graph, self._trace_function(shape, leaves, sizes)[0], constants):
                    return TracedCall(graph, form, tuple(session.slots))
                reasons = dict.fromkeys(arguments, "the function asks for its type")
        except ValueNeededError:
            pass
        except Exception as error:  # raised again without numbers as inputs if it is the function's own
            if sizes is not None:
                raise
            reasons = dict.fromkeys(arguments, f"{type(error).__name__}: {error}")
        finally:
            session.is_open = False
        varying.fix(reasons)
        self._log_constants(shape, reasons)
        return None

    def _trace_function(
        self, shape: tree.Tree, leaves: list[Any], sizes: Sizes | None = None
    ) -> tuple[Graph, tree.Tree]:
        form: list[tree.Tree] = []

        def flat(*tensors: Tensor) -> tuple[Tensor, ...]:
            args, kwargs = tree.unflatten(shape, tensors)
            out: list[Any] = []
            form.append(tree.flatten(self.fn(*args, **kwargs), out))
            return tuple(x if isinstance(x, Tensor) else asarray(x) for x in out)

        donated = frozenset(self._donated_leaves(shape))
        graph = record(flat, leaves, Trace(donated) if sizes is None else SizedTrace(donated, sizes))
        return graph, form[0]

    def _compile(
        self, call: NewCall, traced: TracedCall, sized: tuple[Sizes, tuple[Layout, ...]] | None = None
    ) -> Entry:
        """Compile the graph of a call; `sized`: the sizes that vary, and the layouts of the tensors with them."""
        shape, leaves, arguments, key = call.shape, call.leaves, call.arguments, call.key
        graph, form, slots = traced
        single, plain = isinstance(form, tree.Leaf), is_plain(form)
        if not graph.roots:
            raise TraceError(
                f"compile: {self.fn!r} returned no tensor; return a tensor, or a tuple, list or dict of them."
            )
        for i, _ in graph.writes:
            check_out(ops.copy, leaves[i].spec, leaves[i])
        graph = graph._replace(single=single, names=Names(self._namer(shape, graph, slots), bool(graph.names)))
        device = next((x.device for x in (*leaves, *graph.captured.values())), backends.device(None))
        scalars = tuple(contiguous(()) for _ in slots)
        name, disabled = _name(self.fn), self.disabled
        if sized is None and self._cache is not None and not self.verifies:
            layouts = (*(Layout(x.shape, x.strides, 0) for x in leaves), *scalars)
            program = self._cached_program(self._cache, graph, device, layouts)
        elif sized is None:
            layouts = (*(x.layout for x in leaves), *scalars)
            program = Program(graph, device.backend, layouts, verify=self.verifies, name=name, disable=disabled)
        else:
            sizes, layouts = sized
            program = SizedProgram(graph, device.backend, (*layouts, *scalars), sizes, name=name, disable=disabled)
            key = program.key
        objects = list(tree.objects(shape))
        guards = tuple(tree.guards(x, self.fn, graph.captured.values()) for x in (*objects, *tree.owner(self.fn)))
        owners = tuple(weakref.ref(x, self._forgetter(key)) for x in objects)
        feed = _feeder(slots, program.backend.device)
        known = guards if any(guards) else ()
        inputs = None if sized is None else [n.spec.shape for n in graph.inputs]
        description = self._describe(shape, leaves, arguments, inputs)
        return Entry(program, form, plain, known, owners, slots, feed, arguments, description)

    def _cached_program(
        self, cache: ProgramCache, graph: Graph, device: Device, layouts: tuple[Layout, ...]
    ) -> Program:
        """Return the program of a graph: loaded if the folder has it, else compiled, and written to the folder."""
        is_kept = not patterns.patterns()  # functions, which no file holds
        place = cache.find(graph, device, layouts, self.disabled) if is_kept else None
        saved = None if place is None else cache.load(place, graph, device)
        if saved is not None:
            program = Program.restore(saved)
            program.be_traced_from(graph)
            return program
        name = _name(self.fn)
        program = Program(graph, device.backend, layouts, name=name, disable=self.disabled)
        if place is not None:
            cache.store(place, (graph, program.graph), layouts, device, name, self.disabled)
        return program

    # -- names and the log

    def _namer(self, shape: tree.Tree, graph: Graph, slots: tuple[Slot, ...]) -> Callable[[], dict[Node, str]]:
        """Return a function that finds the names of a graph's nodes; it keeps no object of the call alive."""
        parts = list(tree.call_labels(shape, self._parameters))
        names = {graph.inputs[p.position]: label for label, p in parts if isinstance(p, tree.Leaf)}
        statics = [(label, p.value) for label, p in parts if isinstance(p, tree.Static)]
        numbers = [label for label, value in statics if type(value) in KINDS]
        for node, slot in zip(graph.inputs[len(graph.inputs) - len(slots) :], slots, strict=True):
            names[node] = slot.number.text(numbers)
        objects = {label: x for label, value in statics if (x := tree.weak(value)) is not None}
        fn, bare = self.fn, graph._replace(captured={})  # nodes without the memory of tensors
        captured = {n: id(x) for n, x in graph.captured.items()}

        def find() -> dict[Node, str]:
            reachable = {label: value for label, x in objects.items() if (value := x()) is not None}
            for value in tree.owner(fn):
                reachable["self"] = value
            paths = tree.captured_names(fn, reachable, captured.values())
            names.update({n: paths[number] for n, number in captured.items() if number in paths})
            return name_nodes(bare, names)

        return find

    def _describe(
        self, shape: tree.Tree, leaves: list[Tensor], arguments: frozenset[int], sized: list[Any] | None = None
    ) -> dict[str, str]:
        """Return what each tensor and value of a call is, by its name. `sized`: shapes with sizes that vary."""
        description, number = {}, 0
        for name, part in tree.call_labels(shape, self._parameters):
            if isinstance(part, tree.Leaf):
                position = part.position
                description[name] = _tensor_text(leaves[position], None if sized is None else sized[position])
                continue
            is_number = type(part.value) in KINDS
            is_argument = is_number and number in arguments
            number += is_number
            description[name] = f"any {type(part.value).__name__}" if is_argument else _value_text(part.value)
        return description

    def _log_recompile(self, shape: tree.Tree, description: dict[str, str], stale: Entry | None) -> None:
        """Log why a call needs a new program; warn once when programs are dropped for new ones."""
        full = len(self._entries) >= MAX_PROGRAMS and stale is None and not self._warned
        log = settings.listener("recompiles", settings.INFO)
        if not self._entries or (log is None and not full):
            return
        with self._lock:
            entries = list(self._entries.values())  # an ordered dict makes the hash of each key for it
        reason = self._stale_reason(stale, shape) if stale is not None else ""
        reason = reason or _difference([e.description for e in entries], description)
        if log is not None:
            programs = min(len(entries) + (stale is None), MAX_PROGRAMS)
            log.info("%s: compiled again, %d programs: %s", _name(self.fn), programs, reason)
        if full:
            self._warned = True
            settings.logger("recompiles").warning(
                "%s has %d programs; from now on the least recently used one is dropped for each new one. The last is needed "
                "since %s. Pass varying numbers as tensors and pad varying shapes; TRITIUM_LOG=recompiles logs each recompile.",
                _name(self.fn), MAX_PROGRAMS, reason,
            )  # fmt: skip

    def _stale_reason(self, stale: Entry, shape: tree.Tree) -> str:
        """Return which attribute of an object was rebound since a program was made."""
        names = [
            n
            for n, p in tree.call_labels(shape, self._parameters)
            if isinstance(p, tree.Static) and any(tree.objects(p))
        ]
        objects = (*tree.objects(shape), *tree.owner(self.fn))
        for name, x, guards in zip((*names, "self"), objects, stale.guards, strict=False):
            if label := tree.changed(x, guards, name):
                return f"{label} was rebound"
        return ""

    def _log_constants(self, shape: tree.Tree, reasons: Mapping[int, str]) -> None:
        """Log which numbers keep a program for each value, and why."""
        if (log := settings.listener("recompiles", settings.INFO)) is None:
            return
        parts = tree.call_labels(shape, self._parameters)
        names = [n for n, p in parts if isinstance(p, tree.Static) and type(p.value) in KINDS]
        for position, why in reasons.items():
            log.info("%s: %s has a program for each value: %s", _name(self.fn), names[position], why)

    def _leaf_names(self, shape: tree.Tree) -> list[str]:
        """Return the names of the tensors of a call."""
        labels = tree.call_labels(shape, self._parameters)
        names = {part.position: name for name, part in labels if isinstance(part, tree.Leaf)}
        return [names[i] for i in range(len(names))]

    def _log_varying(self, program: Program) -> None:
        """Log which sizes vary in a new program."""
        if (log := settings.listener("recompiles", settings.INFO)) is not None and isinstance(program, SizedProgram):
            log.info("%s: %s", _name(self.fn), program.varying_text())

    def _log_fixed_sizes(self, names: list[str], reasons: Mapping[lengths.Place, str]) -> None:
        """Log which sizes keep a program each, and why."""
        if (log := settings.listener("recompiles", settings.INFO)) is not None:
            for (leaf, axis), why in reasons.items():
                log.info("%s: %s.shape[%d] has a program for each size: %s", _name(self.fn), names[leaf], axis, why)

    @functools.cached_property
    def _parameters(self) -> tuple[str, ...]:
        """Return the names of the parameters that take arguments by position; that of many arguments has a star."""
        try:
            parameters = inspect.signature(self.fn).parameters.values()
        except (TypeError, ValueError):
            return ()
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
        return tuple(f"*{p.name}" if p.kind is p.VAR_POSITIONAL else p.name for p in positional)

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

    # -- files

    @checked
    def save(self, path: str | os.PathLike[str], /, *args: Any, **kwargs: Any) -> None:
        """Write the program of a call with these arguments to a file; `load_program` returns it as a function.

        The file has the graph as text, the tensors that the function captured as they are now, and the structure of arguments
        and results. Numbers, strings and other values among the arguments are constants of the program.
        """
        from tritium.compiler.saved.structure import CallStructure

        shape, leaves = _read_call(args, kwargs, "save: an argument")
        numbers = tree.numbers(shape)
        entry = self._find(shape, leaves, numbers, Varying.constant(len(numbers), "it is saved"), is_exact=True)
        parameters = self._parameters
        if args and isinstance(args[0], tree.Instance):  # what it read of the object is in the program
            assert isinstance(shape, tree.Branch)
            positional, named = shape.children
            shape = shape._replace(children=(positional._replace(children=positional.children[1:]), named))
            parameters = parameters[1:]
        entry.program.write(path, CallStructure(shape, entry.result, parameters), True)

    # -- inspection

    def program(self, *args: Any, **kwargs: Any) -> Program:
        """Return the program that a call with these arguments runs; compile it if it is not cached."""
        return self._exact_entry(args, kwargs)[0].program

    @property
    def last_program(self) -> Program | None:
        """Return the program that was compiled or looked up last; None: there is none."""
        with self._lock:
            return next(reversed(self._entries.values())).program if self._entries else None

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
        items = inputs if type(inputs) is list else list(inputs)
        if not items:
            return []
        if first:
            items = [(*first, *x) if isinstance(x, tuple) else (*first, x) for x in items]
        key = (len(items), patterns.generation, _spec_key(items[0]))
        plan = self._plans.get(key)
        if plan is None:
            sample = items[0] if isinstance(items[0], tuple) else (items[0],)
            entry = self._exact_entry(sample, {})[0]
            plan = Many(entry, entry.program.stacking(len(items)))
            if not entry.guards and key[-1] is not None:  # then the key decides which entry it is
                make_room(self._plans, MAX_PLANS)
                self._plans[key] = plan
        if plan.stacking.is_loop:
            return plan.stacking.loop(_calls(self, items))
        entry = plan.entry
        shape = None if entry.plain else functools.partial(tree.unflatten, entry.result)
        calls = functools.partial(_calls, self, items)
        return plan.stacking.run(Inputs(calls, functools.partial(self._stack, items, entry), shape))

    def _stack(self, items: list[Any], entry: Entry) -> list[Tensor] | None:
        """Return the tensors of all inputs, stacked; None if they have different programs."""
        specs = [x.spec for x in entry.program.source.inputs]
        kinds = set(map(type, items))
        columns: Any = [items]
        if kinds != {Tensor}:
            samples = [x if isinstance(x, tuple) else (x,) for x in items]
            if any(type(x) is not Tensor for x in samples[0]):
                entries = [self._exact_entry(sample, {}) for sample in samples]
                if any(other.program is not entry.program for other, _ in entries):
                    return None
                samples = [tuple(leaves) for _, leaves in entries]
            if set(map(len, samples)) != {len(specs)}:
                return None
            columns = zip(*samples, strict=True)
        stacked = []
        for spec, column in zip(specs, columns, strict=True):
            if set(map(type, column)) != {Tensor} or set(map(id, map(_dtype, column))) != {id(spec.dtype)}:
                return None
            try:
                stacked.append(ops.stack(column))
            except (DeviceError, ShapeError):
                return None
            if stacked[-1].shape[1:] != spec.shape or stacked[-1].device is not entry.program.backend.device:
                return None
        return stacked

    @checked
    def cache_info(self) -> CacheInfo:
        return CacheInfo(self.hits + self._hits, self._misses, len(self._entries), MAX_PROGRAMS)

    @checked
    def cache_clear(self) -> None:
        """Drop all programs, with their captured tensors, and reset the counts."""
        with self._lock:
            self._entries.clear()
            self.methods.clear()
            self._plans.clear()
            self._varying.clear()
            self._lengths.clear()
            self.ready = None
            self.hits = self._hits = self._misses = 0


class LoadedFunction(Caller):
    """A function from a file, for arguments of the structure, shapes and values that it was saved with."""

    def __init__(self, saved: SavedProgram) -> None:
        self.__name__, self.device = saved.name, saved.device
        self._saved, self._structure = saved, saved.structure
        self._lock = threading.Lock()
        self.program = Program.restore(saved)
        self._programs = {tuple(map(_strides_key, saved.layouts)): self.program}
        self._key = tree.key(saved.structure.call)
        self._is_plain = is_plain(saved.structure.result)
        specs = [n.spec for n in self.program.graph.inputs]
        self._expected = dict(self._texts(saved.structure.call, specs))

    def __repr__(self) -> str:
        return f"<loaded {self.__name__}: {', '.join(f'{k} {v}' for k, v in self._expected.items())}>"

    def explain(self) -> str:
        """Return a report of the rewrites and fusions that were applied, and of those that were not, with the reason."""
        return self.program.explain()

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Run a call that the fast path of the last call does not fit."""
        values: list[Any] = []
        shape = tree.flatten(self._arrange(args, kwargs), values)
        is_traced = interpreter.get() is not None
        leaves = [x if isinstance(x, Tensor) else asarray(x) for x in values]
        self._check(shape, leaves)
        if is_traced:  # recorded in the other trace
            result = self.program.source(*leaves)
        else:
            leaves = [x._computed(f"{self.__name__}: an argument") for x in leaves]
            program = self._program_for(leaves)
            result = program(*leaves)
            if self._is_plain and not kwargs and len(args) == len(leaves) and all(map(is_, args, leaves)):
                self.ready = program.ready(tuple(leaves))
        return result if self._is_plain else tree.unflatten(self._structure.result, result)

    def _arrange(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return arguments by position and by name as they were when the function was saved."""
        call = self._structure.call
        assert isinstance(call, tree.Branch)
        count, names = len(call.children[0].children), call.children[1].key
        parameters = [p for p in self._structure.parameters if not p.startswith("*")]
        positional, named = list(args), dict(kwargs)
        while len(positional) < min(count, len(parameters)) and parameters[len(positional)] in named:
            positional.append(named.pop(parameters[len(positional)]))
        while count < len(positional) <= len(parameters) and (name := parameters[len(positional) - 1]) in names:
            if name in named:
                break
            named[name] = positional.pop()
        order = {name: i for i, name in enumerate(names)}
        return tuple(positional), {name: named[name] for name in sorted(named, key=lambda n: order.get(n, len(order)))}

    def _check(self, shape: tree.Tree, leaves: list[Tensor]) -> None:
        """Raise unless a call is like the one that was saved."""
        inputs = self.program.graph.inputs
        if tree.key(shape) != self._key or any(x.spec != n.spec for x, n in zip(leaves, inputs, strict=True)):
            actual = dict(self._texts(shape, [x.spec for x in leaves]))
            names = [name for name in {**self._expected, **actual} if self._expected.get(name) != actual.get(name)]
            changes = [
                f"{name} must be {self._expected.get(name, 'left out')}, given {actual.get(name, 'nothing')}"
                for name in names
            ]
            raise ArgumentError(
                f"{self.__name__}: {', '.join(changes) or 'the containers of the arguments differ'}; it was saved for such "
                f"calls alone. Save a program for each kind of call."
            )
        for x in leaves:
            if not x.is_traced and x.device is not self.device:
                raise DeviceError(
                    f"{self.__name__}: an argument {x.spec} is on {x.device}, the program on {self.device}; move it with "
                    f".to({str(self.device)!r}), or load the program with device={str(x.device)!r}."
                )

    def _texts(self, shape: tree.Tree, specs: list[Spec]) -> Iterator[tuple[str, str]]:
        for name, part in tree.call_labels(shape, self._structure.parameters):
            yield name, str(specs[part.position]) if isinstance(part, tree.Leaf) else _value_text(part.value)

    def _program_for(self, leaves: list[Tensor]) -> Program:
        """Return the program for tensors of these strides: those of the file, or one that is optimised for them now."""
        layouts = tuple(x.layout for x in leaves)
        key = tuple(map(_strides_key, layouts))
        program = self._programs.get(key)
        if program is None:
            program = Program.restore(self._saved, layouts)
            with self._lock:
                make_room(self._programs, MAX_LAYOUTS)
                self._programs[key] = program
        return program


def _strides_key(layout: Layout) -> Any:
    return None if layout.is_contiguous else layout.strides


@checked
def load_program(path: str | os.PathLike[str], *, device: Any = None) -> LoadedFunction:
    """Return the function of a file that `save` of a compiled function, or of a program, wrote.

    It needs no code of the function and traces nothing. It is not optimised again if it was saved by the same version of the package,
    for the same instruction set and device; otherwise it is, for this machine, and `TRITIUM_LOG=compile` logs why. `device`:
    where it runs; default: the device it was saved on.
    """
    from tritium.compiler.saved import file

    return LoadedFunction(file.read(path, device, bool(patterns.patterns())))


def _read_call(args: tuple[Any, ...], kwargs: dict[str, Any], what: str) -> tuple[tree.Tree, list[Tensor]]:
    """Return the structure of a call and its tensors, which have memory."""
    values: list[Any] = []
    shape = tree.flatten((args, kwargs), values)
    return shape, [x._computed(what) if isinstance(x, Tensor) else asarray(x) for x in values]


def _program_cache(folder: str | os.PathLike[str] | None) -> ProgramCache | None:
    """Return the programs in a folder; None: there is no folder."""
    if folder is None:
        return None
    from tritium.compiler.saved.cache import ProgramCache

    return ProgramCache(folder)


def _tensor_text(x: Tensor, shape: Any = None) -> str:
    """Return the facts about an argument that a program is made for. `shape`: its sizes, some of which may vary."""
    strides = "" if x.is_contiguous() else f" with strides {x.strides}"
    spec = (
        str(x.spec) if shape is None else f"{x.dtype}[{','.join(str(n) if type(n) is int else 'any' for n in shape)}]"
    )
    return f"{spec}{strides}" if x.device.type == "cpu" else f"{spec}{strides} on {x.device}"


def _value_text(value: Any) -> str:
    if isinstance(value, tree.SIMPLE):
        return shown(value)
    return f"the {type(value).__name__} at {id(value):#x}"


def _difference(known: list[dict[str, str]], new: dict[str, str]) -> str:
    """Return what a call changes compared with the most similar of the earlier ones, the later ones first."""

    def differing(old: dict[str, str]) -> list[str]:
        return [name for name in {**old, **new} if old.get(name) != new.get(name)]

    nearest_one = min(reversed(known), key=lambda old: len(differing(old)))
    changes = [
        f"{name} changed from {nearest_one.get(name, 'no argument')} to {new.get(name, 'no argument')}"
        for name in differing(nearest_one)
    ]
    if not changes and "any" in "".join(new.values()):
        return "comparisons of its sizes have other outcomes"
    return ", ".join(changes) or "the structure of its arguments or the fusion patterns changed"


def _feeder(slots: tuple[Slot, ...], device: Device) -> Feed:
    """Return a function from the numbers of a call to the inputs that hold them.

    It returns None if arithmetic on these numbers has a result of another kind than it had while it was traced.
    """
    parts = [(slot.number.evaluator(), type(slot.number.traced), slot.dtype) for slot in slots]

    def feed(numbers: list[Any]) -> list[Tensor] | None:
        tensors = []
        for evaluate, kind, dtype in parts:
            value = evaluate(numbers)
            if type(value) is not kind:
                return None
            tensors.append(constant(value, dtype, device))
        return tensors

    return feed


def _caller_with_numbers(native: Any, kinds: tuple[Any, ...], feed: Feed) -> Callable[..., Any]:
    """Return a function that runs a program on tensors and numbers; it returns None if its arguments are of other types."""

    def run(*args: Any) -> Any:
        if len(args) != len(kinds):
            return None
        leaves, numbers = [], []
        for x, kind in zip(args, kinds, strict=True):
            if kind is None:
                leaves.append(x)
            elif type(x) is kind:
                numbers.append(x)
            else:
                return None
        tensors = feed(numbers)
        return None if tensors is None else native(*leaves, *tensors)

    return run


def _name(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__name__", "function"))


def _drop_ended(structures: dict[Any, Any]) -> None:
    """Make room for a structure of calls; those of objects that have ended go first."""
    for key in [k for k in structures if not tree.is_alive(k)]:
        structures.pop(key, None)
    make_room(structures, MAX_STRUCTURES)


def _forget_ready() -> None:
    """Reset the fast path of every compiled function: the patterns have changed."""
    for c in list(instances):
        c.ready = None
        c.methods.clear()


patterns.listeners.append(_forget_ready)


_dtype = attrgetter("dtype")


def _spec_key(x: Any) -> Any:
    """Return what tells the programs of tensors apart, except for their layout: stacked they have another. None: no tensors."""
    if type(x) is Tensor:
        return (x.shape, id(x.dtype), id(x.storage.device))
    if type(x) is tuple:
        keys = tuple(map(_spec_key, x))
        return None if None in keys else keys
    return None


def _calls(fn: Callable[..., Any], items: list[Any]) -> Iterator[Any]:
    """Return an iterator that calls a function with each input in turn."""
    kinds = set(map(type, items))
    if kinds != {Tensor} and any(issubclass(kind, tuple) for kind in kinds):
        return (fn(*x) if isinstance(x, tuple) else fn(x) for x in items)
    return map(fn, items)


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


if TYPE_CHECKING:
    P = ParamSpec("P")
    Q = ParamSpec("Q")
    R = TypeVar("R")

    class CompiledFunction(Compiled, Generic[P, R]):
        """A compiled function as type checkers see it: with the signature of the function."""

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

        @overload
        def __get__(self, instance: None, owner: Any = None) -> CompiledFunction[P, R]: ...
        @overload
        def __get__(
            self: CompiledFunction[Concatenate[Any, Q], R], instance: object, owner: Any = None
        ) -> CompiledFunction[Q, R]: ...
        def __get__(self, instance: Any, owner: Any = None) -> Any: ...


@overload
def compile(
    fn: Callable[P, R],
    *,
    donate: Donate = (),
    verify: bool = False,
    disable: str | Iterable[str] = (),
    cache: str | os.PathLike[str] | None = None,
) -> CompiledFunction[P, R]: ...
@overload
def compile(
    fn: None = None,
    *,
    donate: Donate = (),
    verify: bool = False,
    disable: str | Iterable[str] = (),
    cache: str | os.PathLike[str] | None = None,
) -> Callable[[Callable[P, R]], CompiledFunction[P, R]]: ...
@checked
def compile(
    fn: Callable[..., Any] | None = None,
    *,
    donate: Donate = (),
    verify: bool = False,
    disable: str | Iterable[str] = (),
    cache: str | os.PathLike[str] | None = None,
) -> Any:
    """Compile a function to one optimised program; also a decorator, with or without options.

    `donate` names (or numbers) the parameters whose tensors the function may write: they are updated in place, which is
    how a KV cache grows. `verify` compares every node of each new program with the function as written. `disable`
    names passes to leave out, to find the one that a problem comes from: rules, patterns, fuse, order, place, native, sizes.
    `cache` is a folder in which optimised programs are kept for other processes. Tensors that the function reads besides its
    arguments are captured by identity and read at each call.
    """
    if fn is None:
        return functools.partial(Compiled, donate=donate, verify=verify, disable=check_passes(disable), cache=cache)
    return Compiled(fn, donate=donate, verify=verify, disable=disable, cache=cache)


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
