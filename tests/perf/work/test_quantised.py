"""Cases of quantisation: every scheme, its bytes and its error."""

from __future__ import annotations

import json

import pytest

from tritium import quant
from tritium.errors import ArgumentError
from tritium.perf.engine.worker import checked, resolve
from tritium.perf.records.case import Case, Made, UnsupportedError
from tritium.perf.work import quantised

SHAPES = [(64, 128), (33, 130)]


def made(case: Case, candidate: str = "tritium") -> Made:
    found: Made = resolve(case.recipe.target)(candidate, **json.loads(json.dumps(dict(case.recipe.arguments))))
    return found


def test_the_schemes_are_those_of_quant() -> None:
    assert set(quantised.SCHEMES) == set(quant.SCHEMES)


@pytest.mark.parametrize("candidate", ["tritium", "numpy"])
@pytest.mark.parametrize("scheme", list(quantised.SCHEMES))
def test_every_step_of_a_scheme_is_right(scheme: str, candidate: str) -> None:
    for case in quantised.quantisation(SHAPES, [scheme]):
        if candidate == "numpy" and scheme == "int8-asymmetric":
            with pytest.raises(UnsupportedError):
                made(case, candidate)
            continue
        one = made(case, candidate)
        said = checked(one, one.call())
        assert "status" not in said, (case.name, said)
        assert json.loads(json.dumps(dict(one.facts), allow_nan=False))["granularity"] in ("tensor", "channel", "group")


@pytest.mark.parametrize("scheme", list(quantised.SCHEMES))
@pytest.mark.parametrize("shape", SHAPES)
def test_the_bytes_of_a_scheme_are_those_it_stores(scheme: str, shape: tuple[int, int]) -> None:
    (case,) = quantised.quantisation([shape], [scheme], ["quantize"])
    assert made(case).facts["bytes after"] == quantised.SCHEMES[scheme].nbytes(shape)


def test_finer_scales_lose_less() -> None:
    lost = {
        name: made(quantised.quantisation([(64, 256)], [name], ["quantize"])[0]).facts["sqnr dB"]
        for name in ("ternary", "int4-g64", "int8", "int8-channel", "fp16")
    }
    assert lost["ternary"] < lost["int4-g64"] < lost["int8"] < lost["int8-channel"] < lost["fp16"]


def test_a_wrong_code_is_noticed() -> None:
    (case,) = quantised.quantisation([(64, 128)], ["ternary"], ["quantize"])
    one = made(case)
    assert one.answer is not None
    right = one.answer
    one.answer = lambda q: -right(q)
    assert checked(one, one.call())["status"] == "wrong"


def test_an_unknown_scheme_names_the_nearest() -> None:
    with pytest.raises(ArgumentError, match="Did you mean 'ternary'"):
        quantised.quantisation(schemes=["ternry"])


def test_other_libraries_are_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from tritium.perf.work import libraries

    monkeypatch.setitem(libraries.LIBRARIES, "numpy", lambda d, t: replace(libraries.use_numpy(d, t), name="other"))
    with pytest.raises(UnsupportedError, match="not for other"):
        made(quantised.quantisation(SHAPES, ["int8"])[0], "numpy")
