"""Ternary products, dense rows, whole networks and the host's share on an NVIDIA GPU, beside PyTorch's own, in one run.

Knows nothing of how a figure is taken: each part has a file of its own. What the project asked of itself stands beside the
figures.

    python bench/cuda.py                                  all parts: minutes, most of them spent compiling kernels
    python bench/cuda.py --quick                          a short look at each
    python bench/cuda.py --only products,chain            some parts
    python bench/cuda.py --only products --shapes 2560x2560 --batches 1,16
    python bench/cuda.py --random-shapes 200 --seed 1     products of shapes that are on no list
    python bench/cuda.py --output cuda.json               every sample, with GPU, driver, versions and command

Parts. `products`: int8 tokens times ternary weights, bf16 out, beside torch's bf16, fp8 and int8 products; weights are cold
(256 MB and more between two uses), calls are replayed as CUDA graphs, arms take turns; where any is long, each runs at its own clock
for a while before it is timed: what draws most power runs at the lowest, and the next would find that; at one token also with
floats in.
`dense`: fused rows of 2^28 elements as a share of the bandwidth. `chain`: all linear layers of BitNet-2B for one token, µs and
mJ. `model`: models of the shapes of BitNet-2B and Bonsai-8B with random weights: decode, prefill, and the energy of both. `kernels`: the
kernels of their decode steps. `rivals`: a decode step of BitNet-2B's shape beside decoders in the manner of gpt-fast, bf16 and int4.
`host`: what a call costs the host. `torch`: layers inside a PyTorch model, eager and compiled, and what their calls cost the host.
`training`: forward and backward of a 2B-shaped layer beside `nn.Linear`, and losses.
`groups`: weights with a scale for each 64 or 128 columns beside one scale for all, quantiser included; all results, and those of
random sizes, compared with the formula.
`ops`: the custom ops of the vLLM plugin at the shapes of 8B and 27B decoders, captured, compiled, compared and timed.
`experts`: products with the experts that tokens chose, at the shape of Maple, beside bf16, all results compared. `exact`: random
sizes against the integer reference, with poisoned outputs, and graphs of many launches back to back. `random`, only with
`--random-shapes N`: n and k are log-uniform multiples of 64 from 1,024 to 32,768, with as many draws of 1, 2 to 31, 32 to 512, 513 to
2,048 and 2,049 to 8,192 tokens (log-uniform); activations quantised beforehand for all, and once with both quantisers; int4 up to
64 tokens; all sums of ours compared in the same run. Shown are medians, and
between which half of the values lie. A part that fails says why; the others run. Exit code: 0; 1 where a part failed or a goal
was missed; 2 without a GPU.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
from cuda_report import BATCHES, QUICK_BATCHES, SHAPES, Goal, Options, Shown, batches_of, chosen, goals_table, shapes_of
from cuda_results import ROWS
from results import GPU, add_option, command_line, need, write
from timing import machine

import tritium as tt
from tritium.errors import install_command
from tritium.machine.files import write_text

PARTS = {
    "exact": ("cuda_products", "exactness"),
    "products": ("cuda_products", "products"),
    "chain": ("cuda_models", "chain"),
    "model": ("cuda_models", "model"),
    "kernels": ("cuda_profile", "kernels"),
    "rivals": ("cuda_rivals", "rivals"),
    "host": ("cuda_dense", "host"),
    "dense": ("cuda_dense", "dense"),
    "torch": ("cuda_torch", "inside"),
    "training": ("cuda_training", "training"),
    "groups": ("cuda_groups", "groups"),
    "ops": ("cuda_ops", "custom_ops"),
    "experts": ("cuda_experts", "experts"),
    "random": ("cuda_random", "random_shapes"),
}
ON_REQUEST = ("random",)  # parts that run only if an option asks for them
QUICK_SHAPES = (SHAPES[0], SHAPES[3])
NO_GPU = 2


def absence() -> str | None:
    """Why nothing can be run here; None: it can."""
    found = next(d for d in tt.devices() if d.name.partition(":")[0] == "cuda")
    if not found.available:
        return f"{found.why}; {found.remedy}"
    try:
        importlib.import_module("triton")
    except ImportError as error:
        return f"{error}; {install_command('cuda')}"
    return None


def facts() -> dict[str, str]:
    """The GPU, its driver, and the versions of what computes."""
    torch, triton = (importlib.import_module(name) for name in ("torch", "triton"))
    gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "gpu": gpu.name, "capability": f"{gpu.major}.{gpu.minor}", "multiprocessors": str(gpu.multi_processor_count),
        "memory": f"{gpu.total_memory / 2**30:.1f} GiB", "driver": driver(), "cuda": str(torch.version.cuda),
        "torch": torch.__version__, "triton": triton.__version__, "tritium": tt.__version__, "numpy": np.__version__,
        "python": platform.python_version(), "host": machine(),
    }  # fmt: skip


def driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return "not told by nvidia-smi"


def run(name: str, options: Options) -> Iterator[Shown]:
    """One part; what it needs is imported here."""
    module, function = PARTS[name]
    yield from getattr(importlib.import_module(module), function)(options)


def parsed(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a short look: fewer shapes, batches, rounds and elements")
    parser.add_argument("--only", help=f"some of: {', '.join(PARTS)}")
    parser.add_argument("--shapes", help="n x k of products, as 2560x2560,4096x4096")
    parser.add_argument("--batches", help="tokens of products, as 1,16,128")
    parser.add_argument("--random-shapes", type=int, default=0, metavar="N", help="time N products of random shapes")
    parser.add_argument("--jobs", type=int, default=1, help="threads that compile the kernels of products beforehand")
    parser.add_argument("--seed", type=int, default=0, help="of weights and tokens")
    parser.add_argument("--output", type=Path, metavar="FILE", help="where all samples are written, as JSON")
    add_option(parser)
    args = parser.parse_args(words)
    try:
        args.parts = parts_of(args.only, args.random_shapes)
        shapes = shapes_of(args.shapes) if args.shapes else QUICK_SHAPES if args.quick else SHAPES
        batches = batches_of(args.batches) if args.batches else QUICK_BATCHES if args.quick else BATCHES
    except ValueError as error:
        parser.error(str(error))
    if args.results and not (len(args.parts) == 1 and args.parts[0] in ROWS):
        parser.error(f"--results writes one table; name its part with --only: {', '.join(ROWS)}")
    args.options = Options(args.quick, shapes, batches, args.seed, args.jobs, args.random_shapes)
    return args


def parts_of(only: str | None, random_shapes: int) -> tuple[str, ...]:
    """Return the parts to run: those named; else that of random shapes if they are asked for, else all others."""
    if random_shapes < 0:
        raise ValueError(f"--random-shapes: a number of draws is needed, given {random_shapes}")
    if only is None:
        return ON_REQUEST if random_shapes else tuple(name for name in PARTS if name not in ON_REQUEST)
    parts = chosen(only, tuple(PARTS))
    if "random" in parts and not random_shapes:
        raise ValueError("random: say how many draws, with --random-shapes N")
    return tuple(name for name in PARTS if name in parts or (name == "random" and random_shapes))


def write_results(path: Path, part: str, tables: list[dict[str, Any]], about: dict[str, str]) -> None:
    """Write the samples of one part as a results file."""
    rows = ROWS[part]([table["found"] for table in tables])
    versions = {name: about[name] for name in ("driver", "cuda", "torch", "triton") if name in about}
    needs = [GPU, need("torch"), need("triton")]
    write(path, rows.title, rows.labels, rows.columns, rows.rows, versions=versions, needs=needs, notes=rows.notes)


def main(words: list[str] | None = None) -> int:
    args = parsed(words)
    if (why := absence()) is not None:
        sys.stderr.write(f"bench/cuda.py needs an NVIDIA GPU, PyTorch and Triton: {why}.\n")
        return NO_GPU
    about = facts()
    print("; ".join(f"{name} {value}" for name, value in about.items()), end="\n\n", flush=True)
    kept: dict[str, Any] = {"schema": 1, "command": [*command_line(sys.argv)], "machine": about, "parts": {}}
    goals: list[Goal] = []
    failed: list[str] = []
    for name in args.parts:
        begun, found = monotonic(), []
        kept["parts"][name] = part = {"tables": found, "error": None, "seconds": 0.0}
        try:
            for shown in run(name, args.options):
                print(shown.table.text(), end="\n\n", flush=True)
                goals += shown.goals
                found.append(
                    {"title": shown.table.title, "goals": [g.record() for g in shown.goals], "found": shown.record}
                )
        except Exception as error:  # the other parts still tell something
            failed.append(name)
            part["error"] = f"{type(error).__name__}: {error}"
            traceback.print_exc()
        part["seconds"] = monotonic() - begun
        print(f"({name}: {part['seconds']:.0f} s)\n", flush=True)
        if args.output:  # after each part: a run that is cut short keeps what it had
            write_text(args.output, json.dumps(kept, indent=1) + "\n", parents=True)
    if args.results and not failed:
        write_results(args.results, args.parts[0], kept["parts"][args.parts[0]]["tables"], about)
    if goals:
        print(goals_table(goals).text())
    if failed:
        print(f"\nfailed: {', '.join(failed)}; the errors are above.")
    return int(bool(failed) or any(goal.verdict == "MISSED" for goal in goals))


if __name__ == "__main__":
    # This folder last: a library may look for a package that is named like this file.
    sys.path.append(sys.path.pop(0))
    sys.exit(main())
