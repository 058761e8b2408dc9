"""Small results, made up and hostile, for the tests of what reads and writes them."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from tritium.perf.records.case import Context, Work
from tritium.perf.records.environment import Environment, Hard
from tritium.perf.records.run import Plan, Results, Run, Series

HOSTILE = {
    "html": "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "attribute": "\"' onmouseover='alert(1)",
    "markdown": "a|b](javascript:alert(1)) **x** `code` ``` @someone #12 https://evil.example | c |",
    "fence": "``` ` `` x",
    "formula": '=HYPERLINK("http://evil.example","x")',
    "plus": "+1+1",
    "minus": "-2+3+cmd|' /C calc'!A0",
    "at": "@SUM(1+1)",
    "tab": "\t=1+1",
    "return": "\r=1+1",
    "fullwidth": "＝1+1",
    "quoted": "'=1+1",
    "separator": 'a;=1+1;"=2+2',
    "ansi": "\x1b[31mred\x1b]0;title\x07\x1b]8;;http://evil.example\x07x",
    "c1": "\x9b31mred",
    "bidi": "user\u202ecod.exe\u2066x\u2069\u200f",
    "invisible": "a\u200bb\ufeffc\u00ad",
    "lines": "one\ntwo\r\nthree\u2028four\u2029five\x0bsix\x85seven",
    "command": "::error file=a,line=1::owned",
    "stop": "\n::stop-commands::token",
    "old command": "x ##[error]owned ##[add-mask]s",
    "percent": "100%0A::error::owned",
    "path": "../../etc/passwd",
    "windows": "CON",
    "nul": "a\0b",
    "surrogate": "a\ud800b",
    "braces": '{x="1"} 5\n# HELP owned',
    "backslash": 'a\\nb\\"c\\',
    "heredoc": "x\nEOF\nowned=1",
    "long": "n" * 5000,
    "empty": "",
}

HARD = Hard("A CPU", "0123456789abcdef", 8, 2, "x86_64", "Linux", "native", 2, ("A GPU",))
ENVIRONMENT = Environment(
    HARD, "3.11.7", "0.1.0", "c0ffee" * 6 + "abcd", True, {"numpy": "2.4.6"}, "6.1", 15.6, "KVM", "performance", "mains",
    0.25, None, {"OMP_NUM_THREADS": "2"},
)  # fmt: skip
WALL = (((7.25e-07, 7.5e-07), (7.125e-07, 7.75e-07)), ((8e-07, 8.125e-07), (7.875e-07, 7.625e-07)))


def run(case: str = "matmul 64x64 f32", arm: str = "tritium", **more: Any) -> Run:
    """A run of every kind of series: measured, exact, estimated, absent."""
    series = (
        Series("wall", "s", WALL, source="perf_counter"),
        Series("peak_bytes", "B", (((16384.0,),),), exact=True),
        Series("energy", "J", (((0.5,),),), "estimate", details={"watts": 12.5}),
        Series("temperature", "°C", (((-3.5, 41.0),),)),
        Series("instructions", "1", (), "not measured", "no_permission: perf_event_paranoid is 4"),
    )
    about: dict[str, Any] = {
        "context": Context("matmul", (64, 64), "f32", "cpu", 4, 512, 4096, "avx512vnni", 2),
        "work": Work(2 * 64**3, 32768, 16384, items=3.0, item="token"),
        "checked": "the same values", "iterations": 6800, "warmup": 16, "first_call_s": 0.00125, "series": series,
        "flags": ("no steady state",), "facts": {"kernel": "tile", "blocks": [1, 2]},
    }  # fmt: skip
    return Run(case, arm, **(about | more))


def results(*runs: Run, **more: Any) -> Results:
    """Results of these runs; a matmul on two arms and a failure where none are given."""
    failed = run("gelu 9 f32", status="timed out", reason="no answer within 60 s", series=())
    found = runs or (run(), run(arm="numpy"), failed)
    made = Results(
        "compare", "quick", "2026-11-15T12:30:00+00:00", "tritium compare --quick", Plan("quick", 2, 2, 2, gates=False), ENVIRONMENT,
        tuple(dict.fromkeys(r.arm for r in found)), found, ("mlx is absent",), elapsed_s=12.5,
    )  # fmt: skip
    return replace(made, **more)


def hostile(name: str) -> Results:
    """Results with this name in every text field there is."""

    def filled(record: Any, keep: tuple[str, ...] = ()) -> Any:
        chosen = {f.name for f in fields(record) if f.type in ("str", str) and f.name not in keep}
        return replace(record, **dict.fromkeys(chosen, name))

    series = (filled(run().series[0]), Series("wall", "s", WALL, source=name))
    inner = replace(
        filled(run(series=series)), context=filled(run().context), work=filled(run().work), flags=(name,), facts={name: name},
    )  # fmt: skip
    failed = filled(run(name, "other", status="failed", series=()))
    environment = replace(filled(ENVIRONMENT), hard=replace(filled(HARD), gpus=(name,)), packages={name: name})
    made = filled(results(inner, replace(failed, arm=f"{name} 2")), keep=("created",))
    return replace(made, environment=environment, notes=(name,), plan=filled(made.plan), arms=(name, f"{name} 2"))
