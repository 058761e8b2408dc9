"""Whole networks of bench/cuda.py: the linear layers of BitNet-2B for one token as one graph, and a model of that shape.

The weights are random: their sizes are those of BitNet b1.58 2B-4T, and no file is read.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from cuda_report import BF16, CHAIN_US, OURS, Goal, Options, Samples, Shown, at_most, text
from cuda_timing import LEAST_MS, Replay, captured, device_ms, in_turn, tried
from make_model import FOUR, PRESETS, Preset

import tritium as tt
from tritium import quant
from tritium.backends.cuda.linear import ternary as cuda_ternary, weights as cuda_weights
from tritium.models.config import Config
from tritium.models.load import Model
from tritium.models.parts import Plain
from tritium.models.session import Session, programs
from tritium.models.weights import Network, Source, assemble, default_activations, make_head
from tritium.nn.linear import BitLinear, unpacked
from tritium.perf.meters.absent import Absent
from tritium.perf.meters.meter import EnergyMeter
from tritium.perf.meters.nvidia import nvidia
from tritium.perf.suites import model as bench_model
from tritium.perf.tables.table import Table

LAYERS = 30
LINEARS = ((3840, 2560), (2560, 2560), (13824, 2560), (2560, 6912))  # of a layer: Q, K and V; result; gate and up; down
FUSED = "tritium, norm and quantiser inside"
WINDOW_S = 2.0  # of replays, for energy
PROMPT, RUNS = 128, (1, 8, 64)  # tokens; sequences, of which a short look has the first
DECODED, QUICK_DECODED, REPEAT, QUICK_REPEAT = 64, 16, 5, 3


class Asked(NamedTuple):
    """What is asked of a model: µs of a step by sequences, and mJ of a token at 64 of them."""

    step_us: dict[int, float]
    token_mj: float

    def at(self, name: str, batch: int, step: Samples, report: dict[str, Any]) -> Iterator[Goal]:
        if batch in self.step_us:
            yield from at_most(f"{name}, sequences {batch}: µs a step", step, self.step_us[batch])
        spent = report["rows"]["decode energy"]["samples"]
        if batch == 64 and spent:
            yield from at_most(
                f"{name}, sequences 64: mJ a token", Samples(tuple(1e3 * j for j in spent)), self.token_mj
            )


MODELS = {"bitnet-2b-4t": Asked({1: 450.0, 64: 1500.0}, 15.0), "bonsai-8b": Asked({1: 1000.0}, 50.0)}


# ---- energy


def meter(window_s: float = WINDOW_S) -> EnergyMeter:
    """Of the GPU that torch computes on, by the driver's counter of joules."""
    at = torch.cuda._get_nvml_device_index(torch.cuda.current_device())
    sensors = [s for s in nvidia() if isinstance(s, Absent) or s.domain == f"gpu-{at}"]
    return EnergyMeter(device="cuda", power_measurement_duration_s=window_s, idle_s=1.0, sensors=sensors)


def joules(found: EnergyMeter, replay: Replay | Callable[[], Any]) -> dict[str, Any]:
    """Millijoules of a call, all of it and beyond idling, or why they are absent."""
    together = max(1, round(20 * LEAST_MS / max(device_ms(replay, 3) / 3, 1e-3)))

    def many() -> None:
        for _ in range(together):
            replay()

    least_s = 1.2 * WINDOW_S  # a little more than the counter needs
    told = found.window(many, lambda result: torch.cuda.synchronize(), least_s=least_s)
    about = told["details"]
    if told["kind"] != "measured":
        return {"says": f"not measured: {told['reason']}"}
    calls = together * about["calls"]
    above = about["above_idle_j"]
    return {
        "mj": 1e3 * about["joules"] / calls, "above_idle_mj": None if above is None else 1e3 * above / calls,
        "idle_w": about["idle_baseline_w"], "seconds": about["seconds"], "calls": calls, "source": told["source"],
    }  # fmt: skip


def joules_texts(found: dict[str, Any]) -> tuple[str, str]:
    if "mj" not in found:
        return found["says"], "-"
    above = found["above_idle_mj"]
    return f"{found['mj']:.0f}", "idle not measured" if above is None else f"{above:.0f}"


# ---- the chain


def chain_arms() -> dict[str, Replay | str]:
    """All linear layers for one token as one graph, three ways; together the weights are far larger than the caches."""
    scale = torch.full((), 0.02, device="cuda")
    xs = {k: torch.randn((1, k), device="cuda").bfloat16() for k in {k for _, k in LINEARS}}
    tokens = {k: cuda_ternary.quantise(x) for k, x in xs.items()}
    norms = {k: cuda_ternary.Norm(torch.rand((k,), device="cuda") + 0.5, 1e-5) for k in xs}
    ours = [cuda_weights.ternary_of(_random(n, k)) for _ in range(LAYERS) for n, k in LINEARS]
    theirs = [w.data.bfloat16() for w in ours]
    to = torch.bfloat16
    made = {
        BF16: [lambda w=w: torch.mm(xs[w.shape[1]], w.t()) for w in theirs],
        OURS: [lambda w=w: cuda_ternary.product(tokens[w.shape[1]], w, scale, None, to) for w in ours],
        FUSED: [lambda w=w: cuda_ternary.linear(xs[w.shape[1]], w, scale, None, to, 0, norms[w.shape[1]]) for w in ours],
    }  # fmt: skip
    found = {name: tried(partial(captured, calls)) for name, calls in made.items()}
    return {name: r if isinstance(r, str) else r._replace(calls=1) for name, r in found.items()}


def _random(n: int, k: int) -> torch.Tensor:
    return torch.randint(-1, 2, (n, k), dtype=torch.int8, device="cuda")


def chain(options: Options) -> Iterator[Shown]:
    arms = chain_arms()
    taken = in_turn(arms, options.rounds)
    energy, watched = {}, meter()
    for name, arm in arms.items():
        energy[name] = {"says": "not measured: it did not run"} if isinstance(arm, str) else joules(watched, arm)
    rows = tuple((name, text(taken[name]), *joules_texts(energy[name])) for name in arms)
    idle = next((e["idle_w"] for e in energy.values() if e.get("idle_w")), None)
    said = "idle power was not measured" if idle is None else f"idle: {idle:.0f} W, taken off in the last column"
    below = (
        "",
        f"{LAYERS} layers of {len(LINEARS)} products, one token, one graph. Energy over {WINDOW_S:g} s of replays; {said}.",
    )
    heads = ("way", "µs", "mJ", "mJ above idle")
    table = Table("All linear layers of BitNet-2B for one token", heads, rows, frozenset(heads[1:]), below)
    record = {name: {"us": t.us if isinstance(t, Samples) else t, "energy": energy[name]} for name, t in taken.items()}
    yield Shown(table, tuple(at_most("the chain: µs", taken[OURS], CHAIN_US)), record)


# ---- a model


def random_codes(name: str, seed: int, rows: int, columns: int) -> tt.Tensor:
    """Return ternary weights drawn on the GPU, half of them zero; the same for a name and a seed."""
    draw = torch.Generator("cuda").manual_seed(zlib.crc32(name.encode()) + seed)
    drawn = torch.randint(0, 256, (rows, columns // 4), device="cuda", generator=draw)
    codes = torch.from_numpy(FOUR).cuda()[drawn]
    return unpacked(tt.from_torch(codes), (rows, columns))


def random_network(config: Config, preset: Preset, seed: int) -> Network:
    """Return a network of random weights, made on the GPU. A head that the preset does not store as ternary is int8."""

    def linear(name: str, rows: int, columns: int) -> BitLinear:
        shape = (rows, columns // preset.group) if preset.group else ()
        scale = torch.full(shape, (2 / columns) ** 0.5, device="cuda", dtype=torch.float16 if shape else torch.float32)
        codes = random_codes(name, seed, rows, columns)
        weight = quant.Quantized("ternary", codes, tt.from_torch(scale), None, preset.group)
        return BitLinear(weight, activations=default_activations(config, preset.group))

    def plain(p: Plain) -> tt.Tensor:
        return tt.ones(p.shape, device="cuda")

    @cache
    def table(name: str) -> tt.Tensor | BitLinear:
        shape = config.vocab_size, config.hidden_size
        if preset.tables:
            return linear(name, *shape)
        return tt.from_torch(torch.randn(shape, dtype=torch.float16, device="cuda") * config.hidden_size**-0.5)

    def head() -> Any:
        rows = table("embedding" if preset.tied else "head")
        return rows if preset.tables else make_head(rows, "int8")

    before = tt.default_device()
    tt.set_default_device("cuda")  # what a network makes by itself: the frequencies of its positions
    try:
        parts = Source(lambda p, norm: linear(p.name, p.rows, p.columns), plain, lambda: table("embedding"), head)
        return assemble(config, parts)
    finally:
        tt.set_default_device(None if before.device.type == "cpu" else before.device)


def random_model(name: str, seed: int) -> Model:
    """Return a model of the shape of a preset of bench/make_model.py, without a tokenizer."""
    preset = PRESETS[name]
    s = preset.shape
    config = Config(
        preset.family, s.vocab, s.hidden, s.intermediate, s.layers, s.heads, s.kv_heads, s.head, s.context,
        rope_theta=preset.fields.get("rope_theta", 500000.0), eps=preset.fields.get("rms_norm_eps", 1e-5),
        activation="relu2" if preset.family == "bitnet" else "silu", tied=preset.tied,
    )  # fmt: skip
    return Model(config, random_network(config, preset, seed), name=f"{name} shape, random", source=None)  # type: ignore[arg-type]


def decode_step(model: Model, batch: int, held: int | list[int], context: int | None = None) -> Callable[[], Any]:
    """Return a decode step of so many sequences that hold so many tokens each, captured; context: for which there is room."""
    held = [held] * batch if isinstance(held, int) else held
    session = Session(model.network, model.config, slots=batch, context=max(held) + 1 if context is None else context)
    for kv in session.caches:
        kv[...] = 0.5
    places = session.whole_places(np.array([(slot, n, 1) for slot, n in enumerate(held)], np.int32))
    given = [tt.asarray(a, device="cuda") for a in (np.ones((batch, 1), np.int64), places)]
    operands = [*given, session.turns, *session.caches]
    pick = programs(model.network).pick
    backend = tt.device("cuda").backend

    def again() -> Any:
        backend.upload(places, operands[1])  # a step leaves those of the next one
        return pick(*operands)

    for _ in range(4):
        again()
    return again


def step_us(model: Model, batch: int, held: int | list[int], rounds: int, context: int | None = None) -> Any:
    """Return microseconds of the device for a decode step, as of `decode_step`."""
    return in_turn({OURS: decode_step(model, batch, held, context)}, rounds)[OURS]


def measured(made: Model, batch: int, watched: EnergyMeter, options: Options) -> tuple[dict[str, Any], Samples, Any]:
    """Return the report of a run, with the step's time of the device and the energy of both phases in it; and both times."""
    decoded, repeat = (QUICK_DECODED, QUICK_REPEAT) if options.quick else (DECODED, REPEAT)
    report = bench_model.measure(
        lambda: made, prefill=PROMPT, decode=decoded, repeat=repeat, batch=batch, meter=watched, windows=1
    )
    device = step_us(made, batch, PROMPT, options.rounds)
    step = Samples(tuple(1e6 * batch / rate for rate in report.rows["decode"].samples))
    return report.as_dict() | {"device_step_us": getattr(device, "us", device)}, step, device


def model(options: Options) -> Iterator[Shown]:
    watched = meter()
    for name, asked in MODELS.items():
        made = random_model(name, options.seed)
        rows, goals, record = [], [], []
        for batch in RUNS[:1] if options.quick else RUNS:
            report, step, device = measured(made, batch, watched, options)
            goals += asked.at(name, batch, step, report)
            rows.append(_row(report, step, device))
            record.append(report)
        heads = ("prompt", "batch", "prefill, tokens/s", "decode, tokens/s", "step, µs", "of the device, µs", *ENERGY)
        below = (
            "",
            "A step is one token of every sequence, and the next one picked: on the host's clock, until it is known there; and the",
            "program alone by the device's events. Energy is that of the GPU by the driver's counter, idling included.",
        )
        table = Table(f"A model of the shape of {name}", heads, tuple(rows), frozenset(heads), below)
        yield Shown(table, tuple(goals), record)
        del made
        torch.cuda.empty_cache()


ENERGY = ("prefill, mJ a token", "decode, mJ a token")


def _row(report: dict[str, Any], step: Samples, device: Any) -> tuple[str, ...]:
    rows = report["rows"]
    spent = [rows[f"{phase} energy"]["median"] for phase in ("prefill", "decode")]
    return (
        str(report["prefill_tokens"]), str(report["batch"]), f"{rows['prefill']['median']:.0f}", f"{rows['decode']['median']:.0f}",
        text(step), text(device), *("-" if joules is None else f"{1e3 * joules:.3g}" for joules in spent),
    )  # fmt: skip
