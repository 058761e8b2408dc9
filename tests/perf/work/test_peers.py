"""Arms by name, absent libraries, and the libraries themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from tritium.buffer import native
from tritium.errors import ArgumentError
from tritium.perf.engine.worker import Worker, checked, resolve
from tritium.perf.records.case import UnsupportedError
from tritium.perf.work import libraries, peers, recipes as work, workloads
from tritium.perf.work.operations import OPERATIONS

needs_native = pytest.mark.skipif(native is None, reason="the pure build has one kind of kernels")


def absent(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr(libraries.util, "find_spec", lambda name: None if name in names else find_spec(name))


@needs_native
def test_a_bare_machine_has_its_own_variants_and_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    absent(monkeypatch, "torch", "jax", "mlx.core")
    arms, notes = peers.arms()
    assert [a.name for a in arms] == ["tritium", "tritium portable", "numpy", "reference"]
    for name in ("torch", "jax", "mlx"):
        assert any(n.startswith(f"{name} is not installed: pip install {name}") for n in notes)


def test_a_pure_build_has_no_variants(monkeypatch: pytest.MonkeyPatch) -> None:
    absent(monkeypatch, "torch", "jax", "mlx.core")
    monkeypatch.setattr(peers, "native", None)
    arms, notes = peers.arms()
    assert [a.name for a in arms] == ["tritium", "numpy"]
    assert any("no native library" in n for n in notes)


@needs_native
def test_variants_are_started_by_their_environment() -> None:
    (portable, reference), _ = peers.arms(["portable", "reference"], threads=2)
    assert portable.candidate == "tritium"
    assert dict(portable.environment)["TRITIUM_ISA"] == "portable"
    assert dict(reference.environment)["TRITIUM_PURE"] == "1"
    assert dict(portable.environment)["OMP_NUM_THREADS"] == "2"


@needs_native
@pytest.mark.parametrize("name", ["portable", "tritium portable", "tritium:portable"])
def test_a_variant_has_several_spellings(name: str) -> None:
    (arm,), _ = peers.arms([name])
    assert arm.name == "tritium portable"


@needs_native
def test_an_instruction_set_this_cpu_lacks_is_a_note() -> None:
    other = next(isa for isa in peers.ISAS if isa not in native.isas())
    arms, (note,) = peers.arms([other])
    assert arms == []
    assert note.startswith(f"tritium {other} is left out")


@pytest.mark.parametrize("given", ["trch", "nump", "tritum", "tritium:cud", "referenc"])
def test_an_unknown_name_is_an_error_that_helps(given: str) -> None:
    with pytest.raises(ArgumentError, match=r"Did you mean|Valid here"):
        peers.arms([given])


def test_an_absent_library_that_was_named_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    absent(monkeypatch, "jax")
    arms, notes = peers.arms(["numpy", "jax"])
    assert [a.name for a in arms] == ["numpy"]
    assert notes == ["jax is not installed: pip install jax"]
    with pytest.raises(UnsupportedError, match="pip install jax"):
        libraries.library_of("jax")


def test_a_device_that_is_absent_is_a_note() -> None:
    arms, (note,) = peers.arms(["tritium"], devices=["cpu", "cuda"])
    assert [a.name for a in arms] == ["tritium"]
    assert note.startswith("tritium:cuda is left out")


def test_an_arm_named_twice_is_there_once() -> None:
    arms, _ = peers.arms(["numpy", "np", "numpy"])
    assert [a.name for a in arms] == ["numpy"]


def test_slow_peers_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries.util, "find_spec", lambda name: object())
    arms, notes = peers.arms()
    assert "torch" in [a.name for a in arms]
    assert "torch.compile" not in [a.name for a in arms]
    assert any(n.startswith("torch.compile is measured only when it is named") for n in notes)


def test_an_unknown_candidate_names_the_nearest() -> None:
    with pytest.raises(ArgumentError, match="Did you mean 'numpy'"):
        libraries.library_of("numpi")


@needs_native
def test_the_reference_refuses_a_process_with_the_native_library() -> None:
    with pytest.raises(UnsupportedError, match="TRITIUM_PURE=1"):
        libraries.library_of("reference")


def test_the_reference_runs_without_the_native_library() -> None:
    code = (
        "from tritium.perf.work import recipes as work; from tritium.perf.engine.worker import checked\n"
        "for name, shape in (('bitlinear', [3, 64]), ('gelu', [4, 8]), ('quantize', [8, 8])):\n"
        "    made = work.operation('reference', operation=name, shape=shape)\n"
        "    said = checked(made, made.call()); assert 'status' not in said, said\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"TRITIUM_PURE": "1"}, capture_output=True, text=True, timeout=60, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_every_library_has_every_operation_or_says_why_not() -> None:
    numpy = libraries.library_of("numpy")
    with pytest.raises(UnsupportedError, match="numpy has no such_thing"):
        numpy.function("such_thing")
    own = libraries.library_of("tritium")
    for name in OPERATIONS:
        if name != "bitlinear":
            assert callable(own.function(name))


def test_threads_of_one_are_told_to_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries.util, "find_spec", lambda name: object())
    (arm,), _ = peers.arms(["jax"], threads=1)
    assert "multi_thread_eigen=false" in dict(arm.environment)["XLA_FLAGS"]


def test_importing_the_cases_imports_no_library() -> None:
    code = "import sys, tritium.perf.work.recipes, tritium.perf.work.peers; print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert not {"torch", "jax", "mlx", "scipy", "click"} & set(done.stdout.split())


# ---- with the libraries themselves


def peer(candidate: str) -> None:
    pytest.importorskip("mlx.core" if candidate == "mlx" else candidate, reason=f"the bench extra has {candidate}")


def assert_right(case: Any, candidate: str) -> None:
    made = resolve(case.recipe.target)(candidate, **json.loads(json.dumps(dict(case.recipe.arguments))))
    result = made.call()
    if made.wait is not None:
        made.wait(result)
    said = checked(made, result)
    assert "status" not in said, (case.name, said)


@pytest.mark.parametrize("candidate", ["torch", "jax", "mlx"])
def test_a_peer_gives_the_right_answers(candidate: str) -> None:
    peer(candidate)
    found = work.grid(list(OPERATIONS), [(33, 128)], ["f32", "f16", "bf16", "i8", "tern2"])
    assert len(found) > 60
    for case in found:
        assert_right(case, candidate)


@pytest.mark.parametrize("candidate", ["torch", "jax", "mlx"])
def test_a_peer_does_the_same_workloads(candidate: str) -> None:
    peer(candidate)
    for case in workloads.workloads(width=192, tokens=7, context=24, batch=3, items=70):
        assert_right(case, candidate)


def test_making_a_case_for_torch_leaves_gradients_as_they_were() -> None:
    peer("torch")
    import torch

    libraries.use_torch("cpu", None)
    assert torch.is_grad_enabled()


def test_a_worker_measures_torch_without_gradients() -> None:
    peer("torch")
    import torch

    (case,) = work.grid(["add"], [(4, 4)])
    try:
        told = Worker(1).do_make(
            {"target": case.recipe.target, "candidate": "torch", "arguments": dict(case.recipe.arguments), "case": case.name, "check": True}
        )  # fmt: skip
        assert "status" not in told
        assert not torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)


def test_jax_refuses_what_it_cannot_hold() -> None:
    peer("jax")
    for case in work.grid(["add"], [(4, 4)], ["f64"]) + work.grid(["add"], [(4, 4)], layouts=["strided"]):
        with pytest.raises(UnsupportedError):
            assert_right(case, "jax")


def test_a_lazy_result_is_computed_when_it_was_waited_for() -> None:
    peer("mlx")
    library = libraries.use_mlx("cpu", None)
    x = library.array(np.full(4, 2, np.float32))
    result = library.function("add")(x, x)
    assert library.wait is not None
    library.wait(result)
    np.testing.assert_array_equal(library.back(result), np.full(4, 4, np.float32))


# ---- devices as arms


@needs_native
def test_the_cpu_with_other_kernels_is_named_as_a_device() -> None:
    assert [peers.arm_of(d) for d in ("cpu", "cpu:portable", "cpu:reference", "mlx")] == [
        "tritium", "portable", "reference", "tritium:mlx",
    ]  # fmt: skip
    assert peers.kernels_absent("cpu:portable") == ""
    other = next(isa for isa in peers.ISAS if isa not in native.isas_detected())
    assert peers.kernels_absent(f"cpu:{other}").startswith(f"this CPU and build have {native.isas()[0]}")


@needs_native
def test_kernels_that_were_not_built_are_a_note_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "isas_built", list)
    isa = native.isas_detected()[-1]
    assert (
        peers.kernels_absent(f"cpu:{isa}")
        == "this build has no kernels for it; TRITIUM_ISAS=all pip install . has them"
    )


@pytest.mark.parametrize("name", ["mlx", "torch"])
def test_a_device_of_another_library_does_the_same_work(name: str) -> None:
    pytest.importorskip("mlx.core" if name == "mlx" else name, reason=f"the bench extra has {name}")
    names = ["matmul", "softmax", "bitlinear", "quantize", "dequantize", "attention"]
    cases = [*work.grid(names, [(16, 64)]), *work.grid(names[:3], [(16, 64)], transfer=True)]
    for case in cases:
        made = resolve(case.recipe.target)(f"tritium:{name}", **case.recipe.arguments)
        result = made.call()
        if made.wait is not None:
            made.wait(result)
        said = checked(made, result)
        assert said.get("status", "ok") == "ok", f"{case.name}: {said}"
