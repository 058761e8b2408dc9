"""Ranks as threads of one process, which exchange arrays through a board: what torch.distributed does, without it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from tritium.parallel import Group

LIMIT_S = 30.0


class Board:
    """Where all ranks put an array, and read those of the others."""

    def __init__(self, ranks: int) -> None:
        self.ranks, self.slots = ranks, [np.zeros(0)] * ranks
        self.barrier = threading.Barrier(ranks, timeout=LIMIT_S)
        self.exchanges = 0

    def exchange(self, rank: int, numbers: np.ndarray) -> list[np.ndarray]:
        self.slots[rank] = numbers.copy()
        self.wait()
        every = list(self.slots)
        self.wait()
        if rank == 0:
            self.exchanges += 1
        return every

    def wait(self) -> None:
        try:
            self.barrier.wait()
        except threading.BrokenBarrierError:
            raise RuntimeError("a thread is gone") from None


class ThreadGroup(Group):
    """A group whose ranks are threads."""

    def __init__(self, board: Board, rank: int) -> None:
        self.board, self.rank, self.ranks = board, rank, board.ranks
        self.lock, self._failure, self._exchanging, self._terminated = threading.RLock(), "", 0, False
        self._watch, self._buffers, self.on_failure = None, {}, lambda message: None

    def broadcast(self, numbers: np.ndarray) -> np.ndarray:
        with self._exchange("a broadcast"):
            numbers[:] = self.board.exchange(self.rank, numbers)[0]
        return numbers

    def gather(self, part: np.ndarray, sizes: list[int]) -> np.ndarray:
        with self._exchange("gathering"):
            every = self.board.exchange(self.rank, part)
        assert [a.shape[-1] for a in every] == sizes
        return np.concatenate(every, axis=-1)

    def merge(self, numbers: np.ndarray) -> np.ndarray:
        with self._exchange("adding"):
            every = self.board.exchange(self.rank, numbers)
        return np.sum([a.view(np.int32) for a in every], axis=0, dtype=np.int32).view(np.float32)

    def least(self, number: int) -> int:
        with self._exchange("a minimum"):
            return min(int(a) for a in self.board.exchange(self.rank, np.array(number)))


def run_ranks(ranks: int, body: Callable[[Group], Any]) -> list[Any]:
    """Return what each rank returns; raise the first error that is not about a thread that is gone."""
    board = Board(ranks)

    def one(rank: int) -> Any:
        try:
            return body(ThreadGroup(board, rank))
        except BaseException as error:
            board.barrier.abort()
            return error

    with ThreadPoolExecutor(ranks) as pool:
        results = list(pool.map(one, range(ranks)))
    errors = [r for r in results if isinstance(r, BaseException)]
    for error in sorted(errors, key=lambda e: "a thread is gone" in str(e)):
        raise error
    return results
