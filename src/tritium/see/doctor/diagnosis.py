"""The doctor: runs every check of the tables and shows the findings, the worst first.

A check whose readings are absent is listed as not looked at, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from tritium import escape
from tritium.arguments import checked_except
from tritium.errors import ArgumentError
from tritium.perf.meters.absent import Absent
from tritium.see.doctor.checks import MACHINE, SEVERITIES, Check, Finding, Severity
from tritium.see.doctor.readings import READERS, Reader, Readings

SCHEMA = 1
ORDER = {severity: i for i, severity in enumerate(SEVERITIES)}
WIDE = 1000  # characters of one entry that are shown


@dataclass(frozen=True)
class Diagnosis:
    """All findings, the worst first."""

    findings: tuple[Finding, ...]
    program: str = ""  # name of the program that was examined; "": none

    def of(self, *severities: Severity) -> tuple[Finding, ...]:
        """Return the findings with one of these severities."""
        return tuple(f for f in self.findings if f.severity in severities)

    @property
    def counts(self) -> dict[str, int]:
        return {severity: len(self.of(severity)) for severity in SEVERITIES}

    @property
    def ok(self) -> bool:
        """Return True if there is neither a problem nor a warning."""
        return not self.of("problem", "warning")

    def as_dict(self) -> dict[str, Any]:
        """Return the content of the JSON file."""
        return {
            "schema": SCHEMA, "program": self.program, "ok": self.ok, "counts": self.counts,
            "findings": [asdict(f) for f in self.findings],
        }  # fmt: skip

    def lines(self) -> Iterable[tuple[str, Severity | None]]:
        """Yield the lines of the text, each with the severity it begins with, or None."""
        counts = [f"{n} {word(severity, n)}" for severity, n in self.counts.items() if n]
        yield escape.terminal(f"{escape.visible(self.program) or 'this machine'}: {', '.join(counts)}", WIDE), None
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


def run_checks(checks: Sequence[Check], readings: Mapping[str, Any] | Readings) -> list[Finding]:
    """Return the findings of every check of a table, each called with the readings it needs."""
    findings = []
    for check in checks:
        values = [readings[name] for name in check.needs]
        absent = next((g for g in values if isinstance(g, Absent)), None)
        if absent is not None:
            findings.append(Finding("not looked at", absent.says, check=check.name))
            continue
        result = check.look(*values)
        findings += [replace(f, check=check.name) for f in ([result] if isinstance(result, Finding) else result)]
    return findings


@checked_except("run")
def diagnose(
    run: Callable[[], Any] | None = None,
    name: str = "the program",
    *,
    readers: Mapping[str, Reader] | None = None,
    checks: Sequence[Check] = MACHINE,
) -> Diagnosis:
    """Check this machine and the setup of Tritium on it; with `run`, call it and check what it does, too.

    Takes two or three seconds in addition to `run`. Exceptions of `run` propagate. `readers` replace those of the system.
    """
    if run is not None and not callable(run):
        raise ArgumentError(
            f"diagnose: a function without arguments is needed, given {run!r}: diagnose(lambda: train(data))."
        )
    findings = run_checks(checks, Readings(READERS if readers is None else readers))
    if run is not None:
        findings += examine(run)
    findings.sort(key=lambda f: ORDER[f.severity])
    return Diagnosis(tuple(findings), name if run is not None else "")


def examine(run: Callable[[], Any]) -> list[Finding]:
    """Call a program once and return the findings about what makes it slow."""
    from tritium.see.doctor.script import SCRIPT
    from tritium.see.doctor.watch import watching

    with watching() as result:
        code = run()
    observed = result()
    findings = run_checks(SCRIPT, {f.name: getattr(observed, f.name) for f in fields(observed)})
    if isinstance(code, int) and code:
        findings.append(Finding(
            "problem", "the program failed; what it did until then was examined", f"exit code {code}",
            "see what it printed", "program",
        ))  # fmt: skip
    if observed.dropped:
        findings.append(Finding(
            "note", "not every call was recorded", f"{observed.dropped} calls came after the recorder was full",
            "run the program on less data", "program",
        ))  # fmt: skip
    return findings
