"""`tritium tune`: race what the runtime can choose on this machine, and show what was kept and why."""

from __future__ import annotations

import json
from time import perf_counter
from typing import Any

import click

from tritium.cli.text import Counts, Sizes, Table, bar, echo, json_option, print_parts, say, shown

NAMES = ("kernel", "kernel/ROW", "tiling", "storage", "cuda", "batch", "threads", "device")


@click.command()
@click.option("--op", "names", multiple=True, metavar="NAME", help=f"Tune only: {', '.join(NAMES)}; repeatable.")
@click.option("--quick", is_flag=True, help="Fewer shapes, candidates and rounds: seconds, not a minute.")
@click.option("--sizes", type=Sizes(), metavar="NxK,…", help="Weight shapes for the GPU's matmuls.")
@click.option("--batches", type=Counts(), metavar="M,…", help="Batch sizes for the GPU's matmuls.")
@click.option("--model", type=click.Path(exists=True), metavar="FILE", help="Take --sizes from this model.")
@click.option(
    "--from", "source", type=click.Path(exists=True), metavar="FILE", help="Keep the devices of a comparison."
)
@click.option("--list", "listed", is_flag=True, help="List what can be tuned, and the choices in use.")
@click.option("--explain", metavar="NAME", help="Show the candidates of the last race, with intervals.")
@click.option("--revalidate", is_flag=True, help="Race winners and runners-up again; exit code 1 if one lost.")
@click.option("--clear", is_flag=True, help="Forget tuned choices; with --op, only those.")
@click.option("--on", metavar="ADDRESS", help="Tune every machine of a Dask cluster: tcp://host:port, or local:N.")
@json_option("Print JSON with every sample.")
def tune(
    names: tuple[str, ...], quick: bool, sizes: tuple[tuple[int, ...], ...] | None, batches: tuple[int, ...] | None,
    model: str | None, source: str | None, listed: bool, explain: str | None, revalidate: bool, clear: bool, on: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Pick the fastest kernels and settings for this machine.

    Kernels, tile configs, storage, batch, threads and devices are raced; what is clearly faster is stored. With a CUDA GPU
    its ternary matmuls race too, for the shapes of the reference model or of --sizes, --batches and --model: minutes, most of
    them Triton's compiler, whose cache saves them the next time.

    The runtime reads the choices when it starts (TRITIUM_TUNED=0 ignores them). Threads and device, which can change the last
    bits of a result, are followed only with TRITIUM_TUNED=all; the device alone with TRITIUM_DEVICE=auto.
    """
    actions = [
        w
        for w, on in (
            ("--from", source),
            ("--list", listed),
            ("--explain", explain),
            ("--revalidate", revalidate),
            ("--clear", clear),
        )
        if on
    ]
    if len(actions) > 1:
        raise click.UsageError(f"{' and '.join(actions)} do not go together; give one of them.")
    products = [w for w, on in (("--sizes", sizes), ("--batches", batches), ("--model", model)) if on]
    if products and (actions or set(names) - {"cuda", "cuda/product"}):
        other = actions[0] if actions else f"--op {next(n for n in names if n not in ('cuda', 'cuda/product'))}"
        raise click.UsageError(f"{products[0]} is for the products of a GPU, not for {other}; leave one of them out.")
    if sizes and model:
        raise click.UsageError("--sizes and --model do not go together; give one of them.")
    if on and (actions or products):
        raise click.UsageError(f"{(actions + products)[0]} is for this machine; leave --on out.")
    if on:
        _tune_all(on, names, quick, as_json)
    elif source is not None:
        _keep_devices(source, as_json)
    elif listed:
        _list(as_json)
    elif explain:
        from tritium.perf.tune import racing as races

        echo(shown_page(races.explain(explain)))
    elif revalidate:
        _revalidate(names, quick, as_json)
    elif clear:
        _clear(names)
    else:
        _tune(("cuda",) if products else names, quick, as_json, _sizes(sizes, model), batches or ())


def _keep_devices(source: str, as_json: bool) -> None:
    """Store the devices by size of a comparison."""
    from tritium.machine import tuned
    from tritium.perf.store import results as store
    from tritium.perf.tune import keep_devices

    devices = keep_devices(store.load(source))
    if as_json:
        click.echo(json.dumps(devices, indent=2))
        return
    rows = [[name.split("/")[1], f"{int(name.split('/')[2]):,}", device] for name, device in devices.items()]
    print_parts(Table(rows, ["op", "from elements", "device"]))
    echo(f"\nKept in {tuned.path()}; TRITIUM_DEVICE=auto follows it.")


def shown_page(page: str) -> str:
    """A page whose words may come from users' configurations, safe for a terminal."""
    return "\n".join(shown(line) for line in page.splitlines())


def _sizes(shapes: tuple[tuple[int, ...], ...] | None, model: str | None) -> tuple[tuple[int, int], ...]:
    """Rows and columns of weights: those given, or those of a model."""
    if model is not None:
        from tritium.perf.tune import cuda as tune_cuda

        return tune_cuda.sizes_of(model)
    for size in shapes or ():
        if len(size) != 2:
            raise click.UsageError(f"--sizes: {'x'.join(map(str, size))} is not rows x columns; write 2560x6912.")
    return tuple((n, k) for n, k in shapes or ())


def _tune(
    names: tuple[str, ...], quick: bool, as_json: bool, sizes: tuple[tuple[int, int], ...], batches: tuple[int, ...]
) -> None:
    from tritium.machine import tuned
    from tritium.machine.facts import seconds_text
    from tritium.perf.records import json_io as records
    from tritium.perf.tune import choices as tune_choices

    start = perf_counter()
    with bar("tuning") as progress:
        done = tune_choices.fill(names, quick=quick, progress=progress, sizes=sizes, batches=batches)
    if as_json:
        rows = [
            {"name": o.race.choice, "value": o.value, "default": o.race.default, "why": o.why}
            | {"race": records.plain(o.tuning)}
            for o in done
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    print_parts(Table([[o.race.title, _value(o), o.why] for o in done], ["what", "choice", "why"]))
    took = seconds_text(perf_counter() - start)
    echo(f"\nIt took {took}. Kept in {tuned.path()}; tritium tune --explain NAME shows the candidates.")
    if any(o.changed and not o.race.exact for o in done):
        echo(
            "Threads and device are followed only with TRITIUM_TUNED=all (the device also with TRITIUM_DEVICE=auto): the last "
            "bits of results may depend on them."
        )


def tune_here(names: tuple[str, ...], quick: bool) -> list[dict[str, str]]:
    """Tune this machine, which keeps its choices; return what was chosen and why."""
    from tritium.perf.tune import choices as tune_choices

    done = tune_choices.fill(names, quick=quick)
    return [{"name": o.race.choice, "what": o.race.title, "value": _value(o), "why": o.why} for o in done]


def _tune_all(on: str, names: tuple[str, ...], quick: bool, as_json: bool) -> None:
    """Tune the machines of a cluster side by side, each by itself."""
    from tritium.perf.suites import cluster

    with cluster.connected(on) as machines:
        rows = cluster.on_each_machine(machines, tune_here, names, quick)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    titles = list(dict.fromkeys(row["what"] for chosen in rows.values() for row in chosen))
    values = {host: {row["what"]: row["value"] for row in chosen} for host, chosen in rows.items()}
    print_parts(
        Table(
            [[title, *(shown(v.get(title, "-")) for v in values.values())] for title in titles],
            ["what", *map(shown, rows)],
        )
    )


def _value(o: Any) -> str:
    if o.tuning is None:
        return "-"
    return f"{o.value}{'' if o.changed else ' (as shipped)'}"


def _list(as_json: bool) -> None:
    from tritium.machine import tuned
    from tritium.perf.tune import choices as tune_choices, file as tune_file, racing as tune

    stored, followed = tune_file.choices(), tuned.choices()
    races = tune.history()
    if as_json:
        rows = [
            {"name": n, "value": c.value, "why": c.why, "exact": c.exact, "followed": n in followed}
            for n, c in stored.items()
        ]
        tunable = [r.title for r in tune_choices.races()]
        click.echo(
            json.dumps(
                {
                    "path": str(tuned.path()),
                    "unused": tuned.unused_reason(),
                    "choices": rows,
                    "races": len(races),
                    "tunable": tunable,
                },
                indent=2,
            )
        )
        return
    body = []
    for r in tune_choices.races():
        last = tune.latest(r.op, r.shape, r.dtype, r.device)
        state = r.absent or (f"tuned {last.created[:16]} UTC" if last else "not tuned: as shipped")
        body.append([r.title, str(stored[r.choice].value) if r.choice in stored else f"{r.default or '-'}", state])
    print_parts(Table(body, ["what", "choice", "state"]))
    rest = sorted({t.op for t in races} - {r.op for r in tune_choices.races()})
    if rest:
        echo("\nTuned by programs: " + ", ".join(shown(name) for name in rest))
    if why := tuned.unused_reason():
        say(f"\n{tuned.path()} is not used ({shown(why)}); run tritium tune again.", "yellow")
    else:
        echo(f"\nIn {tuned.path()}; {len(followed)} of {len(stored)} choices are followed.")


def _revalidate(names: tuple[str, ...], quick: bool, as_json: bool) -> None:
    from tritium.perf.records import json_io as records
    from tritium.perf.tune import choices as tune_choices

    drifts = tune_choices.revalidate(names, quick=quick)
    if as_json:
        click.echo(json.dumps([records.plain(d) for d in drifts], indent=2))
    elif not drifts:
        echo("Nothing of it was tuned on this machine; run tritium tune first.")
    else:
        for d in drifts:
            echo(shown(str(d)))
    if not all(d.holds for d in drifts):
        raise SystemExit(1)


def _clear(names: tuple[str, ...]) -> None:
    from tritium.perf.tune import choices as tune_choices, racing as tune

    count = 0 if names else tune.clear()
    for name in names:
        removed = tune.clear(name)
        if not removed and name != "batch":
            tune_choices.races([name])  # refuses a name that nothing can be tuned under
        count += removed
    echo(f"{count} race{'s' * (count != 1)} forgotten; what they chose is as shipped again.")
