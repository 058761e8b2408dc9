"""Constraints: texts match their format whatever the sampler, alone and together; formats that cannot be followed are refused."""

from __future__ import annotations

import gc
import json
import re
from typing import Any
from weakref import ref

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from markov import EOS, TOKENIZER
from noise_model import NoiseSession
from tritium.errors import ArgumentError, PackageError
from tritium.models import generation
from tritium.models.bounds import Bounded
from tritium.models.load import load
from tritium.models.sampling import Need, Sampler
from tritium.models.text import constraints
from tritium.models.text.constraints import Among, AtLeast, Format, compile_format, constrain
from tritium.models.text.tokenizer import ALPHABET, ByteTokenizer
from tritium.models.text.vocabulary import Facts

SAMPLERS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "temperature": {"temperature": 1.0},
    "top-k": {"temperature": 1.0, "top_k": 20},
    "top-p": {"temperature": 0.9, "top_p": 0.9},
    "typical-p": {"temperature": 1.0, "typical_p": 0.8},
    "min-p": {"temperature": 1.0, "min_p": 0.05},
    "penalties": {"temperature": 1.0, "repetition_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": 0.1},
    "biased": {"logit_bias": {TOKENIZER.encode("7")[0]: 3.0}, "temperature": 1.0},
}


def llguidance() -> Any:
    return pytest.importorskip("llguidance", reason="needs the extra 'run'")


def text(form: Format, seed: int = 0, count: int = 600, least: int = 0, **options: Any) -> generation.Generation:
    make = constrain(TOKENIZER, form, least=least, ends=TOKENIZER.eos)
    sampler = Sampler(**({"seed": seed} | options))
    return generation.generate(
        NoiseSession(seed=seed), TOKENIZER, "x", sampler=sampler, max_tokens=count, constrain=make
    )


@pytest.mark.parametrize("options", SAMPLERS.values(), ids=SAMPLERS)
@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        (Format.of(regex="[0-9]{3}"), "[0-9]{3}"),
        (Format.of(regex="(ab|c)+[.]"), "(ab|c)+[.]"),
        (Format.of(choice=["yes", "no", 'é "\\\n', "nope"]), 'yes|no|nope|é "\\\\\n'),
        (Format.of(grammar='root ::= "<" [a-c]{2,5} ">"'), "<[a-c]{2,5}>"),
        (Format.of(grammar="start: /[0-9]{1,4}/ \" \" (\"km\" | \"m\")"), "[0-9]{1,4} k?m"),
    ],
    ids=["regex", "repeated", "choice", "GBNF", "Lark"],
)  # fmt: skip
def test_a_text_has_its_format_with_every_sampler(form: Format, pattern: str, options: dict[str, Any]) -> None:
    llguidance()
    for seed in range(3):
        found = text(form, seed, **options)
        assert found.finish_reason == "stop"
        assert re.fullmatch(pattern, found.text)


def test_what_may_go_on_ends_at_the_model_s_own_end() -> None:
    llguidance()
    found = {text(Format("regex", "a*"), seed, temperature=1.0).text for seed in range(20)}
    assert len(found) >= 3
    assert all(set(t) <= {"a"} for t in found)


def test_a_text_that_is_cut_off_is_the_beginning_of_one() -> None:
    llguidance()
    found = text(Format("regex", "[0-9]{30}"), count=7)
    assert (found.finish_reason, len(found.text)) == ("length", 7)
    assert found.text.isdigit()


@settings(max_examples=10)
@given(st.integers(0, 1000), st.sampled_from(sorted(SAMPLERS)), st.integers(1, 5))
def test_a_constrained_text_is_the_same_alone_and_in_company(seed: int, name: str, slots: int) -> None:
    """Among others that need every logit, or none but the largest."""
    llguidance()
    forms = [Format("regex", "[a-f0-9]{4,9}"), Format("choice", '["one", "two"]'), None, Format("regex", "(x|yz)+")]
    sampler = Sampler(**({"seed": seed} | SAMPLERS[name]))
    starts = [constrain(TOKENIZER, form) for form in forms]
    alone = []
    for i, start in enumerate(starts):
        prompts = ["x"] * (i + 1)
        makers = iter([*[constrain(TOKENIZER)] * i, start])
        session = NoiseSession(1, seed=seed)
        found = generation.generate_batch(
            session, TOKENIZER, prompts, sampler=sampler, max_tokens=12, constrain=lambda m=makers: next(m)()
        )
        alone.append(found[-1].text)
    makers = iter(starts)
    together = generation.generate_batch(
        NoiseSession(slots, seed=seed),
        TOKENIZER,
        ["x"] * 4,
        sampler=sampler,
        max_tokens=12,
        constrain=lambda: next(makers)(),
    )
    assert [g.text for g in together] == alone


@settings(max_examples=60)
@given(st.data(), st.sampled_from(sorted(SAMPLERS)), st.integers(0, 99))
def test_bounds_pick_what_the_whole_row_picks(data: st.DataObject, name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    row = rng.normal(0, 3, TOKENIZER.vocab_size).astype(np.float32)
    near = rng.choice([0, 0.1, 2], row.size).astype(np.float32)
    allowed = data.draw(st.one_of(st.just(range(row.size)), st.sets(st.integers(0, row.size - 1), min_size=1)))
    sampler = Sampler(**({"seed": seed} | SAMPLERS[name]))

    def state() -> Any:
        return sampler.start([1, 2, 3], constraints=[Among(set(allowed), row.size), AtLeast(2, [EOS], row.size)])

    assert state().need in (Need.BOUNDS, Need.ROW)
    bounded = Bounded(row + near / 2, near, lambda ids: row[ids], lambda: row)
    want = state().pick(row)
    assert want in allowed
    if state().need is Need.BOUNDS:
        assert state().pick(bounded) == want


def test_tokens_beyond_the_vocabulary_are_forbidden() -> None:
    row = np.zeros(300, np.float32)
    row[290] = 9
    assert Sampler().start(constraints=[Among({4, 5}, 257)]).pick(row) == 4
    with pytest.raises(ArgumentError, match="allow no token"):
        Sampler().start(constraints=[Among(set(), 257)]).pick(row)


@settings(max_examples=50)
@given(st.lists(st.integers(0, 6), max_size=8), st.integers(0, 99))
def test_a_rollback_forgets_tokens(counts: list[int], seed: int) -> None:
    llguidance()
    rng = np.random.default_rng(seed)
    constraint = compile_format(TOKENIZER, Format("regex", "(ab?c|d[0-9]+)*x")).start()
    tokens: list[int] = []
    for count in counts:
        for _ in range(count):
            token = int(rng.choice(np.flatnonzero(constraint.mask())))
            constraint.advance(token)
            tokens.append(token)
        back = min(count // 2, len(tokens))
        constraint.rollback(back)
        del tokens[len(tokens) - back :]
    again = compile_format(TOKENIZER, Format("regex", "(ab?c|d[0-9]+)*x")).start()
    for token in tokens:
        again.advance(token)
    np.testing.assert_array_equal(constraint.mask(), again.mask())
    assert constraint.is_done == again.is_done
    with pytest.raises(ArgumentError, match="can be forgotten"):
        constraint.rollback(len(tokens) + 1)


def test_a_sequence_has_a_state_of_its_own() -> None:
    llguidance()
    grammar = compile_format(TOKENIZER, Format("choice", '["ab", "cd"]'))
    one, two = grammar.start(), grammar.start()
    one.advance(TOKENIZER.encode("a")[0])
    assert np.flatnonzero(two.mask()).size == 2
    assert not one.is_done
    one.advance(TOKENIZER.encode("b")[0])
    assert one.is_done
    assert not two.is_done


def test_no_end_before_the_least_number_of_tokens() -> None:
    for least in (0, 1, 7, 30):
        make = constrain(TOKENIZER, least=least, ends=[EOS, 5])
        found = generation.generate(
            NoiseSession(),
            TOKENIZER,
            "x",
            sampler=Sampler(temperature=3.0, seed=1),
            max_tokens=40,
            constrain=make,
            stop_tokens=[5],
        )
        assert len(found.tokens) >= least
        assert 5 not in found.tokens


def test_a_format_that_ends_wins_over_a_least_number_of_tokens() -> None:
    llguidance()
    assert re.fullmatch("[0-9]{3}", text(Format("regex", "[0-9]{3}"), least=10).text)
    assert len(text(Format("regex", "[0-9]*"), least=10, temperature=1.0).text) >= 10


def test_a_least_number_of_tokens_costs_nothing_once_it_is_reached() -> None:
    state = Sampler().start(constraints=[AtLeast(1, [EOS], 257)])
    assert state.need is Need.BOUNDS
    state.pick(np.zeros(257, np.float32))
    assert state.need is Need.LARGEST


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regex": "(a"}, "regex: it is not supported: .*unclosed group"),
        ({"regex": ""}, "at least one character"),
        ({"regex": 3}, "at least one character"),
        ({"regex": "x" * (constraints.MAX_FORMAT + 1)}, "at most 65536"),
        ({"grammar": "start: nowhere"}, "unknown name"),
        ({"grammar": "root ::= ("}, "grammar: "),
        ({"choice": []}, "1 to 4096 texts"),
        ({"choice": ["a", ""]}, "1 to 4096 texts"),
        ({"choice": "ab"}, "1 to 4096 texts"),
        ({"schema": "{"}, "not JSON"),
        ({"schema": 3}, "an object, true or false"),
        ({"schema": {"a": {1, 2}}}, "cannot be written as JSON"),
        ({"schema": {"type": "strange"}}, "Invalid type: strange"),
        ({"schema": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
        ({"schema": {"$ref": "http://example.com/a"}}, "not present"),
        ({"schema": {"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}}}, "uniqueItems"),
        ({"schema": {}, "regex": "a"}, "schema and regex"),
        ({"schema": {"$ref": "#"}}, "schema: it is not supported"),
        ({"grammar": "start: start"}, "grammar: it is not supported"),
    ],
    ids=lambda v: str(v)[:40],
)  # fmt: skip
def test_a_format_that_cannot_be_followed_is_refused(options: dict[str, Any], message: str) -> None:
    llguidance()
    with pytest.raises(ArgumentError, match=message) as caught:
        compile_format(TOKENIZER, Format.of(**options))  # type: ignore[arg-type]
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


def test_as_many_choices_as_there_may_be() -> None:
    llguidance()
    choices = [f"choice {i}" for i in range(constraints.MAX_CHOICES)]
    assert text(Format.of(choice=choices), temperature=1.0).text in choices  # type: ignore[arg-type]


def test_without_the_package_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "llguidance", None)
    tokenizer = ByteTokenizer((*ALPHABET,), facts=Facts())
    with pytest.raises(PackageError, match=r"pip install .*llguidance"):
        compile_format(tokenizer, Format("regex", "a"))


def test_compiled_formats_are_kept_and_their_number_is_bounded() -> None:
    llguidance()
    form = Format("regex", "kept+")
    assert compile_format(TOKENIZER, form) is compile_format(TOKENIZER, form)
    for i in range(constraints.MOST_KEPT + 5):
        compile_format(TOKENIZER, Format("regex", f"a{i}"))
    assert len(constraints._compilers[TOKENIZER]._kept) == constraints.MOST_KEPT


def test_what_was_compiled_ends_with_its_vocabulary() -> None:
    llguidance()
    tokenizer = ByteTokenizer((*ALPHABET, "<end>"), frozenset([EOS]), facts=Facts(eos=frozenset([EOS])))
    compile_format(tokenizer, Format("regex", "a"))
    gone = ref(tokenizer)
    del tokenizer
    gc.collect()
    assert gone() is None


def test_a_model_generates_in_a_format() -> None:
    llguidance()
    model = load()
    schema = {
        "type": "object", "required": ["name", "age"], "additionalProperties": False,
        "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    }  # fmt: skip
    found = model.generate("The man: ", schema=schema, max_tokens=400, temperature=1.0, seed=3)
    value = json.loads(found.text)
    assert len(value["name"]) <= 8
    assert 0 <= value["age"] <= 120
    pieces = [
        p.text for p in model.stream("The man: ", schema=json.dumps(schema), max_tokens=400, temperature=1.0, seed=3)
    ]
    assert "".join(pieces) == found.text
    both = model.generate(["In ", "And "], regex="[A-Z][a-z]{4}", temperature=1.0, seed=3)
    assert [bool(re.fullmatch("[A-Z][a-z]{4}", g.text)) for g in both] == [True, True]
    assert both[0].text == model.generate("In ", regex="[A-Z][a-z]{4}", temperature=1.0, seed=3).text


@pytest.mark.parametrize(
    ("options", "message"),
    [({"min_tokens": -1}, "0 or more"), ({"min_tokens": True}, "0 or more"), ({"stop_token_ids": [256]}, "0 to 255"),
     ({"stop_token_ids": "a"}, "0 to 255"), ({"schemas": {}}, "schema")],
    ids=str,
)  # fmt: skip
def test_options_of_text_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        load().generate("a", **options)


def test_a_stop_token_ends_a_text() -> None:
    model = load()
    whole = model.generate("In the beginning ", max_tokens=20)
    cut = model.generate("In the beginning ", max_tokens=20, stop_token_ids=[whole.tokens[7]])
    first = whole.tokens.index(whole.tokens[7])
    assert (cut.tokens, cut.finish_reason) == (whole.tokens[:first], "stop")


@pytest.mark.parametrize("device", ["torch", "mlx"])
def test_formats_give_the_same_texts_on_every_device(device: str) -> None:
    llguidance()
    pytest.importorskip({"torch": "torch", "mlx": "mlx.core"}[device], reason=f"needs {device}")
    host, there = load(), load(device=device)
    schema = {
        "type": "object",
        "properties": {"a": {"enum": [1, 22]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    forms: list[dict[str, Any]] = [{"schema": schema}, {"regex": "[0-9]{3}-[a-z]{2}"}, {"choice": ["yes", "no"]}]
    for form in forms:
        for options in (
            {},
            {"temperature": 0.8, "seed": 3},
            {"temperature": 1.0, "top_p": 0.9, "seed": 4, "logprobs": 2},
        ):
            texts = [m.generate("In the beginning", max_tokens=24, **form, **options).text for m in (host, there)]
            assert texts[0] == texts[1]
