"""Programs as CUDA graphs: captured for the memory they read and write, then replayed without Python between their calls.

Knows nothing of rows or tensors of ours. What arguments become, results and what is doubtful are settled at a graph's end, in one
launch where they are small. There are two ways. By copies: new arguments are copied into the graph's own memory, and
results out of it; this serves any arguments. Directly: where the arguments lie as they lay at the last call, a graph is captured
that reads them there, and hands out memory of its own while nobody holds what it handed out before. Where copies would take longer
than launches, a program runs as it is.
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
    """Whether what is launched now goes into a graph of a program, or rehearses it: nothing else is in that graph, and all that was
    launched before has ended when it runs. What a rehearsal computes nobody reads."""
    return getattr(_now, "capturing", False)


def in_graph() -> bool:
    """Whether what is launched now goes into any graph, or rehearses it."""
    return in_own_graph() or torch.cuda.is_current_stream_capturing()


KEPT = 8  # captures of one program: each is for other memory
COPIED = 1 << 25  # bytes that are copied in about the time in which the host launches a call
LARGE = "its results are so large that to copy them would take longer than to launch each call"


@lru_cache(maxsize=1)
def _settle() -> Callable[..., None] | None:
    """The kernel that ends a program; None: Triton is not installed."""
    if find_spec("triton") is None:
        return None
    found: Callable[..., None] = import_module("tritium.backends.cuda.doubts").settle
    return found


class Flags(NamedTuple):
    """What a graph finds doubtful, where the host can read it after any wait. What was found stays found until it is told."""

    doubts: list[Doubt]
    there: torch.Tensor  # as found so far, where no kernel writes to the host by itself
    here: torch.Tensor  # pinned

    def join(self, bad: Sequence[torch.Tensor]) -> None:
        """What is doubtful now joins what was found before, where no kernel of ours does it."""
        self.there.logical_or_(torch.stack([b.any() for b in bad]))
        self.here.copy_(self.there, non_blocking=True)

    def clear(self) -> None:
        """Forget what was found."""
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
    """The operands whose addresses stand in a graph. They are not kept alive: a graph is replayed only where they are given."""

    def __init__(self, values: Sequence[torch.Tensor]) -> None:
        self._refs = [weakref.ref(v) for v in values]
        self._lie = [_place(v) for v in values]

    def are(self, values: Sequence[torch.Tensor]) -> bool:
        """Whether these are the same, or lie where those lay."""
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
    """A graph for arguments that lie where they lay, and the memory it hands out. It knows nothing of the function."""

    def __init__(self, graphs: Graphs, graph: Graph, handed: list[torch.Tensor]) -> None:
        self.graph = graph
        self._graphs, self._handed = graphs, handed
        self._held = [x.untyped_storage()._cdata for x in handed]
        self._count = torch._C._storage_Use_Count
        self._alone = list(map(self._count, self._held))

    def again(self) -> tuple[torch.Tensor, ...] | None:
        """Replay it; None: someone holds what was handed out before, or another graph is being captured."""
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
    """All graphs of one device. They share their memory, so those on different streams wait for each other."""

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
        """Before a replay: what ran on another stream comes first."""
        now = torch._C._cuda_getCurrentRawStream(self.place.index)
        if now != self._raw:
            stream = torch.cuda.current_stream(self.place)
            if self._last is not None:
                stream.wait_stream(self._last)
            self._raw, self._last = now, stream

    def renew(self) -> None:
        """After a capture that broke off torch takes its stream and its pool for still in use: others serve from now on."""
        self.side, self.pool, self._kept = None, None, [*self._kept, self._first]
        self._first = torch.cuda.CUDAGraph()

    def begin(self) -> Any:
        """The stream to capture on, and memory for it."""
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
    """One function, captured for each set of memory it meets."""

    def __init__(self, graphs: Graphs, run: Callable[..., list[Any]], form: Form) -> None:
        self._graphs, self._run, self._form = graphs, run, form
        self._copied = [i for i in range(form.arguments) if i not in form.written]
        self._kept: list[Graph] = []  # by copies; the last used at the end
        self.direct: Direct | None = None
        self._directs = 0  # that were made
        self._before: Baked | None = None  # the operands of the last call that was not direct
        self._most = COPIED * form.calls
        self.alone = LARGE if form.nbytes > self._most else ""  # why it is not captured

    def __call__(self, *values: torch.Tensor) -> list[Any]:
        if self.alone or torch.cuda.is_current_stream_capturing():
            return self._as_it_is(values)
        with self._graphs.lock:
            direct = self.direct
            if direct is not None and direct.graph.baked.are(values):
                found = direct.again()
                if found is not None:
                    return [*found, *(values[i] for i in self._form.written)]
            return self._by_copies(values)

    def _by_copies(self, values: tuple[torch.Tensor, ...]) -> list[Any]:
        form, graphs = self._form, self._graphs
        given = [values[i] for i in self._copied]
        written = [values[i] for i in form.written]
        baked = [*written, *values[form.arguments :]]
        more = self._directs < KEPT  # that may be captured
        same = more and self._before is not None and self._before.are(values)
        if sum(v.nbytes for v in given) > self._most:
            return self._uncopied(values, same, more)
        graph = self._find(baked)
        if graph is None:
            graph = self._capture(
                values, [torch.empty_like(v, memory_format=torch.contiguous_format) for v in given], baked
            )
            if graph is None:
                return self._as_it_is(values)
            self._keep(graph)
        elif same:
            self._make_direct(values)
        if more and not same:
            self._before = Baked(values)
        graphs.order()
        if given:
            torch._foreach_copy_(graph.copied, given, non_blocking=True)
        graph.replay()
        results = [r.clone() for r in graph.results]
        return [*results, *written]

    def _uncopied(self, values: tuple[torch.Tensor, ...], same: bool, more: bool) -> list[Any]:
        """Large arguments that lie elsewhere than at the last call: as it is; from the next call on directly, if they stay."""
        if same:
            self._make_direct(values)
        elif more:
            self._before = Baked(values)
        return self._as_it_is(values)

    def _as_it_is(self, values: Sequence[torch.Tensor]) -> list[Any]:
        """Call by call. Results and what arguments become are memory of their own here too: what lies in an operand, or in another
        of them, is copied."""
        found, form = self._run(*values), self._form
        taken = {v.untyped_storage().data_ptr() for i, v in enumerate(values) if i not in form.written}

        def own(value: torch.Tensor, at: torch.Tensor | None = None) -> torch.Tensor:
            memory = value.untyped_storage().data_ptr()
            shared = memory in taken and value is not at
            taken.add(memory)
            return value.clone() if shared else value

        end = form.results + len(form.written)
        become = [own(v, values[i]) for i, v in zip(form.written, found[form.results : end], strict=True)]
        return [*map(own, found[: form.results]), *become, *found[end:]]

    def _find(self, baked: Sequence[torch.Tensor]) -> Graph | None:
        """The capture for this memory."""
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
        """From the next call on, if the arguments still lie there."""
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
        """None: something in the function cannot be captured, and `alone` says what. Results go to new memory in `handed`."""
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
            found = self._run_for_graph(tried)  # compiles and loads kernels, and fills caches: a capture may do neither
            flags = self._flags_for(form.doubts())
            if handed is not None:
                handed += [torch.empty_like(r, memory_format=torch.contiguous_format) for r in found[: form.results]]
            self._end(found, tried, handed or (), flags)
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
        self, found: list[Any], stands: Sequence[torch.Tensor], handed: Sequence[torch.Tensor], flags: Flags | None
    ) -> list[torch.Tensor]:  # fmt: skip
        """The results, which go to `handed` too. Written arguments go to their own memory; what is doubtful joins what was found
        before."""
        form = self._form
        new = [(stands[i], v) for i, v in zip(form.written, found[form.results :], strict=False) if v is not stands[i]]
        over = {to.untyped_storage().data_ptr() for to, _ in new}

        def kept(value: torch.Tensor) -> torch.Tensor:
            """What does not lie where something is written now."""
            return value.clone() if value.untyped_storage().data_ptr() in over else value

        results = [kept(r) for r in found[: form.results]]
        copies = [*((to, kept(v)) for to, v in new), *zip(handed, results, strict=False)]
        bad = (
            [] if flags is None else [kept(b) for b in found[form.results + len(form.written) + 1 :]]
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
