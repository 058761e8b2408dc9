"""The accounts of memory: exact whatever the log forgets."""

from __future__ import annotations

from typing import Any

from hypothesis import given, strategies as st

from tritium.see.memory.accounts import CPU, MOST_SITES, Accounts
from tritium.see.memory.hub import Raw
from tritium.see.memory.records import timeline


def raw(kind: str, key: Any, nbytes: int = 0, detail: Any = False, at: int = 0, op: Any = None) -> Raw:
    return (kind, key, nbytes, detail, at, op, None, 0, "MainThread")


def accounts(*events: Raw, capacity: int = 1000, start: int = 0) -> Accounts:
    made = Accounts(capacity)
    made.begin(start, 0)
    made.take(events)
    return made


Steps = st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 10**6)), max_size=60)


@given(Steps, st.integers(1, 80), st.integers(1, 7))
def test_current_peak_and_what_is_alive_are_exact_for_any_log(steps: Any, capacity: int, parts: int) -> None:
    alive: dict[int, int] = {}
    events, most, at_most = [], 0, dict(alive)
    for i, (frees, address, nbytes) in enumerate(steps):
        if address in alive:  # the pool never gives out an address twice
            if not frees:
                continue
            events.append(raw("free", address, alive.pop(address), at=i))
        elif not frees:
            alive[address] = nbytes
            events.append(raw("alloc", address, nbytes, at=i))
        if sum(alive.values()) > most:
            most, at_most = sum(alive.values()), dict(alive)
    a = accounts(capacity=capacity)
    for n in range(0, len(events), parts):
        a.take(events[n : n + parts])
    cpu = a.account(CPU)
    assert (cpu.current, cpu.peak) == (sum(alive.values()), most)
    assert sorted(e[1][2] for e in a.held()) == sorted(alive.values())
    assert (cpu.allocations, a.seen) == (sum(e[0] == "alloc" for e in events), len(events))
    found = a.at_peak(CPU)
    assert sum(x.nbytes for x in found.allocations) + found.missing + found.earlier == most
    if not a.dropped:
        assert sorted(x.nbytes for x in found.allocations) == sorted(at_most.values())
        assert not found.missing


@given(Steps)
def test_changes_and_base_lead_to_the_current_bytes(steps: Any) -> None:
    a = accounts(*(raw("alloc", i, n) for i, (_, _, n) in enumerate(steps)), capacity=7, start=50)
    changes, base = a.changes()
    assert base + changes.sum() == a.account(CPU).current


def test_what_was_there_before_counts_and_leaves_the_account_when_it_is_freed() -> None:
    a = accounts(raw("alloc", 1, 10), raw("free", 99, 30), start=100)
    cpu = a.account(CPU)
    assert (cpu.start, cpu.current, cpu.peak, cpu.frees) == (100, 80, 110, 1)
    found = a.at_peak(CPU)
    assert (found.earlier, [x.nbytes for x in found.allocations]) == (100, [10])


def test_a_lost_log_says_what_the_list_at_the_peak_lacks() -> None:
    a = accounts(raw("alloc", 1, 1000), raw("free", 1, 1000), *(raw("alloc", i, 1) for i in range(2, 12)), capacity=5)
    found = a.at_peak(CPU)
    assert (found.nbytes, found.missing, found.allocations) == (1000, 1000, ())
    assert "1000 bytes" in found.note
    assert a.dropped == 7


def test_reuse_copies_on_write_and_imports_are_told_apart() -> None:
    a = accounts(raw("alloc", 1, 8, True), raw("copy", 2, 8), raw("wrap", 2, 500), raw("unwrap", 2, 500))
    assert [e.kind for e in a.events()] == ["reuse", "cow", "import", "release"]
    assert a.account(CPU).current == 16  # memory of others is not ours
    assert a.account(CPU).reused == 1


def test_a_manual_buffer_has_an_account_of_its_device() -> None:
    a = accounts(
        raw("manual", "x", 100, "gpu", 3, "load"), raw("manual", "y", 50, "gpu"), raw("manual free", "x", 0, "gpu")
    )
    gpu = a.account("gpu")
    assert (gpu.current, gpu.peak, gpu.allocations, gpu.frees, gpu.allocated) == (50, 150, 2, 1, 150)
    assert [x.id for x in a.at_peak("gpu").allocations] == ["x", "y"]
    assert [(e.kind, e.nbytes, e.id, e.device) for e in a.events()][2] == ("free", 100, "x", "gpu")


def test_an_unknown_id_is_flagged_and_frees_nothing() -> None:
    a = accounts(raw("manual", "x", 100, "cpu"), raw("manual free", "z", 0, "cpu"), raw("manual free", "x", 0, "gpu"))
    assert a.unknown.ids == ["z", "x"]
    assert a.account("cpu").current == 100
    assert [e.known for e in a.events()] == [True, False, False]


def test_an_id_told_again_has_a_new_size() -> None:
    a = accounts(raw("manual", "x", 100, "cpu"), raw("manual", "x", 30, "cpu"))
    assert a.account("cpu").current == 30
    assert len(a.held()) == 1


def test_an_id_allocated_while_alive_is_flagged_and_one_that_was_freed_is_not() -> None:
    told = [raw("manual", "x", 5, "cpu"), raw("manual", "x", 5, "cpu"), raw("manual", "y", 5, "cpu")]
    told += [raw("manual free", "y", 0, "cpu"), raw("manual", "y", 5, "cpu"), raw("manual", "x", 5, "gpu")]
    a = accounts(*told)
    assert (a.repeated.ids, a.unknown.ids) == (["x"], [])


def test_capacity_is_blamed_only_where_events_were_lost() -> None:
    lost = accounts(*(raw("alloc", i, 10) for i in range(5)), *(raw("free", i, 10) for i in range(5)), capacity=3)
    assert "pass a larger capacity=" in lost.at_peak(CPU).note
    unheard = accounts(raw("alloc", 1, 10), raw("alloc", 1, 10))  # an end that nobody told
    assert unheard.at_peak(CPU).note == "10 bytes of the peak are not listed: their allocation was not recorded."


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 1000), st.booleans()), max_size=30))
def test_ids_told_again_and_again_leave_peak_log_and_timeline_exact(steps: Any) -> None:
    alive: dict[str, int] = {}
    events, course = [], [0]
    for name, nbytes, frees in steps:
        events.append(raw("manual free", name, 0, "gpu") if frees else raw("manual", name, nbytes, "gpu"))
        alive.pop(name, None)
        if not frees:
            alive[name] = nbytes
        course.append(sum(alive.values()))
    a = accounts(*events)
    seen = timeline(a.events(), a.account("gpu").current, "gpu").values.tolist()
    assert a.account("gpu").peak == max(course) == max(seen, default=0)
    assert (seen or [0])[-1] == course[-1]
    found = a.at_peak("gpu")
    assert (sum(x.nbytes for x in found.allocations), found.missing) == (found.nbytes, 0)
    assert a.seen == len(a.log)


def test_an_id_told_again_is_a_free_and_an_allocation_in_the_log() -> None:
    a = accounts(raw("manual", "x", 100, "cpu"), raw("manual", "x", 50, "cpu"))
    assert timeline(a.events(), a.account(CPU).current, CPU).values.tolist() == [0, 100, 0, 50]
    assert [(e.kind, e.nbytes, e.known) for e in a.events()] == [
        ("manual", 100, True),
        ("free", 100, True),
        ("manual", 50, True),
    ]
    found = a.at_peak(CPU)
    assert ([x.nbytes for x in found.allocations], found.missing) == ([100], 0)


def test_unknown_ids_beyond_a_thousand_are_only_counted() -> None:
    a = accounts(*(raw("manual free", f"id {i}", 0, "gpu") for i in range(1500)))
    assert (len(a.unknown.ids), a.unknown.ids[-1], a.unknown.seen, a.unknown.unlisted) == (1000, "id 999", 1500, 500)


def test_transfers_add_up_by_direction() -> None:
    a = accounts(
        raw("transfer", 500, 1000, ("cpu", "gpu")), raw("transfer", 500, 1000, ("cpu", "gpu")),
        raw("transfer", "mine", 7, ("gpu", "cpu")),
    )  # fmt: skip
    there, back = a.transfers()
    assert (there.source, there.target, there.count, there.nbytes, there.rate) == ("cpu", "gpu", 2, 2000, 2e9)
    assert (back.nbytes, back.rate) == (7, None)


def test_sums_by_op_are_exact_though_the_log_is_short() -> None:
    a = accounts(*(raw("alloc", i, 10, False, 0, "mine") for i in range(500)), capacity=3)
    (site,) = a.sites()
    assert (site.op, site.count, site.nbytes, site.live, site.mean) == ("mine", 500, 5000, 5000, 10.0)


def test_more_lines_than_are_kept_apart_are_summed_up_as_one() -> None:
    ops = [f"op {i}" for i in range(MOST_SITES + 50)]
    a = accounts(*(raw("alloc", i, 1, op=op) for i, op in enumerate(ops)), capacity=1)
    assert len(a.lines) <= MOST_SITES + 1
    assert sum(s.count for s in a.sites()) == len(ops)
