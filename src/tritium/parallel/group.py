"""The processes that share a model: their ranks, what they exchange, and what is raised when one of them is gone.

All sums and pieces keep their bits: floats are gathered or added as integers of which all but one are zero. No wait is without end:
a collective has a limit, and signs of life tell which rank an error is about.
"""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import RLock
from typing import Any, NoReturn

import numpy as np

from tritium.arguments import checked
from tritium.errors import ArgumentError, PackageError, RankError, install_command, shown
from tritium.escape import visible
from tritium.parallel.watch import LOST_S, Watch
from tritium.threads import get_num_threads, set_num_threads

Array = np.ndarray[Any, np.dtype[Any]]
LIMIT_S = 20.0  # the longest that a rank waits for another within a step
LOAD_S = 1800.0  # and for one that is alive and reads its part of a model
START_S = 60.0  # and for all to be started


class Group:
    """Processes that share a model, each with a rank from 0 on; rank 0 leads.

    mesh: a DeviceMesh with one axis or a process group of torch.distributed, of CPUs. limit_s: the longest that a rank waits for
    another within a step before it raises.
    """

    def __init__(self, mesh: Any, *, limit_s: float = LIMIT_S) -> None:
        dist = distributed()
        if not limit_s > 0:
            raise ArgumentError(f"Group: limit_s must be seconds above 0, given {limit_s!r}.")
        self._dist, process_group = dist, _process_group(mesh, dist)
        self.rank, self.ranks = dist.get_rank(process_group), dist.get_world_size(process_group)
        if dist.get_backend(process_group) != "gloo":
            raise ArgumentError(
                f"Group: the backend {dist.get_backend(process_group)!r} was given, and ranks exchange numbers on CPUs; "
                "init_process_group('gloo'), or a DeviceMesh of 'cpu', is needed."
            )
        members = dist.get_process_group_ranks(process_group)
        # With a limit of its own; of a part of a larger mesh, only its members take part in making it.
        limit = timedelta(seconds=limit_s)
        self._group = dist.new_group(members, timeout=limit, backend="gloo", use_local_synchronization=True)
        self._first = members[0]
        self.lock = RLock()  # one exchange at a time
        self._failure, self._exchanging, self._terminated = "", 0, False
        self.on_failure: Callable[[str], None] = lambda message: None
        self._buffers: dict[tuple[int, Any], Any] = {}
        self._number = 0
        self._watch: Watch | None = None
        if self.ranks > 1:
            self._watch = Watch(self._store(), self.rank, self.ranks)
        atexit.register(self.close)

    def __repr__(self) -> str:
        return f"<rank {self.rank} of {self.ranks}>"

    def _store(self) -> Any:
        """Return a store that rank 0 holds, at a port that it tells the others."""
        dist, address = self._dist, os.environ.get("MASTER_ADDR", "127.0.0.1")
        options = {"world_size": self.ranks, "wait_for_workers": False}
        port = np.zeros(1, np.int64)
        if self.rank == 0:
            store = dist.TCPStore(address, 0, is_master=True, timeout=timedelta(seconds=LOST_S), **options)
            port[0] = store.port
        self.broadcast(port)
        if self.rank == 0:
            return store
        return dist.TCPStore(address, int(port[0]), is_master=False, timeout=timedelta(seconds=LOST_S), **options)

    # ---- failure

    @contextmanager
    def _exchange(self, what: str) -> Iterator[None]:
        """Raise an error that names the rank where an exchange fails, now and ever after."""
        with self.lock:
            if self._failure:
                raise RankError(self._failure)
            if self._watch is not None and self._watch.orphaned:
                self._fail("torchrun, which started it, has ended", [])
            self._exchanging += 1
            try:
                yield
            except RuntimeError as error:
                if isinstance(error, RankError):
                    raise
                lost = [] if self._watch is None else self._watch.find_lost()
                self._fail(f"{what} failed: {_reason(error)}", lost)
            finally:
                self._exchanging -= 1
        if self._terminated:
            raise SystemExit(143)

    def _fail(self, what: str, lost: list[int]) -> NoReturn:
        named = f"rank{'s' * (len(lost) > 1)} {', '.join(map(str, lost))} of {self.ranks}"
        subject = (
            f"{named} {'are' if len(lost) > 1 else 'is'} gone or stopped" if lost else "no rank is known to be gone"
        )
        self.break_off(f"{subject} ({what})")
        raise RankError(self._failure)

    @property
    def has_failed(self) -> bool:
        """Return True if a rank is gone: nothing can be exchanged any more."""
        return bool(self._failure)

    def check(self) -> None:
        """Raise if a rank is gone."""
        if self._failure:
            raise RankError(self._failure)

    # ---- exchanges

    def broadcast(self, numbers: Array) -> Array:
        """Give all ranks the numbers of rank 0, in place."""
        if self.ranks > 1:
            with self._exchange("a broadcast"):
                self._dist.broadcast(_tensor(numbers), src=self._first, group=self._group)
        return numbers

    def gather(self, part: Array, sizes: list[int]) -> Array:
        """Return the parts of all ranks side by side along the last axis; sizes: the columns of each rank's part."""
        if self.ranks == 1:
            return part
        rows, widest = part.size // max(part.shape[-1], 1), max(sizes)
        sent, every = self._room(rows * widest, part.dtype), self._room(rows * widest * self.ranks, part.dtype)
        sent[: part.size] = part.reshape(-1)
        blocks = every.reshape(self.ranks, rows * widest)
        with self._exchange("gathering"):
            self._dist.all_gather([_tensor(b) for b in blocks], _tensor(sent), group=self._group)
        whole = np.concatenate([b[: rows * n].reshape(rows, n) for b, n in zip(blocks, sizes, strict=True)], axis=1)
        return whole.reshape(*part.shape[:-1], sum(sizes))

    def _room(self, count: int, dtype: Any) -> Array:
        key = count, dtype
        if key not in self._buffers:
            self._buffers[key] = np.zeros(count, dtype)
        room: Array = self._buffers[key]
        return room

    def merge(self, numbers: Array) -> Array:
        """Return the f32 numbers that exactly one rank has, zeros in all others: their bits, also those of -0."""
        if self.ranks == 1:
            return numbers
        bits = np.ascontiguousarray(numbers, np.float32).view(np.int32)
        with self._exchange("adding"):
            self._dist.all_reduce(_tensor(bits), group=self._group)
        return bits.view(np.float32)

    def least(self, number: int) -> int:
        """Return the smallest of a number of each rank."""
        smallest = np.array([number], np.int64)
        if self.ranks > 1:
            with self._exchange("a minimum"):
                self._dist.all_reduce(_tensor(smallest), op=self._dist.ReduceOp.MIN, group=self._group)
        return int(smallest[0])

    def wait_for_all(self) -> None:
        """Wait until every rank is here, however long the ones that are alive take to read their parts."""
        if self._watch is None:
            return
        self._number += 1
        with self._exchange("waiting for all ranks"):
            self._watch.wait_for_all(
                f"ready {self._number}", LOAD_S, lambda lost: self._fail("before it was ready", lost)
            )

    def break_off(self, why: str) -> None:
        """Mark the group as failed: what was under way was left in the middle, and no rank knows where the others are."""
        if not self._failure:
            self._failure = f"Rank {self.rank}: {why}. Start all ranks again."
            self.on_failure(self._failure)

    def terminate(self) -> None:
        """End the process as SIGTERM asks, but not before an exchange that is failing has named the rank that is gone."""
        if not self._exchanging:
            raise SystemExit(143)
        self._terminated = True

    def close(self) -> None:
        """End the signs of life of this rank."""
        if self._watch is not None:
            self._watch.close()


def distributed() -> Any:
    """Return torch.distributed; raise where PyTorch is not installed or was built without it."""
    os.environ.setdefault(
        "TORCH_CPP_LOG_LEVEL", "ERROR"
    )  # else a lost connection is pages of C++ frames beside our error
    try:
        import torch.distributed as dist
    except ImportError as error:
        raise PackageError(
            f"parallel: PyTorch, whose torch.distributed starts and connects ranks, is not installed; {install_command('torch')}."
        ) from error
    if not dist.is_available():
        raise PackageError("parallel: this build of PyTorch has no torch.distributed; install another.")
    return dist


def _reason(error: RuntimeError) -> str:
    """Return the first sentence of an error of gloo, without the line of its source."""
    text = visible(str(error).partition("\n")[0])
    return re.sub(r"^\[[^]]*\] *", "", text).partition(". ")[0][:200]


def _tensor(numbers: Array) -> Any:
    import torch

    return torch.from_numpy(numbers)


def _process_group(mesh: Any, dist: Any) -> Any:
    """Return the process group of a mesh with one axis, or the one given."""
    if not dist.is_initialized():
        raise ArgumentError(
            "Group: torch.distributed has no processes yet; call tritium.parallel.join(), or init_process_group first."
        )
    if isinstance(mesh, dist.ProcessGroup):
        return mesh
    if not isinstance(mesh, dist.DeviceMesh):
        raise ArgumentError(f"parallel: a Group, a DeviceMesh or a process group is needed, given {shown(mesh)}.")
    if mesh.ndim != 1 or mesh.device_type != "cpu":
        raise ArgumentError(
            f"parallel: a mesh of CPUs with one axis is needed, given {mesh.device_type} with {mesh.ndim} axes."
        )
    return mesh.get_group()


def is_started() -> bool:
    """Return True if torchrun started this process as one of several."""
    return os.environ.get("WORLD_SIZE", "1") not in ("", "1") and "RANK" in os.environ


_joined: list[Group] = []  # the one group of the environment


@checked
def join(*, limit_s: float = LIMIT_S) -> Group:
    """Return the group of all processes that torchrun started; they share the cores of a machine.

    limit_s: the longest that a rank waits for another within a step before it raises."""
    if _joined:
        return _joined[0]
    dist = distributed()
    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing and not dist.is_initialized():
        raise ArgumentError(
            f"parallel.join: {', '.join(missing)} are not set; start the program with torchrun --nproc-per-node N, which sets them."
        )
    if not dist.is_initialized():
        dist.init_process_group("gloo", timeout=timedelta(seconds=max(limit_s, START_S)))
    neighbours = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if neighbours > 1:
        set_num_threads(max(get_num_threads() // neighbours, 1))
    _joined.append(Group(dist.group.WORLD, limit_s=limit_s))
    return _joined[0]


def as_group(parallel: Any) -> Group:
    """Return the group that an argument `parallel` means: a Group, a mesh or process group, or True for all that torchrun started."""
    if isinstance(parallel, Group):
        return parallel
    return join() if parallel is True else Group(parallel)
