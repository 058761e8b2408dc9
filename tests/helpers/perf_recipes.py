"""Recipes the tests of the engine give to worker processes: good ones, and each kind of bad one."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from typing import Any

import numpy as np

from tritium.perf.records.case import Made, UnsupportedError


def add(candidate: str, *, n: int = 1000, extra: int = 0) -> Made:
    """A sum of two arrays; `extra` more of them for the candidate "slow"."""
    a, b = (np.random.default_rng(i).random(n, np.float32) for i in (1, 2))
    times = 1 + (extra if candidate == "slow" else 0)

    def call() -> Any:
        for _ in range(times):
            out = a + b
        return out

    return Made(call, answer=lambda x: x, expected=lambda: a.astype(np.float64) + b, tolerance=1e-6, facts={"n": n})


def wrong(candidate: str) -> Made:
    return Made(lambda: np.ones(4), answer=lambda x: x, expected=lambda: np.full(4, 1.5), tolerance=0.01)


def misshapen(candidate: str) -> Made:
    return Made(lambda: np.ones(4), answer=lambda x: x, expected=lambda: np.ones(5))


def unsupported(candidate: str) -> Made:
    if candidate != "tritium":
        raise UnsupportedError(f"{candidate} has no such operation")
    return add(candidate)


def raising(candidate: str) -> Made:
    raise ValueError("this recipe is broken")


def hanging(candidate: str) -> Made:
    return Made(lambda: time.sleep(3600))


def crashing(candidate: str) -> Made:
    return Made(lambda: ctypes.string_at(0))


def exiting(candidate: str) -> Made:
    return Made(lambda: os._exit(3))


def killed(candidate: str) -> Made:
    """What the system does when memory runs out."""
    return Made(lambda: os.kill(os.getpid(), signal.SIGKILL))


def bomb(candidate: str) -> Made:
    """Takes memory until it is refused."""
    held: list[Any] = []

    def call() -> None:
        while True:
            held.append(np.ones(1 << 27, np.uint8))

    return Made(call)


def loud(candidate: str) -> Made:
    os.write(1, b"a line on standard output that is not an answer\n")
    return add(candidate)


def telling_nan(candidate: str) -> Made:
    return Made(lambda: None, facts={"error": float("nan")})


def late(candidate: str, *, folder: str, after: int) -> Made:
    """Works in the first processes, crashes later: each process leaves a file."""
    seen = len(set(os.listdir(folder)) - {str(os.getpid())})
    open(os.path.join(folder, str(os.getpid())), "w").close()
    return crashing(candidate) if seen >= after else add(candidate)
