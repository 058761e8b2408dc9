"""Numbers that are zero between launches: those of a stream grow, and stay where they are."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="CUDA needs PyTorch: pip install torch triton")


@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_those_of_a_stream_grow_and_stay_zero(place: str) -> None:
    if place == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU of CUDA")
    from tritium.backends.cuda.counts import Counters

    counters = Counters(torch.zeros(0, device=place).device)
    few, more = counters.some(3), counters.some(1000)
    assert few.numel() >= 3
    assert more.numel() >= 1000
    assert not few.any()
    assert not more.any()
    assert counters.some(3).data_ptr() == more.data_ptr()


def test_a_capture_takes_some_that_nobody_else_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    from tritium.backends.cuda import counts as cuda_counts

    counters = cuda_counts.Counters(torch.device("cpu"))
    of_stream = counters.some(3)
    counters._fresh = torch.zeros(3 * counters.LINE, dtype=torch.int32)
    monkeypatch.setattr(cuda_counts, "capturing", lambda: True)
    taken = [counters.some(n) for n in (3, counters.LINE + 1, 1)]  # the last ones are of the graph: no more were ready
    places = {x.data_ptr() + 4 * i for x in (*taken, of_stream) for i in range(x.numel())}
    assert len(places) == sum(x.numel() for x in (*taken, of_stream))
    assert not any(bool(x.any()) for x in taken)
