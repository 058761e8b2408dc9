"""Random functions of tensors whose first sizes vary, written with the shapes of their arguments as users write them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import tritium as tt

WIDTH = 8
W = tt.randn((WIDTH, WIDTH), seed=3)
GAIN = tt.randn(WIDTH, seed=4)
LINEAR = tt.nn.BitLinear.from_float(tt.randn((WIDTH, WIDTH), seed=5))

Step = Callable[[Any, Any], Any]  # from a matrix [n, WIDTH] and an argument [m, WIDTH] to a matrix [n, WIDTH]


def attention(x: Any, y: Any) -> Any:
    q, k = (t.reshape(t.shape[0], 2, WIDTH // 2).permute(1, 0, 2) for t in (x, y))
    return (tt.softmax(q @ k.mT * 0.5) @ k).permute(1, 0, 2).reshape(x.shape[0], WIDTH)


def causal(x: Any, y: Any) -> Any:
    n = x.shape[0]
    scores = tt.where(tt.tril(tt.ones((n, n))) > 0, x @ x.mT, -1e9)
    return tt.softmax(scores) @ x


def branch(x: Any, y: Any) -> Any:
    return x * 2 if x.shape[0] > 12 else x - 1


def chunks(x: Any, y: Any) -> Any:
    n = x.shape[0]
    return tt.concat([x[: n // 2] + 1, x[n // 2 :] * 2], axis=0)


def written(x: Any, y: Any) -> Any:
    z = x.clone()
    z[1:] = x[:-1] * 3
    z[-1] = 0.5
    return z


def padded(x: Any, y: Any) -> Any:
    room = tt.zeros((x.shape[0] + 3, WIDTH))
    room[2 : 2 + x.shape[0]] = x
    return room[1:-2] + x


STEPS: dict[str, Step] = {
    "elements": lambda x, y: tt.tanh(x) * 0.5 + 1,
    "rows": lambda x, y: tt.softmax(x * 2),
    "norm": lambda x, y: tt.rms_norm(x, GAIN),
    "product": lambda x, y: tt.gelu(x @ W) + x,
    "ternary": lambda x, y: x + LINEAR(tt.rms_norm(x, GAIN)),
    "columns": lambda x, y: x - x.mean(axis=0, keepdims=True),
    "other": lambda x, y: x + y.sum(axis=0),
    "turned": lambda x, y: (x.T * 2).T.contiguous(),
    "flat": lambda x, y: x.reshape(-1).reshape(-1, WIDTH) + 1,
    "strides": lambda x, y: tt.concat([x[::2], x[1::2]], axis=0),
    "places": lambda x, y: x * tt.arange(x.shape[0], dtype="f32")[:, None],
    "broadcast": lambda x, y: x + x[:1] + x[-1],
    "gather": lambda x, y: x[tt.arange(x.shape[0] - 1, -1, -1)],
    "roll": lambda x, y: tt.roll(x, 1, 0),
    "sorted": lambda x, y: tt.sort(x, axis=0),
    "running": lambda x, y: tt.cumulative_sum(x, axis=0),
    "stacked": lambda x, y: tt.stack([x, x * 2], axis=1).reshape(2 * x.shape[0], WIDTH)[: x.shape[0]],
    "attention": attention, "causal": causal, "branch": branch, "chunks": chunks, "written": written, "padded": padded,
}  # fmt: skip


def function(seed: int, most: int = 5) -> tuple[str, Callable[..., Any]]:
    """Return the names of some random steps, and the function that applies them in turn, with several results."""
    rng = random.Random(seed)
    names = [rng.choice(list(STEPS)) for _ in range(rng.randint(1, most))]

    def run(x: Any, y: Any) -> Any:
        results = [x]
        for name in names:
            results.append(STEPS[name](results[-1], y))
        return tuple(results[1:])

    return "+".join(names), run
