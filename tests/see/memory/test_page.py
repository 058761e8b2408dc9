"""The page of a memory record: what it says, and that no name in it does anything."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hostile import NAMES
from memories import MIB, record
from tritium.see.memory import page as memory_page
from tritium.see.memory.records import AtPeak, DeviceUse, Event, Idle


def test_the_page_tells_of_everything() -> None:
    text = memory_page.text(record("model"))
    for said in (
        "Memory of model: 10 ns, from 2026-01-02", "cpu", "70 MiB of 100 MiB", "+4 MiB", "evidence model",
        "flagged: 1 buffer was freed manually without an allocation: model",
        "flagged: 2 buffers were allocated manually under an id that was alive; the older one counts as freed: model, model",
        "Over time (cpu)", "Largest allocators",
        "model:3", "Alive at the peak of 6 MiB", "1 MiB were alive before tracking began", "bytes of the peak are not listed",
        "Still alive at the end: 4 MiB", "Transfers", "TB/s", "not timed", "Python's own objects: 10 B, at most 20 B",
        "fragmentation 33%", "1 × 2 MiB, 1 × 1 MiB", "What would save memory", "1 MiB of copies (low): model had to copy",
    ):  # fmt: skip
        assert said in text, said


def test_a_page_of_nothing_is_short_and_gives_no_advice() -> None:
    empty = record(
        "", devices=record().devices[:1], sites=(), at_peak=AtPeak(0, (), 0), leaks=(), idle=Idle(0, 0, 0, (), 5), moved=(),
        advice=(), events=(), unknown_frees=(), repeated_ids=(), python=None, notes=(),
    )  # fmt: skip
    text = memory_page.text(empty)
    assert "no idle blocks" in text
    for absent in ("Over time", "asked for most", "Alive at", "Still alive", "save memory", "flagged"):
        assert absent not in text


def test_long_tables_are_cut_and_say_so() -> None:
    m = record()
    many = replace(m, sites=m.sites * 10, leaks=tuple(replace(a, nbytes=i) for i, a in enumerate(m.leaks * 9, 1)))
    text = memory_page.text(many, 4)
    assert "… and 16 more ops and lines" in text
    assert "… and 5 more kinds" in text


def test_the_course_over_time_rises_and_falls() -> None:
    bars = memory_page.text(record()).split("Over time (cpu)")[1].strip().splitlines()[0]
    assert "█" in bars
    assert bars.endswith("6 MiB")


def test_the_course_begins_at_the_start_and_falls_after_a_peak() -> None:
    events = (
        Event("alloc", 500, 4 * MIB, 64, "", "", ""), Event("alloc", 501, 4 * MIB, 128, "", "", ""),
        Event("free", 502, 4 * MIB, 128, "", "", ""),
    )  # fmt: skip
    m = record(
        events=events,
        dropped=0,
        elapsed_ns=1000,
        devices=(DeviceUse("cpu", 0, 4 * MIB, 8 * MIB, 501, 2, 1, 0, 8 * MIB),),
    )
    bars = memory_page.text(m).split("Over time (cpu)")[1].strip().splitlines()[0]
    low, high = "▁" * 30, "▅" * 29
    assert bars == f"0 B {low}█{high} 8 MiB"


@pytest.mark.parametrize("page", [memory_page.text, memory_page.markdown])
def test_no_name_breaks_a_line_or_commands_a_terminal(page: object) -> None:
    for name in NAMES:
        text = page(record(name))
        assert all(c.isprintable() or c == "\n" for c in text)
        assert not [line for line in text.splitlines() if line.lstrip().startswith("::")]


def test_markdown_puts_names_into_code() -> None:
    text = memory_page.markdown(record("<b>x</b> @someone"))
    assert text.startswith("## Memory of `<b>x</b> @someone`: ")
    assert "- `1 MiB of copies (low): <b>x</b> @someone had to copy`" in text
    assert "| `<b>x</b> @someone" in text
