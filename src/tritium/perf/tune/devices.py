"""Devices by size from a comparison: what `tritium compare --devices` measured becomes what "auto" chooses by.

A device other than the CPU is chosen at a size only if the comparison shows that it is faster there: the rule of the
crossovers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from tritium.arguments import checked
from tritium.errors import ArgumentError
from tritium.machine import tuned
from tritium.op import OPS
from tritium.perf.records.environment import differences, this_environment
from tritium.perf.records.run import LEAST_PROCESSES, Results
from tritium.perf.tables.crossover import Crossover, Point, crossovers
from tritium.perf.tune import file as tune_file
from tritium.perf.work.operations import OPERATIONS

CPU = "tritium"  # the contender that others are compared with
PRECISION = "f32"  # the dtype of new tensors


@checked
def keep_devices(results: Results) -> dict[str, str]:
    """Store the fastest device of each op and size of a comparison for `set_default_device("auto")`.

    Return the device by the name of each choice: {"device/matmul/1048576": "mlx"}. Results of another machine
    and those of too few processes are refused; where the intervals do not show a device to be faster, it is the CPU.
    """
    _check(results)
    new = dict(_choices(results))
    if not new:
        raise ArgumentError(
            "keep_devices: no op was measured on the CPU and another device at two sizes or more, in f32 and without "
            "transfers; run `tritium compare --devices cpu,…`."
        )
    ops = {name.split("/")[1] for name in new}
    prefixes = tuple(tuned.device_key(op, 0).removesuffix("0") for op in ops)
    changes: dict[str, tuned.Choice | None] = dict.fromkeys(n for n in tune_file.choices() if n.startswith(prefixes))
    changes |= new
    if tuned.DEVICE_OP in ops:
        largest = max((n for n in new if n.split("/")[1] == tuned.DEVICE_OP), key=lambda n: int(n.split("/")[2]))
        changes[tuned.DEVICE] = new[largest] if new[largest].value != "cpu" else None
    tune_file.choose(changes)
    return {name: str(choice.value) for name, choice in new.items()}


def _check(results: Results) -> None:
    """Raise ArgumentError if these results say nothing about the devices of this machine."""
    here = this_environment(results.environment.hard.threads, limits=False)
    hard, _ = differences(results.environment, here)
    if hard:
        name, (there, this) = next(iter(hard.items()))
        raise ArgumentError(
            f"keep_devices: these results belong to another machine ({name}: {there}; here {this}); measure on this one."
        )
    if results.plan.generations < LEAST_PROCESSES:
        raise ArgumentError(
            f"keep_devices: {results.plan.generations} processes show no difference; {LEAST_PROCESSES} or more are needed."
        )


def _choices(results: Results) -> Iterator[tuple[str, tuned.Choice]]:
    """Yield the choice of each op and size."""
    devices = [arm for arm in results.arms if arm == CPU or arm.startswith(f"{CPU}:")]
    if CPU not in devices:
        return
    first = replace(results, arms=(CPU, *(d for d in devices if d != CPU)))
    by_case: dict[str, list[Crossover]] = {}
    for crossing in crossovers(first, devices):
        plain = (
            crossing.case == f"{crossing.operation} {PRECISION}" and not crossing.transfer and crossing.batch is None
        )
        if CPU in crossing.arms and plain and crossing.operation in OPS and crossing.operation in OPERATIONS:
            by_case.setdefault(crossing.operation, []).append(crossing)
    for op, crossings in by_case.items():
        by_elements: dict[int, list[tuned.Choice]] = {}
        for shape in sorted({point.shape for crossing in crossings for point in crossing.points}):
            choice = _choice(op, shape, crossings, results.created)
            by_elements.setdefault(_elements(op, shape), []).append(choice)
        for elements, choices in by_elements.items():  # of several shapes of one size the CPU wins a doubt
            agreed = (
                choices[0]
                if len({c.value for c in choices}) == 1
                else next((c for c in choices if c.value == "cpu"), choices[0])
            )
            yield tuned.device_key(op, elements), agreed


def _elements(op: str, shape: tuple[int, ...]) -> int:
    """Return the number of elements of the largest tensor of a case."""
    operation = OPERATIONS[op]
    return max(prod(s) for s in (*operation.shapes(shape), operation.result(shape)))


def _choice(op: str, shape: tuple[int, ...], crossings: list[Crossover], created: str) -> tuned.Choice:
    """Return the device with the lowest time at a size among those shown to be faster than the CPU."""
    faster = [(p, c.arms[1]) for c in crossings for p in c.points if p.shape == shape and p.side > 0]
    source = f"of {op} {'x'.join(map(str, shape))} {PRECISION}, compared {created[:10]} without transfers"
    if not faster:
        return tuned.Choice("cpu", f"no device is clearly faster than the CPU at the size {source}", exact=False)
    point, arm = min(faster, key=lambda pair: pair[0].ratio)
    return tuned.Choice(arm.partition(":")[2], f"{_times(point)} as fast as 'cpu' at the size {source}", exact=False)


def _times(point: Point) -> str:
    """Return how many times as fast the second contender is, with its interval."""
    assert point.interval is not None
    low, high = (1 / v for v in reversed(point.interval))
    return f"{1 / point.ratio:.2f} times ({low:.2f} … {high:.2f})"
