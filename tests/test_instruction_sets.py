"""What a build has kernels for: TRITIUM_ISAS, the CPU, and the version that says so."""

from __future__ import annotations

import platform
import re
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest

import tritium as tt
from isas import sets
from tritium.backends.cpu import device
from tritium.buffer import native

ROOT = Path(__file__).parents[1]
V3 = {"avx2", "fma", "bmi1", "bmi2"}
V4 = V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
needs_native = pytest.mark.skipif(native is None, reason="the native library is absent")


@pytest.mark.parametrize(
    ("wish", "machine", "features", "names", "local"),
    [
        ("native", "x86_64", {"sse4_2"}, "portable", "+native.portable"),
        ("native", "x86_64", V3 - {"bmi2"}, "portable", "+native.portable"),
        ("native", "x86_64", V3, "portable avx2", "+native.avx2"),
        ("native", "x86_64", V3 | {"avx_vnni"}, "portable avx2 avxvnni", "+native.avxvnni"),
        ("native", "AMD64", V4, "portable avx512 avx512bw", "+native.avx512bw"),
        ("native", "x86_64", V4 | {"avx512_vnni", "avx_vnni"}, "portable avx512 avx512vnni", "+native.avx512vnni"),
        ("native", "x86_64", V4 | {"amx_tile", "amx_int8"}, "portable avx512 avx512bw", "+native.avx512bw"),
        (
            "native", "x86_64", V4 | {"avx512_vnni", "amx_tile", "amx_int8"}, "portable avx512 avx512vnni amx", "+native.amx",
        ),
        ("native", "aarch64", set(), "neon", "+native.neon"),
        ("native", "arm64", {"asimddp"}, "neon dotprod", "+native.dotprod"),
        ("native", "aarch64", {"asimddp", "i8mm"}, "neon i8mm", "+native.i8mm"),
        ("native", "riscv64", {"v"}, "portable", "+native.portable"),
        ("all", "x86_64", set(), "portable avx2 avxvnni avx512 avx512bw avx512vnni amx", ""),
        ("all", "aarch64", set(), "portable neon dotprod i8mm", ""),
        ("avx2", "x86_64", V4, "portable avx2", "+avx2"),
        ("amx, avx2", "x86_64", set(), "portable avx2 avx512 avx512vnni amx", "+amx.avx2"),
        ("avx512", "x86_64", set(), "portable avx512 avx512bw", "+avx512"),
        ("dotprod", "aarch64", set(), "neon dotprod", "+dotprod"),
    ],
)  # fmt: skip
def test_what_is_built_and_the_version_it_gives(
    wish: str, machine: str, features: set[str], names: str, local: str
) -> None:
    assert sets.built(sets.asked(wish, machine, features), machine) == names.split()
    assert sets.version_of(wish, machine, features) == tt.__version__ + local


@pytest.mark.parametrize("wish", ["avx1024", "avx2,avx1024", "avx2,", "ALL"])
def test_a_name_that_is_none_ends_the_build_with_a_sentence(wish: str) -> None:
    with pytest.raises(SystemExit) as end:
        sets.asked(wish, "x86_64", V3)
    assert str(end.value) == (
        f"TRITIUM_ISAS={wish}: there is no instruction set {wish.split(',')[-1]!r} for x86_64; set it to native, all, or names "
        "with commas between them: portable, avx2, avxvnni, avx512, avx512bw, avx512vnni, amx."
    )


def test_a_source_distribution_is_for_every_cpu_unless_something_else_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITIUM_ISAS", raising=False)
    monkeypatch.setattr(sets, "ROOT", tmp_path)
    assert sets.wished() == "native"
    (tmp_path / "PKG-INFO").touch()
    assert sets.wished() == "all"
    monkeypatch.setenv("TRITIUM_ISAS", "native")
    assert sets.wished() == "native"


@needs_native
def test_the_script_sees_the_cpu_as_the_library_does() -> None:
    features = sets.cpu_features()
    known = sets.names_of(platform.machine())
    assert [name for name, needed in known.items() if features.issuperset(needed.split())] == native.isas_detected()
    assert sets.best(platform.machine(), features) == native.isas_detected()[-1]


@needs_native
def test_the_version_says_what_was_built() -> None:
    local = version("tritium").partition("+")[2]
    names = [name for name in local.split(".") if name != "native"]
    machine = platform.machine()
    expected = sets.built(names, machine) if local else list(sets.names_of(machine))
    assert native.isas_built() == expected
    assert native.isas() == [isa for isa in expected if isa in native.isas_detected()]


@needs_native
def test_a_build_that_was_moved_runs_and_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    detected = native.isas_detected()
    monkeypatch.setattr(native, "isas_built", lambda: ["portable", "sve2"])
    monkeypatch.setattr(native, "isas", lambda: detected[:1])
    monkeypatch.setattr(native, "isa", lambda: detected[0])
    assert device.unbuilt() == [isa for isa in detected if isa != "portable"]
    assert device.faster_unbuilt() == (detected[-1] if len(detected) > 1 else "")
    device.Cpu(tt.device("cpu"))
    told = [r.getMessage() for r in caplog.records if "this build has kernels" in r.getMessage()]
    assert told == [
        f"this build has kernels for portable, sve2, and this CPU runs {detected[-1]}; using {detected[0]}, which is slower. "
        "Build it on this machine: pip install --force-reinstall --no-deps --no-cache-dir, and the folder or address it came from"
    ] * (len(detected) > 1)


@needs_native
def test_a_build_with_the_best_kernels_says_nothing_and_lists_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(native, "isas_built", lambda: native.isas_detected()[-1:])
    monkeypatch.setattr(native, "isas", lambda: native.isas_detected()[-1:])
    cpu = device.Cpu(tt.device("cpu"))
    assert not caplog.records
    others = native.isas_detected()[:-1]
    line = f"{', '.join(others)}: TRITIUM_ISAS=all pip install . has them"
    assert cpu.describe().get("not built") == (line if others else None)


@needs_native
def test_the_tables_name_the_instruction_sets_of_the_library() -> None:
    source = (ROOT / "csrc" / "isa.h").read_text(encoding="utf-8")
    names = re.findall(r"\w+", source.partition("enum class Isa : std::uint8_t {")[2].partition("}")[0])
    assert {*sets.X86, *sets.ARM} == set(names)
    assert [n for n in names if n in sets.X86] == list(sets.X86)
    assert [n for n in names if n in sets.ARM] == list(sets.ARM)


def test_what_a_test_is_about_is_read_from_its_values_and_its_id(request: pytest.FixtureRequest) -> None:
    plugins = request.config.pluginmanager.get_plugins()
    (settings,) = [p for p in plugins if hasattr(p, "lacking") and hasattr(p, "why_left_out")]
    for params, identifier, isa in (  # not a parameter of this test: it would be left out itself
        ({"isa": "avx2"}, "x", "avx2"), ({"base": {"isa": "avx512bw"}}, "0", "avx512bw"), ({"how": 1}, "avx2-tern2_r64", "avx2"),
        ({"how": 1}, "f16-avx512bw", "avx512bw"), ({"how": 1}, "avx512-tern2", ""), ({"n": 2}, "avx2x3", ""),
        ({"isa": "avx2"}, "avx512bw", "avx2"),
    ):  # fmt: skip
        item = SimpleNamespace(callspec=SimpleNamespace(params=params, id=identifier))
        assert settings.lacking(item, ["avx2", "avx512bw"]) == isa
    assert settings.lacking(SimpleNamespace(), ["avx2"]) == ""
