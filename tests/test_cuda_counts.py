"""Numbers that are zero between launches: those of a stream grow, and stay where they are."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="CUDA needs PyTorch: pip install 'tritium[cuda]'")


@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_those_of_a_stream_grow_and_stay_zero(place: str) -> None:
    if place == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU of CUDA")
    from tritium.backends.cuda_counts import Counters

    counters = Counters(torch.zeros(0, device=place).device)
    few, more = counters.some(3), counters.some(1000)
    assert few.numel() >= 3
    assert more.numel() >= 1000
    assert not few.any()
    assert not more.any()
    assert counters.some(3).data_ptr() == more.data_ptr()
