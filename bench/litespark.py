"""One run of Litespark-Inference (PyPI: litespark-inference), whose interpreter starts this file; `model.py` reads what it prints.

    PYTHON bench/litespark.py FOLDER --prefill 128 --decode 64 --repeats 3

FOLDER has a BitNet of plain bf16 numbers, as `bench/make_model.py FOLDER --format bf16` writes it: Litespark makes them ternary
itself. Threads are those of OMP_NUM_THREADS. Prints {"prefill": [tokens/s, …], "decode": [tokens/s, …]}.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

REMEDY = "python -m venv litespark && litespark/bin/pip install litespark-inference, and give litespark/bin/python"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    for name, count in (("prefill", 128), ("decode", 64), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=count)
    args = parser.parse_args()
    try:
        from litespark_inference.torchless import loader
        from litespark_inference.torchless.runtime import forward_one, forward_prefill, init_state
    except ImportError as error:
        sys.exit(f"Litespark-Inference cannot be imported by {sys.executable} ({error}): {REMEDY}.")
    files = args.folder / "config.json", args.folder / "model.safetensors"
    if not all(file.is_file() for file in files):
        sys.exit(
            f"{args.folder} needs config.json and model.safetensors: bench/make_model.py {args.folder} --format bf16"
        )
    loader._resolve_hf_snapshot = lambda repo: files  # a folder in the place of a download
    model = loader.load_bitnet_2b(str(args.folder))
    rates: dict[str, list[float]] = {"prefill": [], "decode": []}
    for _ in range(args.repeats + 1):
        state = init_state(model, args.prefill + args.decode + 1)
        begun = time.perf_counter()
        forward_prefill(model, state, list(range(args.prefill)))
        read = time.perf_counter()
        for i in range(args.decode):
            forward_one(model, state, i)
        rates["prefill"].append(args.prefill / (read - begun))
        rates["decode"].append(args.decode / (time.perf_counter() - read))
    print(json.dumps({kind: values[1:] for kind, values in rates.items()}))  # the first warms up


if __name__ == "__main__":
    main()
