"""Profiles of real programs: what is recorded, where it lies, how recording ends, and what is written."""

from __future__ import annotations

import asyncio
import csv
import io
import itertools
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tritium as tt
from hostile import NAMES
from made_profiles import ADD, LIMITS, MATMUL, everything, made
from made_timelines import named
from measured import HOSTILE
from tritium import buffer, recording
from tritium.errors import ArgumentError, BusyError, FormatError
from tritium.machine.facts import this_machine
from tritium.perf.meters.absent import Absent
from tritium.see.profile import profile as module
from tritium.see.profile.profile import FORMATS, Profile, load_profile, start_session, stop_session
from tritium.see.trace.sampler import Gauge
from tritium.see.trace.timeline import What

QUIET: dict[str, Any] = {"counters": None, "ceilings": False}


@pytest.fixture(autouse=True)
def _nothing_left_running() -> Iterator[None]:
    yield
    assert module._current is None


def names(p: Profile) -> list[str]:
    """The names of the spans, in the order of the timeline."""
    return [p.timeline.whats[i].name for i in p.timeline.what]


def nap() -> None:
    time.sleep(0.002)


# ---- what is recorded


def test_every_call_is_in_the_table() -> None:
    x = tt.ones((4, 4))
    tt.add(x, x)
    with tt.profile(**QUIET) as p:
        for _ in range(5):
            tt.add(x, x)
        tt.exp(x)
    assert {r.name: r.count for r in p.ops()} == {"add": 5, "exp": 1}
    assert {r.detail for r in p.ops(by="specs")} == {"f32[4,4], f32[4,4] -> f32[4,4]", "f32[4,4] -> f32[4,4]"}


def test_compiled_functions_show_their_program_and_its_steps() -> None:
    f = tt.compile(lambda x: tt.softmax(x @ x))
    x = tt.rand((8, 8), seed=0)
    f(x)
    with tt.profile(**QUIET) as p:
        f(x)
        f(x)
    (program,) = [r for r in p.scopes() if r.kind == "program"]
    assert program.count == 2
    assert "matmul" in {r.name for r in p.ops()} or any("matmul" in r.name for r in p.ops())
    (node,) = p.tree().children.values()
    assert node.children


@pytest.mark.skipif(buffer.native is None, reason="steps of native programs have names")
def test_layers_of_a_compiled_function_have_rows_of_their_own() -> None:
    def f(x: Any) -> Any:
        for name in ("first", "second"):
            with tt.scope(name):
                x = tt.exp(x @ x)
        return x

    compiled = tt.compile(f, disable="fuse")
    with tt.profile(**QUIET) as p:
        for n in (4, 8):
            compiled(tt.rand((n, n), seed=0))
    layers = {(r.name, r.detail): r.count for r in p.ops(by="layer") if r.name in ("matmul", "exp")}
    assert layers == {(op, name): 2 for op in ("matmul", "exp") for name in ("first", "second")}


def test_scopes_enclose_what_ran_inside_them() -> None:
    x = tt.ones(3)
    with tt.profile(**QUIET) as p, tt.scope("outer"), tt.scope("inner"):
        tt.exp(x)
    assert names(p) == ["outer", "inner", "exp"]
    assert p.tree().children["outer"].children["inner"].children["exp"].count == 1


def test_nothing_before_or_after_the_block_is_recorded() -> None:
    x = tt.ones(3)
    with tt.scope("around"):
        tt.add(x, x)
        with tt.profile(**QUIET) as p:
            tt.exp(x)
        tt.add(x, x)
    assert names(p) == ["exp"]


def test_threads_have_lanes_of_their_names() -> None:
    def work(name: str) -> None:
        with tt.scope(name):
            nap()

    with tt.profile(**QUIET) as p:
        threads = [threading.Thread(target=work, args=(n,), name=f"worker {n}") for n in "ab"]
        for t in threads:
            t.start()
        beside = {f"worker {n}" for n in "ab"}
        with tt.scope("main"):
            for t in threads:
                t.join()
    t = p.timeline
    on = {t.whats[w].name: t.lanes[lane] for w, lane in zip(t.what, t.lane, strict=True)}
    assert on["main"] == threading.current_thread().name
    assert len(set(on.values())) == 3
    assert {lane for name, lane in on.items() if name != "main"} == beside


def test_threads_that_came_and_went_keep_their_names_though_they_share_an_identity() -> None:
    def work() -> None:
        with tt.scope("work"):
            tt.exp(x)

    x = tt.ones(3)
    tt.exp(x)
    with tt.profile(counters=None, ceilings=False, stacks="1ms") as p:
        for i in range(3):
            worker = threading.Thread(target=work, name=f"mine{i // 2}")
            worker.start()
            worker.join()
    t = p.timeline
    lanes = [t.lanes[lane] for lane in t.lane]
    assert sorted(lanes) == ["mine0", "mine0", "mine0 #2", "mine0 #2", "mine1", "mine1"]
    assert all(node.children["work"].children["exp"].count == 1 for node in p.tree().children.values())


def test_a_scope_that_is_still_open_is_shown_to_the_end_and_told() -> None:
    @tt.scope("running")
    def work() -> None:
        inside.set()
        done.wait(20)

    inside, done = threading.Event(), threading.Event()
    worker = threading.Thread(target=work, name="worker")
    with tt.profile(**QUIET) as p:
        worker.start()
        inside.wait(20)
        left = tt.scope("left")
        left.__enter__()
    left.__exit__(None, None, None)
    done.set()
    worker.join()
    t = p.timeline
    assert sorted(names(p)) == ["left", "running"]
    assert (t.end_ns == t.elapsed_total_ns).all()
    assert "2 scopes were still open when the profile ended; shown up to there" in p.text()
    assert not recording._open


async def _task(name: str, x: Any) -> None:
    with tt.scope(name):
        for _ in range(3):
            tt.exp(x)
            await asyncio.sleep(0.002)


def test_tasks_that_take_turns_do_not_get_each_others_calls() -> None:
    async def all_of_them() -> None:
        await asyncio.gather(*(_task(f"task{n}", x) for n in range(3)))

    x = tt.ones(3)
    with tt.profile(**QUIET) as p:
        asyncio.run(all_of_them())
    t = p.timeline
    assert t.apart == 3
    assert {r.name: (r.count, r.total_ns <= t.elapsed_total_ns) for r in p.scopes()} == {
        f"task{n}": (1, True) for n in range(3)
    }
    main = p.tree().children["MainThread"]
    assert {name: node.count for name, node in main.children.items()} == {"exp": 9}
    path = p.critical_path()
    assert path.total_ns == sum(r.own_ns for r in p.ops())
    assert not path.several
    assert sum(p.bottlenecks().shares.values()) == pytest.approx(1)
    assert "3 scopes overlapped on a thread, as with an await or a yield inside" in p.text()


def test_scopes_put_apart_are_known_as_such_in_the_file(tmp_path: Path) -> None:
    with tt.profile(**QUIET) as p:
        one, two = tt.scope("one"), tt.scope("two")
        one.__enter__()
        two.__enter__()
        nap()
        one.__exit__(None, None, None)
        nap()
        two.__exit__(None, None, None)
    assert p.timeline.apart == 2
    again = load_profile(p.save(tmp_path / "p.json"))
    assert again.timeline.apart == 2
    assert again.text() == p.text()


def test_a_thread_that_lives_on_has_its_name() -> None:
    go, done = threading.Event(), threading.Event()

    def work() -> None:
        with tt.scope("work"):
            nap()
        go.set()
        done.wait(20)

    with tt.profile(**QUIET) as p:
        worker = threading.Thread(target=work, name="a worker")
        worker.start()
        go.wait(20)
    done.set()
    worker.join()
    assert p.timeline.lanes == ("a worker",)


def test_a_scope_as_long_as_its_only_call_is_still_around_it() -> None:
    with tt.profile(**QUIET) as p:
        now = time.perf_counter_ns()
        recording.add(recording.Scope("inner"), now, 100)
        recording.add(recording.Scope("outer"), now, 100)
    assert list(p.tree().children) == ["outer"]


def test_times_are_since_the_profile_began_and_inside_it() -> None:
    with tt.profile(**QUIET) as p, tt.scope("x"):
        nap()
    t = p.timeline
    assert t.start_ns[0] >= 0
    assert t.end_ns[0] <= t.elapsed_total_ns
    assert t.elapsed_ns[0] >= 1_000_000


# ---- how it begins and ends


def test_an_exception_passes_and_leaves_a_profile_of_what_ran() -> None:
    x = tt.ones(3)
    with pytest.raises(ZeroDivisionError), tt.profile(**QUIET) as p:  # noqa: PT012
        tt.exp(x)
        raise ZeroDivisionError
    assert names(p) == ["exp"]
    assert "ended with ZeroDivisionError" in p.text()


def test_one_profile_at_a_time() -> None:
    with tt.profile("first", **QUIET), pytest.raises(BusyError, match="first is being recorded"):
        tt.profile(**QUIET).start()
    with tt.profile(**QUIET):
        pass


def test_it_shows_nothing_before_its_end() -> None:
    p = tt.profile(**QUIET)
    with pytest.raises(ArgumentError, match="was not recorded yet"):
        p.ops()
    with p, pytest.raises(ArgumentError, match="still being recorded"):
        p.text()
    with pytest.raises(ArgumentError, match="was recorded; make another"), p:
        pass


def test_a_session_is_started_and_stopped() -> None:
    x = tt.ones(3)
    started = start_session("s", **QUIET)
    tt.exp(x)
    p = stop_session()
    assert p is started
    assert (p.name, names(p)) == ("s", ["exp"])
    with pytest.raises(ArgumentError, match=r"start_session\(\) begins"):
        stop_session()


def test_the_limit_ends_the_recording_and_is_told() -> None:
    with tt.profile(limit="1ms", **QUIET) as p:
        until = time.monotonic() + 20
        while recording.active and time.monotonic() < until:
            time.sleep(0.001)
        with tt.scope("late"):
            pass
    assert names(p) == []
    assert "recording stopped at its limit of 1ms" in p.text()


def test_spans_that_do_not_fit_are_counted_and_told() -> None:
    with tt.profile(capacity=3, **QUIET) as p:
        for _ in range(5):
            with tt.scope("x"):
                pass
    assert (len(p.timeline), p.timeline.dropped) == (3, 2)
    assert "2 spans did not fit" in p.text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"capacity": 0}, "capacity=0"),
        ({"stacks": "1us"}, "too often"),
        ({"stacks": "often"}, "not a duration"),
        ({"counters": -1}, "above 0"),
        ({"limit": "0s"}, "above 0"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        tt.profile(**options)


def test_a_profile_that_could_not_begin_leaves_room_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**_: bool) -> Any:
        raise RuntimeError("no sensors")

    monkeypatch.setattr(module.sampler, "gauges", broken)
    with pytest.raises(RuntimeError, match="no sensors"):
        tt.profile(ceilings=False).start()
    with tt.profile(**QUIET):
        pass


class Broken:
    """Gauges of which the one fails from the look of that number on."""

    def __init__(self, at: int) -> None:
        self.at, self.looks = at, 0

    def __call__(self, **_: bool) -> list[Gauge]:
        return [Gauge("broken", "W", self.read), Gauge("sound", "W", lambda: 1.0)]

    def read(self) -> float:
        self.looks += 1
        if self.looks >= self.at:
            raise OSError("the library is gone")
        return 2.0


@pytest.mark.parametrize("at", [1, 2])
def test_a_gauge_that_raises_costs_itself_and_not_the_profile(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.sampler, "gauges", Broken(at))
    with tt.profile(counters="1ms", limit="20ms", ceilings=False) as p:
        until = time.monotonic() + 20
        while recording.active and time.monotonic() < until:
            time.sleep(0.001)
    broken, sound = p.timeline.counters
    assert len(broken.values) == at - 1
    assert len(sound.values) >= 1
    assert "recording stopped at its limit" in p.text()


def test_what_fails_while_it_begins_leaves_nothing_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    p = tt.profile(**QUIET, stacks="10ms")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="new thread"):
            p.start()
    assert not recording.active
    with pytest.raises(ArgumentError, match="could not begin"):
        p.text()
    with tt.profile(**QUIET):
        pass


def test_what_fails_while_it_ends_leaves_room_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Any) -> None:
        raise RuntimeError("no names")

    p = tt.profile(**QUIET).start()
    with monkeypatch.context() as patch:
        patch.setattr(module.sampler.BackgroundSampler, "learn_names", broken)
        with pytest.raises(RuntimeError, match="no names"):
            p.stop()
    assert not recording.active
    with tt.profile(**QUIET):
        pass


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_profiles_for_itself() -> None:
    with tt.profile("the parent's", **QUIET):
        child = os.fork()
        if not child:
            good = False
            try:
                with tt.profile(**QUIET) as mine, tt.scope("mine"):
                    pass
                good = names(mine) == ["mine"]
            finally:
                os._exit(0 if good else 1)
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_the_lock_of_a_thread_that_was_not_forked_holds_nobody_up() -> None:
    with module._one_at_a_time:
        child = os.fork()
        if not child:
            signal.alarm(20)  # it would wait for ever
            with tt.profile(**QUIET):
                pass
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


def test_it_can_be_shown_at_any_time_and_computes_nothing_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: Any) -> Any:
        raise AssertionError("ceilings were asked for")

    monkeypatch.setattr(module, "this_machines_limits", asked)
    p = tt.profile("decode", counters=None)
    assert (repr(p), str(p)) == ("<profile 'decode': was not recorded yet>", "profile 'decode' was not recorded yet")
    with p:
        assert "is still being recorded" in repr(p)
        assert "is still being recorded" in str(p)
    assert repr(p) == "<profile 'decode': was recorded>"
    monkeypatch.setattr(module, "this_machines_limits", lambda _: LIMITS)
    assert "recording cost" in str(p)
    assert "0 spans on 0 lanes" in repr(p)


# ---- beside


def test_memory_is_counted_on_the_same_clock() -> None:
    with tt.profile(counters="1ms", power=False, ceilings=False) as p:
        held = tt.ones((256, 1024))
        for _ in range(5):
            nap()
    found = {c.name: c for c in p.timeline.counters}
    assert set(found) == {"pool", "rss"}
    assert found["pool"].values.max() - found["pool"].values.min() >= held.nbytes
    assert found["pool"].at_ns.min() >= 0
    assert found["pool"].at_ns.max() <= p.timeline.elapsed_total_ns + 1_000_000_000
    assert "took" in p.text()


def test_power_that_is_not_there_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.sampler, "probe", lambda: [Absent("no_driver", "the driver is missing")])
    with tt.profile(memory=False, ceilings=False) as p:
        nap()
    (power,) = p.timeline.counters
    assert power.absent == "not measured: no_driver: the driver is missing"
    assert "power: not measured" in p.text()


def test_stacks_are_those_of_the_program() -> None:
    with tt.profile(stacks="1ms", **QUIET) as p:
        until = time.monotonic() + 20
        assert p._beside.stacks is not None
        before = len(p._beside.stacks._moments)  # a busy machine takes some while the profile begins
        while time.monotonic() < until:
            nap()
            if len(p._beside.stacks._moments) > before + 20:
                break
    s = p.timeline.samples
    assert s is not None
    assert any(f.startswith("nap (") for f in s.frames)
    assert s.lane.max() < len(p.timeline.lanes)
    assert s.stack.max() < len(s.stacks)
    assert s.every_ns == 1_000_000


def hold(n: int) -> int:
    """Hold the GIL in one native call."""
    return sum(itertools.repeat(1, n))


def spin(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def test_a_native_call_that_holds_the_gil_has_its_time() -> None:
    for _ in range(5):  # a busy machine may leave the sampler without a CPU until the call has ended
        with tt.profile(stacks="2ms", **QUIET) as p:
            spin(0.02)
            before = time.perf_counter_ns()
            hold(20_000_000)
            held_ns = time.perf_counter_ns() - before
            spin(0.02)
        s = p.timeline.samples
        assert s is not None
        main = s.lane == p.timeline.lanes.index("MainThread")
        assert s.weight_ns[main].sum() == s.at_ns[main].max() <= p.timeline.elapsed_total_ns
        lines = {i for i, name in enumerate(s.frames) if name.startswith("hold (")}
        in_hold = np.array([bool(lines & set(stack)) for stack in s.stacks])[s.stack]
        if s.weight_ns[main & in_hold].sum() > held_ns / 2:
            break
    assert s.weight_ns[main & in_hold].sum() > held_ns / 2
    assert "late sample" in p.text()


def test_without_asking_there_are_no_stacks_and_no_counters() -> None:
    with tt.profile(**QUIET) as p:
        pass
    assert p.timeline.samples is None
    assert p.timeline.counters == ()


# ---- what it shows


def test_what_recording_cost_is_measured_and_printed() -> None:
    with tt.profile(**QUIET) as p, tt.scope("x"):
        nap()
    cost, span_cost = p.timeline.scope_cost_ns, p.timeline.event_cost_ns
    assert cost is not None
    assert span_cost is not None
    assert cost > 0
    assert span_cost > 0
    assert p.overhead == pytest.approx(cost / p.timeline.elapsed_total_ns)
    assert re.search(r"recording cost about [\d.e-]+ % of the run \(\d+ ns a span, \d+ ns a scope\)", p.text())
    assert Profile(replace(p.timeline, scope_cost_ns=None)).overhead is None
    assert Profile(made()).overhead is None


def test_ceilings_are_those_of_the_threads_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(module, "this_machines_limits", lambda n: asked.append(n) or LIMITS)
    with tt.profile(counters=None) as p:
        tt.exp(tt.ones(1000))
    assert p.ops()[0].ceiling_share is not None
    assert asked == [min(tt.get_num_threads(), this_machine().usable)]


def test_the_page_says_what_matters() -> None:
    said = Profile(everything()).text()
    for part in ("a profile: 1 ms, 6 spans on 2 lanes", "matmul [avx512]", "Hotspots", "What bounds it", "Critical path",
                 "Call tree", "67 %  main (a.py:1)", "of 3 samples, one every 10 ns",
                 "pool: 0 B … 4 KiB", "power: not measured: virtual_machine", "a note"):  # fmt: skip
        assert part in said, part
    assert str(Profile(everything())) == said


def test_the_table_of_operations_is_made_once_for_all_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    made_tables: list[Any] = []
    real = module.op_table.rows

    def counted(*given: Any, **options: Any) -> Any:
        made_tables.append(options.get("by", "kernel") if "kinds" not in options else "scopes")
        return real(*given, **options)

    for place in (module.op_table, module.profile_page):
        monkeypatch.setattr(place, "rows", counted)
    p = Profile(everything())
    assert p.text()
    assert p.markdown()
    assert p.hotspots()
    assert made_tables == ["kernel"]


def test_the_table_ends_where_it_is_asked_to_and_says_so() -> None:
    t = made(*((What(f"op{i}"), 1000 * i, 500) for i in range(20)))
    assert "17 more" in Profile(t).text(top=3)


def test_more_than_the_ceiling_is_not_printed_as_a_share() -> None:
    p = Profile(made((MATMUL, 0, 5_000), (ADD, 5_000, 300_000)))
    for said in (p.text(), p.markdown()):
        assert ">100 %" in said.replace("\\", "")
        assert "the counted work overstates what was done" in said
        assert "400 %" not in said
    assert ">100 %" not in Profile(made((ADD, 5_000, 300_000))).text()


def test_transcendental_work_is_said_not_to_be_in_the_ceiling() -> None:
    for name in ("exp", "softmax", "fused add+exp"):
        assert "counted as one operation" in Profile(made((replace(ADD, name=name), 0, 300_000))).text()
    assert "counted as one operation" not in Profile(made((ADD, 0, 300_000))).text()


def test_an_empty_profile_is_a_page_too() -> None:
    assert "nothing was recorded" in Profile(made(environment=None)).text()
    assert Profile(made()).markdown()
    assert repr(Profile(made(name="x"))) == "<profile 'x': 0 spans on 1 lanes in 0.001 s>"


def test_csv_holds_every_row_with_all_its_digits() -> None:
    found = list(csv.DictReader(io.StringIO(Profile(everything()).csv())))
    assert {r["name"] for r in found} == {"matmul", "add", "relu", "step", "f"}
    (add,) = [r for r in found if r["name"] == "add"]
    assert (add["count"], add["total_ns"], add["bound"]) == ("1", "300000", "memory")
    assert float(add["ceiling_share"]) == pytest.approx(1 / 3)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_names_do_nothing_in_any_page(text: str) -> None:
    t = made(
        (What(text, "scope", device=""), 0, 900_000),
        (What(text, "op", text, text, text), 0, 800_000),
        name=text,
        notes=(text,),
    )
    p = Profile(t)
    for said in (p.text(), p.markdown()):
        assert all(line.isprintable() for line in said.split("\n"))
        assert not any(line.lstrip().startswith("::") for line in said.split("\n"))
        said.encode()
    assert "<script" not in re.sub(r"(`+).*?\1", "", p.markdown())
    for row in csv.reader(io.StringIO(p.csv())):
        assert not any(cell[:1] in "=+@" for cell in row if cell)


def test_every_hostile_name_at_once_does_nothing_in_any_page() -> None:
    for start in range(0, len(NAMES), 100):
        p = Profile(named(NAMES[start : start + 100]))
        for said in (p.text(), p.markdown()):
            assert all(line.isprintable() for line in said.split("\n"))
            assert not any(line.lstrip().startswith("::") or "##[" in line for line in said.split("\n"))
        for row in csv.reader(io.StringIO(p.csv())):
            assert not any(cell[:1] in "=+@" for cell in row if cell)


# ---- files


def test_a_saved_profile_shows_the_same(tmp_path: Path) -> None:
    with tt.profile("x", **QUIET) as p, tt.scope("y"):
        tt.exp(tt.ones(9))
    again = load_profile(p.save(tmp_path / "p.json.gz"))
    assert again.text() == p.text()
    assert again.csv() == p.csv()


@pytest.mark.parametrize("fmt", FORMATS)
def test_every_format_is_written_by_its_suffixes(fmt: str, tmp_path: Path) -> None:
    if fmt == "flame":
        pytest.importorskip("tritium.see.trace.flame", reason="flame graphs are drawn there")
    for suffix in FORMATS[fmt][0]:
        path = Profile(everything()).export(tmp_path / f"p{suffix}")
        assert path.stat().st_size > 50
    assert Profile(everything()).export(tmp_path / "other", fmt).exists()


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="there is no such file"):
        load_profile(tmp_path / "nope")


def test_a_picture_of_stacks_needs_stacks(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="no Python stacks were sampled"):
        Profile(made()).export(tmp_path / "p.stacks.svg")


def test_an_unknown_format_is_refused_with_those_there_are(tmp_path: Path) -> None:
    p = Profile(everything())
    with pytest.raises(ArgumentError, match=r"\.speedscope\.json"):
        p.export(tmp_path / "p.xyz")
    with pytest.raises(ArgumentError, match="Did you mean 'chrome'"):
        p.export(tmp_path / "p", "crome")


# ---- timed


def test_a_block_that_was_not_timed_yet_says_so() -> None:
    unused = tt.timed("u")
    with pytest.raises(ArgumentError, match="'u' was not timed yet"):
        unused.seconds  # noqa: B018 (a property that raises)
    assert repr(unused) == "<timed 'u': was not timed yet>"


def test_timed_needs_no_profile() -> None:
    with tt.timed("x") as t:
        assert t.seconds >= 0
        nap()
    assert 0.001 < t.seconds == t.seconds
    assert "timed 'x'" in repr(t)


def test_timed_is_a_scope_inside_a_profile() -> None:
    with tt.profile(**QUIET) as p, tt.timed("load") as t:
        nap()
    assert names(p) == ["load"]
    assert np.isclose(p.timeline.elapsed_ns[0] * 1e-9, t.seconds, rtol=0.5)


def test_timed_passes_exceptions_on() -> None:
    with pytest.raises(ZeroDivisionError), tt.timed() as t:
        raise ZeroDivisionError
    assert t.elapsed_ns is not None


@pytest.mark.slow
def test_the_average_time_is_of_scopes_else_of_ops() -> None:
    x = tt.ones((4, 4))
    with tt.profile() as p:
        for _ in range(3):
            with tt.scope("layer"):
                x @ x
    assert p.get_average_time("layer") == p.scopes()[0].mean_ns / 1e9
    (row,) = p.ops()
    assert p.get_average_time("matmul") == row.mean_ns / 1e9
    assert p.get_average_time("layers") is None
