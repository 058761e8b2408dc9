"""The doctor: asks every check of the tables, and shows what they found, the worst first.

Knows nothing of single checks or readings. Nothing is claimed that was not looked at: a check whose readings are absent is
listed as not looked at, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from tritium import escape
from tritium.errors import ArgumentError
from tritium.perf.meters.absent import Absent
from tritium.see.doctor.checks import MACHINE, SEVERITIES, Check, Finding, Severity
from tritium.see.doctor.readings import READERS, Reader, Readings

SCHEMA = 1
ORDER = {severity: i for i, severity in enumerate(SEVERITIES)}
WIDE = 1000  # characters of one entry that are shown


@dataclass(frozen=True)
class Diagnosis:
    """Everything that was found, the worst first."""

    findings: tuple[Finding, ...]
    program: str = ""  # what ran meanwhile; "": nothing

    def of(self, *severities: Severity) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.severity in severities)

    @property
    def counts(self) -> dict[str, int]:
        return {severity: len(self.of(severity)) for severity in SEVERITIES}

    @property
    def ok(self) -> bool:
        """Whether there is neither a problem nor a warning."""
        return not self.of("problem", "warning")

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "schema": SCHEMA, "program": self.program, "ok": self.ok, "counts": self.counts,
            "findings": [asdict(f) for f in self.findings],
        }  # fmt: skip

    def lines(self) -> Iterable[tuple[str, Severity | None]]:
        """The page line by line, each with the severity it begins with, if it does."""
        told = [f"{n} {word(severity, n)}" for severity, n in self.counts.items() if n]
        yield escape.terminal(f"{escape.visible(self.program) or 'this machine'}: {', '.join(told)}", WIDE), None
        for f in self.of("problem", "warning", "note"):
            yield "", None
            yield f"{f.severity:<8} {f.check}: {escape.terminal(f.what, WIDE)}", f.severity
            for title, text in (("seen", f.evidence), ("do", f.remedy)):
                if text:
                    yield f"  {title:<6} {escape.terminal(text, WIDE)}", None
        for severity in ("fine", "not looked at"):
            if short := self.of(severity):
                yield "", None
                yield severity, None
                yield from ((f"  {f.check:<16} {escape.terminal(f.what, WIDE)}", None) for f in short)

    def text(self) -> str:
        return "\n".join(line for line, _ in self.lines())

    __str__ = text


def word(severity: str, n: int) -> str:
    return severity + "s" * (n != 1 and severity in ("problem", "warning", "note"))


def asked(checks: Sequence[Check], readings: Mapping[str, Any] | Readings) -> list[Finding]:
    """Every check of a table, each with the readings it needs."""
    out = []
    for check in checks:
        given = [readings[name] for name in check.needs]
        absent = next((g for g in given if isinstance(g, Absent)), None)
        if absent is not None:
            out.append(Finding("not looked at", absent.says, check=check.name))
            continue
        found = check.look(*given)
        out += [replace(f, check=check.name) for f in ([found] if isinstance(found, Finding) else found)]
    return out


def diagnose(
    run: Callable[[], Any] | None = None,
    name: str = "the program",
    *,
    readers: Mapping[str, Reader] | None = None,
    checks: Sequence[Check] = MACHINE,
) -> Diagnosis:
    """Look at this machine and at how Tritium is set up here; with `run`, call it and look at what it does, too.

    Takes two or three seconds beside what `run` takes. What `run` raises is raised. `readers` stand in for the system's own.
    """
    if run is not None and not callable(run):
        raise ArgumentError(
            f"diagnose: a function without arguments is needed, given {run!r}: diagnose(lambda: train(data))."
        )
    found = asked(checks, Readings(READERS if readers is None else readers))
    if run is not None:
        found += examined(run)
    found.sort(key=lambda f: ORDER[f.severity])
    return Diagnosis(tuple(found), name if run is not None else "")


def examined(run: Callable[[], Any]) -> list[Finding]:
    """What a program does that costs speed; it is called once."""
    from tritium.see.doctor.script import SCRIPT
    from tritium.see.doctor.watch import watching

    with watching() as seen:
        code = run()
    ran = seen()
    out = asked(SCRIPT, {f.name: getattr(ran, f.name) for f in fields(ran)})
    if isinstance(code, int) and code:
        out.append(Finding(
            "problem", "the program failed; what it did until then was looked at", f"exit code {code}",
            "see what it printed", "program",
        ))  # fmt: skip
    if ran.dropped:
        out.append(Finding(
            "note", "not every call was kept", f"{ran.dropped} calls came after the recorder was full",
            "give the program less to do", "program",
        ))  # fmt: skip
    return out
