"""Threads that read bodies: what waits is bounded, each client has a share, and a place is given back whatever happens."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tritium.serve import intake
from tritium.serve.intake import Intake, Lane
from tritium.serve.protocols.openai import ProtocolError


async def refused(lane: Lane, client: str) -> int:
    with pytest.raises(ProtocolError) as caught:
        await lane.run(client, lambda: None)
    assert caught.value.headers == {"retry-after": "1"}
    assert caught.value.code == "busy"
    return caught.value.status


def test_a_client_has_half_of_the_places_and_all_clients_have_all() -> None:
    async def main() -> None:
        lane, go = Lane("test", 4), threading.Event()
        tasks = [asyncio.create_task(lane.run(client, go.wait)) for client in "aabb"]
        await asyncio.sleep(0)
        assert await refused(lane, "c") == 503
        tasks.pop().cancel()
        while lane.held.total() > 3:
            await asyncio.sleep(0.001)
        assert await refused(lane, "a") == 429
        tasks.append(asyncio.create_task(lane.run("c", go.wait)))
        go.set()
        await asyncio.gather(*tasks)
        while lane.held:
            await asyncio.sleep(0.001)
        lane.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "error", [ValueError("x"), MemoryError(), RecursionError(), KeyboardInterrupt(), GeneratorExit()]
)
def test_whatever_a_reader_raises_is_an_exception_and_frees_its_place(error: BaseException) -> None:
    def fail() -> Any:
        raise error

    async def main() -> None:
        lane = Lane("test", 2)
        for _ in range(3):
            with pytest.raises(type(error) if isinstance(error, Exception) else RuntimeError):
                await lane.run("a", fail)
            while lane.held:
                await asyncio.sleep(0.001)
        lane.close()

    asyncio.run(main())


def test_the_size_of_a_body_chooses_its_thread() -> None:
    async def main() -> None:
        both = Intake()
        names = [
            await both.run(n, "a", lambda: threading.current_thread().name)
            for n in (0, intake.SHORT_BYTES, intake.SHORT_BYTES + 1)
        ]
        assert [n.rpartition("_")[0] for n in names] == [
            "tritium-serve-short", "tritium-serve-short", "tritium-serve-long",
        ]  # fmt: skip
        both.close()

    asyncio.run(main())
