"""Monitoring of operations: what is counted while it is on, in every thread and in a fork."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

import tritium as tt
from tritium.errors import ArgumentError
from tritium.see.monitor import metrics_file, tensor_metrics


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tensor_metrics, "_active", None)
    yield
    tt.disable_monitoring()


@pytest.mark.usefixtures("fresh")
def test_operations_are_counted_while_monitoring_is_on() -> None:
    x = tt.randn((32, 32), seed=0)
    x @ x
    tt.enable_monitoring("1h")
    tt.enable_monitoring("1h")
    for _ in range(5):
        x @ x
    y = x + x
    found = tt.get_tensor_metrics()
    assert tensor_metrics.monitoring()
    tt.disable_monitoring()
    y + y
    assert tt.get_tensor_metrics().operation_count == found.operation_count == 6
    by_op = {c.name: c for c in found.by_op}
    assert by_op["matmul"].count == 5
    assert by_op["matmul"].flops == 5 * 2 * 32**3
    assert found.average_operation_time_ms is not None
    assert found.average_operation_time_ms > 0
    assert found.average_gflops == found.flops / found.total_ns
    assert found.pool_hit_rate is not None
    assert 0 <= found.pool_hit_rate <= 1
    assert found.fusion_rate is None, "nothing was compiled"
    assert metrics_file.loads(found.export_metrics("json")) == found.series


@pytest.mark.usefixtures("fresh")
def test_the_steps_of_a_compiled_program_are_counted_too() -> None:
    fn = tt.compile(lambda x: tt.relu(x @ x + 1.0))
    x = tt.randn((16, 16), seed=0)
    fn(x)
    tt.see.TensorMetrics.enable_monitoring("1h")
    for _ in range(3):
        fn(x)
    found = tt.get_tensor_metrics()
    tt.see.TensorMetrics.disable_monitoring()
    assert found.operation_count >= 3
    assert found.program_hit_rate == 1.0


@pytest.mark.usefixtures("fresh")
def test_nothing_is_told_before_monitoring_began() -> None:
    assert not tensor_metrics.monitoring()
    with pytest.raises(ArgumentError, match="enable_monitoring"):
        tt.get_tensor_metrics()


@pytest.mark.usefixtures("fresh")
def test_every_thread_is_counted() -> None:
    x = tt.ones(8)
    tt.enable_monitoring("2ms")
    threads = [threading.Thread(target=lambda: [x + x for _ in range(100)]) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert {c.name: c.count for c in tt.get_tensor_metrics().by_op}["add"] == 400


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.usefixtures("fresh")
def test_a_forked_process_counts_for_itself() -> None:
    tt.enable_monitoring("10s")
    a = tt.ones(3)
    tt.add(a, a)
    with tensor_metrics._lock:  # of a thread that is not there in the child
        child = os.fork()
        if not child:
            signal.alarm(20)  # it would wait for ever
            code = 1
            try:
                if not tensor_metrics.monitoring():
                    tt.enable_monitoring("10s")
                    tt.exp(a)
                    code = 0 if [c.name for c in tt.get_tensor_metrics().by_op] == ["exp"] else 2
            finally:
                os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    tt.disable_monitoring()
