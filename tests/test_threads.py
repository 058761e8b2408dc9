"""Threads: how many, who may say so, and that several callers and a forked child get right results."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import threadpoolctl

import tritium as tt
from tritium import buffer
from tritium.errors import ArgumentError

needs_native = pytest.mark.skipif(buffer.native is None, reason="our own threads are in the native library")


@pytest.fixture(autouse=True)
def same_count_afterwards() -> Iterator[None]:
    count = tt.get_num_threads()
    yield
    tt.set_num_threads(count)


def test_the_number_set_is_the_number_got() -> None:
    for n in (1, 2, 1):
        tt.set_num_threads(n)
        assert tt.get_num_threads() == n


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "2", None])
def test_a_wrong_number_is_refused(wrong: Any) -> None:
    before = tt.get_num_threads()
    with pytest.raises(ArgumentError, match=r"is not a number of threads; give 1 or more"):
        tt.set_num_threads(wrong)
    assert tt.get_num_threads() == before


@needs_native
def test_threadpoolctl_sees_us() -> None:
    ours = [lib for lib in threadpoolctl.threadpool_info() if lib["internal_api"] == "tritium"]
    assert len(ours) == 1
    assert ours[0]["num_threads"] == tt.get_num_threads()


@needs_native
def test_threadpoolctl_limits_reach_us_and_end() -> None:
    tt.set_num_threads(2)
    with threadpoolctl.threadpool_limits(limits=1):
        assert tt.get_num_threads() == 1
    assert tt.get_num_threads() == 2


@needs_native
@pytest.mark.parametrize("variable", ["TRITIUM_NUM_THREADS", "OMP_NUM_THREADS"])
def test_the_environment_names_the_number(variable: str) -> None:
    code = "import tritium as tt; print(tt.get_num_threads())"
    env = {k: v for k, v in os.environ.items() if k not in ("TRITIUM_NUM_THREADS", "OMP_NUM_THREADS")} | {variable: "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=60, check=True)
    assert done.stdout == "1\n"


def work(seed: int) -> list[Any]:
    """Something of every family, large enough to be split over threads."""
    x = tt.rand((200, 300), seed=seed)
    y = tt.rand((300, 200), seed=seed + 1)
    z = tt.softmax(x @ y, axis=-1)
    z += z.T
    return [
        tt.sum(z, axis=0),
        tt.exp(x).mean(axis=1),
        tt.layer_norm(y.T),
        (x * 2 - 1).T.reshape(-1),
        tt.argmax(x, axis=1),
    ]


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_results_do_not_depend_on_the_number_of_threads(threads: int) -> None:
    tt.set_num_threads(1)
    want = work(7)
    tt.set_num_threads(threads)
    for got, w in zip(work(7), want, strict=True):
        np.testing.assert_allclose(got.numpy(), w.numpy(), rtol=1e-5, atol=1e-6)


def at_once(act: Callable[[int], None], count: int) -> None:
    failed: list[BaseException] = []
    gate = threading.Barrier(count)

    def run(i: int) -> None:
        gate.wait()
        try:
            act(i)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(timeout=60)
    assert not any(t.is_alive() for t in threads), "a thread hangs"
    if failed:
        raise failed[0]


def test_eight_threads_at_once_get_right_results() -> None:
    want = {i: work(i) for i in range(8)}

    def act(i: int) -> None:
        for k in range(5):
            seed = (i + k) % 8
            for got, w in zip(work(seed), want[seed], strict=True):
                np.testing.assert_allclose(got.numpy(), w.numpy(), rtol=1e-5, atol=1e-6)

    at_once(act, 8)


def test_a_thread_traces_while_another_computes() -> None:
    def act(i: int) -> None:
        for _ in range(50):
            if i % 2:
                graph = tt.trace(lambda x: x * 2.0 + 1.0, tt.Spec((3,)))
                assert len(graph.order()) == 5
            else:
                assert (tt.ones(3) * 2 + 1).tolist() == [3, 3, 3]

    at_once(act, 8)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_computes_right_results() -> None:
    want = [w.numpy().copy() for w in work(3)]  # the parent's threads exist by now
    child = os.fork()
    if child == 0:
        code = 1
        try:
            good = [
                np.allclose(g.numpy(), w, rtol=1e-5, atol=1e-6)
                for _ in range(3)
                for g, w in zip(work(3), want * 1, strict=True)
            ]
            tt.set_num_threads(2)
            code = 0 if all(good) and (tt.ones(100_000) + 1).sum().item() == 200_000 else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    for got, w in zip(work(3), want, strict=True):
        np.testing.assert_allclose(got.numpy(), w, rtol=1e-5, atol=1e-6)


def test_the_interpreter_exits_after_work() -> None:
    code = (
        "import tritium as tt; tt.set_num_threads(2); print((tt.ones((500, 500)) @ tt.ones((500, 500))).sum().item())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "125000000.0\n"), done.stderr


@needs_native
def test_kernels_run_without_the_lock_of_the_interpreter() -> None:
    """Without switches by time, another thread can only run where the kernel lets go of the interpreter."""
    x, log = tt.ones((1500, 1500)), list[str]()

    def multiply() -> None:
        log.append("begin")
        tt.matmul(x, x, out=out)
        log.append("end")

    out = tt.empty((1500, 1500))
    tt.matmul(x, x, out=out)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        for _ in range(20):
            log.clear()
            worker = threading.Thread(target=multiply)
            worker.start()
            while not log:
                time.sleep(0)
            seen = list(log)
            worker.join()
            if seen == ["begin"]:
                return
    finally:
        sys.setswitchinterval(interval)
    pytest.fail("no other thread ran during 20 products")
