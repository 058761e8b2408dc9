"""lm-eval: likelihoods are those of the session, answers those of the model, and the harness itself runs."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tritium.errors import ArgumentError, PackageError
from tritium.models import evaluation
from tritium.models.evaluation import Evaluator
from tritium.models.load import load

PAIRS = [
    ("In the beginning God created the heaven and", " the earth"),
    ("In the beginning God created the heaven and", " the door"),
    ("And God said, ", "Let there be light"),
    ("", "And it came to pass"),
    ("In the beginning God created", " the"),
]


@pytest.fixture(scope="module")
def evaluator() -> Evaluator:
    return Evaluator(load())


def test_likelihoods_are_those_of_the_session(evaluator: Evaluator) -> None:
    tokens = [evaluator.pair(*pair) for pair in PAIRS]
    found = evaluator.loglikelihoods(tokens)
    session = load().session()
    for (before, after), (score, is_greedy) in zip(tokens, found, strict=True):
        session.truncate(0, 0)
        session.extend(0, before)
        assert score == pytest.approx(float(np.sum(session.score(0, after), dtype=np.float64)), abs=1e-4)
        greedy = load().generate(before, max_tokens=len(after), ignore_eos=True).tokens
        assert is_greedy == (list(greedy) == list(after))
    assert found[0][0] > found[1][0]
    assert evaluator.loglikelihoods(tokens[::-1]) == found[::-1]  # what was computed before changes nothing


def test_a_pair_is_the_text_as_a_whole(evaluator: Evaluator) -> None:
    for context, continuation in PAIRS:
        before, after = evaluator.pair(context, continuation)
        assert after
        assert evaluator.tokenizer.decode([*before, *after]).lstrip("\x00") == context + continuation
    before, _ = evaluator.pair("And God said, ", "Let")
    assert not evaluator.tokenizer.decode(before).endswith(" ")


def test_a_long_context_loses_its_beginning_and_a_long_continuation_is_refused(evaluator: Evaluator) -> None:
    small = Evaluator(load(), context=24)
    after = evaluator.tokenizer.encode(" and the earth", bos=False)
    long = evaluator.tokenizer.encode("In the beginning God created the heaven", bos=False)
    assert small.loglikelihoods([(long, after)]) == small.loglikelihoods([(long[-(24 - len(after)) :], after)])
    with pytest.raises(ArgumentError, match="the context holds 24"):
        small.loglikelihoods([(long, [5] * 24)])


@pytest.mark.parametrize("context", [None, 17])
def test_a_text_is_scored_whole(context: int | None) -> None:
    one = Evaluator(load(), context=context)
    text = "And God saw the light, that it was good"
    tokens = one.tokenizer.encode(text, bos=False)
    size = one.session.capacity - 1
    session, want, done = load().session(), 0.0, 0
    while done < len(tokens):
        part = tokens[done : done + size]
        session.truncate(0, 0)
        session.extend(0, [one.first if not done else tokens[done - 1]])
        want += float(np.sum(session.score(0, part), dtype=np.float64))
        done += len(part)
    assert one.rolling(text) == pytest.approx(want, abs=1e-3)
    assert math.isclose(one.rolling(""), 0.0)


def test_answers_are_those_of_the_model(evaluator: Evaluator) -> None:
    one = {"until": [".", "\n"], "max_gen_toks": 20, "do_sample": False}
    other = {"until": " ", "max_gen_toks": 9, "temperature": 0.0}
    requests: list[tuple[str, Any]] = [("In the beginning", one), ("And", other), ("The LORD", one), ("And God", one)]
    answers = Evaluator(load(), batch=2).generate(requests)
    model = load()
    for (prompt, options), answer in zip(requests, answers, strict=True):
        assert answer == model.generate(prompt, max_tokens=options["max_gen_toks"], stop=list(options["until"])).text
    with pytest.raises(ArgumentError, match="no option 'num_beams'"):
        evaluator.generate([("a", {"num_beams": 4})])


def test_without_the_package_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.setitem(sys.modules, "lm_eval.api.model", None)
    with pytest.raises(PackageError, match="pip install lm_eval"):
        evaluation.register()


def test_the_harness_has_the_model() -> None:
    pytest.importorskip("lm_eval", reason="the harness itself")
    made = evaluation.register()
    assert evaluation.register() is made
    model = made.create_from_arg_string("kv=f16", {"batch_size": 4, "device": "cuda:0"})  # type: ignore[attr-defined]
    (first, second) = model.loglikelihood([SimpleNamespace(args=pair) for pair in PAIRS[:2]])
    assert first[0] > second[0]
    assert model.generate_until([SimpleNamespace(args=("And", {"until": [], "max_gen_toks": 3}))])[0]
    assert model.tokenizer_name == "kjv"


def test_the_harness_runs_a_task(tmp_path: Path) -> None:
    harness = pytest.importorskip("lm_eval", reason="the harness itself")
    pytest.importorskip("datasets", reason="reads the task")
    rows = [
        {"text": t, "choices": c, "label": 0}
        for t, c in [("In the beginning God created the heaven and", [" the earth", " zzqx"])]
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    task = {
        "task": "kjv_choice", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}},
        "test_split": "test", "output_type": "multiple_choice", "doc_to_text": "{{text}}", "doc_to_choice": "{{choices}}",
        "doc_to_target": "label", "metric_list": [{"metric": "acc"}],
    }  # fmt: skip
    evaluation.register()
    results = harness.simple_evaluate(model="tritium", tasks=[task], bootstrap_iters=0)
    assert results["results"]["kjv_choice"]["acc,none"] == 1.0
