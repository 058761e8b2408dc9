"""Programs as CUDA graphs: captured for the memory they read and write, then replayed without Python between their
calls.

Written arguments, results and deferred checks are settled at a graph's end, in one launch where they are small. There
are two ways. By copies: new arguments are copied into the graph's own memory, and results out of it; this serves any
arguments. Directly: where the arguments have the same addresses as at the last call, a graph is captured that reads
them there, and returns memory of its own while nobody holds what it returned before. Where copies would take longer
than launches, a program runs without a graph.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from operator import call, is_
from typing import Any, NamedTuple

import torch

from tritium import settings
from tritium.backends.values.device import Doubt, Form
from tritium.garbage import no_collections

_now = threading.local()


def in_own_graph() -> bool:
    """Return True if launches go into the graph of a program, or into its warm-up run.

    Nothing else is in that graph, and all earlier work has ended when it runs. Nobody reads what a warm-up run
    computes.
    """
    return getattr(_now, "capturing", False)


def in_graph() -> bool:
    """Return True if launches go into any graph, or into its warm-up run."""
    return in_own_graph() or torch.cuda.is_current_stream_capturing()


KEPT = 8  # captures of one program: each is for other memory
COPIED = 1 << 25  # bytes that are copied in about the time in which the host launches a call
LARGE = "its results are so large that to copy them would take longer than to launch each call"


@lru_cache(maxsize=1)
def _settle() -> Callable[..., None] | None:
    """Return the function that ends a program, or None if Triton is not installed."""
    if find_spec("triton") is None:
        return None
    settle: Callable[..., None] = import_module("tritium.backends.cuda.doubts").settle
    return settle


class Flags(NamedTuple):
    """The failed deferred checks of a graph, where the host can read them after any wait; they stay until raised."""

    doubts: list[Doubt]
    there: torch.Tensor  # flags so far, where no kernel writes to the host by itself
    here: torch.Tensor  # pinned

    def join(self, bad: Sequence[torch.Tensor]) -> None:
        """Add the checks that fail now to those that failed before, where no Triton kernel does it."""
        self.there.logical_or_(torch.stack([b.any() for b in bad]))
        self.here.copy_(self.there, non_blocking=True)

    def clear(self) -> None:
        """Reset all flags."""
        self.there.zero_()
        torch.cuda.current_stream(self.there.device).synchronize()
        self.here.zero_()

    def raise_if_any(self) -> None:
        if bool(self.here.any()):
            first = int(self.here.nonzero()[0])
            self.clear()
            raise self.doubts[first].error(self.doubts[first].message)


def _place(x: torch.Tensor) -> tuple[Any, ...]:
    return x.data_ptr(), x.shape, x.stride(), x.dtype


class Baked:
    """The operands whose addresses are in a graph. They are not kept alive: a graph is replayed only for the same
    operands.
    """

    def __init__(self, values: Sequence[torch.Tensor]) -> None:
        self._refs = [weakref.ref(v) for v in values]
        self._lie = [_place(v) for v in values]

    def are(self, values: Sequence[torch.Tensor]) -> bool:
        """Return True if these are the same tensors, or have the same addresses and layouts."""
        if all(map(is_, map(call, self._refs), values)):
            return True
        if self._lie != [_place(v) for v in values]:
            return False
        self._refs = [weakref.ref(v) for v in values]
        return True


class Graph(NamedTuple):
    """One capture: the memory it was made for, and that of its own."""

    replay: Callable[[], None]
    baked: Baked
    copied: list[torch.Tensor]  # operands that are copied here before each replay
    results: list[torch.Tensor]
    flags: Flags | None


class Direct:
    """A graph for arguments at fixed addresses, and the memory it returns. It knows nothing of the function."""

    def __init__(self, graphs: Graphs, graph: Graph, handed: list[torch.Tensor]) -> None:
        self.graph = graph
        self._graphs, self._handed = graphs, handed
        self._held = [x.untyped_storage()._cdata for x in handed]
        self._count = torch._C._storage_Use_Count
        self._alone = list(map(self._count, self._held))

    def again(self) -> tuple[torch.Tensor, ...] | None:
        """Replay it; None if earlier results are still held, or another graph is being captured."""
        graphs = self._graphs
        if list(map(self._count, self._held)) != self._alone or not graphs.lock.acquire(False):
            return None
        try:
            graphs.order()
            self.graph.replay()
            return tuple([x.detach() for x in self._handed])
        finally:
            graphs.lock.release()


class Graphs:
    """All graphs of one device. They share their memory, so graphs on different streams wait for each other."""

    def __init__(self, place: torch.device) -> None:
        self.place = place
        self.lock = threading.RLock()
        self.pool: Any = None
        self.side: Any = None
        self._first = torch.cuda.CUDAGraph()
        self._kept: list[Any] = []  # of pools before: graphs in them still run
        self._raw = -1
        self._last: Any = None  # the stream on which a graph last ran
        self._flags: list[Flags] = []

    def program(self, run: Callable[..., list[Any]], form: Form) -> Captures:
        return Captures(self, run, form)

    def judge(self) -> None:
        """Raise what graphs that have run found; the caller has waited for them."""
        for flags in self._flags:
            flags.raise_if_any()

    def watch(self, flags: Flags | None) -> None:
        if flags is not None:
            self._flags.append(flags)

    def forget(self, flags: Flags | None) -> None:
        self._flags = [f for f in self._flags if f is not flags]

    def order(self) -> None:
        """Make the current stream wait for graphs that ran on another one; called before a replay."""
        now = torch._C._cuda_getCurrentRawStream(self.place.index)
        if now != self._raw:
            stream = torch.cuda.current_stream(self.place)
            if self._last is not None:
                stream.wait_stream(self._last)
            self._raw, self._last = now, stream

    def renew(self) -> None:
        """Take a new stream and pool: after a failed capture torch still counts the old ones as in use."""
        self.side, self.pool, self._kept = None, None, [*self._kept, self._first]
        self._first = torch.cuda.CUDAGraph()

    def begin(self) -> Any:
        """Return the stream to capture on, with a memory pool for it."""
        if self.side is None:
            self.side = torch.cuda.Stream(self.place)
            self.pool = torch.cuda.graph_pool_handle()
            with torch.cuda.stream(self.side):  # torch frees a pool with the last graph in it: this one stays
                torch.cuda.synchronize(self.place)
                self._first.capture_begin(pool=self.pool, capture_error_mode="thread_local")
                torch.zeros(1, device=self.place)
                self._first.capture_end()
        return self.side


class Captures:
    """One function, captured for each set of addresses it is called with."""

    def __init__(self, graphs: Graphs, run: Callable[..., list[Any]], form: Form) -> None:
        self._graphs, self._run, self._form = graphs, run, form
        self._copied = [i for i in range(form.arguments) if i not in form.written]
        self._kept: list[Graph] = []  # by copies; the last used at the end
        self.direct: Direct | None = None
        self._directs = 0  # captured so far
        self._before: Baked | None = None  # the operands of the last call that was not direct
        self._most = COPIED * form.calls
        self.alone = LARGE if form.nbytes > self._most else ""  # why it is not captured

    def __call__(self, *values: torch.Tensor) -> list[Any]:
        if self.alone or torch.cuda.is_current_stream_capturing():
            return self._as_it_is(values)
        with self._graphs.lock:
            direct = self.direct
            if direct is not None and direct.graph.baked.are(values):
                results = direct.again()
                if results is not None:
                    return [*results, *(values[i] for i in self._form.written)]
            return self._by_copies(values)

    def _by_copies(self, values: tuple[torch.Tensor, ...]) -> list[Any]:
        form, graphs = self._form, self._graphs
        arguments = [values[i] for i in self._copied]
        written = [values[i] for i in form.written]
        baked = [*written, *values[form.arguments :]]
        more = self._directs < KEPT  # that may be captured
        same = more and self._before is not None and self._before.are(values)
        if sum(v.nbytes for v in arguments) > self._most:
            return self._uncopied(values, same, more)
        graph = self._find(baked)
        if graph is None:
            graph = self._capture(
                values, [torch.empty_like(v, memory_format=torch.contiguous_format) for v in arguments], baked
            )
            if graph is None:
                return self._as_it_is(values)
            self._keep(graph)
        elif same:
            self._make_direct(values)
        if more and not same:
            self._before = Baked(values)
        graphs.order()
        if arguments:
            torch._foreach_copy_(graph.copied, arguments, non_blocking=True)
        graph.replay()
        results = [r.clone() for r in graph.results]
        return [*results, *written]

    def _uncopied(self, values: tuple[torch.Tensor, ...], same: bool, more: bool) -> list[Any]:
        """Run without a graph: large arguments at other addresses than at the last call.

        From the next call on they are read directly, if the addresses stay.
        """
        if same:
            self._make_direct(values)
        elif more:
            self._before = Baked(values)
        return self._as_it_is(values)

    def _as_it_is(self, values: Sequence[torch.Tensor]) -> list[Any]:
        """Run call by call, without a graph.

        Results and written arguments get memory of their own here too: what overlaps an operand, or another of them, is
        copied.
        """
        outputs, form = self._run(*values), self._form
        used = {v.untyped_storage().data_ptr() for i, v in enumerate(values) if i not in form.written}

        def own(value: torch.Tensor, place: torch.Tensor | None = None) -> torch.Tensor:
            memory = value.untyped_storage().data_ptr()
            shared = memory in used and value is not place
            used.add(memory)
            return value.clone() if shared else value

        end = form.results + len(form.written)
        become = [own(v, values[i]) for i, v in zip(form.written, outputs[form.results : end], strict=True)]
        return [*map(own, outputs[: form.results]), *become, *outputs[end:]]

    def _find(self, baked: Sequence[torch.Tensor]) -> Graph | None:
        """Return the capture for these addresses."""
        for k in range(len(self._kept) - 1, -1, -1):
            if self._kept[k].baked.are(baked):
                self._kept.append(self._kept.pop(k))
                return self._kept[-1]
        return None

    def _keep(self, graph: Graph) -> None:
        self._graphs.watch(graph.flags)
        self._kept.append(graph)
        while len(self._kept) > KEPT:
            self._graphs.forget(self._kept.pop(0).flags)

    def _make_direct(self, values: tuple[torch.Tensor, ...]) -> None:
        """Capture a graph for these addresses, used from the next call on."""
        handed: list[torch.Tensor] = []
        graph = self._capture(values, [], values, handed)
        if graph is None:  # the one by copies serves on
            self.alone, self._directs = "", KEPT
        else:
            if self.direct is not None:
                self._graphs.forget(self.direct.graph.flags)
            self._graphs.watch(graph.flags)
            self.direct = Direct(self._graphs, graph, handed)
            self._directs += 1

    def _capture(
        self, values: Sequence[torch.Tensor], copied: list[torch.Tensor], baked: Sequence[torch.Tensor],
        handed: list[torch.Tensor] | None = None,
    ) -> Graph | None:  # fmt: skip
        """Return a new graph, or None where something cannot be captured; `alone` then says what.

        Results go to new memory in `handed`.
        """
        graphs, form = self._graphs, self._form
        stands, tried = list(values), list(values)
        for i, v in zip(self._copied, copied, strict=False):
            stands[i] = tried[i] = v.copy_(values[i])
        for i in form.written:
            tried[i] = values[i].clone()
        stream, current = graphs.begin(), torch.cuda.current_stream(graphs.place)
        stream.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            outputs = self._run_for_graph(
                tried
            )  # compiles and loads kernels, and fills caches: a capture may do neither
            flags = self._flags_for(form.doubts())
            if handed is not None:
                handed += [torch.empty_like(r, memory_format=torch.contiguous_format) for r in outputs[: form.results]]
            self._end(outputs, tried, handed or (), flags)
            if flags is not None:
                flags.clear()
            stream.synchronize()
            try:
                with no_collections():  # to destroy another graph would break off a capture
                    graph.capture_begin(pool=graphs.pool, capture_error_mode="thread_local")
                    try:
                        results = self._end(self._run_for_graph(stands), stands, handed or (), flags)
                    finally:
                        graph.capture_end()
            except RuntimeError as error:
                self.alone = str(error).partition("\n")[0]
                settings.log.warning("%s: a program could not be captured: %s", graphs.place, self.alone)
                graphs.renew()
        current.wait_stream(stream)
        return None if self.alone else Graph(graph.replay, Baked(baked), copied, results, flags)

    def _run_for_graph(self, values: Sequence[torch.Tensor]) -> list[Any]:
        _now.capturing = True
        try:
            return self._run(*values)
        finally:
            _now.capturing = False

    def _flags_for(self, doubts: list[Doubt]) -> Flags | None:
        if not doubts:
            return None
        there = torch.zeros(len(doubts), dtype=torch.bool, device=self._graphs.place)
        here = torch.zeros(len(doubts), dtype=torch.bool, pin_memory=True)
        return Flags([d._replace(bad=None) for d in doubts], there, here)

    def _end(
        self, outputs: list[Any], stands: Sequence[torch.Tensor], handed: Sequence[torch.Tensor], flags: Flags | None
    ) -> list[torch.Tensor]:  # fmt: skip
        """Return the results, which are copied to `handed` too; write arguments back, and join deferred checks."""
        form = self._form
        new = [
            (stands[i], v) for i, v in zip(form.written, outputs[form.results :], strict=False) if v is not stands[i]
        ]
        over = {to.untyped_storage().data_ptr() for to, _ in new}

        def unshared(value: torch.Tensor) -> torch.Tensor:
            """Return a value that does not overlap memory written now."""
            return value.clone() if value.untyped_storage().data_ptr() in over else value

        results = [unshared(r) for r in outputs[: form.results]]
        copies = [*((to, unshared(v)) for to, v in new), *zip(handed, results, strict=False)]
        bad = (
            [] if flags is None else [unshared(b) for b in outputs[form.results + len(form.written) + 1 :]]
        )  # behind whether any is
        settle = _settle()
        if settle is not None:
            settle(copies, bad, None if flags is None else flags.here)
            return results
        for to, value in copies:
            to.copy_(value)
        if flags is not None:
            flags.join(bad)
        return results
