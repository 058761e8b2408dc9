"""The routes of a server: which path does what, for one model.

Text goes through `Answers`, in the protocol of the route; what takes long to read or compute is done beside the event loop.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any
from urllib.parse import unquote

import numpy as np

from tritium.errors import PackageError, TritiumError
from tritium.escape import visible
from tritium.serve.access import Quota
from tritium.serve.answers import Answers, protocol_error
from tritium.serve.exchange import HTTPRequest, HTTPResponse
from tritium.serve.intake import Intake, Lane
from tritium.serve.metrics import EnergyCounters, Metric, of_requests, page
from tritium.serve.page import chat_page, headers as page_headers
from tritium.serve.protocols import openai
from tritium.serve.protocols.checks import flag, ids, read_json, string, value, whole
from tritium.serve.protocols.common import Dialect, ProtocolError
from tritium.serve.protocols.fields import FieldError, Fields, Refusal
from tritium.serve.protocols.messages import Messages
from tritium.serve.protocols.responses import Responses
from tritium.serve.spans import Span, Spans

NO_SNIFF = {"x-content-type-options": "nosniff"}  # an answer may hold any text: no browser may take it for a page
MOST_TEXTS = 2048  # of a request for embeddings
EMBEDDINGS = Fields(
    ("model", "input", "encoding_format", "dimensions"), ("user",),
    {"truncate_prompt_tokens": Refusal("a text is read whole or refused; cut it before it is sent")},
)  # fmt: skip
TOKENIZE = Fields(
    ("model", "prompt", "content", "messages", "add_special_tokens", "add_special", "return_token_strs", "with_pieces",
     "chat_template_kwargs", "tools"), (),
    {"parse_special": Refusal("special tokens in a text are always read as such", (True,)),
     "add_generation_prompt": Refusal("messages are written out as a request has them", (True,)),
     "continue_final_message": Refusal("messages are written out as a request has them", (False,))},
    aliases={"content": "prompt", "add_special": "add_special_tokens", "with_pieces": "return_token_strs"},
)  # fmt: skip
DETOKENIZE = Fields(("model", "tokens"))

Handler = Callable[[HTTPRequest], Awaitable[HTTPResponse]]


class Api:
    """The routes of one model. `embed` gives the vectors of texts, where the model has it."""

    def __init__(
        self, answers: Answers, intake: Intake, quota: Quota, *, embed: Callable[..., Any] | None = None,
        caller: Callable[[HTTPRequest], str] = lambda request: request.client, sensors: Callable[[], Sequence[Any]] = tuple,
        spans: Spans | None = None,
    ) -> None:  # fmt: skip
        self.answers, self._intake, self._quota = answers, intake, quota
        self._embed, self._caller, self._spans = embed, caller, spans or Spans()
        self._created, self._energy = int(time.time()), EnergyCounters(sensors)
        self._embedding = Lane("embed", 16)
        messages = Messages()
        generate = self._generate
        self.dialects: dict[str, Dialect] = {
            "/v1/completions": openai.Completions(), "/v1/chat/completions": openai.Chat(), "/v1/responses": Responses(),
            "/v1/messages": messages, "/v1/messages/count_tokens": Messages(counting=True),
        }  # fmt: skip
        self.routes: dict[str, tuple[str, Handler]] = {
            "/": ("GET", self._page),
            "/health": ("GET", self._health),
            "/metrics": ("GET", self._metrics),
            "/props": ("GET", self._props),
            "/tokenizer_info": ("GET", self._tokenizer_info),
            "/v1/models": ("GET", self._models),
            **{f"/v1/models/{name}": ("GET", partial(self._one_model, name=name)) for name in answers.names},
            **{
                p: ("POST", partial(generate, dialect=d))
                for p, d in self.dialects.items()
                if not p.endswith("count_tokens")
            },
            "/v1/messages/count_tokens": ("POST", self._count),
            "/v1/embeddings": ("POST", self._embeddings),
            "/tokenize": ("POST", self._tokenize),
            "/detokenize": ("POST", self._detokenize),
        }

    def close(self) -> None:
        """End the thread of embeddings."""
        self._embedding.close()

    def route(self, request: HTTPRequest) -> Handler:
        """Return what handles a request; ProtocolError for an unknown path or a wrong method."""
        path = unquote(request.path)
        if path not in self.routes:
            raise ProtocolError(
                404, f"There is no {visible(path)} here; there are: {', '.join(self.routes)}.", code="unknown_url"
            )
        method, handler = self.routes[path]
        if request.method != method:
            raise ProtocolError(
                405, f"{path} takes {method}, not {visible(request.method)}.", code="method_not_allowed", headers={"allow": method}
            )  # fmt: skip
        return handler

    def error(self, error: ProtocolError, path: str) -> HTTPResponse:
        """Return an error in the shape of the protocol that a path belongs to."""
        dialect = self.dialects.get(unquote(path))
        return self._json(error.body if dialect is None else dialect.error(error), error.status, **error.headers)

    def _json(self, value: Any, status: int = 200, **headers: str) -> HTTPResponse:
        body = json.dumps(value, ensure_ascii=False).encode()
        return HTTPResponse(status, body, {"content-type": "application/json", **NO_SNIFF, **headers})

    # About the server.

    async def _page(self, _: HTTPRequest) -> HTTPResponse:
        return HTTPResponse(200, chat_page(), {**page_headers(), **NO_SNIFF})

    async def _health(self, _: HTTPRequest) -> HTTPResponse:
        s = self.answers.scheduler
        return self._json({"status": "ok", "slots": s.session.slots, "running": s.running, "waiting": s.waiting})

    async def _metrics(self, _: HTTPRequest) -> HTTPResponse:
        # Sensors may be slow to read.
        energy = await asyncio.get_running_loop().run_in_executor(None, self._energy.read)
        s, labels = self.answers.scheduler, {"model_name": self.answers.name}
        held = sum(len(s.session.tokens(i)) for i in range(s.session.slots))
        used = held / s.session.pool
        sums = [
            Metric("vllm:num_requests_running", "Requests in a slot.", "gauge", [(labels, s.running)]),
            Metric("vllm:num_requests_waiting", "Requests that wait for a slot.", "gauge", [(labels, s.waiting)]),
            Metric(
                "vllm:kv_cache_usage_perc", "Share of the slots' KV cache in use; 1 is all.", "gauge", [(labels, used)]
            ),
            Metric("vllm:prompt_tokens_total", "Tokens of prompts.", "counter", [(labels, s.prefixes.counts.queries)]),
            Metric(
                "vllm:prefix_cache_queries_total",
                "Tokens looked up in the prefix cache.",
                "counter",
                [(labels, s.prefixes.counts.queries)],
            ),
            Metric(
                "vllm:prefix_cache_hits_total", "Tokens found there.", "counter", [(labels, s.prefixes.counts.hits)]
            ),
        ]
        if s.speculator is not None:
            counts = s.speculator.counts
            named = (
                ("num_drafts", counts.steps),
                ("num_draft_tokens", counts.guessed),
                ("num_accepted_tokens", counts.accepted),
            )
            sums += [
                Metric(f"vllm:spec_decode_{n}_total", "Speculative decoding.", "counter", [(labels, v)])
                for n, v in named
            ]
        text = page([*sums, *of_requests(s.meter, self.answers.name), *energy])
        headers = {"content-type": "text/plain; version=0.0.4; charset=utf-8", **NO_SNIFF}
        return HTTPResponse(200, text.encode(), headers)

    async def _props(self, _: HTTPRequest) -> HTTPResponse:
        a, s = self.answers, self.answers.scheduler.session
        return self._json({
            "default_generation_settings": {"n_ctx": s.capacity, "params": {"n_predict": a.max_tokens or -1, "temperature": 1.0}},
            "total_slots": s.slots, "model_alias": a.name, "chat_template": a.template or a.tokenizer.chat_template or "",
            "bos_token": a.tokenizer.bos_token, "eos_token": a.tokenizer.eos_token, "modalities": {"vision": False, "audio": False},
        })  # fmt: skip

    async def _tokenizer_info(self, _: HTTPRequest) -> HTTPResponse:
        a, t = self.answers, self.answers.tokenizer
        return self._json({
            "tokenizer_class": type(t).__name__, "bos_token": t.bos_token or None, "eos_token": t.eos_token or None, "pad_token": None,
            "chat_template": a.template or t.chat_template, "vocab_size": t.vocab_size,
        })  # fmt: skip

    async def _models(self, _: HTTPRequest) -> HTTPResponse:
        return self._json({"object": "list", "data": [self._card(name) for name in self.answers.names]})

    async def _one_model(self, _: HTTPRequest, *, name: str) -> HTTPResponse:
        return self._json(self._card(name))

    def _card(self, name: str) -> dict[str, Any]:
        context = self.answers.scheduler.session.capacity
        details: dict[str, Any] = {"context_length": context, "max_model_len": context}
        if self.answers.adapter(name) is not None:
            details |= {"root": self.answers.name, "parent": self.answers.name}  # as vLLM tells of adapters
        return {"id": name, "object": "model", "created": self._created, "owned_by": "tritium", **details}

    # Text.

    async def _generate(self, request: HTTPRequest, *, dialect: Dialect) -> HTTPResponse:
        operation = "text_completion" if request.path == "/v1/completions" else "chat"
        return await self._spanned(operation, request, partial(self._answer, request, dialect))

    async def _spanned(
        self, operation: str, request: HTTPRequest, work: Callable[[Span], Awaitable[HTTPResponse]]
    ) -> HTTPResponse:
        """Do the work of a request in a span, which ends with it if it fails."""
        span = self._spans.begin(operation, request.headers, self.answers.name)
        try:
            return await work(span)
        except BaseException as e:
            span.fail(e)
            raise

    async def _answer(self, request: HTTPRequest, dialect: Dialect, span: Span) -> HTTPResponse:
        client = self._caller(request)
        self._quota.admit(client)
        # Reading a body, splitting a text into tokens and compiling a format may be long: beside the event loop, so that others go on.
        read = partial(self.answers.read, request.body, dialect)
        query, prompts = await self._intake.run(len(request.body), request.client, read)
        span.describe(query)
        if query.form is None and query.toolbox is None:
            requests = self.answers.requests(query, prompts)
        else:
            requests = await self._intake.formats.run(request.client, partial(self.answers.requests, query, prompts))
        self._quota.take(client, len(requests))
        try:
            tickets = self.answers.scheduler.submit_all(requests)
        except BaseException as e:
            self._quota.give_back(client, len(requests))
            if isinstance(e, TritiumError):
                raise protocol_error(e) from None
            raise

        def release() -> None:
            span.end(tickets)
            for t in tickets:
                t.cancel()
            self._quota.give_back(client, len(tickets))

        if query.stream:
            headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", **NO_SNIFF}
            return HTTPResponse(200, self.answers.streamed(query, tickets, dialect), headers, release)
        try:
            return self._json(await self.answers.whole(query, tickets, dialect))
        except TritiumError as e:
            raise protocol_error(e) from None
        finally:
            release()

    async def _count(self, request: HTTPRequest) -> HTTPResponse:
        """Count the tokens of a request of Anthropic's protocol."""

        def count() -> int:
            query = self.dialects["/v1/messages/count_tokens"].read(request.body)
            self.answers.check_model(query.model)
            return sum(map(len, self.answers.prompts(query)))

        return self._json({"input_tokens": await self._intake.run(len(request.body), request.client, count)})

    async def _tokenize(self, request: HTTPRequest) -> HTTPResponse:
        return self._json(
            await self._intake.run(len(request.body), request.client, partial(self._tokens, request.body))
        )

    def _tokens(self, body: bytes) -> dict[str, Any]:
        """Return the tokens of a text, or of messages written out, in the words of vLLM and llama.cpp."""
        f = select(TOKENIZE, body)
        self.answers.check_model(checked(f, "model", string, None))
        if ("prompt" in f) == ("messages" in f):
            raise ProtocolError(
                400, "One of prompt (or content) and messages is needed.", param="prompt", code="invalid_value"
            )
        route, field = ("/v1/chat/completions", "messages") if "messages" in f else ("/v1/completions", "prompt")
        inner = {k: f[k] for k in (field, "chat_template_kwargs", "tools") if k in f}
        if field == "prompt":
            inner = {
                "prompt": checked(f, "prompt", string, ""),
                "add_special_tokens": f.get("add_special_tokens", True),
            }
        query = self.dialects[route].read(json.dumps(inner).encode())
        (tokens,) = self.answers.prompts(query)
        named = checked(f, "return_token_strs", flag, False)
        texts = [self.answers.tokenizer.bytes_of(t).decode("utf-8", "replace") for t in tokens] if named else None
        context = self.answers.scheduler.session.capacity
        return {"count": len(tokens), "max_model_len": context, "tokens": list(tokens), "token_strs": texts}

    async def _detokenize(self, request: HTTPRequest) -> HTTPResponse:
        def text() -> dict[str, Any]:
            f = select(DETOKENIZE, request.body)
            self.answers.check_model(checked(f, "model", string, None))
            tokens = checked(f, "tokens", _token_list, None)
            if tokens is None:
                raise ProtocolError(400, "tokens is missing.", param="tokens", code="missing_required_parameter")
            words = self.answers.tokenizer.decode(tokens)
            return {"prompt": words, "content": words}

        return self._json(await self._intake.run(len(request.body), request.client, text))

    async def _embeddings(self, request: HTTPRequest) -> HTTPResponse:
        return await self._spanned("embeddings", request, partial(self._embed_texts, request))

    async def _embed_texts(self, request: HTTPRequest, span: Span) -> HTTPResponse:
        self._quota.admit(self._caller(request))
        call = partial(self._vectors, request.body)
        try:
            vectors = await self._embedding.run(request.client, call)
        except PackageError as e:
            raise ProtocolError(501, str(e)) from None
        except TritiumError as e:
            raise protocol_error(e) from None
        span.count(vectors["usage"]["prompt_tokens"])
        span.end()
        return self._json(vectors)

    def _vectors(self, body: bytes) -> dict[str, Any]:
        f = select(EMBEDDINGS, body)
        self.answers.check_model(checked(f, "model", string, None))
        texts = checked(f, "input", _texts, None)
        form = checked(f, "encoding_format", _encoding, "float")
        size = checked(f, "dimensions", whole(1, 1 << 31), None)
        if texts is None:
            raise ProtocolError(400, "input is missing.", param="input", code="missing_required_parameter")
        if self._embed is None:
            raise ProtocolError(501, "This model has no embeddings.", code="unsupported")
        vectors = np.asarray(self._embed(texts), "<f4")
        if size not in (None, vectors.shape[1]):
            message = f"dimensions is {size}; the vectors of this model have {vectors.shape[1]}."
            raise ProtocolError(400, message, param="dimensions", code="invalid_value")
        rows = [base64.b64encode(v.tobytes()).decode() if form == "base64" else v.tolist() for v in vectors]
        count = sum(len(self.answers.tokenizer.encode(t)) for t in texts)
        data = [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(rows)]
        usage = {"prompt_tokens": count, "total_tokens": count}
        return {"object": "list", "data": data, "model": self.answers.name, "usage": usage}


def select(fields: Fields, body: bytes) -> dict[str, Any]:
    """Return the accepted fields of a body; ProtocolError names the first that is not."""
    try:
        return fields.select(read_json(body))
    except FieldError as e:
        raise ProtocolError(400, str(e), param=e.param, code=e.code) from None


def checked(fields: dict[str, Any], name: str, check: Callable[[Any], Any], default: Any) -> Any:
    """Return the value of a field; ProtocolError says what is needed."""
    try:
        return value(fields, name, check, default)
    except FieldError as e:
        raise ProtocolError(400, str(e), param=e.param, code=e.code) from None


def _texts(v: Any) -> list[str]:
    texts = [v] if isinstance(v, str) else v
    if (
        not isinstance(texts, list)
        or not 0 < len(texts) <= MOST_TEXTS
        or not all(isinstance(t, str) and t for t in texts)
    ):
        raise ValueError(
            f"a text or a list of 1 to {MOST_TEXTS} texts, none of them empty; token ids are not read here"
        )
    return [string(t) for t in texts]


def _encoding(v: Any) -> str:
    if v not in ("float", "base64"):
        raise ValueError("float or base64")
    return str(v)


def _token_list(v: Any) -> tuple[int, ...]:
    if not isinstance(v, list):
        raise ValueError("a list of token ids")
    return ids(v)
