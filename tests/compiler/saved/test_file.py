"""Programs in files: the same bits in another process, and nothing but an error from a file that was changed."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import awkward
import programs
import tritium as tt
from other_devices import HERE
from tritium import dtype as dt
from tritium.buffer import native
from tritium.compiler.saved import file
from tritium.errors import ArgumentError, DeviceError, FormatError, TritiumError
from tritium.io import safetensors
from tritium.io.stream import Piece
from tritium.machine.facts import sealed

X = tt.asarray((np.arange(24, dtype=np.float32) % 7 - 3).reshape(programs.SHAPE))
V = tt.asarray(np.arange(6, dtype=np.float32) % 5 - 2)
COUNT = int(os.environ.get("TRITIUM_SAVED_PROGRAMS", "8"))
SEED = int(os.environ.get("TRITIUM_SAVED_SEED", "0"))
QUICK = settings(max_examples=COUNT, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def compiled(code: list[programs.Line]) -> Any:
    return tt.compile(lambda x, v: programs.run(code, programs.OnTensors, x, v))


def bits(results: Any) -> list[tuple[Any, bytes]]:
    return [(x.spec, x.numpy().tobytes()) for x in results]


def description(path: Path) -> dict[str, Any]:
    parsed = safetensors.parse(path.read_bytes())
    body: dict[str, Any] = json.loads(bytes(parsed.data(file.DESCRIPTION)))["program"]
    return body


def rewrite(path: Path, body: Any) -> Path:
    """Write the file again with another description, sealed as a good one is."""
    parsed = safetensors.parse(path.read_bytes())
    text = np.frombuffer(json.dumps(sealed(file.SCHEMA, "program", body)).encode(), np.uint8)
    arrays = {name: np.array(parsed.array(name)) for name in parsed.tensors if name != file.DESCRIPTION}
    pieces = [
        Piece(name, x.shape, safetensors.NAMES[x.dtype], x.nbytes, lambda x=x: [x])  # type: ignore[misc]
        for name, x in (arrays | {file.DESCRIPTION: text}).items()
    ]
    other = path.with_suffix(".changed")
    with other.open("wb") as out:
        safetensors.write(out, {"format": file.FORMAT}, pieces)
    return other


def elsewhere(path: Path) -> Path:
    """Write the file as another version of the package would have."""
    body = description(path)
    body["origin"]["version"] = "0.0.1"
    return rewrite(path, body)


# ---- the same bits


@QUICK
@given(programs.lines)
def test_a_program_computes_the_same_bits_from_its_file(tmp_path: Path, code: list[programs.Line]) -> None:
    fn = compiled(code)
    want = bits(fn(X, V))
    fn.save(tmp_path / "p", X, V)
    assert bits(tt.load_program(tmp_path / "p")(X, V)) == want
    program = tt.Program.load(elsewhere(tmp_path / "p"))  # optimised again
    assert bits(program(X, V)) == want
    assert str(program.source) == str(fn.program(X, V).source)


CHILD = """
import sys, numpy as np, tritium as tt
folder, count = sys.argv[1], int(sys.argv[2])
x, v = (tt.asarray(np.load(f"{folder}/{name}.npy")) for name in "xv")
for i in range(count):
    results = tt.load_program(f"{folder}/{i}")(x, v)
    np.savez(f"{folder}/{i}.npz", *(r.numpy() for r in results))
"""


def test_random_programs_compute_the_same_bits_in_a_fresh_process(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    codes = [
        [
            (chance.randrange(19), chance.randrange(10_000), chance.randrange(10_000))
            for _ in range(chance.randrange(1, 60))
        ]
        for _ in range(COUNT)
    ]
    np.save(tmp_path / "x.npy", X.numpy())
    np.save(tmp_path / "v.npy", V.numpy())
    for i, code in enumerate(codes):
        compiled(code).save(tmp_path / str(i), X, V)
    subprocess.run([sys.executable, "-c", CHILD, str(tmp_path), str(len(codes))], check=True, timeout=60)
    for i, code in enumerate(codes):
        with np.load(tmp_path / f"{i}.npz") as results:
            got = [results[name] for name in results.files]
        want = [x.numpy() for x in compiled(code)(X, V)]
        assert [(x.shape, x.dtype, x.tobytes()) for x in got] == [(x.shape, x.dtype, x.tobytes()) for x in want]


def test_random_functions_of_awkward_ops_come_back(tmp_path: Path) -> None:
    with awkward.words() as words:
        for seed in range(SEED * 100_000, SEED * 100_000 + 2 * COUNT):
            names, fn = awkward.function(seed, words)
            x, y = awkward.operands([(2, 4), (5, 3), (17, 9), (1, 1)][seed % 4], seed)
            compiled = tt.compile(fn)
            compiled.save(tmp_path / "p", x, y)
            loaded = tt.load_program(tmp_path / "p")
            again = tt.Program.load(elsewhere(tmp_path / "p"))
            want = compiled(x, y)
            results = [r if isinstance(r, tuple) else (r,) for r in (want, loaded(x, y), again(x, y))]
            assert bits(results[1]) == bits(results[0]) == bits(results[2]), (seed, names)
            assert (loaded.program.native is None) == (compiled.program(x, y).native is None), (seed, names)


@pytest.mark.parametrize("kind", [*dt.ALL, *dt.COMPLEX], ids=str)
def test_captured_tensors_of_every_dtype_shape_and_stride_come_back(kind: dt.DType, tmp_path: Path) -> None:
    base = tt.asarray(np.arange(24).reshape(2, 3, 4) % 7).to(kind)
    captured = (
        base, base.mT, base[:, ::-1], base[0, 0, 0], base[:0], base[..., ::2], base[:1].expand(5, 3, 4),
        base.permute_dims((2, 0, 1)),
    )  # fmt: skip
    fn = tt.compile(lambda flag: tuple(tt.where(flag, x, x) for x in captured))
    fn.save(tmp_path / "p", tt.tensor(True))
    loaded = tt.load_program(tmp_path / "p")
    assert bits(loaded(tt.tensor(True))) == bits(captured)
    kept = loaded.program.source.captured.values()
    assert [x.strides for x in kept][:3] == [x.strides for x in captured][:3]


@pytest.mark.parametrize("kind", dt.PACKED, ids=str)
def test_packed_weights_come_back(kind: dt.DType, tmp_path: Path) -> None:
    w = tt.repack(tt.asarray((np.arange(64 * 96) % 3 - 1).astype(np.int8).reshape(64, 96)), kind)
    fn = tt.compile(lambda x: (tt.repack(w, "i8") * x).sum(axis=-1))
    x = tt.ones(96).to("i8")
    fn.save(tmp_path / "p", x)
    assert bits([tt.load_program(tmp_path / "p")(x)]) == bits([fn(x)])


def test_several_weights_of_one_size_stay_apart(tmp_path: Path) -> None:
    layers = [tt.nn.BitLinear.from_float(tt.randn((64, 64), seed=i)) for i in range(6)]

    def fn(x: Any) -> Any:
        return tuple(layer(x) for layer in layers)

    x = tt.randn((3, 64), seed=9)
    tt.compile(fn).save(tmp_path / "p", x)
    want = bits(fn(x))
    assert len(set(want)) == 6
    assert bits(tt.load_program(tmp_path / "p")(x)) == want


def test_a_layer_comes_back_with_its_names(tmp_path: Path) -> None:
    up = tt.nn.BitLinear.from_float(tt.randn((64, 32), seed=1))

    @tt.compile
    def block(x: Any) -> Any:
        with tt.scope("mlp"):
            return tt.gelu(up(x)) + tt.arange(64, dtype="f32")

    x = tt.randn((3, 32), seed=2)
    block.save(tmp_path / "p", x)
    loaded = tt.load_program(tmp_path / "p")
    assert bits([loaded(x)]) == bits([block(x)])
    assert str(loaded.program.graph) == str(block.graph(x))
    assert "# mlp/up" in str(loaded.program.graph)
    assert loaded.explain() == block.explain(x)
    loaded.program.verify(x)
    assert bits(loaded.program.run_many([x, x])) == bits([block(x)] * 2)


# ---- calls


def test_structures_names_defaults_and_donated_arguments_are_as_they_were(tmp_path: Path) -> None:
    @tt.compile(donate="cache")
    def step(x: Any, options: Any, power: int = 2, *, cache: Any, flip: bool = False) -> Any:
        y = (x + options["b"][0]) ** power
        cache[1:] += y[:1]
        return {"y": -y if flip else y, "rest": [options["b"][0] * 2, None, 3, "s"]}, cache

    x, b = tt.randn((4, 6), seed=1), tt.randn(6, seed=2)
    options = {"b": (b, "k")}
    step.save(tmp_path / "p", x, options, 3, cache=tt.zeros((3, 6)), flip=True)
    loaded = tt.load_program(tmp_path / "p")
    for call in (
        lambda fn, cache: fn(x, options, 3, cache=cache, flip=True),
        lambda fn, cache: fn(x, options, flip=True, cache=cache, power=3),
        lambda fn, cache: fn(options=options, flip=True, x=x, cache=cache, power=3),
    ):
        mine, theirs = tt.ones((3, 6)), tt.ones((3, 6))
        want, got = call(step, mine), call(loaded, theirs)
        assert got[1] is theirs
        assert bits([got[0]["y"], got[0]["rest"][0], theirs]) == bits([want[0]["y"], want[0]["rest"][0], mine])
        assert got[0]["rest"][1:] == [None, 3, "s"]


def test_a_method_is_saved_without_its_object(tmp_path: Path) -> None:
    class Scale:
        def __init__(self) -> None:
            self.w, self.factor = tt.arange(4, dtype="f32"), 2.0

        @tt.compile
        def run(self, v: Any) -> Any:
            return v * self.w * self.factor

    Scale().run.save(tmp_path / "p", tt.ones(4))
    loaded = tt.load_program(tmp_path / "p")
    assert repr(loaded) == "<loaded run: v f32[4]>"
    assert loaded(tt.ones(4)).tolist() == loaded(v=tt.ones(4)).tolist() == [0, 2, 4, 6]


def test_numbers_are_constants_also_where_the_function_takes_them_as_arguments(tmp_path: Path) -> None:
    fn = tt.compile(lambda x, rate: x * rate)
    for rate in (0.1, 0.2, 0.3, 0.4, 0.5):
        fn(V, rate)
    fn.save(tmp_path / "p", V, 0.5)
    loaded = tt.load_program(tmp_path / "p")
    assert bits([loaded(V, 0.5)]) == bits([V * 0.5])
    with pytest.raises(ArgumentError, match=r"rate must be 0\.5, given 0\.4; it was saved for such calls alone"):
        loaded(V, 0.4)


def test_other_strides_have_a_program_of_their_own(tmp_path: Path) -> None:
    fn = tt.compile(lambda x: tt.softmax(x * 2))
    fn.save(tmp_path / "p", X)
    loaded = tt.load_program(tmp_path / "p")
    turned = tt.asarray(np.ascontiguousarray(X.numpy().T)).T
    assert bits([loaded(turned), loaded(X), loaded(X.numpy())]) == bits([fn(turned), fn(X), fn(X)])


def test_a_loaded_function_is_recorded_in_a_trace(tmp_path: Path) -> None:
    fn = tt.compile(lambda x: (x + 1, x * 2))
    fn.save(tmp_path / "p", X)
    loaded = tt.load_program(tmp_path / "p")
    outer = tt.compile(lambda x: loaded(x)[0] * loaded(x)[1])
    assert bits([outer(X)]) == bits([(X + 1) * (X * 2)])


def test_a_program_alone_takes_and_returns_tensors(tmp_path: Path) -> None:
    program = tt.compile(lambda options: (options["x"] + 1,)).program({"x": X})
    program.save(tmp_path / "p")
    assert bits(tt.Program.load(tmp_path / "p")(X)) == bits(tt.load_program(tmp_path / "p")(X)) == bits([X + 1])
    with pytest.raises(FormatError, match="exists already"):
        program.save(tmp_path / "p", overwrite=False)


def test_a_call_of_another_kind_is_refused_with_what_was_saved(tmp_path: Path) -> None:
    tt.compile(lambda x, names: x + 1).save(tmp_path / "p", X, ["a"])
    loaded = tt.load_program(tmp_path / "p")
    for call, message in (
        (lambda: loaded(X[:2], ["a"]), r"x must be f32\[4,6\], given f32\[2,6\]"),
        (lambda: loaded(X, ["b"]), r"names\[0\] must be 'a', given 'b'"),
        (lambda: loaded(X, ("a",)), "the containers of the arguments differ"),
        (lambda: loaded(X), r"names\[0\] must be 'a', given nothing"),
        (lambda: loaded(X, ["a"], 3), r"argument|must be left out, given 3"),
        (lambda: loaded(X.to("f64"), ["a"]), r"given f64\[4,6\]"),
    ):
        with pytest.raises(ArgumentError, match=message):
            call()


class Thing:
    """An object that no file holds."""


def test_what_no_file_holds_is_refused_before_it_is_written(tmp_path: Path) -> None:
    from collections import namedtuple

    pair = namedtuple("pair", "a b")
    for args, message in (
        ((X, Thing()), "the argument other is a Thing, which no file holds"),
        ((X, (b"bytes",)), r"the argument other\[0\] is a bytes"),
        ((X, pair(X, X)), "a pair, a class that a file does not hold"),
        ((X, {Thing(): X}), "a key of a dict in an argument is a Thing"),
    ):
        with pytest.raises(ArgumentError, match=message):
            tt.compile(lambda x, other: x + 1).save(tmp_path / "p", *args)
    assert not list(tmp_path.iterdir())


# ---- where the optimised form is used


def test_the_log_says_why_a_program_is_optimised_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fn = tt.compile(lambda x: tt.softmax(x * 2))
    fn.save(tmp_path / "p", X)
    with caplog.at_level(logging.INFO, "tritium.compile"):
        assert tt.Program.load(tmp_path / "p")._rewriting is None
        assert not [r for r in caplog.records if "optimised again" in r.message]
        tt.Program.load(elsewhere(tmp_path / "p"))
    assert f"optimised again: version 0.0.1 is {tt.__version__} here" in caplog.text


def test_patterns_of_the_user_are_applied_when_a_program_is_loaded(tmp_path: Path) -> None:
    fn = tt.compile(lambda x, y: tt.relu(x) + y)
    fn.save(tmp_path / "before", X, X)
    tt.add_pattern(tt.FusionPattern("relu_add", ["relu", "add"], lambda x, y: tt.maximum(x, 0.0) + y))
    try:
        fn.save(tmp_path / "with", X, X)
        loaded = tt.load_program(tmp_path / "before")
        assert "relu_add" in loaded.explain()
        assert bits([loaded(X, X)]) == bits([tt.relu(X) + X])
    finally:
        tt.remove_pattern("relu_add")
    assert "relu_add" not in tt.load_program(tmp_path / "with").explain()


@pytest.mark.skipif(native is None, reason="needs the native library")
def test_what_a_device_would_not_fuse_is_optimised_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fn = tt.compile(lambda x: tt.softmax(x * 2 + 1))
    x = tt.randn((4, 64), seed=1)
    fn.save(tmp_path / "p", x)
    refuses = type(x.device.backend).refuses
    monkeypatch.setattr(type(x.device.backend), "refuses", lambda self, body: "no")
    saved = file.read(tmp_path / "p")
    monkeypatch.setattr(type(x.device.backend), "refuses", refuses)
    assert saved.optimised is None
    assert saved.why_not.endswith("does not run a part of it as one call: no")


def test_a_device_that_the_function_names_is_that_of_the_program(tmp_path: Path) -> None:
    fn = tt.compile(lambda x: x + tt.arange(6, dtype="f32", device="cpu") + tt.ones(6, device=tt.device("cpu")))
    fn.save(tmp_path / "p", X)
    assert "device" not in description(tmp_path / "p")["graph"]["text"]
    assert bits([tt.load_program(tmp_path / "p", device="cpu")(X)]) == bits([fn(X)])
    body = description(tmp_path / "p")
    body["optimised"] = None
    body["graph"]["text"] = re.sub(r"(= arange\([^)]*)", r"\1, device='nowhere'", body["graph"]["text"])
    path = rewrite(tmp_path / "p", body)
    with pytest.raises(TritiumError, match="nowhere"):
        tt.load_program(path)


@pytest.mark.parametrize("name", HERE)
def test_programs_of_other_devices(name: str, tmp_path: Path) -> None:
    there = tt.device(name)
    w, x = tt.asarray(programs.W).to(there), X.to(there)
    fn = tt.compile(lambda x: tt.clip(x @ w.mT, -8.0, 8.0) + tt.arange(4, dtype="f32", device=there))
    fn.save(tmp_path / "p", x)
    loaded = tt.load_program(tmp_path / "p")
    assert loaded.device is there
    assert bits([loaded(x)]) == bits([fn(x)])
    assert bits([tt.load_program(tmp_path / "p", device="cpu")(X)]) == bits([fn(x).to("cpu")])
    with pytest.raises(DeviceError, match="move it with"):
        loaded(X)


# ---- damaged and hostile files


def sample(path: Path) -> Path:
    w = tt.arange(6, dtype="f32")
    tt.compile(lambda x, n: {"y": tt.softmax(x * w) + n}).save(path, X, 2)
    return path


@QUICK
@given(st.data())
def test_a_damaged_file_is_refused_or_computes_the_same(tmp_path: Path, data: st.DataObject) -> None:
    raw = bytearray(sample(tmp_path / "p").read_bytes())
    want = bits(tt.load_program(tmp_path / "p")(X, 2).values())
    for _ in range(10):
        changed = bytearray(raw)
        if data.draw(st.booleans()):
            del changed[data.draw(st.integers(0, len(raw) - 1)) :]
        else:
            changed[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
        (tmp_path / "q").write_bytes(changed)
        try:
            loaded = tt.load_program(tmp_path / "q")
        except FormatError:
            continue
        assert bits(loaded(X, 2).values()) == want


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=5) | st.just("tensor"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["tuple", "dict", "value", "text"]), inner, max_size=2),
    max_leaves=6,
)  # fmt: skip


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(p for key, part in items for p in _places(part, (*path, key)))]


@QUICK
@given(st.data())
def test_a_sealed_description_with_anything_in_it_is_refused_or_runs(tmp_path: Path, data: st.DataObject) -> None:
    body = description(sample(tmp_path / "p"))
    for _ in range(8):
        changed = json.loads(json.dumps(body))
        *way, last = data.draw(st.sampled_from(_places(body)[1:]))
        part = changed
        for key in way:
            part = part[key]
        part[last] = data.draw(JUNK)
        try:
            loaded = tt.load_program(rewrite(tmp_path / "p", changed))
            loaded(X, 2)
            loaded.explain()
        except TritiumError:
            pass


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b["tensors"][0].__setitem__(0, [10**12]), "has the strides"),
        (lambda b: b["tensors"][0].__setitem__(0, [0]), "has the strides"),
        (lambda b: b["tensors"][0].__setitem__(1, 7), "do not match their checksum"),
        (lambda b: b["layouts"].__setitem__(0, [[1], 0]), r"f32\[4,6\] has 1 strides"),
        (lambda b: b["optimised"].__setitem__("text", "return"), "other"),
        (lambda b: b["optimised"].__setitem__("captured", [5]), "missing or of another type"),
        (lambda b: b["structure"].__setitem__("result", "tensor"), "whether there is one result"),
        (lambda b: b.__setitem__("disabled", ["everything"]), "is not a pass"),
        (lambda b: b.pop("graph"), "'graph'"),
    ],
)
def test_a_hostile_description_is_refused_with_its_reason(tmp_path: Path, change: Any, message: str) -> None:
    body = description(sample(tmp_path / "p"))
    change(body)
    path = rewrite(tmp_path / "p", body)
    with pytest.raises(TritiumError, match=message):
        tt.load_program(path).explain()


def test_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    tt.save(tmp_path / "tensors", {"program": tt.zeros(3).to("u8")})
    (tmp_path / "empty").write_bytes(b"")
    for name, message in (
        ("tensors", "found no program"),
        ("empty", "safetensors"),
        ("none", "cannot be read"),
        (".", "cannot be read"),
    ):
        with pytest.raises(FormatError, match=message):
            tt.load_program(tmp_path / name)
