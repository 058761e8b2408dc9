"""The samples of bench/cuda.py as rows of a results file, one function for each part.

Knows nothing of torch or GPUs: the records of a part come in, rows and columns go out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from cuda_draws import CLASSES
from cuda_report import BF16, FP8, FP8_WHOLE, INT4, INT8, OURS, WHOLE
from results import Column, Entry, Figure, figure, ratio, value

INT8_GRADIENTS = f"{OURS}, int8 gradients"
Records = Sequence[Any]  # what the tables of one part record


class Rows(NamedTuple):
    """A results file without its machine."""

    title: str
    labels: tuple[str, ...]
    columns: list[Column]
    rows: list[Entry]
    notes: tuple[str, ...] = ()


def times_of(us: Mapping[str, Any]) -> dict[str, Figure]:
    """Return a figure for every contender that was timed; text says why one was not."""
    return {name: figure(samples) for name, samples in us.items() if not isinstance(samples, str)}


def ratio_in(us: Mapping[str, Any], theirs: str, ours: str) -> Figure | None:
    """Return theirs / ours where both were timed."""
    one, two = us.get(theirs), us.get(ours)
    return None if one is None or two is None or isinstance(one, str) or isinstance(two, str) else ratio(one, two)


def present(**figures: Figure | None) -> dict[str, Figure]:
    return {name: one for name, one in figures.items() if one is not None}


def faster(name: str, ours: str = OURS, suffix: str = "") -> Column:
    return Column(f"× {name}{suffix}", "×", f"time of {name} / time of {ours}: above 1, Tritium is faster", "ratio")


def products(records: Records) -> Rows:
    columns = [Column(name, "µs", f"median time of a product, {name}") for name in (BF16, FP8, INT8, OURS, WHOLE)]
    whole = ", floats in"
    columns += [faster(BF16), faster(FP8), faster(BF16, WHOLE, whole)]
    rows = []
    for cell in (cell for part in records for cell in part):
        us = cell["us"]
        ratios = {
            f"× {BF16}": ratio_in(us, BF16, OURS),
            f"× {FP8}": ratio_in(us, FP8, OURS),
            f"× {BF16}{whole}": ratio_in(us, BF16, WHOLE),
        }
        rows.append(Entry((str(cell["tokens"]), f"{cell['n']}×{cell['k']}"), times_of(us) | present(**ratios)))
    return Rows("Ternary products on a GPU beside torch's bf16 and fp8", ("tokens", "n × k"), columns, rows)


def random_shapes(records: Records) -> Rows:
    columns = [
        Column(name, "µs", f"median time of a product, {name}") for name in (BF16, FP8, INT4, OURS, FP8_WHOLE, WHOLE)
    ]
    both = ", both quantise"
    columns += [faster(BF16), faster(FP8), faster(INT4), faster(FP8_WHOLE, WHOLE, both)]
    rows = []
    for cell in (cell for part in records if isinstance(part, list) for cell in part):
        us = cell["us"]
        ratios = {
            f"× {BF16}": ratio_in(us, BF16, OURS),
            f"× {FP8}": ratio_in(us, FP8, OURS),
            f"× {INT4}": ratio_in(us, INT4, OURS),
            f"× {FP8_WHOLE}{both}": ratio_in(us, FP8_WHOLE, WHOLE),
        }
        group = next(
            f"{low}–{high}" if high > low else str(low) for low, high in CLASSES if low <= cell["tokens"] <= high
        )
        draw = f"{cell['n']}×{cell['k']}, {cell['tokens']}"
        rows.append(Entry((group, draw), times_of(us) | present(**ratios)))
    checked = sum(part["checked"] for part in records if isinstance(part, dict))
    wrong = sum(part["wrong"] for part in records if isinstance(part, dict))
    note = f"{checked:,} results compared with the integer product, draws with a wrong one: {wrong}."
    return Rows("Ternary products of random shapes on a GPU", ("tokens", "draw"), columns, rows, (note,))


def chain(records: Records) -> Rows:
    (ways,) = records
    columns = [
        Column("time", "µs", "median time of the graph"),
        Column("energy", "mJ", "energy of the GPU for one replay"),
        Column("× tritium", "×", "time of this way / time of tritium", "ratio"),
    ]
    us = {name: record["us"] for name, record in ways.items()}
    rows = []
    for name, record in ways.items():
        joules = record["energy"].get("mj")
        figures = present(
            time=times_of(us).get(name),
            energy=None if joules is None else value(joules),
            **{"× tritium": None if name == OURS else ratio_in(us, name, OURS)},
        )
        rows.append(Entry((name,), figures))
    return Rows("All linear layers of BitNet-2B for one token", ("way",), columns, rows)


def model(records: Records) -> Rows:
    columns = [
        Column("step", "µs", "time of a decode step on the host's clock, until the token is known there"),
        Column("decode", "tokens/s", "tokens written in a second, all sequences together"),
        Column("prefill", "tokens/s", "tokens of the prompt read in a second"),
        Column("decode energy", "mJ", "energy of the GPU for one token written"),
        Column("prefill energy", "mJ", "energy of the GPU for one token of a prompt"),
    ]
    rows = []
    for report in (report for part in records for report in part):
        taken, batch = report["rows"], report["batch"]
        decode = taken["decode"]["samples"]
        joules = {f"{p} energy": taken[f"{p} energy"]["samples"] for p in ("decode", "prefill")}
        figures = present(
            step=figure([1e6 * batch / rate for rate in decode]),
            decode=figure(decode),
            prefill=figure(taken["prefill"]["samples"]),
            **{name: value(1e3 * median(samples)) if samples else None for name, samples in joules.items()},
        )
        shape = report["model"].removesuffix(" shape, random")
        rows.append(Entry((shape, str(report["prefill_tokens"]), str(batch)), figures))
    labels = ("shape", "tokens of the prompt", "sequences")
    return Rows("Models of published shapes on a GPU", labels, columns, rows)


def rivals(records: Records) -> Rows:
    (us,) = records
    columns = [
        Column("time", "µs", "median time of a decode step, by the device's events"),
        Column("× tritium", "×", "time of this way / time of tritium", "ratio"),
    ]
    rows = []
    for name in us:
        ratios = {"× tritium": None if name == OURS else ratio_in(us, name, OURS)}
        rows.append(Entry((name,), present(time=times_of(us).get(name), **ratios)))
    return Rows("A decode step of BitNet-2B's shape beside decoders in the manner of gpt-fast", ("way",), columns, rows)


def host(records: Records) -> Rows:
    (calls,) = records
    names = list(dict.fromkeys(name for us in calls.values() for name in us))
    columns = [Column(name, "µs", f"time of the host for a call, {name}") for name in names]
    columns.append(Column("tritium / torch", "×", "what Tritium takes beside torch itself", "ratio"))
    rows = []
    for case, us in calls.items():
        shared = {"tritium / torch": ratio_in(us, OURS, "torch")}
        rows.append(Entry((case,), times_of(us) | present(**shared)))
    return Rows("Host time of a call", ("case",), columns, rows)


def inside_torch(records: Records) -> Rows:
    names = list(dict.fromkeys(name for part in records for us in part.values() for name in us))
    columns = [Column(name, "µs", f"time of a call, {name}") for name in names]
    columns.append(Column("× nn.Linear", "×", "time of nn.Linear in bf16 / time of tritium", "ratio"))
    rows = []
    for kind, part in zip(("host time of a layer", "stack of blocks"), records, strict=True):
        for case, us in part.items():
            rows.append(
                Entry((kind, case), times_of(us) | present(**{"× nn.Linear": ratio_in(us, "nn.Linear, bf16", OURS)}))
            )
    return Rows("Ternary layers inside PyTorch on a GPU", ("what", "case"), columns, rows)


def training(records: Records) -> Rows:
    cells = [cell for part in records for cell in part.get("cells", ())]
    names = list(dict.fromkeys(name for cell in cells for name in cell["us"]))
    linear = "nn.Linear, bf16"
    columns = [Column(name, "µs", f"median time of forward and backward, {name}") for name in names]
    columns += [faster(linear, OURS), faster(linear, INT8_GRADIENTS, ", int8 gradients")]
    rows = []
    for cell in cells:
        us = cell["us"]
        ratios = {
            f"× {linear}": ratio_in(us, linear, OURS),
            f"× {linear}, int8 gradients": ratio_in(us, linear, INT8_GRADIENTS),
        }
        rows.append(Entry((str(cell["tokens"]), cell["case"]), times_of(us) | present(**ratios)))
    checked, wrong = (sum(cell[name] for cell in cells) for name in ("checked", "wrong"))
    notes = [f"{checked:,} results of forward passes compared with the formulas, wrong: {wrong}."]
    for part in (part for part in records if "losses" in part):
        span = part["span"]
        for way, losses in part["losses"].items():
            means = [sum(losses[low : low + span]) / span for low in range(0, len(losses), span)]
            notes.append(f"Loss, {way}, mean of each {span} steps: {', '.join(f'{mean:.4f}' for mean in means)}.")
    return Rows("Training steps of ternary layers on a GPU", ("tokens", "products"), columns, rows, tuple(notes))


def groups(records: Records) -> Rows:
    cells = [cell for part in records if isinstance(part, list) for cell in part]
    names = list(dict.fromkeys(name for cell in cells for name in cell["us"]))
    columns = [Column(name, "µs", f"median time of a layer, quantiser included, {name}") for name in names]
    columns += [
        Column(f"{name} / none", "×", f"time with {name} / time with one scale for all", "ratio") for name in names[1:]
    ]
    rows = []
    for cell in cells:
        us = cell["us"]
        ratios = {f"{name} / none": ratio_in(us, name, names[0]) for name in names[1:]}
        rows.append(Entry((str(cell["tokens"]), f"{cell['n']}×{cell['k']}"), times_of(us) | present(**ratios)))
    drawn = [part for part in records if isinstance(part, dict)]
    checked, wrong = (sum(one[name] for one in (*cells, *drawn)) for name in ("checked", "wrong"))
    of_these = sum(part["checked"] for part in drawn)
    note = f"{checked:,} results compared with the formula, {of_these:,} of them of random sizes, wrong: {wrong}."
    return Rows("Ternary layers with groups of columns on a GPU", ("tokens", "n × k"), columns, rows, (note,))


def custom_ops(records: Records) -> Rows:
    columns = [Column(name, "µs", f"median time of a product, quantiser included, {name}") for name in (BF16, OURS)]
    columns.append(faster(BF16))
    cells = [cell for part in records for cell in part]
    rows = []
    for cell in cells:
        labels = (cell["model"], f"{cell['what']}, {cell['n']}×{cell['k']}", str(cell["tokens"]))
        rows.append(Entry(labels, times_of(cell["us"]) | present(**{f"× {BF16}": ratio_in(cell["us"], BF16, OURS)})))
    checked, wrong = (sum(cell[name] for cell in cells) for name in ("checked", "wrong"))
    note = f"{checked:,} results of calls, compiled calls and graphs compared with the formula, wrong: {wrong}."
    return Rows("Custom ops of the vLLM plugin on a GPU", ("shape", "product", "tokens"), columns, rows, (note,))


def experts(records: Records) -> Rows:
    cells = [cell for part in records for cell in part if "us" in cell]
    names = list(dict.fromkeys(name for cell in cells for name in cell["us"]))
    peers = [name for name in names if not name.startswith(OURS)]
    columns = [Column(name, "µs", f"median time of a product, all around it included, {name}") for name in names]
    columns += [faster(name) for name in peers]
    rows = []
    for cell in cells:
        ratios = {f"× {name}": ratio_in(cell["us"], name, OURS) for name in peers}
        labels = (f"{cell['what']}, {cell['n']}×{cell['k']}", str(cell["tokens"]))
        rows.append(Entry(labels, times_of(cell["us"]) | present(**ratios)))
    checked, wrong = (sum(cell[name] for cell in cells) for name in ("checked", "wrong"))
    notes = [f"256 experts, 8 for each token; {checked:,} results compared with the formula, wrong: {wrong}."]
    for run in (run for part in records for run in part if "us" not in run):
        prefill, decode = (median(run["rows"][name]["samples"]) for name in ("prefill", "decode"))
        notes.append(
            f"{run['layers']} layers of a model, {run['batch']} sequences: {decode:.0f} tokens/s decoded, a prompt of "
            f"{run['prefill_tokens']} tokens read at {prefill:.0f} tokens/s."
        )
    return Rows("Products of experts on a GPU beside torch's bf16", ("matrix", "tokens"), columns, rows, tuple(notes))


def dense(records: Records) -> Rows:
    (record,) = records
    ceiling = record["read_bytes_per_s"]
    names = list(dict.fromkeys(name for row in record["rows"] for name in row["us"]))
    columns = [Column(name, "%", f"bytes moved in a second by {name}, of what a plain read reaches") for name in names]
    rows = []
    for row in record["rows"]:
        shares = {
            name: figure([100 * row["bytes"] / (us * 1e-6) / ceiling for us in samples])
            for name, samples in row["us"].items()
            if not isinstance(samples, str)
        }
        rows.append(Entry((row["row"],), shares))
    note = f"A plain read reaches {ceiling / 1e12:.2f} TB/s."
    return Rows("Fused operations as a share of the bandwidth", ("case",), columns, rows, (note,))


ROWS: dict[str, Callable[[Records], Rows]] = {
    "products": products,
    "chain": chain,
    "model": model,
    "rivals": rivals,
    "host": host,
    "dense": dense,
    "random": random_shapes,
    "torch": inside_torch,
    "training": training,
    "groups": groups,
    "ops": custom_ops,
    "experts": experts,
}
