"""A function compiled for arguments of fixed specs: rewrite rules, fusion, order, memory plan, and one native call."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tritium import dtype as dt, launch, ops, recording, settings
from tritium.arguments import checked
from tritium.backends import Backend
from tritium.backends.values.device import ValueBackend
from tritium.buffer import overlap, shares_with_others
from tritium.compiler import decode_step, steps
from tritium.compiler.foreign import ForeignProgram
from tritium.compiler.fuse import Fused, Opportunity, fuse, note
from tritium.compiler.passes import Note, Simplified, simplify
from tritium.compiler.patterns import Applied, FusionPattern, apply_patterns, block_attention, patterns
from tritium.compiler.steps import Steps, UnableError
from tritium.errors import ArgumentError, VerifyError, nearest, shown
from tritium.garbage import no_collections
from tritium.graph.batch import batched
from tritium.graph.graph import Graph, Names, Node, run_node
from tritium.layout import Layout
from tritium.machine.facts import free_memory, seconds_text
from tritium.op import Cost, Kind, Op, Spec, interpreter
from tritium.tensor import Tensor, rows

if TYPE_CHECKING:
    from tritium.compiler.saved.file import SavedProgram
    from tritium.compiler.saved.structure import CallStructure

# Stacking many inputs pays for some programs and costs for others, so both ways are timed.
PATIENCE = 2.0  # a program for many inputs is compiled once loops took so many times as long as that should take
CLEAR = 3.0  # a difference by so much is believed at once
TRIALS = 3  # of each way where the difference is smaller; the best of each counts
GAIN = 0.9  # of the loop's time is the most that stacking may take: it needs more memory
RECHECK = 100.0  # times as long as the slower way takes, and both are timed again; twice as long if nothing changed
MAX_STACKINGS = 16  # numbers of inputs that are remembered for a program
MEMORY_SHARE = 4  # a stack may take so large a part of the free memory: one in four


# The passes that can be disabled, in their order, and what each does.
PASSES = {
    "rules": "fold constants, remove identities and copies",
    "patterns": "replace subgraphs that the user registered",
    "attention": "compute attention written in plain ops in blocks of scores",
    "fuse": "run groups of ops as one call",
    "order": "run nodes in the order with the lowest peak memory",
    "place": "share bytes of the arena between temporaries",
    "native": "run all steps in one native call",
    "sizes": "use one program for sizes that vary",
}


def check_passes(disable: Any) -> frozenset[str]:
    """Return the names of passes to leave out; raise if one does not exist."""
    names = (disable,) if isinstance(disable, str) else disable
    if not isinstance(names, Iterable):
        raise ArgumentError(
            f"compile: disable={shown(disable)} must be names of passes; there are {', '.join(PASSES)}."
        )
    chosen = tuple(names)
    for name in chosen:
        if not isinstance(name, str) or name not in PASSES:
            hint = nearest(name, PASSES) if isinstance(name, str) else ""
            raise ArgumentError(f"compile: disable={shown(name)} is not a pass; there are {', '.join(PASSES)}.{hint}")
    return frozenset(chosen)


@dataclass
class Counters:
    """Counts of what was compiled in this process."""

    programs: int = 0
    fusions_found: int = 0
    fusions_applied: int = 0


counters = Counters()


class Rewriting(NamedTuple):
    """The results of the passes over a graph, besides the optimised graph."""

    origin: dict[Node, Node]  # from a node of the optimised graph to the node as written with the same value
    to_source: Callable[[Node], Node]  # the same from a node that the fuser read
    opportunities: list[Opportunity]
    notes: list[Note]


class Program:
    """A compiled graph. Several threads may call it at once; every result is the caller's own memory."""

    varying = ""  # of a program for sizes that vary: which ones, and where it is used

    def __init__(
        self,
        graph: Graph,
        backend: Backend,
        layouts: tuple[Layout, ...] | None = None,
        *,
        verify: bool = False,
        name: str = "program",
        disable: str | Iterable[str] = (),
    ) -> None:
        self._source: Graph | Callable[[], Graph] = graph
        self.backend, self.name = backend, name
        self.disabled = check_passes(disable)
        start = perf_counter()
        with no_collections():
            self._compile(layouts, verify)
        self.compile_s = perf_counter() - start
        if (log := settings.listener("compile")) is not None:
            written, ms = len(graph.calls()), self.compile_s * 1e3
            log.debug("%s: %d calls written, %d run, %s; %.3g ms", name, written, self.launches, _way_it_runs(self), ms)

    @property
    def source(self) -> Graph:
        """Return the graph as it was written; that of a loaded program is read when it is first needed."""
        if not isinstance(self._source, Graph):
            self._source = self._source()
        return self._source

    # -- files

    @checked
    def save(self, path: str | os.PathLike[str], *, overwrite: bool = True) -> None:
        """Write the program to a file, with the tensors it captured as they are now; `load` reads it in another process.

        The file holds graphs as text, tensors, and no code. It appears in one step.
        """
        self.write(path, None, overwrite)

    def write(self, path: Any, structure: CallStructure | None, overwrite: bool) -> None:
        """Write the program to a file, with the structure of the calls of its function."""
        from tritium.compiler.saved import file

        optimised = None if patterns() else self.graph  # patterns are functions, which no file holds
        graphs, device = (self.source, optimised), self.backend.device
        file.write(path, graphs, self.layouts, device, self.name, tuple(self.disabled), structure, overwrite)

    @classmethod
    @checked
    def load(cls, path: str | os.PathLike[str], *, device: Any = None) -> Program:
        """Read a program that `save` wrote; call it with tensors of the specs it was compiled for.

        It is not optimised again if it was saved by the same version of the package, for the same instruction set and device;
        otherwise it is, for this machine. `device`: where it runs; default: the device it was saved on.
        """
        from tritium.compiler.saved import file

        return cls.restore(file.read(path, device, bool(patterns())))

    @classmethod
    def restore(cls, saved: SavedProgram, layouts: tuple[Layout, ...] | None = None) -> Program:
        """Return the program of a file; for other layouts than its own it is optimised again."""
        if saved.optimised is None or (layouts or saved.layouts) != saved.layouts:
            reason = saved.why_not or "an argument has other strides"
            if (log := settings.listener("compile", settings.INFO)) is not None:
                log.info("%s: loaded, and optimised again: %s", saved.name, reason)
            return cls(
                saved.source(), saved.device.backend, layouts or saved.layouts, name=saved.name, disable=saved.disabled
            )
        program = cls.__new__(cls)
        program._source, program.backend, program.name = saved.source, saved.device.backend, saved.name
        program.disabled = check_passes(saved.disabled)
        start = perf_counter()
        with no_collections():
            program.layouts, program.graph = saved.layouts, saved.optimised
            program._rewriting = None
            program._start((), False)
        program.compile_s = perf_counter() - start
        if (log := settings.listener("compile")) is not None:
            ms = program.compile_s * 1e3
            log.debug("%s: loaded, %d run, %s; %.3g ms", saved.name, program.launches, _way_it_runs(program), ms)
        return program

    def be_traced_from(self, graph: Graph) -> None:
        """Take a graph that is equal to the one as written, with its names, in place of that of a file."""
        self._source = graph

    def _complete(self) -> Rewriting:
        """Return what the passes did; a loaded program is compiled from its graph as written to find out."""
        if self._rewriting is None:
            with no_collections():
                self._compile(self.layouts, self.verifies)
        assert self._rewriting is not None
        return self._rewriting

    @property
    def origin(self) -> dict[Node, Node]:
        """Return the node as written that each node of the optimised graph replaces."""
        return self._complete().origin

    @property
    def opportunities(self) -> list[Opportunity]:
        """Return the fusion groups, and those that were not fused, with the reason."""
        return self._complete().opportunities

    # -- compiling

    def _compile(self, layouts: tuple[Layout, ...] | None, verify: bool) -> None:
        graph = self.source
        self.layouts = layouts or tuple(Layout(n.spec.shape, n.spec.strides, 0) for n in graph.inputs)
        simple, custom, blocked, fused = self._rewrite(graph)
        to_source = _to_source(simple, custom, blocked)
        origin = {new: to_source(old) for new, old in fused.origin.items()}
        has_scopes = graph.names.has_scopes if isinstance(graph.names, Names) else bool(graph.names)
        names = Names(_namer(graph.names, origin, to_source, fused), has_scopes)
        self.graph = fused.graph._replace(names=names)
        notes = [*simple.notes, *custom.notes, *blocked.notes]
        self._rewriting: Rewriting | None = Rewriting(origin, to_source, fused.opportunities, notes)
        self._start(custom.used, verify)
        counters.fusions_found += len(fused.opportunities)
        counters.fusions_applied += sum(not o.reason for o in fused.opportunities)

    def _start(self, unchecked: tuple[FusionPattern, ...], verify: bool) -> None:
        """Plan the steps of the optimised graph."""
        self.unchecked = unchecked  # a user's fusions are compared with their ops at the first call
        self.verifies = verify  # at the next call
        self.steps: Steps | None = None
        self.native: Any = None
        self.foreign: ForeignProgram | None = None  # where the device's own compiler runs it
        self.why_not_native = ""
        self._stackings: dict[int, Stacking] = {}
        self._lock = threading.Lock()
        self._plan_steps()
        counters.programs += 1

    def _rewrite(self, graph: Graph) -> tuple[Simplified, Applied, Applied, Fused]:
        """Run the passes over graphs that are not disabled."""
        device = self.backend.device
        simple = Simplified(graph, {}, [])
        if "rules" not in self.disabled:
            simple = simplify(graph, lambda n, xs: run_node(n, xs, device))
        custom = Applied(simple.graph, {}, (), [])
        if "patterns" not in self.disabled:
            custom = apply_patterns(simple.graph)
        blocked = Applied(custom.graph, {}, (), [])
        # A device whose library owns the memory has attention, or a compiler, of its own.
        if "attention" not in self.disabled and not isinstance(self.backend, ValueBackend):
            blocked = block_attention(custom.graph)
        if "fuse" in self.disabled:
            return simple, custom, blocked, Fused(blocked.graph, {n: n for n in blocked.graph.order()}, [])
        return simple, custom, blocked, fuse(blocked.graph, self.backend.refuses)

    def _plan_steps(self) -> None:
        try:
            self.steps = steps.build(self.graph, self.backend, self.layouts, self.disabled)
        except UnableError as why:
            self.steps, self.why_not_native = None, str(why)
        self.ran = launch.Ran(self.name, self.launches)  # the launch record when it runs node by node under a profiler
        if self.steps is not None:
            _warn_of_python(self.name, self.steps)
            spans = (self.ran, *steps.launch_records(self.steps.calls, self.backend.device, self.graph))
            self.native = steps.native_program(self.steps, self.graph, self.layouts, spans)
        elif isinstance(self.backend, ValueBackend) and self.backend.compiler and "native" not in self.disabled:
            foreign = ForeignProgram(self.graph, self.backend)
            self.foreign = foreign if foreign.is_compiled else None
            reason = self.backend.why_not_compiled
            self.why_not_native = (
                f"{self.backend.device} cannot use {self.backend.compiler} here{reason and f': {reason}'}"
            )

    @property
    def notes(self) -> list[Note]:
        """Return the notes of all passes: rewrites that were applied, and those that were not, with the reason."""
        together = [] if self.foreign is None else [decode_step.note(t) for t in self.foreign.decode_steps]
        fusions = [self._name_note(note(o), o) for o in self.opportunities]
        return [*self._complete().notes, *fusions, *together]

    def _name_note(self, fusion: Note, o: Opportunity) -> Note:
        """Return the note of a fusion with the names of its nodes."""
        names = join_names(self.source.names.get(self._complete().to_source(n), "") for n in o.nodes)
        return fusion._replace(node=f"{fusion.node} ({names})") if names else fusion

    # -- running

    def __repr__(self) -> str:
        return f"<program {len(self.graph.inputs)} arguments, {self.launches} calls, arena {sized(self.arena_bytes)}>"

    def __call__(self, *args: Tensor) -> Any:
        """Run on tensors of the specs it was made for: one native call, unless there is no native library or someone watches."""
        if self.verifies or self.unchecked:
            self._check(args)
        if self.native is not None and not launch.watchers:
            result = self.native(*args)
            if result is not None:
                return result
        if self.foreign is not None and not launch.watchers and not recording.active:
            check_arguments(self.graph, args)
            check_donated(self.graph, args)
            return self.foreign(*args)
        return self.run_nodes(*args)

    def for_call(self, args: Sequence[Tensor]) -> Program:
        """Return the program for tensors of these sizes alone: this one, unless its sizes vary."""
        return self

    def ready(self, args: tuple[Tensor, ...]) -> Any:
        """Return the fast path for calls like the last one, with `args`, or None.

        It returns None itself if a call's arguments do not fit.
        """
        if self.foreign is None or self.verifies or self.unchecked:
            return self.native
        return self.foreign.again(args)

    def _check(self, args: tuple[Tensor, ...]) -> None:
        """Verify the program on these arguments: with verify=True, and at the first use of a user's fusion."""
        names = ", ".join(p.name for p in self.unchecked)
        try:
            verify(self, args)
        except VerifyError as error:
            if not names:
                raise
            raise VerifyError(f"The pattern {names} does not compute what its ops do. {error}") from None
        self.unchecked, self.verifies = (), False

    def run_nodes(self, *args: Tensor) -> Any:
        """Run the optimised graph node by node: without a native program, and under a profiler."""
        check_donated(self.graph, args)
        token = interpreter.set(None)
        try:
            return recording.carry_out(self.ran, lambda: self.graph(*args))
        finally:
            interpreter.reset(token)

    def run_many(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the results for many inputs (tuples of tensors, or tensors).

        Inputs are stacked and run at once if the graph allows it and it was measured to be faster, else one by one. Results
        equal those of a loop, products within the op's rounding. Results of a stacked run are parts of one block of memory.
        """
        samples = [x if isinstance(x, tuple) else (x,) for x in inputs]
        for sample in samples:
            check_arguments(self.source, sample)
        return self.stacking(len(samples)).run(self._inputs(samples))

    def _inputs(self, samples: list[tuple[Tensor, ...]]) -> Inputs:
        return Inputs(lambda: starmap(self, samples), lambda: stack_columns(samples))

    def stacking(self, n: int) -> Stacking:
        """Return the choice between running n inputs at once and one by one. A few numbers of inputs are remembered."""
        with self._lock:
            stacking = self._stackings.get(n)
            if stacking is None:
                if len(self._stackings) >= MAX_STACKINGS:
                    self._stackings.pop(next(iter(self._stackings)))
                stacking = self._stackings[n] = Stacking(self, n)
        return stacking

    def why_not_stacked(self, n: int = 32) -> str:
        """Return the reason why run_many runs n inputs one by one; "" if it stacks them.

        Where both ways were not timed yet, they are now, on inputs of zeros.
        """
        stacking = self.stacking(n)
        if stacking.is_open and (stacking.many is not None or stacking.compile()):
            device = self.backend.device
            zeros = tuple(ops.full(x.spec.shape, 0, x.spec.dtype, device) for x in self.source.inputs)
            inputs = self._inputs([zeros] * n)
            while stacking.is_open:
                stacking.time_both(inputs)
        return stacking.reason

    # -- numbers

    @property
    def launches(self) -> int:
        """Return the number of kernel calls of one run."""
        if self.steps is not None:
            return len(self.steps.calls)
        inside = {n for t in self.foreign.decode_steps for n in t.nodes[:-1]} if self.foreign is not None else ()
        return sum(n not in inside for n in self.graph.calls())

    @property
    def bytes_moved(self) -> int:
        """Return the bytes that all steps read and write."""
        return sum(c.read + c.written for c in self._costs())

    def _costs(self) -> list[Cost]:
        if self.steps is not None:
            return [c.cost for c in self.steps.calls]
        return [self.cost_of(n) for n in self.graph.order()]

    def cost_of(self, n: Node) -> Cost:
        """Return the work and bytes of a node."""
        specs = tuple(i.spec if i is not None and isinstance(i.spec, Spec) else None for i in n.inputs)
        free = n.op.kind is Kind.VIEW or n.op in (ops.given, ops.const)
        return Cost(0, 0, 0) if free else n.op.cost(n.spec, *specs, **dict(n.attrs))

    @property
    def last_s(self) -> float | None:
        """Return the seconds of the last run of the native program; None: not run yet."""
        return self.native.last_ns * 1e-9 if self.native is not None and self.native.runs else None

    @property
    def arena_bytes(self) -> int:
        return self.steps.plan.peak_bytes if self.steps else 0

    @property
    def naive_bytes(self) -> int:
        """Return the bytes of all temporaries without sharing."""
        return self.steps.plan.naive_bytes if self.steps else 0

    @property
    def lower_bound_bytes(self) -> int:
        """Return the most bytes alive at one step: no plan needs less in this order."""
        return self.steps.plan.lower_bound_bytes if self.steps else 0

    @property
    def bytes_per_call(self) -> int:
        """Return the bytes of arguments, results and arena of one call."""
        ends = sum(n.spec.nbytes for n in (*self.graph.inputs, *self.graph.outputs))
        return ends + self.arena_bytes

    # -- reports

    def verify(self, *args: Tensor) -> None:
        """Compare every node with the graph as it was written; the first that differs is named in a VerifyError."""
        verify(self, args)

    def explain(self) -> str:
        """Return a report of the rewrites and fusions that were applied, and of those that were not, with the reason."""
        return "\n".join(explanation(self))


_python_ops: set[Op] = set()  # ops that were named in a warning


def _warn_of_python(name: str, built: Steps) -> None:
    """Log a warning for each op that a program calls from Python, once in a process."""
    for index, reason in built.python.items():
        op = built.calls[index].op
        if op not in _python_ops:
            _python_ops.add(op)
            settings.log.warning(
                "compile: %s is called from Python in %s, between native steps: %s", op.name, name, reason
            )


class Inputs(NamedTuple):
    """Many inputs of a program, and the ways to run them."""

    calls: Callable[[], Iterator[Any]]  # runs them one by one, as the results are read
    stack: Callable[[], Sequence[Tensor] | None]  # the arguments of all, stacked; None: they differ
    shape: Callable[[Any], Any] | None = None  # turns the tensors of one stacked result into what a call returns


def stack_columns(samples: Sequence[tuple[Tensor, ...]]) -> list[Tensor]:
    """Return the arguments of many calls stacked along a new first axis."""
    return [ops.stack(column) for column in zip(*samples, strict=True)]


class Stacking:
    """The choice between running n inputs of a program at once and one by one, by the times both ways took.

    A program for n inputs is compiled only once loops have taken longer than that should take: inputs that run once or
    twice never wait for it.
    """

    def __init__(self, program: Program, n: int) -> None:
        owner: Any = weakref.proxy(program)
        self.program: Program = owner  # it owns this
        self.n = n
        self.many: Program | None = None  # compiled when it may pay
        self.reason = ""  # why the inputs run one by one
        self.is_open = True  # the times do not decide yet
        self.spent_s = 0.0  # in loops, while there was no other way
        self.longest_s = 0.0  # of those loops
        self.loop_s: list[float] = []
        self.stacked_s: list[float] = []
        self.since_s = 0.0  # since the times decided
        self.recheck_s = 0.0  # when they are taken again
        self.before = ""  # the reason of the last decision
        if n < 2 or program.graph.writes:
            self._close("a donated argument is written" if program.graph.writes else "there is one input")

    def _close(self, reason: str) -> None:
        self.reason, self.is_open = reason, False

    def run(self, inputs: Inputs) -> list[Any]:
        """Return the results of all inputs."""
        if self.is_loop:
            return self.loop(inputs.calls())
        if self.is_open:
            return self._measure(inputs)
        start = perf_counter()
        results = self._run_stacked(inputs)
        if results is None:
            return list(inputs.calls())
        self._age(perf_counter() - start)
        return results

    @property
    def is_loop(self) -> bool:
        """Return True if the inputs run one by one, whatever their times are: nothing else would pay yet."""
        if self.reason or self.many is not None:
            return bool(self.reason)
        return 0 < 2 * self.longest_s < PATIENCE * self.program.compile_s - self.spent_s

    def loop(self, calls: Iterable[Any]) -> list[Any]:
        """Return the results of calls one by one."""
        start = perf_counter()
        results = list(calls)
        elapsed = perf_counter() - start
        self._age(elapsed) if self.reason else self._spend(elapsed)
        return results

    def _age(self, seconds: float) -> None:
        """Take the times again after a while: other work on the machine may have disturbed them."""
        self.since_s += seconds
        if self.many is not None and self.since_s > self.recheck_s:
            self.loop_s, self.stacked_s, self.since_s = [], [], 0.0
            self.is_open, self.before, self.reason = True, self.reason, ""

    def _spend(self, seconds: float) -> None:
        self.spent_s += seconds
        self.longest_s = max(self.longest_s, seconds)

    def _measure(self, inputs: Inputs) -> list[Any]:
        """Run the inputs the way that was timed less often; as long as there is only one way, one by one."""
        if self.many is None:
            return self._run_patiently(inputs)
        results = self._time_stacked(inputs) if len(self.stacked_s) < len(self.loop_s) else None
        return self._time_loop(inputs) if results is None else results

    def _run_patiently(self, inputs: Inputs) -> list[Any]:
        """Run the inputs one by one, and all at once instead where the loop turns out to take so long that this may pay."""
        worth_s = PATIENCE * self.program.compile_s - self.spent_s
        start = perf_counter()
        results = []
        for i, result in enumerate(inputs.calls(), 1):
            results.append(result)
            if 8 * i < self.n or i & (i - 1) or not self.is_open:
                continue
            loop_s = (perf_counter() - start) / i * self.n
            if loop_s > worth_s and self.compile():
                together = self._time_stacked(inputs)
                if together is not None:
                    self._note_loop(loop_s)
                    return together
        self._spend(perf_counter() - start)
        return results

    def time_both(self, inputs: Inputs) -> None:
        """Time both ways once."""
        self._time_loop(inputs)
        if self.is_open and self._time_stacked(inputs) is None:
            self._close("they cannot be stacked")

    def compile(self) -> bool:
        """Compile the program for n inputs. False: there is none, which closes the choice."""
        program, n = self.program, self.n
        nbytes = 2 * n * sum(x.spec.nbytes for x in (*program.graph.inputs, *program.graph.outputs))
        if nbytes > 1 << 26 and nbytes > (free := free_memory()) // MEMORY_SHARE:
            self._close(f"a stack of them would take {sized(nbytes)} of {sized(free)} that are free")
            return False
        graph = batched(program.source, n)
        if isinstance(graph, str):
            self._close(graph)
            return False
        self.many = Program(graph, program.backend, name=program.name, disable=program.disabled)
        return True

    def _time_loop(self, inputs: Inputs) -> list[Any]:
        start = perf_counter()
        results = list(inputs.calls())
        self._note_loop(perf_counter() - start)
        return results

    def _time_stacked(self, inputs: Inputs) -> list[Any] | None:
        """Run the inputs at once; None: they cannot be stacked."""
        if not self.stacked_s and self._run_stacked(inputs) is None:  # the first run is not like the next ones
            return None
        start = perf_counter()
        results = self._run_stacked(inputs)
        if results is not None:
            self.stacked_s.append(perf_counter() - start)
            self._decide()
        return results

    def _note_loop(self, seconds: float) -> None:
        self.loop_s.append(seconds)
        self._decide()

    def _run_stacked(self, inputs: Inputs) -> list[Any] | None:
        many = self.many
        columns = None if many is None else inputs.stack()  # another thread may have closed the choice
        if many is None or columns is None:
            return None
        result = many(*columns)
        results: list[Any]
        if self.program.source.single:
            results = list(rows(result))
        else:
            results = list(zip(*(rows(part) for part in result), strict=True))
        return results if inputs.shape is None else [inputs.shape(r) for r in results]

    def _decide(self) -> None:
        """Close the choice if the times differ clearly, or after so many trials that the best of each way counts."""
        if not self.loop_s or not self.stacked_s:
            return
        loop_s, stacked_s = min(self.loop_s), min(self.stacked_s)
        slower = max(self.loop_s, self.stacked_s, key=min)
        is_clear = len(slower) > 1 and min(slower) >= CLEAR * min(loop_s, stacked_s)  # once may be an accident
        if not is_clear and min(len(self.loop_s), len(self.stacked_s)) < TRIALS:
            return
        is_faster = stacked_s <= GAIN * loop_s
        is_new = self.recheck_s == 0 or is_faster == bool(self.before)
        self.recheck_s = max(RECHECK * min(slower), 0.0 if is_new else 2 * self.recheck_s)
        self._close("" if is_faster else f"stacking them takes longer than it saves ({_compared(stacked_s, loop_s)})")


def _compared(stacked_s: float, loop_s: float) -> str:
    return f"{seconds_text(stacked_s)}, one by one {seconds_text(loop_s)}"


def check_arguments(graph: Graph, args: tuple[Any, ...]) -> None:
    if len(args) != len(graph.inputs):
        raise ArgumentError(f"The graph takes {len(graph.inputs)} tensors, {len(args)} were given.")
    for i, (n, x) in enumerate(zip(graph.inputs, args, strict=True)):
        if not isinstance(x, Tensor) or x.spec != n.spec:
            raise ArgumentError(f"Argument {i} must be {n.spec}, given {getattr(x, 'spec', type(x).__name__)}.")


def check_donated(graph: Graph, args: tuple[Any, ...]) -> None:
    """Raise if a donated argument shares memory with another argument or captured tensor: the order of access is undefined.

    On a device of its own memory only tensors of the same storage can: a model has hundreds of operands, and a cache for each layer."""
    operands = [(k, x) for k, x in enumerate((*args, *graph.captured.values())) if isinstance(x, Tensor)]
    by_storage: dict[int, list[tuple[int, Tensor]]] = {}
    for k, x in operands:
        by_storage.setdefault(id(x.storage), []).append((k, x))
    for i, _ in graph.writes:
        if not isinstance(args[i], Tensor):
            continue
        args[i].storage.own()  # memory shared with clones is copied now
        others = operands if shares_with_others(args[i]) else by_storage[id(args[i].storage)]
        for k, other in others:
            if k != i and overlap(args[i], other):
                what = f"argument {k}" if k < len(args) else "a tensor that the function captured"
                raise ArgumentError(
                    f"The donated argument {i} ({args[i].spec}) shares memory with {what} ({other.spec}); pass a clone() of one."
                )


def _to_source(simple: Simplified, custom: Applied, blocked: Applied) -> Callable[[Node], Node]:
    """Return the function from a node that the fuser read to the node of the source graph with the same value."""
    origins = blocked.origin, custom.origin, simple.origin

    def to_source(n: Node) -> Node:
        for origin in origins:
            n = origin.get(n, n)
        return n

    return to_source


def _namer(
    source: Mapping[Node, str], origin: dict[Node, Node], to_source: Callable[[Node], Node], fused: Fused
) -> Callable[[], dict[Node, str]]:
    """Return a function that finds the names of an optimised graph: those of the nodes that its nodes replace."""
    before = dict(fused.origin)
    groups = {n: o.nodes for o in fused.opportunities if not o.reason for n in o.nodes}

    def find() -> dict[Node, str]:
        names = dict(source)
        for new, old in origin.items():
            call = new.inputs[0] if new.op is ops.item and new.inputs[0] is not None else new
            parts = groups.get(before.get(new, new), ()) if call.op is ops.fused else ()
            name = join_names(source.get(to_source(n), "") for n in parts) or source.get(old, "")
            if name:
                names[new] = names[call] = name
        return names

    return find


def join_names(names: Iterable[str]) -> str:
    """Return the names of several nodes as one, without the scopes that others are in."""
    known = dict.fromkeys(name for name in names if name)
    return ", ".join(n for n in known if not any(other.startswith(f"{n}/") for other in known))


# ---- verify


def verify(p: Program, args: tuple[Any, ...]) -> None:
    """Compare every node of the optimised graph with the source graph, on the source graph's values, in order.

    Then compare the results of the native program with those of its nodes one by one.
    """
    check_arguments(p.source, args)
    origin = p.origin
    token = interpreter.set(None)
    try:
        plain = _plain_values(p.source, args, p.backend.device)
        values: dict[Node, Any] = {}
        for n in p.graph.order():
            old = origin.get(n)
            known = n.op is ops.given
            value = (
                _input_value(p, n, args).contiguous()
                if known
                else run_node(n, [_lookup(values, i) for i in n.inputs], p.backend.device)
            )
            if not known and old in plain and isinstance(n.spec, Spec):
                compare(plain[old], value, old, n)
            values[n] = plain[old] if old in plain and isinstance(n.spec, Spec) else value
        _verify_whole(p, args)
    finally:
        interpreter.reset(token)


def _lookup(values: dict[Node, Any], i: Node | None) -> Any:
    return None if i is None else values[i]


def _input_value(p: Program, n: Node, args: tuple[Any, ...]) -> Tensor:
    return p.graph.captured[n] if n in p.graph.captured else args[p.graph.inputs.index(n)]


def _copy_strided(x: Tensor) -> Tensor:
    """Return a copy with the same strides: a program is compiled for a layout."""
    if x.is_contiguous() or x.dtype.is_packed or 0 in x.strides:
        return ops.copy(x)
    need = sum((n - 1) * abs(s) for n, s in zip(x.shape, x.strides, strict=True)) + 1
    first = sum(-(n - 1) * s for n, s in zip(x.shape, x.strides, strict=True) if s < 0)
    base = ops.empty((need,), dtype=x.dtype, device=x.device)
    strided = Tensor(base.storage, x.dtype, x.shape, x.strides, first)
    return ops.copy(x, out=strided)


def _verify_whole(p: Program, args: tuple[Any, ...]) -> None:
    """Raise unless the native program returns the same bits as its nodes one by one, donated arguments included."""
    if p.native is None:
        return
    mine, theirs = ([_copy_strided(x) for x in args] for _ in range(2))
    got, want = p.native(*mine), p.graph(*theirs)
    if got is None:  # an argument with stride 0 has no copy of the same layout
        return
    pairs = zip(*((r,) if isinstance(r, Tensor) else r for r in (want, got)), strict=True)
    written = ((theirs[i], mine[i]) for i, _ in p.graph.writes)
    for k, (a, b) in enumerate((*pairs, *written)):
        compare_tensors(a, b, f"verify: result {k} of the planned program", 0)


def _plain_values(graph: Graph, args: tuple[Any, ...], device: Any) -> dict[Node, Any]:
    """Compute every value of the source graph, as contiguous tensors: a sum over strided memory may add in another order."""
    inputs = dict(graph.captured) | dict(zip(graph.inputs, args, strict=True))
    values: dict[Node, Any] = {}
    for n in graph.order():
        value = inputs[n] if n in inputs else run_node(n, [_lookup(values, i) for i in n.inputs], device)
        values[n] = value if isinstance(value, tuple) else value.contiguous()
    return values


def compare(want: Tensor, got: Tensor, old: Node, new: Node) -> None:
    """Raise unless two values are equal, or as close as their ops guarantee; the error names the node."""
    compare_tensors(want, got, f"verify: {new!r}, which replaces {old!r},", tolerance(new, old))


def compare_tensors(want: Tensor, got: Tensor, who: str, ulps: float) -> None:
    """Raise if the result of a replacement differs from that of the ops as written by more than so many ulps."""
    if want.spec != got.spec:
        raise VerifyError(f"{who} returns {got.spec} where the ops as written return {want.spec}.")
    a, b = want._host(), got._host()
    if bool(((a == b) | ((a != a) & (b != b))).all()):
        return
    with np.errstate(all="ignore"):
        expected, actual = a.astype("f8"), b.astype("f8")
        limit = ulps * _epsilon(want) * max(1.0, float(abs(expected[np.isfinite(expected)]).max(initial=0.0)))
        wrong = ~(
            (abs(expected - actual) <= limit) | (expected == actual) | ((expected != expected) & (actual != actual))
        )
    if wrong.any():
        index = tuple(int(i[0]) for i in wrong.nonzero())
        raise VerifyError(
            f"{who} differs from the ops as written: at {list(index)} it is {actual[index]:.9g} instead of "
            f"{expected[index]:.9g} (allowed: {limit:.3g})."
        )


def _epsilon(x: Tensor) -> float:
    return float(dt.finfo(x.dtype).eps) if x.dtype.is_float else 0.0


def tolerance(new: Node, old: Node) -> float:
    """Return the tolerance in ulps: the sum over the ops that computed the value."""
    if new.op is ops.fused or new.op is ops.item:
        body = dict(new.inputs[0].attrs if new.op is ops.item and new.inputs[0] else new.attrs).get("body")
        return sum(s.op.ulps for s in body.steps) if body is not None else old.op.ulps
    return max(new.op.ulps, old.op.ulps)


# ---- explain


def explanation(p: Program) -> list[str]:
    """Return the lines of Program.explain."""
    lines = [f"{len(p.source.calls())} calls written, {p.launches} run, {sized(p.bytes_moved)} moved"]
    if p.steps is not None:
        lines.append(
            f"memory: arena {sized(p.arena_bytes)}, {sized(p.naive_bytes)} without sharing, at least "
            f"{sized(p.lower_bound_bytes)}"
        )
    lines.append(_way_it_runs(p) + (", with steps in Python:" if p.steps is not None and p.steps.python else ""))
    if p.steps is not None:
        lines += [f"  {reason}" for reason in dict.fromkeys(p.steps.python.values())]
    if p.varying:
        lines.append(p.varying)
    if p.disabled:
        lines.append(f"disabled: {', '.join(name for name in PASSES if name in p.disabled)}")
    for title, applied in (("applied", True), ("not applied", False)):
        notes = [n for n in p.notes if n.applied is applied]
        lines += [f"{title}:"] if notes else []
        lines += [f"  {n.what}: {n.node}: {n.why}" for n in notes]
    return lines


def _way_it_runs(p: Program) -> str:
    """Return how a program runs: natively, by the device's own compiler, or node by node and why."""
    if p.steps is not None:
        return "runs as one native call"
    if isinstance(p.backend, ValueBackend) and p.foreign is not None:
        why = p.foreign.alone
        return f"runs call by call: {why}" if why else f"runs as one call of {p.backend.compiler}"
    return f"runs node by node: {p.why_not_native}"


def sized(n: float) -> str:
    """Return a number of bytes with a unit, such as 1.5 MB."""
    for unit in ("B", "KB", "MB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.2f} GB"
