"""Samples thousands of texts at a time from SmolLM2-135M-Instruct on a GPU: plain torch, five Triton kernels, one CUDA graph.

Knows nothing of stories. A row of the batch writes one text after the other, each by a script: tokens that are given, and gaps that the
teacher fills up to a token with an odd mark, for instance with a sentence. Where a script ends, the graph itself takes the next from a
table, so the host waits for nothing. What a step gives goes to a log [steps, rows]; reading.py reads texts out of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from reading import END, GAP

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER, EPS, THETA = 576, 9, 3, 64, 1536, 1e-5, 100000.0
PLAIN = re.compile(r"Ġ?[A-Z]?[a-z]+|Ġ?[AIO]|Ġ?[.,!?;:'\"-]+|[.,!?]+\"|Ġ\"|'[a-z]{1,2}")  # tokens of plain prose
WORDS = 32768  # tokens are in the order in which they were merged: later ones are rare words and names


@dataclass(frozen=True)
class Picking:
    """How a token is drawn: tokens of at least `min_p` of the likeliest one's probability; the logit of
    one that was written already goes down by the share `penalty` of itself, times the token's `cost`.

    `temperature` is one for all rows of the batch, or two: that of the first row and that of the last, and evenly between them."""

    temperature: float | tuple[float, float] = 0.6
    min_p: float = 0.1
    penalty: float = 0.03


def plain_tokens(tokens: list[str]) -> list[int]:
    """Return the ids that may be drawn: plain words and punctuation; texts and paragraphs end where their scripts say so."""
    return [i for i, token in enumerate(tokens[:WORDS]) if PLAIN.fullmatch(token)]


def mark_of(token: str) -> int:
    """Return 1 for a token that ends a sentence, plus 2 for one with a quotation mark."""
    return (token in (".", "!", "?", '."', "...")) + 2 * ('"' in token)


# ---- kernels: one program a row, or a row and a head of the cache


@triton.jit
def add_norm_kernel(x, y, w, out, eps, n: tl.constexpr, block: tl.constexpr):
    """x += y; out = rms_norm(x) * w."""
    row, c = tl.program_id(0).to(tl.int64), tl.arange(0, block)
    inside = c < n
    v = tl.load(x + row * n + c, inside, 0.0) + tl.load(y + row * n + c, inside, 0.0).to(tl.float32)
    tl.store(x + row * n + c, v, inside)
    r = tl.rsqrt(tl.sum(v * v) / n + eps)
    tl.store(out + row * n + c, (v * r * tl.load(w + c, inside, 0.0).to(tl.float32)).to(out.dtype.element_ty), inside)


@triton.jit
def gate_kernel(x, out, n: tl.constexpr, block: tl.constexpr):
    """out = silu(first half) * second half."""
    row, c = tl.program_id(0).to(tl.int64), tl.arange(0, block)
    inside = c < n
    g = tl.load(x + row * 2 * n + c, inside, 0.0).to(tl.float32)
    u = tl.load(x + row * 2 * n + n + c, inside, 0.0).to(tl.float32)
    tl.store(out + row * n + c, (g / (1 + tl.exp(-g)) * u).to(out.dtype.element_ty), inside)


@triton.jit
def rotate_kernel(qkv, q, k, v, cos, sin, pos, length, heads: tl.constexpr, kv: tl.constexpr, dim: tl.constexpr):
    """RoPE, the halves of a head as pairs; queries to q, keys and values to their position in the cache."""
    row, h, c = tl.program_id(0).to(tl.int64), tl.arange(0, 16), tl.arange(0, dim // 2)
    p = tl.load(pos + row)
    co, si = tl.load(cos + p * (dim // 2) + c)[None, :], tl.load(sin + p * (dim // 2) + c)[None, :]
    at, inside = h[:, None] * dim + c[None, :], h[:, None] < heads + kv
    a = tl.load(qkv + row * (heads + 2 * kv) * dim + at, inside, 0.0).to(tl.float32)
    b = tl.load(qkv + row * (heads + 2 * kv) * dim + at + dim // 2, inside, 0.0).to(tl.float32)
    one, two = (a * co - b * si).to(q.dtype.element_ty), (b * co + a * si).to(q.dtype.element_ty)
    tl.store(q + row * heads * dim + at, one, h[:, None] < heads)
    tl.store(q + row * heads * dim + at + dim // 2, two, h[:, None] < heads)
    place = ((row * kv + h[:, None] - heads) * length + p) * dim + c[None, :]
    key = (h[:, None] >= heads) & inside
    tl.store(k + place, one, key)
    tl.store(k + place + dim // 2, two, key)
    value = qkv + row * (heads + 2 * kv) * dim + kv * dim + at  # the rows of keys, one block further
    tl.store(v + place, tl.load(value, key, 0.0), key)
    tl.store(v + place + dim // 2, tl.load(value + dim // 2, key, 0.0), key)


@triton.jit
def attend_kernel(
    q, k, v, out, pos, length, group: tl.constexpr, kv: tl.constexpr, dim: tl.constexpr, block: tl.constexpr
):
    """Attention of one token over its row's cache, for the heads that share keys."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    h, c, t = tl.arange(0, 16), tl.arange(0, dim), tl.arange(0, block)
    n = tl.load(pos + row) + 1
    at = (row * kv + head) * group * dim + h[:, None] * dim + c[None, :]
    query = tl.load(q + at, h[:, None] < group, 0.0)
    base = (row * kv + head) * length * dim
    most = tl.full([16], -1e30, tl.float32)
    total = tl.zeros([16], tl.float32)
    acc = tl.zeros([16, dim], tl.float32)
    for start in range(0, n, block):
        here = (start + t) < n
        place = base + (start + t)[:, None] * dim + c[None, :]
        keys = tl.load(k + place, here[:, None], 0.0)
        values = tl.load(v + place, here[:, None], 0.0)
        s = tl.dot(query, tl.trans(keys)) * (1.4426950408889634 / dim**0.5)
        s = tl.where(here[None, :], s, -1e30)
        new = tl.maximum(most, tl.max(s, 1))
        e = tl.exp2(s - new[:, None])
        old = tl.exp2(most - new)
        total = total * old + tl.sum(e, 1)
        acc = acc * old[:, None] + tl.dot(e.to(values.dtype), values)
        most = new
    tl.store(out + at, (acc / total[:, None]).to(out.dtype.element_ty), h[:, None] < group)


@triton.jit
def pick_kernel(
    logits, seen, cost, keep, marks, scripts, plen, cursor, count, quote, pos, tok, pid, counter, step, log, likely, seed,
    n, width, length, texts, base, inverse, log_min_p, penalty,
    end: tl.constexpr, gap: tl.constexpr, steps: tl.constexpr, rows: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Draw a row's next token, or take that of its script; log it, and go to the next script where the text ends."""
    row, c = tl.program_id(0).to(tl.int64), tl.arange(0, block)
    now, inv_t = tl.load(step), tl.load(inverse + row)
    slot = (now % steps) * rows + row
    p, who, place = tl.load(pos + row) + 1, tl.load(pid + row), tl.load(cursor + row)
    entry = tl.load(scripts + who.to(tl.int64) * width + place)
    free, asked = entry == gap, place < tl.load(plen + who)
    most = tl.full([block], -1e30, tl.float32)
    top = tl.full([block], -1e30, tl.float32)
    total = tl.zeros([block], tl.float32)
    for start in range(0, n, block):
        inside = (start + c) < n
        x = tl.load(logits + row * n + start + c, inside, -1e30)
        new = tl.maximum(top, x)
        total = total * tl.exp(top - new) + tl.where(inside, tl.exp(x - new), 0.0)
        top = new
        s = (
            penalty
            * tl.load(seen + row * n + start + c, inside, 0).to(tl.float32)
            * tl.load(cost + start + c, inside, 0.0)
        )
        most = tl.maximum(most, tl.where(inside, (x - s * tl.abs(x)) * inv_t, -1e30))
    peak = tl.max(top)
    lse = peak + tl.log(tl.sum(total * tl.exp(top - peak)))
    least = tl.max(most) + log_min_p
    best, where = -1e30, 0
    for start in range(0, n, block):
        inside = (start + c) < n
        x = tl.load(logits + row * n + start + c, inside, -1e30)
        s = (
            penalty
            * tl.load(seen + row * n + start + c, inside, 0).to(tl.float32)
            * tl.load(cost + start + c, inside, 0.0)
        )
        x = (x - s * tl.abs(x)) * inv_t
        u = tl.rand(seed + now * rows + row, start + c)
        g = tl.where(inside & (x >= least), x - tl.log(-tl.log(tl.maximum(u, 1e-10))), -1e30)
        value, index = tl.max(g, 0, return_indices=True)
        where = tl.where(value > best, start + index, where)
        best = tl.maximum(best, value)
    chosen = tl.where(free, tl.load(keep + where), entry)
    mark, written, quoted = tl.load(marks + where), tl.load(count + row), tl.load(quote + row)
    quoted = tl.where(free & (mark >= 2), 1 - quoted, quoted)
    written += tl.where(free & (mark % 2 == 1) & (quoted == 0), 1, 0)
    filled = free & (written > 0)
    over = (free == 0) & (asked == 0) & (entry == end)
    ended = over | ((asked == 0) & (p >= length - 1))
    note = tl.where(
        asked,
        tl.where(p == base + 1, 49152 + (who & 8191), tl.where(p == base + 2, 49152 + (who >> 13), 65535)),
        chosen,
    )
    note = tl.where(ended, tl.where(over, end, 65534), note)
    tl.store(log + slot, note.to(tl.int32).to(tl.uint16))
    value = tl.minimum(tl.load(logits + row * n + where) - lse, 0.0)
    tl.store(likely + slot, tl.where(free, value, 1.0).to(tl.float16))
    if ended:
        for start in range(0, n, block):
            tl.store(seen + row * n + start + c, tl.zeros([block], tl.int8), (start + c) < n)
        following = tl.atomic_add(counter, 1) % texts
        tl.store(pid + row, following)
        tl.store(pos + row, base)
        tl.store(cursor + row, base + 1)
        tl.store(count + row, 0)
        tl.store(quote + row, 0)
        tl.store(tok + row, tl.load(scripts + following.to(tl.int64) * width + base))
    else:
        if free:
            tl.store(seen + row * n + where, tl.full([], 1, tl.int8))
        tl.store(cursor + row, tl.where(free & (filled == 0), place, place + 1))
        tl.store(count + row, tl.where(filled, 0, written))
        tl.store(quote + row, tl.where(filled, 0, quoted))
        tl.store(pos + row, p)
        tl.store(tok + row, chosen)


# ---- the teacher


class Teacher:
    """SmolLM2 with a cache of `rows` texts of at most `length` tokens, prompt and all."""

    def __init__(
        self, weights: dict[str, torch.Tensor], keep: list[int], marks: list[int], cost: torch.Tensor, scripts: np.ndarray[Any, Any],
        lengths: np.ndarray[Any, Any], *, rows: int, length: int, steps: int, base: int, picking: Picking, seed: int = 0,
    ) -> None:  # fmt: skip
        table = weights["model.embed_tokens.weight"]
        device, kind = table.device, table.dtype
        self.rows, self.length, self.steps, self.picking, self.seed = rows, length, steps, picking, seed << 40
        self.base = base
        self.table, self.keep = table, torch.tensor(keep, dtype=torch.int32, device=device)
        self.head = table[self.keep.long()].t()
        self.cost = cost.to(device, torch.float32)
        self.marks = torch.tensor(marks, dtype=torch.int32, device=device)
        first, last = np.broadcast_to(picking.temperature, 2)
        self.inverse = 1 / torch.linspace(float(first), float(last), rows, device=device)
        count = sum(name.endswith(".input_layernorm.weight") for name in weights)
        self.layers = [self._layer(weights, i) for i in range(count)]
        self.last_norm = weights["model.norm.weight"]
        cache = (count, rows, KV_HEADS, length, HEAD_DIM)
        self.k, self.v = (torch.zeros(cache, dtype=kind, device=device) for _ in range(2))
        turn = THETA ** (-torch.arange(0, HEAD_DIM, 2, device=device, dtype=torch.float64) / HEAD_DIM)
        angles = torch.outer(torch.arange(length, device=device, dtype=torch.float64), turn)
        self.cos, self.sin = angles.cos().float(), angles.sin().float()
        self.scripts = torch.from_numpy(scripts.astype(np.int32)).to(device)
        self.plen = torch.from_numpy(lengths.astype(np.int32)).to(device)
        self.pos, self.count, self.quote = (torch.zeros(rows, dtype=torch.int32, device=device) for _ in range(3))
        self.cursor = torch.ones(rows, dtype=torch.int32, device=device)
        self.pid = torch.arange(rows, dtype=torch.int32, device=device) % len(scripts)
        self.tok = self.scripts[self.pid.long(), 0].contiguous()
        self.counter = torch.full((1,), rows, dtype=torch.int32, device=device)
        self.step_index = torch.zeros(1, dtype=torch.int64, device=device)
        self.seen = torch.zeros(rows, len(keep), dtype=torch.int8, device=device)
        self.log = torch.zeros(steps, rows, dtype=torch.uint16, device=device)
        self.likely = torch.zeros(steps, rows, dtype=torch.float16, device=device)
        self.graph: Any = None

    @staticmethod
    def _layer(w: dict[str, torch.Tensor], i: int) -> dict[str, torch.Tensor]:
        name = f"model.layers.{i}."
        both = {"qkv": [f"self_attn.{c}_proj" for c in "qkv"], "gu": ["mlp.gate_proj", "mlp.up_proj"]}
        layer = {key: torch.cat([w[f"{name}{n}.weight"] for n in names]).t() for key, names in both.items()}
        layer |= {"o": w[f"{name}self_attn.o_proj.weight"].t(), "down": w[f"{name}mlp.down_proj.weight"].t()}
        norms = {"n1": "input_layernorm", "n2": "post_attention_layernorm"}
        return layer | {key: w[f"{name}{n}.weight"] for key, n in norms.items()}

    def step(self) -> None:
        """One token for every row."""
        rows = self.rows
        x = self.table[self.tok.long()].float()
        y = torch.zeros_like(x, dtype=self.table.dtype)
        h, q = torch.empty_like(y), torch.empty_like(y)
        mixed = torch.empty(rows, INNER, dtype=y.dtype, device=y.device)
        for i, layer in enumerate(self.layers):
            add_norm_kernel[(rows,)](x, y, layer["n1"], h, EPS, HIDDEN, 1024, num_warps=2)
            qkv = h @ layer["qkv"]
            rotate_kernel[(rows,)](
                qkv, q, self.k[i], self.v[i], self.cos, self.sin, self.pos, self.length, HEADS, KV_HEADS, HEAD_DIM, num_warps=1
            )  # fmt: skip
            seen = torch.empty_like(q)
            attend_kernel[(rows, KV_HEADS)](
                q, self.k[i], self.v[i], seen, self.pos, self.length, HEADS // KV_HEADS, KV_HEADS, HEAD_DIM, 64,
                num_warps=2, num_stages=2,
            )  # fmt: skip
            y = seen @ layer["o"]
            add_norm_kernel[(rows,)](x, y, layer["n2"], h, EPS, HIDDEN, 1024, num_warps=2)
            gate_kernel[(rows,)](h @ layer["gu"], mixed, INNER, 2048, num_warps=4)
            y = mixed @ layer["down"]
        add_norm_kernel[(rows,)](x, y, self.last_norm, h, EPS, HIDDEN, 1024, num_warps=2)
        self._pick(h)

    def _pick(self, h: torch.Tensor) -> None:
        logits = torch.mm(h, self.head, out_dtype=torch.float32) if h.is_cuda else (h @ self.head).float()
        picking = self.picking
        pick_kernel[(self.rows,)](
            logits, self.seen, self.cost, self.keep, self.marks, self.scripts, self.plen,
            self.cursor, self.count, self.quote, self.pos, self.tok, self.pid, self.counter,
            self.step_index, self.log, self.likely, self.seed, len(self.keep), self.scripts.shape[1], self.length,
            len(self.scripts), self.base,
            self.inverse, float(np.log(picking.min_p)), picking.penalty, END, GAP, self.steps, self.rows, 2048,
            num_warps=8,
        )  # fmt: skip
        self.step_index += 1

    def prefill(self) -> None:
        """Write what all scripts begin with to the cache, once: every text begins after it."""
        for _ in range(self.base):
            self.step()
        self.pos.fill_(self.base)
        self.cursor.fill_(self.base + 1)
        self.step_index.zero_()
        self.tok.copy_(self.scripts[self.pid.long(), self.base])

    def capture(self) -> None:
        """Record a step as a CUDA graph."""
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            self.prefill()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):
            self.step()

    def run(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Take `steps` steps; return the log and the log-likelihoods."""
        for _ in range(self.steps):
            self.graph.replay() if self.graph is not None else self.step()
        return self.log.cpu().numpy(), self.likely.cpu().numpy()
