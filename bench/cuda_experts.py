"""Products of experts of bench/cuda.py, at the shape of Maple: floats in, quantiser and sorting of tokens included.

256 experts, 8 of them for each token; hidden size 2,048 and intermediate size 512 are those that make 20B weights of 24 layers.
Each call has its own tokens and its own random choice of experts, and calls take turns with copies of the weights, so that these
are cold. PyTorch's contenders multiply in bf16: a loop over the experts in use, whose tokens are known beforehand (a model would
wait for them), and `torch._grouped_mm`, with the tokens sorted and put back on the device. Every result is compared with the
formula, bit by bit. Then some layers of such a model with random weights: decode steps, which are one graph each, and prefill.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from cuda_models import step_us
from cuda_report import OURS, Goal, Options, Samples, Shown, text, times
from cuda_timing import captured, copies, in_turn, tried
from make_model import FOUR

import tritium as tt
from tritium import quant
from tritium.backends.cuda.experts import products as cuda_experts
from tritium.backends.cuda.linear import ternary as cuda_ternary, weights as cuda_weights
from tritium.models.config import Config
from tritium.models.load import Model
from tritium.models.parts import Plain, Product
from tritium.models.weights import Source, assemble, make_head
from tritium.nn.linear import BitLinear, unpacked
from tritium.nn.mixers import Experts
from tritium.op import Spec
from tritium.perf.meters.meter import EnergyMeter
from tritium.perf.suites import model as bench_model
from tritium.perf.tables.table import Table

EXPERTS, ACTIVE = 256, 8
MATRICES = {"gate and up": (1024, 2048), "down": (2048, 512)}
BATCHES, QUICK_BATCHES = (1, 8, 64, 512, 2048), (1, 64, 2048)
LOOP, GROUPED, GROUP_128 = "bf16, loop", "bf16, _grouped_mm", "tritium, group 128"
PEERS = (LOOP, GROUPED)
PAIRS = 512  # for each copy of the weights, in all calls of a graph: so many choose nearly all experts
MOST_CALLS = 64
LAYERS = 4  # of the model: three with a window, one without
RUNS = (
    (128, 1),
    (128, 8),
    (128, 64),
    (512, 1),
    (2048, 1),
)  # (tokens of the prompt, sequences); a short look has the first
MAPLE = {
    "model_type": "maple", "hidden_act": "silu", "hidden_size": 2048, "moe_intermediate_size": 512, "num_hidden_layers": LAYERS,
    "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 32768, "max_position_embeddings": 4096,
    "num_experts": EXPERTS, "num_experts_per_tok": ACTIVE, "sliding_window": 512, "norm_topk_prob": True, "rms_norm_eps": 1e-6,
    "nope_on_global_attention": True, "rope_theta": 10000.0, "tie_word_embeddings": True,
}  # fmt: skip


class Layer:
    """Copies of the weights of all experts, and tokens with their experts for each call of a graph."""

    def __init__(self, n: int, k: int, tokens: int, seed: int) -> None:
        random = torch.Generator("cuda").manual_seed(seed)
        self.n, self.k, self.tokens = n, k, tokens
        self.codes = torch.randint(-1, 2, (EXPERTS, n, k), dtype=torch.int8, device="cuda", generator=random)
        count = copies(EXPERTS * n * k // 4)
        self.weights = [cuda_weights.ternary_of(self.codes.view(-1, k)) for _ in range(count)]
        self.scale = torch.rand((EXPERTS, n), device="cuda", generator=random) + 0.5
        self.group_scale = (torch.rand((EXPERTS, n, k // 128), device="cuda", generator=random) + 0.5).half()
        calls = max(min(count * PAIRS // (tokens * ACTIVE), MOST_CALLS), count)
        self.x = [torch.randn((tokens, k), device="cuda", generator=random).bfloat16() for _ in range(calls)]
        scores = [torch.rand((tokens, EXPERTS), device="cuda", generator=random) for _ in range(calls)]
        self.experts = [s.topk(ACTIVE).indices.sort().values.int().contiguous() for s in scores]

    def ours(self, i: int, group: int = 0) -> torch.Tensor:
        chosen = cuda_experts.Chosen(self.experts[i].view(-1), EXPERTS, ACTIVE)
        scale = self.group_scale if group else self.scale
        w = self.weights[i % len(self.weights)]
        return cuda_experts.product(self.x[i], w, scale, chosen, torch.bfloat16, group)[0]

    def by_loop(self, i: int, plain: torch.Tensor, parts: list[tuple[int, torch.Tensor]]) -> torch.Tensor:
        out = torch.empty((self.tokens * ACTIVE, self.n), dtype=torch.bfloat16, device="cuda")
        for e, pairs in parts:
            out.index_copy_(0, pairs, torch.mm(self.x[i].index_select(0, pairs // ACTIVE), plain[e].t()))
        return out

    def parts(self, i: int) -> list[tuple[int, torch.Tensor]]:
        """Return the experts of call i that are in use, each with its pairs."""
        flat = self.experts[i].view(-1)
        return [(int(e), (flat == e).nonzero()[:, 0]) for e in flat.unique()]

    def by_grouped_mm(self, i: int, plain: torch.Tensor) -> torch.Tensor:
        numbers, order = self.experts[i].view(-1).sort()
        ends = torch.searchsorted(numbers, self.all_experts, right=True, out_int32=True)
        rows = self.x[i].index_select(0, order // ACTIVE)
        y = torch._grouped_mm(rows, plain.transpose(1, 2), offs=ends)
        return torch.empty_like(y).index_copy_(0, order, y)

    @property
    def all_experts(self) -> torch.Tensor:
        return torch.arange(EXPERTS, dtype=torch.int32, device="cuda")

    def mismatches(self, i: int) -> int:
        """Return how many results have other bits than those of the formula."""
        t = cuda_ternary.quantise(self.x[i])
        found, wrong = self.ours(i), 0
        for e, pairs in self.parts(i):
            rows = pairs // ACTIVE
            sums = torch.mm(t.q[rows].float(), self.codes[e].t().float())  # exact
            right = (sums * (t.scale[rows, None] * self.scale[e])).bfloat16()
            wrong += int((found[pairs] != right).sum())
        return wrong


def cell(what: str, tokens: int, options: Options) -> dict[str, Any]:
    """Return the times of one product at one batch, and what was compared."""
    n, k = MATRICES[what]
    layer = Layer(n, k, tokens, options.seed)
    calls = range(len(layer.x))
    wrong = sum(layer.mismatches(i) for i in calls)
    plain = torch.randn((EXPERTS, n, k), dtype=torch.bfloat16, device="cuda")
    parts = [layer.parts(i) for i in calls]
    arms = {
        LOOP: tried(lambda: captured([partial(layer.by_loop, i, plain, parts[i]) for i in calls])),
        GROUPED: tried(lambda: captured([partial(layer.by_grouped_mm, i, plain) for i in calls])),
        OURS: captured([partial(layer.ours, i) for i in calls]),
        GROUP_128: captured([partial(layer.ours, i, 128) for i in calls]),
    }
    taken = in_turn(arms, options.rounds)
    us = {name: one.us if isinstance(one, Samples) else one for name, one in taken.items()}
    checked = len(calls) * tokens * ACTIVE * n
    return {
        "what": what,
        "n": n,
        "k": k,
        "tokens": tokens,
        "us": us,
        "checked": checked,
        "wrong": wrong,
        "taken": taken,
    }


# ---- a model


def random_model(seed: int) -> Model:
    """Return a model of some layers of Maple's shape with random weights, without a tokenizer; its head is int8."""
    config, draw = Config.from_hf(MAPLE), np.random.default_rng(seed)

    def codes(rows: int, columns: int) -> tt.Tensor:
        drawn = FOUR[draw.integers(0, 256, (rows, columns // 4), np.uint8)]
        return unpacked(tt.asarray(drawn, device="cpu"), (rows, columns))

    def scale(columns: int, *shape: int) -> tt.Tensor:
        return tt.asarray(np.full(shape, (2 / columns) ** 0.5, np.float32), device="cuda")

    def linear(p: Product, norm: tt.Tensor | None) -> BitLinear:
        weight = quant.Quantized("ternary", codes(p.rows, p.columns).to("cuda"), scale(p.columns, p.rows))
        return BitLinear(weight, norm=norm)

    def of_experts(p: Product) -> Experts:
        flat, shape = codes(p.experts * p.rows, p.columns), (p.experts, p.rows, p.columns)
        data = tt.Tensor(flat.storage, tt.tern2, shape, Spec(shape, tt.tern2).strides, flat.offset)
        return Experts(data.to("cuda"), scale(p.columns, p.experts, p.rows))

    def plain(p: Plain) -> tt.Tensor:
        numbers = np.ones(p.shape) if len(p.shape) == 1 else draw.standard_normal(p.shape) * p.shape[-1] ** -0.5
        return tt.asarray(numbers.astype(np.float32), device="cuda")

    shape = (config.vocab_size, config.hidden_size)
    table = tt.from_torch(torch.randn(shape, dtype=torch.float16, device="cuda") * config.hidden_size**-0.5)
    before = tt.default_device()
    tt.set_default_device("cuda")  # what a network makes by itself: the frequencies of its positions
    try:
        network = assemble(config, Source(linear, plain, lambda: table, lambda: make_head(table, "int8"), of_experts))
    finally:
        tt.set_default_device(None if before.device.type == "cpu" else before.device)
    return Model(config, network, name="layers of Maple's shape, random", source=None)  # type: ignore[arg-type]


def whole(options: Options) -> Shown:
    """Return decode and prefill of the model."""
    made, none = random_model(options.seed), EnergyMeter(device="cuda", sensors=[])
    rows, record = [], []
    for prompt, batch in RUNS[:1] if options.quick else RUNS:
        report = bench_model.measure(lambda: made, prefill=prompt, decode=32, repeat=3, batch=batch, meter=none)
        device = step_us(made, batch, prompt, options.rounds)
        prefill, decode = (report.rows[name].median for name in ("prefill", "decode"))
        rows.append((str(prompt), str(batch), f"{prefill:.0f}", f"{decode:.0f}", text(device)))
        record.append(report.as_dict() | {"device_step_us": getattr(device, "us", device), "layers": LAYERS})
    heads = ("prompt", "sequences", "prefill, tokens/s", "decode, tokens/s", "step of the device, µs")
    return Shown(Table(f"{LAYERS} layers of the shape of Maple", heads, tuple(rows), frozenset(heads)), (), record)


def experts(options: Options) -> Iterator[Shown]:
    """A table for each matrix of the experts, and one for a model."""
    for what, (n, k) in MATRICES.items():
        rows, goals, record = [], list[Goal](), []
        for tokens in QUICK_BATCHES if options.quick else BATCHES:
            found = cell(what, tokens, options)
            taken = found.pop("taken")
            beside = [list(times(f"{what}, {tokens} tokens: times {p}", taken[p], taken[OURS], 1.0)) for p in PEERS]
            goals += [goal for some in beside for goal in some]
            faster = (f"{some[0].value:.2f}" if some else "" for some in beside)
            rows.append((str(tokens), *(text(one) for one in taken.values()), *faster, str(found["wrong"])))
            record.append(found)
            torch.cuda.empty_cache()
        wrong = float(sum(one["wrong"] for one in record))
        goals.append(Goal(f"{what}: wrong results of experts", wrong, wrong, wrong, 0.0, lower=True))
        heads = ("tokens", *taken, *(f"× {name}" for name in PEERS), "wrong")
        title = f"{EXPERTS} experts, {ACTIVE} for each token, {what} ({n}×{k}), quantiser and sorting included: µs"
        yield Shown(Table(title, heads, tuple(rows), frozenset(heads)), tuple(goals), record)
    yield whole(options)
