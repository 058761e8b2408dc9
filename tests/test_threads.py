"""Threads: how many, who may say so, and that several callers and a forked child get right results."""

from __future__ import annotations

import os
import signal
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


@needs_native
@pytest.mark.parametrize("threads", [2, 5, 16])
def test_many_short_jobs_lose_and_repeat_nothing(threads: int) -> None:
    """More threads than CPUs, jobs of every size, with pauses in which workers fall asleep; every element once."""
    tt.set_num_threads(threads)
    rng = np.random.default_rng(threads)
    numbers = rng.integers(-1000, 1000, 300_000).astype(np.int32)
    for i in range(60):
        n = int(rng.integers(1, numbers.size))
        part = tt.asarray(numbers[:n].copy())
        part += 1
        np.testing.assert_array_equal(part.numpy(), numbers[:n] + 1)
        if i % 10 == 0:
            time.sleep(0.002)
            tt.set_num_threads(1 + int(rng.integers(threads)))


@needs_native
def test_products_and_attention_keep_their_bits_on_any_number_of_threads() -> None:
    """Threads share rows of weights and parts of keys; the order of sums does not follow from how many there are."""
    rng = np.random.default_rng(0)
    layer = tt.nn.BitLinear.from_ternary(rng.integers(-1, 2, (1000, 640), dtype=np.int8), scale=0.5)
    x = tt.asarray(rng.standard_normal((1, 640)).astype(np.float32))
    q = tt.asarray(rng.standard_normal((1, 1, 8, 64)).astype(np.float32))
    k, v = (tt.asarray(rng.standard_normal((1, 2, 700, 64)).astype(np.float16)) for _ in range(2))
    run = tt.compile(lambda x: tt.relu(layer(x)) * 2)

    def results(threads: int) -> list[Any]:
        tt.set_num_threads(threads)
        return [run(x).numpy(), layer(x).numpy(), tt.attention(q, k, v).numpy()]

    want = results(1)
    for threads in (2, 3, 7, 16, 2):
        for got, w in zip(results(threads), want, strict=True):
            np.testing.assert_array_equal(got, w)


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


INTERRUPTED = """
import os, signal, sys, threading, time
import numpy as np
import tritium as tt

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits that it is ignored

tt.set_num_threads(int(sys.argv[1]))

def long(*shape, dtype=tt.float32):
    return tt.broadcast_to(tt.ones((1,), dtype=dtype), shape)

def interrupted(call):
    def send():
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        call()
    except KeyboardInterrupt:
        sender.join()
        return True
    return False

def expect_interrupt(*calls):
    for i, call in enumerate(calls):
        assert interrupted(call), f"call {i} ended by itself"
        assert (tt.ones(3_000_000) + 1).sum().item() == 6_000_000

"""
REDUCTIONS = """
expect_interrupt(
    lambda: long(2**37).sum(),
    lambda: long(2**20, 2**17).mean(axis=1),
    lambda: tt.argmax(long(2**37)),
    lambda: tt.var(long(2**17, 2**20), axis=0),
)
"""
PRODUCTS = """
w = tt.quantize_ternary(tt.randn((4096, 16384), seed=1))
expect_interrupt(
    lambda: long(256, 2**24) @ long(2**24, 256),
    lambda: long(256, 2**24, dtype=tt.int32) @ long(2**24, 256, dtype=tt.int32),
    lambda: long(2**14, 512, 512) @ long(2**14, 512, 512),
    lambda: tt.matmul(long(256, 2**24), long(2**24, 256), algorithm="naive"),
    lambda: tt.matmul(long(256, 2**24), long(2**24, 256), algorithm="blocked"),
    lambda: long(4, 2**22) @ long(2**22, 2**16),
    lambda: long(2**22, 2**16).T @ long(2**22, 4),
    lambda: tt.quantized_matmul(long(2**16, 16384), *w),
)
"""
# The last element of the result is not computed; memory of zeros that nobody has written takes none.
ELEMENTS = """
def expect_unfinished(call, dtype, last):
    out = tt.from_numpy(np.zeros(2**28, dtype))
    assert interrupted(lambda: call(out))
    assert out[-1].item() != last, "everything was computed"

long64 = long(2**28, dtype=tt.float64)
expect_unfinished(lambda out: tt.pow(long64, long64, out=out), np.float64, 1)
expect_unfinished(lambda out: tt.cumulative_sum(long64, out=out), np.float64, 2**28)
expect_unfinished(lambda out: tt.softmax(long(2**28), out=out), np.float32, 2**-28)
expect_interrupt(lambda: long(2**37).sum())
"""
PROGRAMS = """
def step(a, b):
    return tt.exp(a @ b * 0.0)

def chain(a, b):
    for _ in range(400):
        a = tt.exp(a @ b * 1e-9)
    return a

a, b = long(256, 2**24), long(2**24, 256)
square = tt.ones((1500, 1500))
for fn, args in ((step, (a, b)), (chain, (square, square))):
    program = tt.compile(fn)
    expect_interrupt(lambda: program(*args))
small = tt.compile(chain)
assert np.isfinite(small(tt.ones((8, 8)), tt.ones((8, 8))).numpy()).all()
"""
# A handler that returns lets the call go on, and may compute itself; one that raises anything ends it.
HANDLERS = """
class Deadline(Exception):
    pass

seen = []

def handle(*_):
    seen.append((tt.ones(3_000_000) + 1).sum().item())
    if len(seen) == 3:
        raise Deadline
    signal.setitimer(signal.ITIMER_REAL, 0.05)  # once this one is done: on a busy machine the next would come inside it

assert long(2**24).sum().item() == 2**24  # whatever is imported at the first call is there
signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.05)
try:
    long(2**37).sum()
    raise SystemExit("the call ended by itself")
except Deadline:
    pass
assert seen == [6_000_000] * 3, seen
assert long(2**24).sum().item() == 2**24
"""


@needs_native
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timers that send signals")
@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize(
    "code",
    [REDUCTIONS, PRODUCTS, ELEMENTS, PROGRAMS, HANDLERS],
    ids=["reductions", "products", "elements", "programs", "handlers"],
)
def test_a_signal_ends_a_long_call(code: str, threads: int) -> None:
    """Each call takes minutes by itself, and so the test ends in time only where the signal is seen in the call."""
    command = [sys.executable, "-c", INTERRUPTED + code, str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@needs_native
def test_a_call_of_another_thread_is_not_interrupted() -> None:
    code = """
result = []
worker = threading.Thread(target=lambda: result.append(long(2**27).sum().item()))
worker.start()
try:
    os.kill(os.getpid(), signal.SIGINT)
    worker.join()
except KeyboardInterrupt:
    worker.join()
    assert result == [2**27], result
else:
    raise SystemExit("no KeyboardInterrupt")
"""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED + code, "2"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@needs_native
def test_threadpoolctl_sees_us_whichever_is_imported_first() -> None:
    for names in ("tritium, threadpoolctl", "threadpoolctl, tritium"):
        code = f"import {names}; print([i['internal_api'] for i in threadpoolctl.threadpool_info()])"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
        assert "tritium" in done.stdout
