"""EleutherAI's lm-eval on a model: likelihoods of continuations and of texts, and generation until a text.

`register()` makes the model "tritium" known to lm-eval, which is then run as usual:

    tritium lm-eval --model_args path=model.gguf --tasks arc_easy

Needs the package `lm_eval`. Requests with a common beginning are scored after one another, and what they share is computed once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from types import SimpleNamespace
from typing import Any

from tritium.errors import ArgumentError, PackageError
from tritium.models.caching.prefixes import common
from tritium.models.load import Model, load
from tritium.models.text.chat import render

NAME = "tritium"
DEFAULT_TOKENS = 256  # of an answer whose task says nothing
SAMPLED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")


class Evaluator:
    """A model as evaluations use it: scores and answers. `context`: most tokens of a request; `batch`: answers generated together."""

    def __init__(self, model: Model, *, context: int | None = None, batch: int = 8) -> None:
        self.model, self.tokenizer, self.batch = model, model.tokenizer, batch
        self.session = model.session(context=context)
        ends = sorted(self.tokenizer.eos)
        first = self.tokenizer.bos if self.tokenizer.bos is not None else ends[0] if ends else None
        if first is None:
            raise ArgumentError(
                "lm-eval: this vocabulary has no first and no last token, which a text without context is scored after."
            )
        self.first = first

    def pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Return the tokens of a context and of what continues it. Space at the end of a context belongs to the continuation."""
        spaces = len(context) - len(context.rstrip())
        if spaces:
            context, continuation = context[:-spaces], context[-spaces:] + continuation
        if not context:
            return [self.first], self.tokenizer.encode(continuation, bos=False)
        whole, before = self.tokenizer.encode(context + continuation), self.tokenizer.encode(context)
        return whole[: len(before)], whole[len(before) :]

    def loglikelihoods(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[tuple[float, bool]]:
        """Return for each context and continuation the sum of log-probabilities, and whether greedy decoding continues so."""
        results: list[tuple[float, bool]] = [(0.0, True)] * len(pairs)
        order = sorted(range(len(pairs)), key=lambda i: (*pairs[i][0], *pairs[i][1]))
        for i in order:
            before, after = pairs[i]
            if after:
                results[i] = self._score(before, after)
        return results

    def _score(self, before: Sequence[int], after: Sequence[int]) -> tuple[float, bool]:
        room = self.session.capacity - len(after)
        if room < 1:
            raise ArgumentError(
                f"lm-eval: a continuation has {len(after)} tokens; the context holds {self.session.capacity}, with one before it at least."
            )
        before = list(before)[-room:]
        shared = min(common(self.session.tokens(0), before), len(before))
        reused = self.session.reusable(0, shared)
        self.session.truncate(0, reused)
        if reused < len(before):
            self.session.extend(0, before[reused:])
        scores = self.session.scored(0, after, 1)
        return sum(p.logprob for p in scores), all(p.logprob >= p.top[0][1] for p in scores)

    def rolling(self, text: str) -> float:
        """Return the log-probability of a whole text, in windows of the context that overlap by one token."""
        tokens, size = self.tokenizer.encode(text, bos=False), self.session.capacity - 1
        windows = [
            ([self.first] if not i else [tokens[i - 1]], tokens[i : i + size]) for i in range(0, len(tokens), size)
        ]
        return sum(score for score, _ in self.loglikelihoods(windows))

    def generate(self, requests: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
        """Return the answers to prompts, each with options of lm-eval: until, max_gen_toks, temperature …"""
        answers = [""] * len(requests)
        keyed = sorted((repr(sorted(options.items())), i) for i, (_, options) in enumerate(requests))
        for _, group in groupby(keyed, key=lambda pair: pair[0]):
            for chunk in _chunks([i for _, i in group], self.batch):
                options = _options(requests[chunk[0]][1])
                room = max(self.session.capacity - options["max_tokens"], 1)
                prompts: Any = [(self.tokenizer.encode(requests[i][0]) or [self.first])[-room:] for i in chunk]
                for i, answer in zip(chunk, self.model.generate(prompts, **options), strict=True):
                    answers[i] = answer.text
        return answers

    def chat(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> str:
        """Return messages written out by the model's chat template."""
        t = self.tokenizer
        return render(
            t.chat_template,
            messages,
            bos_token=t.bos_token,
            eos_token=t.eos_token,
            add_generation_prompt=add_generation_prompt,
        )


def _chunks(values: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for i in range(0, len(values), size):
        yield values[i : i + size]


def _options(task_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of generation from those of a task; one that is not known is an error, not ignored."""
    rest = dict(task_options)
    until = rest.pop("until", ())
    sampled = rest.pop("do_sample", None)
    count = rest.pop("max_gen_toks", rest.pop("max_tokens", DEFAULT_TOKENS))
    options = {name: rest.pop(name) for name in SAMPLED if name in rest}
    if rest:
        raise ArgumentError(
            f"lm-eval: generation has no option {', '.join(map(repr, rest))}; there are until, max_gen_toks, {', '.join(SAMPLED)}."
        )
    if sampled is False:
        options["temperature"] = 0.0
    elif sampled and "temperature" not in options:
        options["temperature"] = 1.0
    stop = [until] if isinstance(until, str) else list(until or ())
    return options | {"max_tokens": int(count), "stop": [s for s in stop if s]}


def register() -> type:
    """Make "tritium" a model of lm-eval, and return its class; `model_args` are path and other options of `tritium.load`."""
    api = _package()
    if NAME in api.registry.model_registry:
        return api.registry.get_model(NAME)

    class TritiumLM(api.model.LM):  # type: ignore[name-defined, misc]
        """A model of Tritium for lm-eval."""

        def __init__(
            self, path: str | None = None, *, batch_size: Any = 8, max_batch_size: Any = None, device: str | None = None,
            max_length: int | None = None, **options: Any,
        ) -> None:  # fmt: skip
            super().__init__()
            batch = int(batch_size) if str(batch_size).isdigit() else 8
            self._model = load(path, device=device, **options)
            self._evaluator = Evaluator(self._model, context=max_length, batch=batch)

        @classmethod
        def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> Any:
            """Return the model of some arguments. lm-eval's own device is cuda:0 where none was asked for; only model_args decide."""
            return cls(**{**{k: v for k, v in (additional_config or {}).items() if k != "device"}, **arg_dict})

        @classmethod
        def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> Any:
            """Return the model of arguments as the command line has them."""
            return cls.create_from_arg_obj(api.utils.simple_parse_args_string(arg_string), additional_config)

        def loglikelihood(self, requests: Iterable[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
            """Return sums of log-probabilities of continuations."""
            return self._evaluator.loglikelihoods([self._evaluator.pair(*request.args) for request in requests])

        def loglikelihood_rolling(self, requests: Iterable[Any], disable_tqdm: bool = False) -> list[float]:
            """Return log-probabilities of whole texts."""
            return [self._evaluator.rolling(*request.args) for request in requests]

        def generate_until(self, requests: Iterable[Any], disable_tqdm: bool = False) -> list[str]:
            """Return generated texts."""
            return self._evaluator.generate([request.args for request in requests])

        def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
            """Return messages written out by the model's chat template."""
            return self._evaluator.chat(chat_history, add_generation_prompt)

        def chat_template(self, chat_template: bool | str = False) -> str | None:
            """Return the model's chat template."""
            return self._evaluator.tokenizer.chat_template

        @property
        def tokenizer_name(self) -> str:
            """Return what tells caches of this vocabulary from those of others."""
            return str(self._model.name)

    return api.registry.register_model(NAME)(TritiumLM)


def _package() -> Any:
    try:
        import lm_eval.api.model
        import lm_eval.api.registry
        import lm_eval.models
        import lm_eval.utils
    except ImportError as error:
        raise PackageError(f"lm-eval: the package 'lm_eval' is needed ({error}); pip install lm_eval.") from None
    return SimpleNamespace(model=lm_eval.api.model, registry=lm_eval.api.registry, utils=lm_eval.utils)
