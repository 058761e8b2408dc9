"""The doctor: what each check of the machine says of made-up readings, what it cannot see, and how it is shown."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from hostile import NAMES
from quiet_machine import PRODUCT, QUIET, WATCH, ceilings, drifted
from tritium.errors import ArgumentError
from tritium.perf.meters.absent import Absent
from tritium.perf.meters.sensors import Thermal
from tritium.see.doctor.checks import MACHINE, SEVERITIES, Check, Finding, grade
from tritium.see.doctor.diagnosis import Diagnosis, diagnose, run_checks
from tritium.see.doctor.readings import Blas, Gpu, Isa, Native, Siblings, Threads, TunedFile
from tritium.see.memory.pressure import Pressure

SICK: list[tuple[str, dict[str, Any], str, str, str]] = [  # check, readings, severity, in the finding, in the remedy
    ("governor", {"governor": {"powersave": 8}}, "warning", "powersave", "cpupower"),
    ("governor", {"governor": {"schedutil": 2, "performance": 2}}, "note", "schedutil", "cpupower"),
    ("turbo", {"turbo": True}, "note", "turbo is on", "no_turbo"),
    ("stolen time", {"stolen": 0.2}, "problem", "hypervisor", "another host"),
    ("stolen time", {"stolen": 0.03}, "warning", "hypervisor", "tritium compare"),
    ("virtual machine", {"virtual": "KVM"}, "note", "virtual machine", "tritium compare"),
    ("other work", {"others": 3.0}, "problem", "other work", "end it"),
    ("other work", {"others": 0.5}, "warning", "other work", "end it"),
    ("other work", {"watch": replace(WATCH, switches=500)}, "note", "other work", "end it"),
    ("heat", {"heat after": Thermal(80.0, 1)}, "problem", "slows itself down", "cool"),
    ("heat", {"heat before": Thermal(50.0, 7), "heat after": Thermal(50.0, 7)}, "note", "has slowed", "energy"),
    ("heat", {"heat after": Thermal(95.0, None)}, "warning", "hot", "cool"),
    ("CPU quota", {"quota": 1.5}, "warning", "1.5", "TRITIUM_NUM_THREADS=1"),
    ("CPU quota", {"quota": 2.0, "throttled": 9}, "warning", "used up", "TRITIUM_NUM_THREADS=2"),
    ("CPU quota", {"quota": 2.0}, "note", "quota", "none is needed"),
    ("SMT", {"siblings": Siblings(4, ((0, 2), (1, 3)), ())}, "note", "one core", "TRITIUM_NUM_THREADS=2"),
    ("SMT", {"siblings": Siblings(1, ((0,),), (4,))}, "note", "second thread", "smt/control"),
    ("power", {"power": "battery"}, "warning", "battery", "plug"),
    ("jitter", {"timings": (1.0, 1.2, 1.2, 1.2)}, "warning", "different times", "taskset"),
    ("jitter", {"timings": (1.0, 2.0, 2.0, 2.0)}, "problem", "different times", "governor"),
    ("jitter", {"timings": (*[1.0] * 18, 3.0, 3.0)}, "note", "different times", "selftest"),
    ("noise floor", {"noise": 0.0}, "note", "never measured", "tritium selftest --aa"),
    ("noise floor", {"noise": 0.08}, "warning", "16.0%", "--thorough"),
    ("memory", {"pressure": Pressure("cpu", "critical", 99, 100, "cgroup", "99 %")}, "problem", "critical", "trim"),
    ("memory", {"pressure": Pressure("cpu", "high", 85, 100, "cgroup", "85 %")}, "warning", "high", "tritium memory"),
    ("GPU", {"gpus": (Gpu("gpu-0", ("slowed by heat",), ""),)}, "warning", "below its clocks", "cool"),
    ("GPU", {"gpus": (Gpu("gpu-0", (), "1 other process"),)}, "warning", "shared", "another GPU"),
    ("native code", {"native": Native("TRITIUM_PURE is set", True)}, "problem", "NumPy", "unset TRITIUM_PURE"),
    ("native code", {"native": Native("pure build", False)}, "problem", "no native library", "pip install"),
    ("instruction set", {"isa": Isa("avx2", ("portable", "avx2", "amx"), "avx2", "")}, "warning", "avx2", "unset"),
    ("instruction set", {"isa": Isa("avx2", ("portable", "avx2"), "amx", "amx")}, "problem", "amx", "TRITIUM_ISA=avx2"),
    ("BLAS", {"product": replace(PRODUCT, ours=30.0, slower=3.0)}, "problem", "3.3 times as long", "scipy-openblas32"),
    ("BLAS", {"blas": Blas("", "pip install b"), "product": replace(PRODUCT, ours=30.0, slower=3.0)}, "problem", "no BLAS", "pip install b"),
    ("BLAS", {"blas": Blas("", "pip install b")}, "note", "no BLAS", "pip install b"),
    ("threads", {"threads": Threads(8, 2, {"OMP_NUM_THREADS": "8"}, ())}, "problem", "8 threads on 2 CPUs", "=2"),
    ("threads", {"threads": Threads(1, 4, {}, ())}, "note", "3 of 4 CPUs", "TRITIUM_NUM_THREADS=4"),
    ("threads", {"threads": Threads(2, 2, {}, (("openblas (x)", 64),))}, "warning", "64 threads on 2", "OPENBLAS_NUM_THREADS=2"),
    ("ceilings", {"ceilings": None}, "note", "never measured", "tritium ceilings"),
    ("ceilings", {"ceilings": ceilings((1.0, 2.0, 3.0, 4.0))}, "warning", "other work ran", "--refresh"),
    ("ceilings", {"ceilings": ceilings((1.0, 1.0), quick=True)}, "note", "quickly", "tritium ceilings"),
    ("tuned choices", {"tuned": TunedFile("absent")}, "note", "nothing was tuned", "tritium tune"),
    ("tuned choices", {"tuned": TunedFile("void", "it belongs to another version")}, "warning", "not used", "tritium tune"),
    ("tuned choices", {"tuned": TunedFile("kept", "", 1, "none", "2026-01-01", 1)}, "note", "TRITIUM_TUNED=0", "unset"),
    ("tuned choices", {"tuned": TunedFile("kept", "", 1, "exact", "2025-01-01", 300)}, "note", "300 days", "--revalidate"),
    ("tuned, again", {"drift": (drifted(3e-6, False),)}, "warning", "no longer wins", "tritium tune --op kernel/add"),
    ("tuned, again", {"drift": (drifted(1.5e-6, True),)}, "note", "another time", "--revalidate"),
]  # fmt: skip


def looked(**readings: Any) -> Diagnosis:
    return diagnose(readers={k: (lambda of, v=v: v) for k, v in (QUIET | readings).items()})


def test_a_quiet_machine_is_fine() -> None:
    found = looked()
    assert found.ok
    assert {f.severity for f in found.findings} == {"fine"}
    assert [f.check for f in found.findings] == [c.name for c in MACHINE]


@pytest.mark.parametrize(("check", "readings", "severity", "what", "remedy"), SICK)
def test_what_is_wrong_is_named_with_evidence_and_remedy(
    check: str, readings: dict[str, Any], severity: str, what: str, remedy: str
) -> None:
    found = looked(**readings)
    bad = [f for f in found.findings if f.severity not in ("fine", "not looked at")]
    assert [(f.check, f.severity) for f in bad] == [(check, severity)], found.text()
    assert what in bad[0].what
    assert remedy in bad[0].remedy
    assert bad[0].evidence
    assert found.ok == (severity == "note")


def test_every_check_has_a_machine_on_which_it_finds_something() -> None:
    assert {name for name, *_ in SICK} == {c.name for c in MACHINE}


@pytest.mark.parametrize("name", sorted({n for c in MACHINE for n in c.needs}))
def test_a_check_without_its_reading_claims_nothing(name: str) -> None:
    found = looked(**{name: Absent("unsupported", "nobody tells")})
    blind = {f.check: f.what for f in found.of("not looked at")}
    assert blind == {c.name: "nobody tells" for c in MACHINE if name in c.needs}
    assert "not looked at\n" in found.text()


def test_a_reader_that_fails_is_a_check_not_looked_at() -> None:
    def broken(of: Any) -> Any:
        raise ZeroDivisionError("by zero")

    found = diagnose(readers={k: (lambda of, v=v: v) for k, v in QUIET.items()} | {"turbo": broken})
    (blind,) = found.of("not looked at")
    assert (blind.check, "ZeroDivisionError: by zero" in blind.what) == ("turbo", True)


def test_the_worst_comes_first_and_the_counts_agree() -> None:
    found = looked(power="battery", native=Native("gone", False), noise=0.0)
    order = [SEVERITIES.index(f.severity) for f in found.findings]
    assert order == sorted(order)
    assert found.counts == {"problem": 1, "warning": 1, "note": 1, "fine": len(MACHINE) - 3, "not looked at": 0}
    assert found.text().splitlines()[0] == f"this machine: 1 problem, 1 warning, 1 note, {len(MACHINE) - 3} fine"


def test_json_has_all_that_the_page_has() -> None:
    found = looked(power="battery")
    read = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert read["schema"] == 1
    assert read["ok"] is False
    assert read["counts"] == found.counts
    assert [Finding(**f) for f in read["findings"]] == list(found.findings)


@given(st.floats(0, 10))
def test_a_grade_never_falls_when_the_value_grows(value: float) -> None:
    levels = (("problem", 3.0), ("warning", 2.0), ("note", 1.0))
    now, more = (SEVERITIES.index(grade(v, levels)) for v in (value, value + 1))
    assert more <= now


@given(st.lists(st.floats(1e-7, 1e-3), min_size=1, max_size=50))
def test_any_looks_give_one_finding(looks: list[float]) -> None:
    (check,) = (c for c in MACHINE if c.name == "jitter")
    (found,) = run_checks([check], {"timings": looks})
    assert found.severity in SEVERITIES


@pytest.mark.parametrize("place", ["what", "evidence", "remedy", "program"])
def test_names_do_nothing_on_a_terminal(place: str) -> None:
    for name in NAMES:
        finding = Finding("warning", "w", "e", "r", "check")
        program = name if place == "program" else "p"
        found = Diagnosis((finding if place == "program" else replace(finding, **{place: name}),), program)
        lines = found.text().split("\n")
        assert len(lines) == (5 if name or place in ("what", "program") else 4)
        assert all(line.isprintable() and not line.lstrip().startswith("::") for line in lines)
        assert "##[" not in found.text()


def test_several_findings_of_one_check_all_have_its_name() -> None:
    check = Check("two", lambda: [Finding("note", "a"), Finding("note", "b")], ())
    assert [(f.check, f.what) for f in run_checks([check], {})] == [("two", "a"), ("two", "b")]


@pytest.mark.slow
def test_this_machine_is_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("TRITIUM_CACHE", str(tmp_path))
    monkeypatch.setattr("tritium.see.doctor.readings.PRODUCT_S", 0.02)
    found = diagnose()
    assert [c.name for c in MACHINE if c.name not in {f.check for f in found.findings}] == []
    broken = [f for f in found.findings if "could not be read" in f.what]
    assert broken == []
    assert {f.check for f in found.findings if f.severity != "not looked at"} >= {
        "jitter",
        "native code",
        "threads",
        "BLAS",
    }


def test_what_cannot_be_called_is_refused_before_anything_is_looked_at() -> None:
    with pytest.raises(ArgumentError, match="a function without arguments is needed, given 3"):
        diagnose(3, readers={})
