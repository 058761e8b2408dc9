"""One step of a transformers model at batch 1: torch's f32 linear layers beside tritium's BitLinear in the same model.

Knows nothing of the inside of transformers: `replace_linears(model)` is all that is done to it.

    python bench/torch_linears.py                        two layers, 2560 wide, BitNet and Llama, 1 and 2 threads
    python bench/torch_linears.py --family llama --hidden 1024 --intermediate 2816 --heads 8
    python bench/torch_linears.py --json linears.json    every raw value too

Method. One child process per thread count and family, confined to that many CPUs before torch is imported. The model has random
f32 weights and a KV cache of `--past` tokens; a step is one call of the model on one token. Three models of the same weights
take turns in rounds, a random order and then its reverse, settled before each sample: `f32` as transformers makes it,
`torch ternary` with the latent weights replaced by value times scale, still torch's f32 products, and `tritium`, that is
`replace_linears(model).eval()`. Caches are cropped after each step, so that every step is the same work.

Checked before anything is timed: tritium and torch's own operations of the same layers (the path training takes) over
`--tokens` greedy tokens. They must be the same wherever the first choice leads the second by more than the largest
difference of their logits; that difference and the number of tokens told apart by less are printed.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import Any

from results import Entry, add_option, compared, compared_columns, need, write
from timing import REST_S, THREAD_VARIABLES, cpus, in_turns, machine, timed

FAMILIES = {"bitnet": ("BitNetConfig", "BitNetForCausalLM"), "llama": ("LlamaConfig", "LlamaForCausalLM")}
GOAL = 5.0


def make(family: str, args: argparse.Namespace) -> Any:
    """A transformers model with random weights."""
    import torch
    import transformers

    config, model = (getattr(transformers, name) for name in FAMILIES[family])
    torch.manual_seed(0)
    sizes = config(
        hidden_size=args.hidden, intermediate_size=args.intermediate, num_hidden_layers=args.layers, vocab_size=args.vocab,
        num_attention_heads=args.heads, num_key_value_heads=args.kv_heads, max_position_embeddings=4096, tie_word_embeddings=True,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return model(sizes).eval()


def stepper(model: Any, past: int) -> Callable[[], Any]:
    """A call that runs the model on one token after `past` others."""
    import torch
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    ids = torch.arange(past)[None] % model.config.vocab_size
    one = torch.tensor([[1]])
    with torch.inference_mode():
        model(ids, past_key_values=cache)

    def step() -> Any:
        with torch.inference_mode():
            logits = model(one, past_key_values=cache).logits
            cache.crop(-1)
            return logits

    return step


def check(ours: Any, count: int) -> dict[str, Any]:
    """Greedy tokens of the packed layers against torch's operations of the same layers, both on tritium's text so far."""
    import torch

    ids, close, worst = [1], 0, 0.0
    for _ in range(count):
        context = torch.tensor([ids])
        with torch.inference_mode():
            packed = ours(context).logits[0, -1]
        with torch.enable_grad():  # then the layers take torch's own operations
            plain = ours(context).logits[0, -1].detach()
        worst = max(worst, float((packed - plain).abs().max()))
        first, second = plain.topk(2).values.tolist()
        if first - second <= worst:
            close += 1
        elif int(packed.argmax()) != int(plain.argmax()):
            raise SystemExit(
                f"token {len(ids)}: {int(packed.argmax())} and {int(plain.argmax())}, apart by {first - second:.3g}"
            )
        ids.append(int(packed.argmax()))
    return {"tokens": count, "close": close, "largest_difference": worst}


def measure(family: str, args: argparse.Namespace, threads: int) -> dict[str, Any]:
    """ns of a step of each model, one value a round."""
    import torch

    import tritium as tt
    from tritium.torch import bit_linears, replace_linears, ternarise

    torch.set_num_threads(threads)
    tt.set_num_threads(threads)
    plain = make(family, args)
    ours = replace_linears(copy.deepcopy(plain)).eval()
    dense = copy.deepcopy(plain)
    for name in bit_linears(ours):
        weight = dense.get_submodule(name).weight
        t, g = ternarise(weight)
        weight.data = t * g
    told = check(ours, args.tokens)
    calls = {n: stepper(m, args.past) for n, m in {"f32": plain, "torch ternary": dense, "tritium": ours}.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    gc.collect()
    gc.disable()
    for call in calls.values():
        timed(call, 2)
    for name in in_turns(calls, args.rounds // 2):
        sleep(REST_S)
        timed(calls[name], 1)
        samples[name].append(timed(calls[name], args.loops) / args.loops)
    versions = {name: sys.modules[name].__version__ for name in ("torch", "transformers", "tritium")}
    return {"family": family, "threads": threads, "check": told, "ns": samples, "versions": versions}


def report(result: dict[str, Any]) -> tuple[str, bool]:
    """Lines for one run, and whether the goal is met."""
    import numpy as np

    ns = {name: np.array(values) for name, values in result["ns"].items()}
    rounds = len(ns["tritium"])
    chosen = np.random.default_rng(0).integers(rounds, size=(2000, rounds))  # the same for all: ratios stay paired
    boot = {name: np.median(values[chosen], axis=1) for name, values in ns.items()}
    lines = [f"{result['family']}, {result['threads']} thread{'s' * (result['threads'] > 1)}"]
    for name, values in ns.items():
        low, high = np.percentile(boot[name], [2.5, 97.5]) / 1e6
        ratio = boot[name] / boot["tritium"]
        less, more = np.percentile(ratio, [2.5, 97.5])
        told = (
            ""
            if name == "tritium"
            else f"  {np.median(values) / np.median(ns['tritium']):.2f}x ({less:.2f} … {more:.2f}) of tritium's"
        )
        lines.append(
            f"  {name:14} {np.median(values) / 1e6:8.2f} ms ({low:.2f} … {high:.2f}, 95 %, {rounds} samples){told}"
        )
    told = result["check"]
    lines.append(
        f"  {told['tokens']} greedy tokens are those of torch's operations of the same layers; {told['close']} led by less than "
        f"the largest difference of logits, {told['largest_difference']:.2g}"
    )
    reached = float(np.median(ns["f32"]) / np.median(ns["tritium"]))
    lines.append(f"  {'met' if reached >= GOAL else 'NOT met'}: {reached:.2f}x of torch f32, goal {GOAL:g}x")
    return "\n".join(lines), reached >= GOAL


def write_results(path: Path, results: list[dict[str, Any]]) -> None:
    """Write the times of a step as a results file."""
    rows = [Entry((r["family"], str(r["threads"])), compared(r["ns"], "tritium", 1e-6)) for r in results]
    columns = compared_columns(results[0]["ns"], "tritium", "ms", "median time of a step")
    title, labels = "A step of a transformers model with its linear layers replaced", ("family", "threads")
    needs = [need("torch"), need("transformers")]
    threads = max(r["threads"] for r in results)
    write(path, title, labels, columns, rows, threads=threads, versions=results[0]["versions"], needs=needs)


def run_child(args: argparse.Namespace, family: str, threads: int) -> dict[str, Any]:
    environment = os.environ | dict.fromkeys(THREAD_VARIABLES, str(threads)) | {"TRITIUM_NUM_THREADS": str(threads)}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "child.json")
        command = [sys.executable, __file__, "--family", family, "--threads", str(threads), "--child", str(out)]
        for name in SIZES:
            command += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
        if subprocess.run(command, env=environment, check=False).returncode:
            raise SystemExit(f"the run of {family} with {threads} thread(s) failed; see above")
        return dict(json.loads(out.read_text()))


SIZES = {
    "hidden": 2560, "intermediate": 6912, "layers": 2, "heads": 20, "kv_heads": 5, "vocab": 2048, "past": 64, "tokens": 24,
    "rounds": 20, "loops": 5,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--family", default="bitnet,llama", help=f"of {', '.join(FAMILIES)}")
    parser.add_argument("--threads", default="1,2", help="thread counts, one run each (1,2)")
    for name, value in SIZES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value, help=f"({value})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every raw value (ns a step)")
    add_option(parser)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if unknown := set(args.family.split(",")) - set(FAMILIES):
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(FAMILIES)}")
    if args.child:
        usable, threads = cpus(), int(args.threads)
        if usable:
            os.sched_setaffinity(0, usable[:threads])
        args.child.write_text(json.dumps(measure(args.family, args, threads)))
        return
    load = os.getloadavg()[0]
    results = [run_child(args, f, int(t)) for f in args.family.split(",") for t in args.threads.split(",")]
    print(f"{machine()}, load before the run {load:.1f}")
    print(", ".join(f"{name} {version}" for name, version in results[0]["versions"].items()))
    print(
        f"One step of {args.layers} layers {args.hidden} wide, batch 1, {args.past} tokens in the cache, vocabulary {args.vocab}, f32."
    )
    for result in results:
        print(f"\n{report(result)[0]}")
    if load > 0.5:
        print(f"\nNote: other work was running (load {load:.1f}).")
    if args.results:
        write_results(args.results, results)
    if args.json:
        document = {
            "schema": 1,
            "machine": machine(),
            "load": load,
            "sizes": {n: getattr(args, n) for n in SIZES},
            "runs": results,
        }
        unfinished = args.json.with_name(args.json.name + ".tmp")
        unfinished.write_text(json.dumps(document, indent=1, allow_nan=False))
        unfinished.replace(args.json)


if __name__ == "__main__":
    main()
