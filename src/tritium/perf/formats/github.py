"""GitHub Actions: verdicts as annotations, a job summary, and outputs for later steps.

Knows nothing of how verdicts are reached, and never prints: annotations are lines for the caller to print. A name in them
cannot begin a command, end a line or add an output.
"""

from __future__ import annotations

import math
import os
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tritium import escape
from tritium.errors import ArgumentError
from tritium.machine.files import write_all
from tritium.perf.gate.page import STATUS_TEXT, advice, ending, figure, headline, mark, markdown, subject
from tritium.perf.gate.verdict import Suite, Verdict

Kind = Literal["error", "warning", "notice"]
SHOWN = 10  # annotations of a kind in a step; GitHub drops the rest
SUMMARY_BYTES = 1024 * 1024  # of a step's summary; GitHub drops a larger one whole
CUT = "\n\n… the rest did not fit: the results file has all of it.\n"
KINDS: dict[str, Kind] = {
    "SLOWER": "error", "MISSING": "error", "NOT COMPARABLE": "warning", "INCONCLUSIVE": "warning", "CHANGED-SMALL": "notice",
    "FASTER": "notice",
}  # fmt: skip


@dataclass(frozen=True)
class Annotation:
    """A message GitHub shows beside a run, or beside a line of a file."""

    kind: Kind
    message: str
    title: str = ""
    file: str = ""
    line: int | None = None

    def __str__(self) -> str:
        fields = {"file": self.file, "line": "" if self.line is None else str(self.line), "title": self.title}
        properties = ",".join(f"{k}={escape.annotation_property(v)}" for k, v in fields.items() if v)
        return f"::{self.kind}{' ' if properties else ''}{properties}::{escape.annotation(self.message)}"


def in_actions() -> bool:
    """Return True if this process is a step of a GitHub workflow."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def annotated(suite: Suite) -> list[str]:
    """Return a line for each verdict that matters, worst first; if GitHub would drop some, the last one counts them."""
    annotations = [_annotation(v, suite) for v in suite.verdicts if v.outcome in KINDS]
    if not suite.verdicts and suite.exit_code:
        annotations.append(
            Annotation("error", "\n".join([ending(suite), *suite.notes]), STATUS_TEXT[suite.overall_status])
        )
    return [
        str(a) for kind in ("error", "warning", "notice") for a in _limited([a for a in annotations if a.kind == kind])
    ]


def _annotation(v: Verdict, suite: Suite) -> Annotation:
    """Return the annotation of one verdict."""
    kind: Kind = "notice" if v.passes and KINDS[v.outcome] == "error" else KINDS[v.outcome]
    parts = [p for p in (figure(v), v.level, v.reason, advice(v, suite)) if p]
    return Annotation(
        kind, f"{escape.visible(v.case)} [{escape.visible(v.arm)}] {v.metric}: {', '.join(parts)}", v.outcome
    )


def _limited(annotations: Sequence[Annotation]) -> list[Annotation]:
    """Return at most as many annotations as GitHub shows."""
    if len(annotations) <= SHOWN:
        return list(annotations)
    more = f"{len(annotations) - SHOWN + 1} more like this; the summary of the job lists them."
    return [*annotations[: SHOWN - 1], Annotation(annotations[0].kind, more, "and more")]


def append_summary(text: str, path: str | os.PathLike[str] | None = None) -> bool:
    """Append Markdown to the job summary ($GITHUB_STEP_SUMMARY). Return False if there is none, or no room left.

    GitHub drops a summary that exceeds its limit entirely: text is cut at the end of a line before that.
    """
    target = path or os.environ.get("GITHUB_STEP_SUMMARY")
    if not target:
        return False
    try:
        before = os.stat(target).st_size
    except FileNotFoundError:
        before = 0
    data = _fitting(f"{text.rstrip()}\n\n".encode("utf-8", "backslashreplace"), SUMMARY_BYTES - before)
    if not data:
        return False
    _append(target, data)
    return True


def _fitting(data: bytes, room: int) -> bytes:
    """Return the data, cut at the end of a line if it exceeds the room."""
    if len(data) <= room:
        return data
    cut = CUT.encode()
    end = data.rfind(b"\n", 0, max(room - len(cut), 0))
    return data[:end] + cut if end > 0 else b""


def set_output(name: str, value: str, path: str | os.PathLike[str] | None = None) -> bool:
    """Set an output of this step ($GITHUB_OUTPUT). Return False if there is none."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", name):
        raise ArgumentError(f"{name!r} cannot be the name of an output: letters, digits, - and _ are allowed.")
    target = path or os.environ.get("GITHUB_OUTPUT")
    if not target:
        return False
    end = f"end_{secrets.token_hex(16)}"  # nobody can write this line into a value
    _append(target, f"{name}<<{end}\n{value}\n{end}\n".encode("utf-8", "backslashreplace"))
    return True


# ---- the comment on a pull request

MARKER = "<!-- tritium: performance{} -->"  # the comment that a later run updates has it
ROWS = 10  # of a comment; the summary of the job has all


def comment(suite: Suite, name: str = "", link: str = "") -> str:
    """Return the body of the one comment on a pull request: what changed, by severity; the rest is counted.

    `name` tells several comments apart; `link` leads to the run. A name in it cannot begin a mention, a link or HTML.
    """
    label = escape.markdown(name) if name else ""
    lines = [MARKER.format(f" {escape.file_name(name)}" if name else ""), f"### {mark(suite)} {_title(suite)}"]
    lines += [f"Measured: {label}.", ""] if label else [""]
    matters = sorted((v for v in suite.verdicts if _matters(v)), key=lambda v: -(v.severity or math.inf))
    if matters:
        lines += ["| case | change | 95 % | severity | |", "|---|---:|---|---:|---|"]
        lines += [_row(v) for v in matters[:ROWS]]
    if len(matters) > ROWS:
        lines += ["", f"and {len(matters) - ROWS} more; the summary of the job lists them."]
    rest = len(suite.verdicts) - len(matters)
    if rest:
        lines += ["", f"{rest} other verdict{'s' * (rest != 1)}: no change that matters."]
    if suite.noise:
        lines += ["", f"{escape.prose(suite.noise, None)}."]
    lines += (
        [
            "",
            "Severity is the change divided by its own noise, half the width of its 95 % interval: at 1 it may be none.",
        ]
        if matters
        else []
    )
    lines += [
        "",
        f"<sub>{escape.prose(subject(suite), None)}. `{ending(suite)}`{f' · [run]({link})' if link else ''}</sub>",
    ]
    return "\n".join(lines) + "\n"


def _title(suite: Suite) -> str:
    """Return what a reader must know first."""
    slower, faster, missing = (len(suite.of(outcome)) for outcome in ("SLOWER", "FASTER", "MISSING"))
    parts = [f"{n} {word}" for n, word in ((slower, "slower"), (faster, "faster"), (missing, "missing")) if n]
    return ", ".join(parts) if parts else STATUS_TEXT[suite.overall_status].capitalize()


def _matters(v: Verdict) -> bool:
    return v.outcome in ("SLOWER", "FASTER", "MISSING", "NOT COMPARABLE") or (
        v.outcome == "INCONCLUSIVE" and not v.passes
    )


def _row(v: Verdict) -> str:
    name = escape.markdown(v.case) + ("" if v.metric == "wall" else f" {escape.markdown(v.metric)}")
    change = "" if v.change is None else f"{100 * v.change:+.1f} %"
    low, high = v.interval95 or (None, None)
    interval = "" if low is None or high is None else f"{100 * (low - 1):+.1f} … {100 * (high - 1):+.1f} %"
    severity = "" if v.severity is None else "exact" if math.isinf(v.severity) else f"{v.severity:.1f}"
    return f"| {name} | {change} | {interval} | {severity} | {v.outcome} |"


def _append(target: str | os.PathLike[str], data: bytes) -> None:
    """Append data to a file."""
    handle = os.open(Path(target), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        write_all(handle, data)
    finally:
        os.close(handle)


def publish(suite: Suite, more: Iterable[str] = ()) -> list[str]:
    """Write the job summary, set outputs, and return annotations to be printed.

    Outputs: overall_status, exit_code, slower, faster. Outside of GitHub Actions nothing happens.
    """
    if not in_actions():
        return []
    append_summary("\n\n".join([markdown(suite), *more]))
    counts = {"slower": str(len(suite.of("SLOWER"))), "faster": str(len(suite.of("FASTER")))}
    status = {"overall_status": suite.overall_status, "exit_code": str(suite.exit_code), "headline": headline(suite)}
    for name, value in (status | counts).items():
        set_output(name, value)
    return annotated(suite)
