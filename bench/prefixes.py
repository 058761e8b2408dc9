"""Measures the prefix cache: the time to the first token of streams that share one long prompt, beside that of one stream.

Knows nothing of HTTP: requests go to the scheduler. Every round reads a prompt that nobody has read before, once for one stream and
once for all of them, in alternating order, so that a change of the machine meets both.

    python bench/make_model.py mid.gguf --layers 16 --hidden 1024 --intermediate 2816 --heads 16 --kv-heads 4 --head-dim 64 --vocab 32000
    python bench/prefixes.py mid.gguf --tokens 1000 --streams 8
    python bench/prefixes.py mid.gguf --copy 1000 4000

--copy measures what it costs to have a prefix in pages instead of in the slot: seconds to copy it there, beside its prefill and the
step of one token after it. It counts CPU time of one thread, the least of its rounds, so that other load does not count.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import tritium as tt
from tritium.models.caching.prefixes import PrefixCache, default_limit
from tritium.models.load import Model
from tritium.serve.scheduler import Request, Scheduler, Ticket


def first_tokens(scheduler: Scheduler, prompts: list[tuple[int, ...]], count: int) -> list[float]:
    """Return the seconds to the first token of each request, all submitted at once."""
    times = [0.0] * len(prompts)
    start = time.perf_counter()
    tickets = scheduler.submit_all([Request(p, count, stream=i) for i, p in enumerate(prompts)])

    def follow(i: int, ticket: Ticket) -> None:
        for event in ticket:
            if event.usage.completion_tokens and not times[i]:
                times[i] = time.perf_counter() - start

    threads = [threading.Thread(target=follow, args=pair) for pair in enumerate(tickets)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return times


def measure(model: Model, tokens: int, streams: int, rounds: int, suffix: int) -> dict[str, object]:
    """Return the times of all rounds, and the tokens of prompts that were computed for all streams together."""
    draw = np.random.default_rng(0)
    vocab = model.config.vocab_size - 8

    def prompt(count: int) -> tuple[int, ...]:
        return tuple(draw.integers(0, vocab, count).tolist())

    alone: list[float] = []
    together: list[float] = []
    computed: list[int] = []
    with Scheduler(model.session(slots=streams, context=tokens + suffix + 16), model.tokenizer) as scheduler:
        for i in range(rounds + 1):  # the first compiles
            for many in (False, True) if i % 2 else (True, False):
                shared = prompt(tokens)
                prompts = [shared + prompt(suffix) for _ in range(streams if many else 1)]
                before = tt.models.session.counters.prefill + tt.models.session.counters.decode
                times = first_tokens(scheduler, prompts, 1)
                work = tt.models.session.counters.prefill + tt.models.session.counters.decode - before
                if i and many:
                    together += times
                    computed.append(work)
                elif i:
                    alone += times
    p95 = float(np.percentile(together, 95))
    return {
        "model": model.name, "prompt_tokens": tokens + suffix, "shared_tokens": tokens, "streams": streams, "rounds": rounds,
        "alone_s": alone, "together_s": together, "alone_median_s": float(np.median(alone)), "together_p95_s": p95,
        "ratio": p95 / float(np.median(alone)), "computed_tokens": computed,
    }  # fmt: skip


def least(rounds: int, work: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
    """Return the least CPU seconds of some work."""
    times = []
    for _ in range(rounds):
        before()
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def copy_costs(model: Model, tokens: int, rounds: int) -> dict[str, float]:
    """Return the seconds to write a prefix into pages, to copy it from there into a slot, to prefill it, and of one token after it."""
    session = model.session(slots=2, context=tokens + 32)
    vocab = model.config.vocab_size - 8
    ids = np.random.default_rng(0).integers(0, vocab, tokens).tolist()
    prefill = least(1, lambda: session.extend(0, ids))
    cache = PrefixCache(session.memory, default_limit(session.memory, 2, session.capacity))
    store = least(rounds, lambda: cache.store(0, ids), cache.clear)
    match = cache.match(ids, tokens)
    load = least(rounds, lambda: cache.load(1, match))
    session.truncate(1, 0)
    session.adopt(1, ids)
    step = least(rounds, lambda: session.extend(1, [1]), lambda: session.truncate(1, tokens))
    return {"store": store, "load": load, "prefill": prefill, "step": step}


def print_copies(model: Model, lengths: list[int], rounds: int) -> None:
    """Print the costs of copies by the length of the prefix."""
    tt.set_num_threads(1)
    for tokens in lengths:
        c = {name: 1e3 * seconds for name, seconds in copy_costs(model, tokens, rounds).items()}
        print(
            f"{model.name}, {tokens} tokens: pages written in {c['store']:.1f} ms, copied into a slot in {c['load']:.1f} ms; prefill "
            f"{c['prefill']:.0f} ms, one token after it {c['step']:.1f} ms",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="a model file; default: the small model in the package")
    parser.add_argument("--tokens", type=int, default=200, help="tokens that all prompts share")
    parser.add_argument("--suffix", type=int, default=0, help="tokens of each prompt's own after them")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--copy", type=int, nargs="+", metavar="TOKENS", help="measure copies of prefixes of these lengths instead"
    )
    parser.add_argument("--json", type=Path, help="write every time here")
    a = parser.parse_args()
    if a.copy:
        print_copies(tt.load(a.model), a.copy, a.rounds)
        return
    result = measure(tt.load(a.model), a.tokens, a.streams, a.rounds, a.suffix)
    if a.json:
        a.json.write_text(json.dumps(result, indent=1))
    print(
        f"{result['model']}: {a.streams} streams share {a.tokens} of {a.tokens + a.suffix} tokens\n"
        f"first token: one stream {result['alone_median_s']:.3f} s (median), {a.streams} streams {result['together_p95_s']:.3f} s "
        f"(p95), ratio {result['ratio']:.2f}\n"
        f"tokens of prompts computed for all streams: {np.median(result['computed_tokens']):.0f} "  # type: ignore[arg-type]
        f"of {a.streams * (a.tokens + a.suffix)}"
    )


if __name__ == "__main__":
    main()
