"""Speed of a model server over HTTP: time to first token, between tokens, throughput and goodput at request rates.

Knows nothing of the server: it may be any that streams OpenAI's completions or chats. Rounds of requests arrive at random times of a
given rate; two servers are measured in turn, round by round, and judged by the rules of the gate.

    report = measure(["http://127.0.0.1:8080"], rates=[1, 4], requests=20)
"""

from __future__ import annotations

import http.client
import json
import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from statistics import mean, median
from typing import Any
from urllib.parse import urlsplit

from tritium.errors import ArgumentError, TritiumError
from tritium.escape import visible
from tritium.io.stream import Progress
from tritium.perf.gate.judge import Judged, judge
from tritium.perf.gate.verdict import Rules
from tritium.perf.stats.estimates import median_interval, share_interval
from tritium.perf.suites.model import Measured

WORDS = "the of and to in that he shall unto for his lord they be is with not all thou it god which my them him thy have said son".split()
TIMEOUT_S = 600.0
MOST_LINE = 1 << 20  # bytes of an event
MARGIN = 0.05  # smaller differences of servers are equivalent
LATE_S = 0.02  # a request that left so much later than planned means that this machine, not the server, was too slow


@dataclass(frozen=True)
class Workload:
    """The requests: prompts of about so many words, answers of so many tokens, and which of them are good."""

    words: int = 128
    tokens: int = 64
    shared: int = 0  # words that all prompts begin with
    chat: bool = False
    ignore_eos: bool = False
    first_s: float | None = None  # a good answer has its first token after at most so long
    between_s: float | None = None  # and so long between tokens on average
    seed: int = 0

    def prompt(self, number: int) -> str:
        """Return the prompt of a request: the same for the same number, and another for others."""
        common, own = random.Random(self.seed), random.Random(f"{self.seed} {number}")
        return " ".join(
            [
                *common.choices(WORDS, k=self.shared),
                str(number),
                *own.choices(WORDS, k=max(self.words - self.shared - 1, 0)),
            ]
        )


@dataclass(frozen=True)
class Timing:
    """One request: seconds from its start to the first text and to its end, those between texts, and the tokens of its answer."""

    first_s: float
    whole_s: float
    between_s: tuple[float, ...]
    tokens: int
    prompt_tokens: int
    late_s: float = 0.0  # that it was sent after it should have been
    error: str = ""

    @property
    def mean_between_s(self) -> float:
        """Return the mean time of a token after the first; 0 for an answer of one."""
        return (self.whole_s - self.first_s) / (self.tokens - 1) if self.tokens > 1 else 0.0

    def is_good(self, w: Workload) -> bool:
        """Return True if the answer came and was as fast as it should be."""
        fast = w.first_s is None or self.first_s <= w.first_s
        return not self.error and fast and (w.between_s is None or self.mean_between_s <= w.between_s)


@dataclass(frozen=True)
class Round:
    """Requests that were sent one after another at a rate, and the seconds from the first start to the last end."""

    seconds: float
    timings: tuple[Timing, ...]

    @property
    def answered(self) -> tuple[Timing, ...]:
        """Return the requests that had an answer."""
        return tuple(t for t in self.timings if not t.error)

    def values(self, w: Workload) -> dict[str, float]:
        """Return what a round is judged by: seconds, and for throughputs seconds of one, so that less is always better."""
        answered = self.answered
        if not answered:
            return {}
        gaps = [g for t in answered for g in t.between_s]
        good = sum(t.is_good(w) for t in self.timings)
        values = {
            "first token": median(t.first_s for t in answered),
            "throughput": self.seconds / max(sum(t.tokens for t in answered), 1),
        }
        return (
            values
            | ({"between tokens": mean(gaps)} if gaps else {})
            | ({"goodput": self.seconds / good} if good else {})
        )


@dataclass(frozen=True)
class Load:
    """All rounds of one server at one rate."""

    url: str
    rate: float
    rounds: tuple[Round, ...]

    @property
    def timings(self) -> list[Timing]:
        """Return all requests."""
        return [t for r in self.rounds for t in r.timings]

    def rows(self, w: Workload) -> dict[str, str]:
        """Return what was measured, as text with 95 % intervals."""
        answered = [t for t in self.timings if not t.error]
        errors = [t.error for t in self.timings if t.error]
        rows: dict[str, str] = {}
        if answered:
            rows["first token"] = _times([t.first_s for t in answered])
            if gaps := [g for t in answered for g in t.between_s]:
                rows["between tokens"] = _times(gaps)
            rows["whole answer"] = _times([t.whole_s for t in answered])
            rows["throughput"] = str(
                Measured(
                    "tokens/s", tuple(sum(t.tokens for t in r.answered) / r.seconds for r in self.rounds if r.answered)
                )
            )
        good = sum(t.is_good(w) for t in self.timings)
        low, high = share_interval(good, len(self.timings))
        per_s = good / sum(r.seconds for r in self.rounds)
        rows["goodput"] = f"{per_s:.4g} requests/s, {good} of {len(self.timings)} good ({low:.0%} … {high:.0%}, 95 %)"
        if errors:
            rows["errors"] = f"{len(errors)} of {len(self.timings)}, the first: {errors[0]}"
        late = max((t.late_s for t in self.timings), default=0.0)
        if late > LATE_S:
            rows["late"] = f"a request was sent {1e3 * late:.0f} ms late: this machine could not keep the rate"
        return rows


def _times(values: Sequence[float]) -> str:
    """Return the median of seconds with its exact interval, and the 95th and 99th percentile."""
    low, high = median_interval(values)
    ordered = sorted(values)
    p95, p99 = (ordered[min(math.ceil(share * len(ordered)), len(ordered)) - 1] for share in (0.95, 0.99))
    middle = f"{1e3 * median(values):.4g} ms  ({1e3 * low:.4g} … {1e3 * high:.4g}, 95 %)"
    return f"{middle}  p95 {1e3 * p95:.4g}  p99 {1e3 * p99:.4g}  {len(values)} samples"


@dataclass(frozen=True)
class Comparison:
    """The verdict on one metric at one rate: the second server beside the first. A ratio above 1 is slower."""

    rate: float
    metric: str
    judged: Judged


@dataclass(frozen=True)
class ServingReport:
    """The result of `measure`."""

    workload: Workload
    models: tuple[str, ...]
    loads: tuple[Load, ...]
    comparisons: tuple[Comparison, ...] = field(default=())

    @property
    def failed(self) -> int:
        """Return how many requests had an error for an answer."""
        return sum(bool(t.error) for load in self.loads for t in load.timings)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        loads = [
            {"url": x.url, "rate": _rate(x.rate), "rows": x.rows(self.workload), "rounds": asdict(x)["rounds"]}
            for x in self.loads
        ]
        verdicts = [{"rate": _rate(c.rate), "metric": c.metric, **asdict(c.judged)} for c in self.comparisons]
        return {"workload": asdict(self.workload), "models": self.models, "loads": loads, "comparisons": verdicts}

    def page(self) -> str:
        """Return the report as text."""
        w = self.workload
        lines = [f"prompts of {w.words} words, answers of up to {w.tokens} tokens{', chats' if w.chat else ''}"]
        if w.first_s is not None or w.between_s is not None:
            bounds = [("first token", w.first_s), ("between tokens", w.between_s)]
            lines.append("good: " + ", ".join(f"{name} ≤ {1e3 * s:g} ms" for name, s in bounds if s is not None))
        for load, model in zip(self.loads, self._models(), strict=True):
            rows = load.rows(w)
            requests = f"{len(load.rounds)} rounds of {len(load.rounds[0].timings)} requests"
            lines += ["", f"{model} at {load.url}, {_rate(load.rate)} requests/s, {requests}"]
            lines += [f"  {name:<14}  {text}" for name, text in rows.items()]
        if self.comparisons:
            lines += ["", f"{self.loads[1].url} beside {self.loads[0].url}; a ratio above 1 is slower"]
        for c in self.comparisons:
            low, high = c.judged.interval95
            more = f"; about {c.judged.more_generations} more rounds would decide" if c.judged.more_generations else ""
            text = f"{c.judged.outcome:<13} {c.judged.ratio:.3f}  ({low:.3f} … {high:.3f}, 95 %){more}"
            lines.append(f"  {_rate(c.rate):>5} requests/s  {c.metric:<14}  {text}")
        return "\n".join(lines)

    def _models(self) -> list[str]:
        return [self.models[i % len(self.models)] for i in range(len(self.loads))]


def _rate(rate: float) -> str:
    return f"{rate:g}"


# ---- measuring


def measure(
    urls: Sequence[str], *, rates: Sequence[float] = (1.0, 4.0, math.inf), requests: int = 20, rounds: int = 5,
    workload: Workload = Workload(), model: str | None = None, api_key: str | None = None, concurrency: int = 64,
    progress: Progress | None = None, margin: float = MARGIN,
) -> ServingReport:  # fmt: skip
    """Measure one server, or two in turn. A round sends `requests` at random times of a mean rate (inf: all at once, `concurrency` at a
    time); the times are the same for every server. Rounds before the first of each rate warm up and are not counted."""
    if not 1 <= len(urls) <= 2 or not rates or min(requests, rounds, concurrency) < 1 or not all(r > 0 for r in rates):
        raise ArgumentError(
            "bench serve: one or two servers, rates above 0, and 1 or more requests, rounds and clients are needed."
        )
    clients = [Client(url, api_key, model) for url in urls]
    total, done = len(rates) * (rounds + 1) * len(urls), 0
    loads: list[Load] = []
    for number, rate in enumerate(rates):
        results: list[list[Round]] = [[] for _ in clients]
        for i in range(rounds + 1):
            first = (number * (rounds + 1) + i) * requests  # no prompt comes twice: servers keep what they have read
            order = range(len(clients)) if i % 2 else reversed(range(len(clients)))
            for which in order:
                if progress is not None:
                    progress(done, total, f"{_rate(rate)} requests/s, round {i}")
                result = run_round(clients[which], workload, rate, requests, concurrency, first=first)
                done += 1
                if i:
                    results[which].append(result)
        loads += [Load(c.url, rate, tuple(r)) for c, r in zip(clients, results, strict=True)]
    comparisons = _compare(loads, workload, margin) if len(urls) == 2 else ()
    return ServingReport(workload, tuple(c.model for c in clients), tuple(loads), comparisons)


def _compare(loads: Sequence[Load], w: Workload, margin: float) -> tuple[Comparison, ...]:
    """Judge every metric at every rate at once: rounds that were run side by side are pairs."""
    keys, tests = [], []
    for before, after in zip(loads[::2], loads[1::2], strict=True):
        pairs = [(a.values(w), b.values(w)) for a, b in zip(before.rounds, after.rounds, strict=True)]
        for metric in ("first token", "between tokens", "throughput", "goodput"):
            ratios = [
                [math.log(b[metric] / a[metric])]
                for a, b in pairs
                if metric in a and metric in b and a[metric] > 0 < b[metric]
            ]
            if ratios:
                keys.append((before.rate, metric))
                tests.append(ratios)
    return tuple(Comparison(*key, j) for key, j in zip(keys, judge(tests, margin, Rules()), strict=True))


def run_round(client: Client, w: Workload, rate: float, requests: int, concurrency: int, first: int = 0) -> Round:
    """Send requests at random times with a mean rate; return when all are answered."""
    gaps, start_s, plan = random.Random(f"{w.seed} {first} {rate}"), 0.0, []
    for _ in range(requests):
        plan.append(start_s)
        start_s += 0.0 if math.isinf(rate) else gaps.expovariate(rate)
    timings: list[Timing | None] = [None] * requests
    room, begun = threading.Semaphore(concurrency), time.perf_counter()

    def ask(i: int, late_s: float) -> None:
        try:
            timings[i] = client.ask(w, first + i, late_s)
        finally:
            room.release()

    threads = []
    for i, start in enumerate(plan):
        time.sleep(max(0.0, begun + start - time.perf_counter()))
        room.acquire()
        late = 0.0 if math.isinf(rate) else max(0.0, time.perf_counter() - begun - start)
        threads.append(threading.Thread(target=ask, args=(i, late), daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join()
    return Round(time.perf_counter() - begun, tuple(t for t in timings if t is not None))


class Client:
    """Streams answers of one server. `url` is its root, or that of its API (…/v1)."""

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        model: str | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ArgumentError(f"bench serve: {visible(url)!r} is no address; give one such as http://127.0.0.1:8080.")
        self.url, self._parts, self._clock = url, parts, clock
        self._base = parts.path.rstrip("/").removesuffix("/v1") + "/v1"
        self._headers = {"content-type": "application/json"} | (
            {"authorization": f"Bearer {api_key}"} if api_key else {}
        )
        self.model = model or self._first_model()

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        return kind(str(self._parts.hostname), self._parts.port, timeout=TIMEOUT_S)

    def _first_model(self) -> str:
        connection = self._connect()
        try:
            connection.request("GET", f"{self._base}/models", headers=self._headers)
            response = connection.getresponse()
            body = response.read(MOST_LINE)
            return str(json.loads(body)["data"][0]["id"])
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as e:
            raise TritiumError(
                f"bench serve: {visible(self.url)} does not list its models ({type(e).__name__}: {visible(str(e), 200)}). Is a server there? "
                "Give its model with --model if it lists none."
            ) from None
        finally:
            connection.close()

    def ask(self, w: Workload, number: int, late_s: float = 0.0) -> Timing:
        """Send one request and time its answer; what goes wrong is in the result."""
        connection = self._connect()
        begun = self._clock()
        try:
            return self._stream(connection, w, number, late_s)
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as e:
            return Timing(0.0, self._clock() - begun, (), 0, 0, late_s, f"{type(e).__name__}: {visible(str(e), 200)}")
        finally:
            connection.close()

    def _stream(self, connection: http.client.HTTPConnection, w: Workload, number: int, late_s: float) -> Timing:
        body: dict[str, Any] = {
            "model": self.model, "max_tokens": w.tokens, "temperature": 0, "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        prompt = w.prompt(number)
        body |= {"messages": [{"role": "user", "content": prompt}]} if w.chat else {"prompt": prompt}
        body |= {"ignore_eos": True} if w.ignore_eos else {}
        begun = self._clock()
        connection.request(
            "POST", f"{self._base}/{'chat/' if w.chat else ''}completions", json.dumps(body), self._headers
        )
        response = connection.getresponse()
        if response.status != 200:
            raise ValueError(f"status {response.status}: {str(response.read(MOST_LINE), 'utf-8', 'replace')}")
        times, usage = list[float](), dict[str, Any]()
        while line := response.readline(MOST_LINE):
            if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise ValueError(str(event["error"]))
            usage = event.get("usage") or usage
            if any(_text(choice) for choice in event.get("choices") or ()):
                times.append(self._clock() - begun)
        whole = self._clock() - begun
        if not times:
            raise ValueError("the answer has no text")
        gaps = tuple(b - a for a, b in pairwise(times))
        return Timing(
            times[0],
            whole,
            gaps,
            int(usage.get("completion_tokens") or len(times)),
            int(usage.get("prompt_tokens") or 0),
            late_s,
        )


def _text(choice: dict[str, Any]) -> str:
    delta = choice.get("delta") or {}
    return choice.get("text") or delta.get("content") or delta.get("reasoning_content") or ""
