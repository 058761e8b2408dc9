"""Runs the readers on inputs that mean harm, for as long as asked, and goes on where it stopped.

    python fuzz/run.py                          # 10**6 executions of every reader
    python fuzz/run.py gguf tq1_0 --minutes 5   # these two, five minutes
    python fuzz/run.py --table                  # what was done so far
    python fuzz/run.py --replay gguf FILE       # one input again

Any exception but FormatError, any execution above 1 s of processor time, and any that needs more memory than twice its input
and 64 MB is a failure; its input is kept. Exit code 1 when there is one that the readers as they are now still have.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import guided
import platformdirs
import result_files
import seeds
from state import State, say, table

HERE = Path(__file__).parent
READERS = (
    "gguf", "safetensors", "i2_s", "i2_s_arm64", "tq2_0", "tq1_0", "q2_0", "pq2_0", "ptq1_0", "hf", "mlx", "floats",
    "dequantize",
    "gguf_model", "hf_model", "inspect", "convert", "config", "index", "tokenizer",
    *result_files.NAMES,
)  # fmt: skip
NOW = struct.Struct("<QQ")
STALL_S = 600  # without one execution: the process waits for something; a busy machine takes a minute to start one


def worker(*words: str, watch: Path | None = None) -> tuple[int, dict[str, Any] | None, str]:
    """Runs a worker; its exit code, what it found and its complaints. With `watch` it is ended when it stands still."""
    root = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="fuzz-worker-", dir=root) as tmp, tempfile.TemporaryFile("w+") as err:
        env = os.environ | {
            "FUZZ_TMP": tmp,
            "PYTHONPATH": os.pathsep.join([str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")]),
        }
        env |= {"OPENBLAS_NUM_THREADS": "1", "TRITIUM_PURE": os.environ.get("TRITIUM_PURE", "1")}
        command = [sys.executable, str(HERE / "worker.py"), *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True, env=env)
        seen, since = b"", time.monotonic()
        while True:
            try:
                out = process.communicate(timeout=5)[0]
                break
            except subprocess.TimeoutExpired:
                now = watch.read_bytes()[:8] if watch and watch.exists() else b""
                if now != seen:
                    seen, since = now, time.monotonic()
                elif time.monotonic() - since > STALL_S:
                    process.kill()
            except KeyboardInterrupt:
                process.kill()
                process.communicate()
                raise
        err.seek(0)
        complaint = err.read()[-2000:]
    lines = out.splitlines()
    return process.returncode, json.loads(lines[-1]) if lines and process.returncode == 0 else None, complaint


def slice_of(state: State, work: Path, name: str, seed: int, count: int) -> bool:
    """Some more executions of one reader; whether the worker could do its work."""
    row, slot = state.reader(name), work / f"now-{name}"
    slot.unlink(missing_ok=True)
    start = time.monotonic()
    code, found, complaint = worker("slice", name, str(work), f"{seed} {name} {row['slices']}", str(count), watch=slot)
    if found is None:
        done, size = NOW.unpack(slot.read_bytes()[: NOW.size]) if slot.exists() else (0, 0)
        if code > 0 or not done:
            say(f"  {name}: the worker ended with {code} before its work was done\n{complaint}")
            return False
        data = slot.read_bytes()[NOW.size : NOW.size + size]
        found = {
            "executions": done,
            "kept": 0,
            "outcomes": {"killed": 1},
            "slowest_ms": 0.0,
            "peak": 0,
            "digest": "",
            "failures": {},
        }
        killed(state, work, name, data, code, found)
    state.add(name, found)
    state.save()
    spent = time.monotonic() - start
    say(
        f"{name:12} +{found['executions']:,} = {row['executions']:,}  {found['executions'] / spent:,.0f}/s  kept {found['kept']}"
    )
    return True


def killed(state: State, work: Path, name: str, data: bytes, code: int, found: dict[str, Any]) -> None:
    """The process died while reading this input: look whether the input alone does it again."""
    where = work / "failures" / name / f"killed-{abs(hash(data)):x}"
    where.write_bytes(data)
    again, verdict, _ = worker("replay", name, str(where))
    found["digest"] = verdict["digest"] if verdict else "?"
    kind = "crash" if verdict is None else verdict["fault"]
    if not kind:
        say(f"  {name}: killed by signal {-code}, but its input alone is fine")
        where.unlink()
        return
    text = f"signal {-again}" if verdict is None else describe(verdict)
    found["failures"][f"{name} {kind} {where.name}"] = {
        "kind": kind,
        "text": text,
        "file": str(where),
        "size": len(data),
    }


def big(state: State, name: str) -> None:
    """The large inputs, once for each version of the readers."""
    row, digest = state.reader(name), seeds.digest(name)
    if row["big"] == digest:
        return
    for what in seeds.big(name):
        key = f"{name} big {what!r}"
        code, found, complaint = worker("big", name, what)
        if found is None:
            state.fail(
                key,
                name,
                digest,
                kind="hang" if code == -signal.SIGPROF else "crash",
                text=f"ended with {code}: {complaint[-200:]}",
            )
            continue
        row["slowest_big_ms"] = max(row.get("slowest_big_ms", 0.0), found["cpu_s"] * 1e3)
        if found["fault"]:
            state.fail(key, name, digest, kind=found["fault"], text=describe(found))
        elif key in state.data["failures"]:
            state.data["failures"][key]["fixed"] = digest
    row["big"] = digest
    state.save()


def describe(found: dict[str, Any]) -> str:
    size, peak = (f"{found[key] / 2**20:.1f} MB" for key in ("size", "peak"))
    return (
        f"{found['fault']}: {found['outcome']} {found['text'][:80]}, input {size}, {found['cpu_s']:.2f} s, peak {peak}"
    )


def recheck(state: State) -> int:
    """Runs the inputs of old failures again; how many still fail."""
    open_ = 0
    for key, failure in state.data["failures"].items():
        if failure.get("fixed"):
            continue
        path = Path(failure.get("file", ""))
        if path.is_file():
            _, found, _ = worker("replay", failure["reader"], str(path))
            if found is not None and not found["fault"]:
                failure["fixed"] = found["digest"]
                continue
        open_ += 1
        say(f"  still fails: {key}: {failure['text']} ({failure['count']} times; {failure.get('file', 'large input')})")
    state.save()
    return open_


def go(args: argparse.Namespace, state: State) -> None:
    """Slices in turn, the reader with the fewest executions first."""
    names, end, idle = args.readers or list(READERS), time.monotonic() + args.minutes * 60, 0
    for name in names:
        if args.big and time.monotonic() < end:
            big(state, name)
    while time.monotonic() < end and idle < 5:
        done = {
            n: state.reader(n)["digests"].get(seeds.digest(n), 0) if args.this_code else state.reader(n)["executions"]
            for n in names
        }
        name = min(done, key=lambda n: done[n])
        if done[name] >= args.executions:
            break
        if slice_of(state, args.work, name, args.seed, min(args.slice, args.executions - done[name])):
            idle = 0
        else:
            idle += 1
            time.sleep(10)  # the tree may be in the middle of a change


def stop(*_: Any) -> None:
    raise KeyboardInterrupt


def main() -> int:
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, stop)  # a job in the background is often told to ignore SIGINT
    parser = argparse.ArgumentParser(
        description="Fuzz the readers of model and result files.", epilog=f"Readers: {', '.join(READERS)}."
    )
    parser.add_argument("readers", nargs="*", help="which (all of them)")
    parser.add_argument(
        "--executions", type=int, default=10**6, help="of each reader, with those of earlier runs (10**6)"
    )
    parser.add_argument("--this-code", action="store_true", help="count only executions of the readers as they are now")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after so many")
    parser.add_argument(
        "--work", type=Path, default=platformdirs.user_cache_path("tritium") / "fuzz", help="where it keeps its state"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slice", type=int, default=50_000, help="executions of one worker")
    parser.add_argument(
        "--engine", choices=("own", "atheris"), default="own", help="atheris: guided by coverage; pip install atheris"
    )
    parser.add_argument("--no-big", dest="big", action="store_false", help="leave out the large inputs")
    parser.add_argument("--table", action="store_true", help="only print what was done")
    parser.add_argument("--recheck", action="store_true", help="only run the inputs of old failures again")
    parser.add_argument("--replay", nargs=2, metavar=("READER", "FILE"), help="only run this input")
    args = parser.parse_args()
    if unknown := set(args.readers) - set(READERS):
        parser.error(f"no reader {', '.join(unknown)}; there are {', '.join(READERS)}")
    if args.replay:
        code, found, complaint = worker("replay", *args.replay)
        say(json.dumps(found, indent=1) if found else f"the worker ended with {code}\n{complaint}")
        return int(found is None or bool(found["fault"]))
    args.work.mkdir(parents=True, exist_ok=True)
    state = State(args.work)
    if args.engine == "atheris" and not args.table:
        return guided.run(args, state, args.readers or list(READERS))
    if not args.table:
        try:
            if not args.recheck:
                go(args, state)
        except KeyboardInterrupt:
            say("stopped; the same command goes on from here")
        failures = recheck(state)
    else:
        failures = sum(not f.get("fixed") for f in state.data["failures"].values())
    say(table(state))
    for stray in args.work.glob("now-*"):
        stray.unlink()
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
