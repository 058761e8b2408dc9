"""A model behind the routes, without a socket: who may ask what, and how a request becomes a response.

Both front ends call the same three methods: `admit` with a header, `handle` with a whole request, `refuse` for what is neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritium import settings
from tritium.arguments import checked_class, parse_bytes
from tritium.errors import ArgumentError, shown
from tritium.escape import visible
from tritium.models.text.constraints import read_vocabulary
from tritium.serve.access import PREFLIGHT, Access, Keys, Quota
from tritium.serve.answers import Answers
from tritium.serve.api import Api
from tritium.serve.exchange import HTTPRequest, HTTPResponse
from tritium.serve.intake import Intake
from tritium.serve.protocols.common import ProtocolError
from tritium.serve.protocols.tools import STYLES
from tritium.serve.scheduler import Scheduler
from tritium.serve.spans import OpenTelemetrySpans
from tritium.settings import log

if TYPE_CHECKING:
    from tritium.models.load import Model


@checked_class
class Service:
    """The routes of one model from `start()` to `close()`; the options are those of `Server`."""

    scheduler: Scheduler
    api: Api
    intake: Intake

    def __init__(
        self,
        model: Model,
        *,
        api_key: str | None = None,
        api_key_file: str | Path | None = None,
        slots: int = 4,
        context: int | None = None,
        pool: int | None = None,
        queue: int = 64,
        max_tokens: int | None = None,
        max_choices: int = 16,
        rate: float | None = None,
        share: int | None = None,
        chat_template: str | None = None,
        tool_style: str | None = None,
        name: str | None = None,
        allowed_hosts: Sequence[str] = (),
        allowed_origins: Sequence[str] = (),
        sensors: Callable[[], Sequence[Any]] = tuple,
        prefix_cache: int | str | None = None,
        speculate: bool | None = None,
        draft: Model | None = None,
        spans: bool = False,
    ) -> None:
        _check_options(model, tool_style)
        key = settings.api_key() if api_key is None and api_key_file is None else api_key
        self.access = Access(Keys(key, api_key_file), tuple(allowed_hosts), tuple(allowed_origins))
        self.name = visible(name or model.name)  # a file may be called anything; a name is one printable line
        self._tokenizer = model.tokenizer
        self._make_session = partial(
            model.session, slots=slots, context=context, **({} if pool is None else {"pool": pool})
        )
        self._make_draft = None if draft is None else partial(model.draft_session, draft=draft)
        self._make_scheduler = partial(
            Scheduler, tokenizer=model.tokenizer, queue=queue, speculate=speculate,
            prefix_cache=None if prefix_cache is None else parse_bytes("serve: prefix_cache", prefix_cache),
        )  # fmt: skip
        self._make_answers = partial(
            Answers, name=self.name, max_tokens=max_tokens, max_choices=max_choices, template=chat_template,
            tool_style=tool_style,
        )  # fmt: skip
        self._has_spans = spans
        self._make_api = partial(
            Api, quota=Quota(rate, share), embed=getattr(model, "embed", None), caller=self._caller, sensors=sensors
        )

    @property
    def is_anonymous(self) -> bool:
        """Return True if callers need no key."""
        return not self.access.keys.are_needed

    def start(self) -> None:
        """Allocate the slots and start the threads; what formats need of the vocabulary is read here, while no stream waits for it."""
        read_vocabulary(self._tokenizer)
        spans = OpenTelemetrySpans() if self._has_spans else None
        session = self._make_session()
        draft = None if self._make_draft is None else self._make_draft(session)
        self.scheduler = self._make_scheduler(session, draft=draft)
        self.intake = Intake()
        self.api = self._make_api(self._make_answers(self.scheduler), self.intake, spans=spans)

    def close(self) -> None:
        """Cancel what runs and end the threads."""
        self.scheduler.close(drain=False)
        self.intake.close()
        self.api.close()

    def admit(self, head: HTTPRequest) -> HTTPResponse | None:
        """Return what refuses a caller by the header, so that only those who may ask have their body read."""
        try:
            self.access.check(head.method, head.path, head.headers)
        except ProtocolError as e:
            return self._finish(head, self.api.error(e, head.path))
        return None

    async def handle(self, request: HTTPRequest) -> HTTPResponse:
        """Return the response to a request that was admitted."""
        try:
            if request.method == "OPTIONS" and "origin" in request.headers:
                response = HTTPResponse(204, b"", PREFLIGHT)
            else:
                response = await self.api.route(request)(request)
        except ProtocolError as e:
            response = self.api.error(e, request.path)
        return self._finish(request, response)

    def refuse(self, status: int, message: str) -> HTTPResponse:
        """Return the response to what is no request, or one too many."""
        headers = {"retry-after": "1"} if status in (429, 503) else {}
        return self.api.error(ProtocolError(status, message, headers=headers), "")

    def _finish(self, request: HTTPRequest, response: HTTPResponse) -> HTTPResponse:
        """Log a response, with the headers that let a trusted page read it."""
        if more := self.access.cors(request.headers.get("origin")):
            response = replace(response, headers={**response.headers, **more})
        log.info("%s %s: %d", request.method, visible(request.path), response.status)
        return response

    def _caller(self, request: HTTPRequest) -> str:
        """Return who a request counts for: the owner of its key, or its address."""
        return self.access.caller(request.headers) or request.client


def _check_options(model: Any, tool_style: str | None) -> None:
    """Raise for a model that is none, or an unknown style of tool calls."""
    if tool_style not in (None, *STYLES):
        raise ArgumentError(f"serve: tool_style must be {', '.join(STYLES)} or None, given {shown(tool_style)}.")
    if not hasattr(model, "session"):
        raise ArgumentError(f"serve: model must be a Model, given {shown(model)}; load one with tritium.load(path).")
