"""Fill docs/speed.md, docs/serve.md and the table of README.md from docs/results/, or check that they hold what it gives.

    python bench/speed.py --check     exit code 1 where a table is not what its file gives
    python bench/speed.py --write     fill the blocks again

A block begins with `<!-- results: NAME -->` and ends with `<!-- end -->`. Behind the name a block may choose rows and columns:
`tokens=16,128` takes rows with these labels, `fold=shape` joins rows that differ in this label to a range, `columns=A;B` takes
these columns, `worst=5` the five rows with the smallest ratios. A ratio is printed plainly only where its interval is known and
within ±15 %; otherwise it begins with `~`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tritium.perf.records import speed
from tritium.perf.records.speed import Column, Entry, Figure, SpeedTable

ROOT = Path(__file__).resolve().parents[1]
PAGE, FOLDER = ROOT / "docs" / "speed.md", ROOT / "docs" / "results"
OTHERS = (ROOT / "docs" / "serve.md",)  # further pages with blocks, and tables of other kinds
README = ROOT / "README.md"
SUMMARY = re.compile(r"^<!-- results of docs/speed\.md -->\n.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^<!-- results: (?P<options>[^\n]+?) -->\n(?P<body>.*?)^<!-- end -->$", re.MULTILINE | re.DOTALL)
OPTION = re.compile(r'(\S+?)=("[^"]*"|\S+)')
WIDE = 0.15  # half of an interval, as a share: a ratio beyond it is marked
WIDE_TEXT = "`~`: the interval is wider than ±15 % (its half is in brackets)"
UNKNOWN_TEXT = "`~` alone: the interval was not recorded"


class Block(NamedTuple):
    """Which part of a results file a block shows."""

    name: str
    rows: Mapping[str, frozenset[str]]  # labels that are shown, by label column
    fold: str = ""
    columns: tuple[str, ...] = ()
    worst: int = 0  # so many rows with the smallest ratios; 0: all rows


def block_of(text: str) -> Block:
    """Return what the options of a block say."""
    name, _, rest = text.strip().partition(" ")
    rows: dict[str, frozenset[str]] = {}
    fold, columns, worst = "", (), 0
    if left := OPTION.sub("", rest).strip():
        raise ValueError(
            f"results: {text}: {left!r} is no option; write LABEL=VALUE, fold=LABEL, columns=A;B or worst=N"
        )
    for key, quoted in OPTION.findall(rest):
        value = quoted.strip('"')
        if key == "fold":
            fold = value
        elif key == "columns":
            columns = tuple(value.split(";"))
        elif key == "worst":
            if not value.isdecimal() or not int(value):
                raise ValueError(f"results: {text}: worst={value}: a number of rows is needed, as worst=5")
            worst = int(value)
        else:
            rows[key] = frozenset(value.split(","))
    return Block(name, rows, fold, columns, worst)


# ---- figures


def number(x: float) -> str:
    """Return a figure in three significant digits, or whole from 100 on."""
    return f"{x:.3g}" if abs(x) < 99.95 else f"{x:.0f}" if abs(x) < 9999.5 else f"{x:,.0f}"


def ratio_number(x: float) -> str:
    """Return a ratio with two decimals, with fewer where it is large."""
    return f"{x:.0f}" if x >= 100 else f"{x:.1f}" if x >= 10 else f"{x:.2f}" if x >= 0.1 else f"{x:.2g}"


def percent(share: float) -> str:
    return f"±{100 * share:.0f} %" if share < 10 else "±>1000 %"


def is_wide(figure: Figure) -> bool:
    """Return True if a ratio may not be printed plainly."""
    return figure.spread is None or round(figure.spread, 9) > WIDE


def cell(figures: Sequence[Figure], column: Column) -> str:
    """Return the text of a cell: one figure, or the range of those that were folded."""
    if not figures:
        return ""
    shown = ratio_number if column.kind == "ratio" else number
    ends = [shown(min(f.median for f in figures)), shown(max(f.median for f in figures))]
    text = "–".join(dict.fromkeys(ends))
    spreads = [f.spread for f in figures if f.spread is not None]
    widest = max(spreads, default=0.0)
    if column.kind == "ratio":
        if not any(map(is_wide, figures)):
            return text
        return f"~{text} ({percent(widest)})" if round(widest, 9) > WIDE else f"~{text}"
    if len(figures) == 1 and column.interval != "95 %" and figures[0].low is not None and figures[0].high is not None:
        return f"{text} ({number(figures[0].low)} … {number(figures[0].high)})"
    return f"{text} {percent(widest)}" if spreads and round(100 * widest) >= 1 else text


# ---- tables


def grouped(table: SpeedTable, block: Block) -> dict[tuple[str, ...], list[Entry]]:
    """Return the rows of a block by the labels that are shown."""
    if unknown := [key for key in (*block.rows, *filter(None, [block.fold])) if key not in table.labels]:
        raise ValueError(f"{table.name}: there is no label {', '.join(unknown)}; there are {', '.join(table.labels)}")
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for row in table.rows:
        named = dict(zip(table.labels, row.labels, strict=True))
        if all(named[key] in values for key, values in block.rows.items()):
            groups.setdefault(tuple(v for k, v in named.items() if k != block.fold), []).append(row)
    if not groups:
        raise ValueError(f"{table.name}: no row has {dict(block.rows)}; the block would be empty")
    return worst_of(table, groups, block.worst) if block.worst else groups


def worst_of(
    table: SpeedTable, groups: Mapping[tuple[str, ...], list[Entry]], count: int
) -> dict[tuple[str, ...], list[Entry]]:
    """Return the groups with the smallest ratios, the smallest first; those without a ratio are left out."""
    names = [column.name for column in table.columns if column.kind == "ratio"]
    least = {
        key: min(ratios)
        for key, rows in groups.items()
        if (ratios := [row.figures[name].median for row in rows for name in names if name in row.figures])
    }
    if not least:
        raise ValueError(f"{table.name}: worst={count}: no row of the block has a ratio")
    return {key: groups[key] for key in sorted(least, key=lambda key: least[key])[:count]}


def chosen_columns(table: SpeedTable, block: Block, rows: Iterable[Entry]) -> list[Column]:
    """Return the columns of a block: those named, or all that have a figure."""
    known = {column.name: column for column in table.columns}
    if unknown := [name for name in block.columns if name not in known]:
        raise ValueError(f"{table.name}: there is no column {', '.join(unknown)}; there are {', '.join(known)}")
    names = block.columns or tuple(known)
    used = {name for row in rows for name in row.figures}
    return [known[name] for name in names if name in used]


def render(table: SpeedTable, block: Block) -> str:
    """Return the block: the table, then machine, versions, command and what the marks mean."""
    groups = grouped(table, block)
    columns = chosen_columns(table, block, [row for rows in groups.values() for row in rows])
    constant = {k for k, values in block.rows.items() if len(values) == 1 and len(table.labels) > 1}
    labels = [label for label in table.labels if label != block.fold]
    shown = [i for i, label in enumerate(labels) if label not in constant]
    heads = [*(labels[i] for i in shown), *(heading(column) for column in columns)]
    lines = [heads, ["---"] * len(heads)]
    for key, rows in groups.items():
        cells = [cell([row.figures[c.name] for row in rows if c.name in row.figures], c) for c in columns]
        lines.append([*(key[i] for i in shown), *cells])
    body = "\n".join("| " + " | ".join(word.replace("|", "\\|") for word in line) + " |" for line in lines)
    return f"{body}\n\n{caption(table, block, groups, columns, body)}\n"


def heading(column: Column) -> str:
    plain = column.unit in ("", "×") or column.unit in column.name
    return column.name if plain else f"{column.name}, {column.unit}"


def caption(
    table: SpeedTable, block: Block, groups: Mapping[tuple[str, ...], list[Entry]], columns: Sequence[Column], body: str
) -> str:
    """Return the lines below a table."""
    versions = ", ".join(f"{name} {version}" for name, version in table.versions.items())
    facts = [table.machine.text, versions, table.date or "date not recorded"]
    lines = ["; ".join(filter(None, facts)) + ".", f"`python {' '.join(map(quoted, table.command))}`."]
    intervals = dict.fromkeys(c.interval for c in columns)
    if "±" in body and "95 %" in intervals:
        lines.append("± is half of the 95 % interval.")
    lines += [f"In brackets: {text}." for text in intervals if text != "95 %" and " … " in body]
    folded = any(len(rows) > 1 for rows in groups.values())
    if folded:
        lines.append(f"Ranges are over {block.fold}; ± is the widest of a range.")
    ratios = [row.figures[c.name] for rows in groups.values() for row in rows for c in columns
              if c.kind == "ratio" and c.name in row.figures]  # fmt: skip
    marks = []
    if any(f.spread is not None and is_wide(f) for f in ratios):
        marks.append(WIDE_TEXT)
    if any(f.spread is None for f in ratios):
        marks.append(UNKNOWN_TEXT)
    lines += [f"{'; '.join(marks)}."] if marks else []
    if table.recorded != speed.MEASURED:
        lines.append(f"Recorded {table.recorded}.")
    return "<sub>" + " ".join([*lines, *table.notes]) + f" [{table.name}.json](results/{table.name}.json)</sub>"


def quoted(word: str) -> str:
    return f'"{word}"' if " " in word else word


# ---- the page


def filled(page: str, folder: Path = FOLDER) -> str:
    """Return the page with every block as its file gives it."""

    def again(match: re.Match[str]) -> str:
        block = block_of(match["options"])
        path = folder / f"{block.name}.json"
        if not path.exists():
            known = ", ".join(sorted(p.stem for p in folder.glob("*.json"))) or "none"
            raise ValueError(f"results: {block.name}: there is no {path.name} in {folder.name}/; there are: {known}")
        return f"<!-- results: {match['options']} -->\n\n{render(speed.load(path), block)}\n<!-- end -->"

    return BLOCK.sub(again, page)


# ---- the table of the README


def summary(folder: Path = FOLDER) -> str:
    """Return the rows of the README: a model on three CPUs, a product on a GPU, the gate, determinism."""
    rows = [
        ["", "Tritium", "beside (above 1×, Tritium is faster)"],
        ["---"] * 3,
        model_row(speed.load(folder / "models.json")),
        model_row(speed.load(folder / "models-avx512bw.json"), "a Xeon without VNNI"),
        model_row(speed.load(folder / "models-arm.json")),
        product_row(speed.load(folder / "cuda-products.json")),
        gate_row(speed.load(folder / "gate.json")),
        [
            "Determinism",
            "the same tokens alone, in a batch, on every instruction set",
            "tested over all of them in `tests/`",
        ],
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def model_row(table: SpeedTable, cpu: str = "") -> list[str]:
    """Return decode and prefill rates of the first engine and its ratios to the others."""
    ours, *others = table.rows
    columns = {column.name: column for column in table.columns}
    rates = [number(ours.figures[name].median) for name in ("decode of 64", "prefill of 128")]
    beside = []
    for row in others:
        decode, prefill = (times_text([row.figures[name]], columns[name]) for name in ("× decode", "× prefill"))
        beside.append(f"{row.labels[0].partition(' ')[0]}: {decode} decode, {prefill} prefill")
    what = f"BitNet 2B shape, f16 head, 2 threads of {cpu or cpu_name(table)}"
    return [what, f"{rates[0]} tokens/s decode, {rates[1]} prefill", "; ".join(beside)]


def times_text(figures: Sequence[Figure], column: Column) -> str:
    """Return a ratio as "1.49×" or "~6.57× (±19 %)"."""
    ratio, _, spread = cell(figures, column).partition(" ")
    return f"{ratio}× {spread}".rstrip()


def cpu_name(table: SpeedTable) -> str:
    return "a Xeon with AMX" if "Xeon" in table.machine.cpu else table.machine.cpu


def product_row(table: SpeedTable, shape: str = "4096×4096") -> list[str]:
    """Return the times of one product for 1 and 128 tokens, and its ratios to bf16 and fp8."""
    columns = {column.name: column for column in table.columns}
    rows = [next(r for r in table.rows if r.labels == (tokens, shape)) for tokens in ("1", "128")]
    times = " / ".join(number(row.figures["tritium"].median) for row in rows)
    ratios = {
        name: " / ".join(times_text([row.figures[f"× torch {name}"]], columns[f"× torch {name}"]) for row in rows)
        for name in ("bf16", "fp8")
    }
    what = f"{shape} product on an {table.machine.gpus[0]}, 1 / 128 tokens"
    return [what, f"{times} µs, exact", "; ".join(f"torch {name}: {ratio}" for name, ratio in ratios.items())]


def gate_row(table: SpeedTable) -> list[str]:
    """Return false alarms and detected slow-downs of the gate."""
    counts = {
        row.labels[0]: (number(row.figures["counted"].median), number(row.figures["of"].median)) for row in table.rows
    }
    alarms = counts["equal code: suites that failed the gate"]
    detected = counts["10 % extra work in one case: found"]
    return [
        f"Regression gate, two CPUs of {cpu_name(table)}",
        f"{alarms[0]} false alarms in {alarms[1]} suites of equal code",
        f"{detected[0]} of {detected[1]} slow-downs of 10 % detected",
    ]


def filled_readme(page: str, folder: Path = FOLDER) -> str:
    """Return the README with its table as the files give it."""
    fresh, count = SUMMARY.subn(
        lambda _: f"<!-- results of docs/speed.md -->\n\n{summary(folder)}\n\n<!-- end -->", page
    )
    if count != 1:
        raise ValueError(f"README.md: {count} blocks '<!-- results of docs/speed.md -->'; there must be one")
    return fresh


# ---- command line


def tables_without_a_file(page: str) -> list[int]:
    """Return the lines of a page on which a table begins outside of a block."""
    blank = BLOCK.sub(lambda match: "\n" * match[0].count("\n"), page)
    rule = re.compile(r"^\s*\|?\s*:?-{3,}:?\s*(\|\s*:?-{3,}:?\s*)*\|?\s*$")
    lines = blank.splitlines()
    return [i for i, line in enumerate(lines) if i and "|" in line + lines[i - 1] and rule.match(line)]


def unused(page: str, folder: Path = FOLDER) -> list[str]:
    """Return the results files that no block of a text shows."""
    shown = {block_of(match["options"]).name for match in BLOCK.finditer(page)}
    return sorted({path.stem for path in folder.glob("*.json")} - shown)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="exit code 1 where the page is not what the files give")
    action.add_argument("--write", action="store_true", help="fill the page")
    args = parser.parse_args(words)
    page = PAGE.read_text(encoding="utf-8")
    others = {path: path.read_text(encoding="utf-8") for path in OTHERS}
    problems = [f"line {line}: a table without a results file" for line in tables_without_a_file(page)]
    problems += [f"docs/results/{name}.json: no block shows it" for name in unused("\n".join((page, *others.values())))]
    readme = README.read_text(encoding="utf-8")
    pages = [(path, text, filled(text)) for path, text in {PAGE: page, **others}.items()]
    for path, before, after in (*pages, (README, readme, filled_readme(readme))):
        if args.write:
            path.write_text(after, encoding="utf-8")
        elif before != after:
            problems.append(f"{path.name} is not what docs/results/ gives; run: python bench/speed.py --write")
    print("\n".join(problems) or "docs/speed.md, docs/serve.md and README.md are what docs/results/ gives")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
