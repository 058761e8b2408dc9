"""Which packages of `tritium.backends` may know which: the reference none, the CPU's and the libraries' only what is below them."""

from __future__ import annotations

from pathlib import Path

from structure import structure_of

PACKAGE = "tritium.backends"
ALLOWED = {
    "probes": set(),  # whether the libraries are here; imports none of the packages
    "reference": set(),
    "fusion": set(),  # a fragment cut for any device that compiles it
    "cpu": {"reference", "fusion"},
    "values": {"reference"},  # its definitions (packed codes, casts, constants) and its kernels of ops without operands
    "mlx": {"reference", "values"},
    "torch": {"reference", "values"},
    "cuda": {"reference", "fusion", "values", "torch"},
}


def test_packages_inside_backends_import_only_those_below() -> None:
    children = structure_of(Path(__file__).parents[2]).children(PACKAGE)
    edges = {
        name.removeprefix(f"{PACKAGE}."): {t.removeprefix(f"{PACKAGE}.") for t in targets}
        for name, targets in children.items()
    }
    assert edges.keys() == ALLOWED.keys(), "say here what a new package may import"
    above = {name: targets - ALLOWED[name] for name, targets in edges.items() if targets - ALLOWED[name]}
    assert not above, f"not allowed: {above}"
