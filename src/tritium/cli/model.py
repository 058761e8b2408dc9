"""The commands that run a model: generate, chat, embed, perplexity, serve, prepack and bench model (of `cli.bench`); and the list of
models. They print and ask.

tritium generate [MODEL] -p TEXT    generate text after a prompt
tritium chat [MODEL]                chat with a model, by its chat template; without one, which there are
tritium embed MODEL FILE            the lines of a text file as vectors
tritium perplexity FILE -m MODEL    perplexity of a text file
tritium serve [MODEL]               an OpenAI-compatible server on this machine
tritium lm-eval --tasks …           lm-eval on a model
tritium prepack MODEL OUT           a file in the layout of this machine's kernels
tritium bench model [MODEL]         tokens/s, time to the first token, memory
tritium models                      families, formats, known repositories

MODEL is a path, or a name owner/repo of the Hugging Face hub (`models.hub`).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

import tritium
from tritium.cli.text import (
    TERNARISE_HELP,
    VARIANT,
    VARIANT_HELP,
    Table,
    bar,
    echo,
    json_option,
    located,
    options_of_a_name,
    print_json,
    print_parts,
    say,
    shown,
    size,
    status,
)
from tritium.errors import ArgumentError, ContextError, TritiumError, absent, pip_install

if TYPE_CHECKING:
    from tritium.models.generation import Generation
    from tritium.models.load import Model, Use
    from tritium.models.text.tokenizer import Tokenizer
    from tritium.parallel.group import Group

Command = Callable[..., Any]
# A run of `generate` that names neither a model nor a prompt:
PROMPT = "In the beginning"
TEMPERATURE = 0.7
FEWEST_TOKENS, MOST_TOKENS = 60, 200
SENTENCE_ENDS = tuple(b".?!")
NEW = "/new"  # begins another conversation
END = 0  # the packaged model's token of the end


def options_of_a_model(command: Command) -> Command:
    """Add the options of loading a model."""
    for option in reversed((
        click.option("--head", type=click.Choice(["f32", "f16", "bf16", "int8"]), help="Dtype of the output head (default: as stored)."),
        click.option("--certified/--no-certified", default=None, help="Read a float head through an int8 copy, for the same tokens."),
        click.option(
            "--kv", type=click.Choice(["f32", "f16", "bf16", "int8", "int8-int4", "int4"]), default="f16", show_default=True,
            help="KV-cache dtype; of keys and of values.",
        ),
        click.option("--variant", type=VARIANT, help=VARIANT_HELP),
        click.option("--ternarise", is_flag=True, help=TERNARISE_HELP),
        click.option("--threads", type=click.IntRange(1), help="CPU threads (default: all cores)."),
        click.option("--mmap/--no-mmap", default=True, help="Map the model file (default), or read it into memory."),
        click.option("--device", help="Device: cpu, mlx, torch, mps …; see 'tritium devices'."),
    )):  # fmt: skip
        command = option(command)
    return options_of_a_name(command)


def options_of_sampling(command: Command) -> Command:
    """Add the options of sampling."""
    for option in reversed((
        click.option("-n", "--max-tokens", type=click.IntRange(1), help="Most tokens to generate."),
        click.option("-t", "--temperature", type=float, default=0.0, help="Sampling temperature; 0, the default, is greedy."),
        click.option("--top-k", type=int, default=0, help="Sample from the k most likely tokens; 0: all."),
        click.option("--top-p", type=float, default=1.0, help="Nucleus sampling: keep the smallest set with total probability P."),
        click.option("--min-p", type=float, default=0.0, help="Drop tokens below this share of the top probability."),
        click.option("--repetition-penalty", type=float, default=1.0, help="Penalise recently seen tokens; 1.0 turns it off."),
        click.option("--seed", type=int, help="Seed of the sampler."),
        click.option("--stop", multiple=True, metavar="TEXT", help="Stop before this text; repeatable."),
    )):  # fmt: skip
        command = option(command)
    return command


def opened(
    path: str | None, *, use: Use = "running", more: Sequence[str] = (), threads: int | None = None, **options: Any
) -> Model:  # fmt: skip
    """The model a command was given, by path or by name; without one, the small one in the package. Packages that its use needs, and
    `more`, are looked for before anything is fetched."""
    from tritium.families.config import Config
    from tritium.models.load import load, require_packages
    from tritium.parallel.group import is_started, join

    require_packages(path, use, *more)
    if threads is not None:
        tritium.set_num_threads(threads)
    name, options = split(options, *NAME)
    group = join() if is_started() else None
    place = None if path is None else located(path, **name, check=Config.from_hf)

    def read() -> Model:
        if place is None:
            return load(**options, parallel=group, revision=name.get("revision"), file=name.get("model_file"))
        if group is None or not group.rank:
            status(f"loading {path} …")
        model = load(place.path, **options, parallel=group)
        model.name = place.name if place.path.is_dir() else model.name
        return model

    return read() if group is None else shared(read, group)


_led: list[Model] = []  # the model that this process led last
_groups: list[Group] = []  # whose rank 0 this process is


def shared(read: Callable[[], Model], group: Group) -> Model:
    """Return the model where this process is rank 0 and leads; elsewhere follow until rank 0 ends, and end."""
    signal.signal(signal.SIGTERM, lambda *_: group.terminate())
    if group.rank:
        while read().follow():
            pass
        raise SystemExit(0)

    def ended(message: str) -> None:
        """Have the main thread end too, which waits for something else: a server for requests."""
        if threading.current_thread() is not threading.main_thread():
            os.kill(os.getpid(), signal.SIGTERM)

    group.on_failure = ended
    while _led:
        _led.pop().lead_again()
    model = read()
    model.lead()
    _led.append(model)
    _groups[:] = [group]
    return model


def split(options: dict[str, Any], *names: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return {k: v for k, v in options.items() if k in names}, {k: v for k, v in options.items() if k not in names}


NAME = ("revision", "model_file", "offline")
MODEL = ("head", "certified", "kv", "variant", "ternarise", "threads", "mmap", "device", *NAME)


@click.command()
@click.argument("model", type=click.Path(), required=False)
@click.option("-p", "--prompt", help="The prompt; '-' reads it from stdin. Default: start of a text.")
@click.option("--context", type=click.IntRange(2), help="Context length in tokens (default: the model's).")
@click.option("-q", "--quiet", is_flag=True, help="Print the text alone.")
@json_option("Print JSON with every token.")
@options_of_sampling
@options_of_a_model
def generate(model: str | None, prompt: str | None, quiet: bool, as_json: bool, **options: Any) -> None:
    """Generate text from a prompt. Without MODEL: the small one in the package, trained on the King James Bible.

    MODEL is a GGUF file, a safetensors file, a directory of Hugging Face, a prepacked file, or a name owner/repo of the
    Hugging Face hub, which is fetched once. Tokens are printed as they are decoded; timings go to stderr.
    """
    begun = time.perf_counter()
    model_options, sampling = split(options, *MODEL, "context")
    if model is None and prompt is None:
        prompt = PROMPT
        sampling = demonstration(click.get_current_context(), sampling)
    loaded = opened(model, **model_options)
    ready = time.perf_counter() - begun
    tokens = first_prompt(loaded, read_input() if prompt == "-" else prompt)
    ids = loaded.tokenizer.encode(tokens) if isinstance(tokens, str) else tokens
    status(f"reading {len(ids)} tokens …")
    if as_json:
        click.echo(json.dumps(as_record(loaded.generate(ids, **sampling), loaded, tokens), indent=2))
        return
    done = printed(loaded.stream(ids, **sampling), tokens if isinstance(tokens, str) else "")
    if not quiet and done is not None:
        seed = f", seed {done.seed}" if sampling["temperature"] else ""
        echo(timings(done, loaded, ready, seed), err=True)


def demonstration(context: click.Context, sampling: dict[str, Any]) -> dict[str, Any]:
    """Return sampling options of a run that names neither model nor prompt: those of the user, then what shows the model best."""
    chosen = {name for name in sampling if context.get_parameter_source(name) is not ParameterSource.DEFAULT}
    more: dict[str, Any] = {} if chosen & {"temperature", "top_k", "top_p", "min_p"} else {"temperature": TEMPERATURE}
    if not chosen & {"max_tokens", "stop"}:
        more |= {"max_tokens": MOST_TOKENS, "processors": (end_at_a_sentence,)}
    return sampling | more


def end_at_a_sentence(logits: Any, context: Any) -> Any:
    """Allow only the end of the text after a sentence of the packaged model, whose tokens are bytes."""
    text = context.generated
    if len(text) < FEWEST_TOKENS or text[-1] not in SENTENCE_ENDS:
        return logits
    import numpy as np

    forced = np.full_like(logits, -np.inf)
    forced[END] = 0.0
    return forced


def read_input() -> str:
    """All of standard input, as text."""
    if sys.stdin is None:
        raise ArgumentError("-p - reads the prompt from standard input, which is closed; give it as -p TEXT.")
    return decoded(sys.stdin.buffer.read(), "standard input")


def read_text(path: str) -> str:
    return decoded(Path(path).read_bytes(), path)


def decoded(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArgumentError(f"{shown(where)}: byte {error.start} is not UTF-8; a text is needed.") from None


def first_prompt(model: Model, prompt: str | None) -> str | list[int]:
    """The prompt, or the token a text begins with."""
    if prompt:
        return prompt
    tokenizer = model.tokenizer
    if tokenizer.bos is None:
        raise ArgumentError("This model has no token to begin a text with; give a prompt: -p TEXT.")
    return [tokenizer.bos]


def printed(pieces: Any, before: str = "") -> Generation | None:
    """Print pieces of text as they come; a Ctrl-C ends the text, not the program."""
    done = None
    try:
        for i, piece in enumerate(pieces):
            if i == 0:
                status("")
                say(shown_text(before), "bold", end="")
            click.echo(shown_text(piece.text), nl=False)
            sys.stdout.flush()
            done = piece.generation or done
    except KeyboardInterrupt:
        pieces.close()
    finally:
        status("")
    echo()
    return done


def shown_text(text: str) -> str:
    """Return a model's text without control characters, which a terminal would obey."""
    return "".join(c for c in text if c.isprintable() or c in "\n\t")


def many(n: int) -> str:
    return f"{n} token{'s' * (n != 1)}"


def timings(g: Generation, model: Model, ready_s: float, more: str = "") -> str:
    """Return a line with the timings of a generation."""
    speed = f", then {g.tokens_per_s:.1f} tokens/s" if g.steps else ""
    reused = f", {g.reused} reused" if g.reused else ""
    ends = {
        "stop": "it ended",
        "length": "max_tokens reached",
        "context": f"the context of {model.context} is full",
    }
    return (
        f"[{shown(model.name)}: ready in {ready_s:.2f} s; a prompt of {many(g.prompt_tokens)}{reused}, first token after "
        f"{1e3 * g.first_token_s:.0f} ms{speed}; {len(g.tokens)} tokens, {ends[g.finish_reason]}{more}]"
    )


def as_record(g: Generation, model: Model, prompt: str | list[int]) -> dict[str, Any]:
    record = {
        "model": model.name,
        "prompt": prompt,
        "text": g.text,
        "tokens": list(g.tokens),
        "finish_reason": g.finish_reason,
    }
    times = {"first_token_s": g.first_token_s, "prefill_s": g.prefill_s, "decode_s": g.decode_s, "steps": g.steps}
    return record | {"prompt_tokens": g.prompt_tokens, "reused": g.reused, "seed": g.seed} | times


def with_recommended(sampling: dict[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return options of sampling with what the model file recommends where the command line says nothing; tell what it is."""
    from tritium.models.sampling import Sampler, usable

    source = click.get_current_context().get_parameter_source
    used, reasons = usable(tokenizer.sampling)
    for reason in (*tokenizer.warnings, *reasons):
        echo(f"[{reason}]", err=True)
    sampling |= {name: value for name, value in used.items() if source(name) is not ParameterSource.COMMANDLINE}
    names = [name for name in used if sampling[name] == used[name]]
    names = [
        n for n in names if sampling["temperature"] or n.startswith("repetition")
    ]  # the others matter where tokens are drawn
    if names:
        values = ", ".join(f"{name} {used[name]:g}" for name in names)
        echo(f"[sampling as the model file recommends: {values}]", err=True)
    Sampler(
        **{name: value for name, value in sampling.items() if name in Sampler.__dataclass_fields__}
    )  # refuses before it asks
    return sampling


@click.command()
@click.argument("model", type=click.Path(), required=False)
@click.option("--context", type=click.IntRange(2), help="Context length in tokens (default: the model's).")
@click.option("--system", help="System prompt.")
@click.option(
    "--template",
    type=click.Path(exists=True, dir_okay=False),
    help="Chat template (Jinja) to use instead of the model's.",
)
@options_of_sampling
@options_of_a_model
def chat(model: str | None, system: str | None, template: str | None, **options: Any) -> None:
    """Chat with a model. An empty line or Ctrl-D ends the conversation; /new starts another.

    Earlier turns stay in the KV cache: only new text is prefilled. Sampling is what the model file recommends, unless an option says
    otherwise. Without MODEL: names of models that fit this machine, and a model in the package that continues text.
    """
    from tritium.models.text import chat as chats

    model_options, sampling = split(options, *MODEL, "context")
    if model is None and template is None:
        if system:
            raise ArgumentError("--system is for a model that chats, and none was named: tritium chat MODEL.")
        complete(sampling, model_options)
        return
    own = read_text(template) if template else None
    loaded = opened(model, use="chatting with", more=("jinja2",) if template else (), **model_options)
    sampling = with_recommended(sampling, loaded.tokenizer)
    form = loaded.tokenizer.chat_template if own is None else own
    start = [{"role": "system", "content": system}] if system else []
    messages = list(start)
    chats.encode(
        loaded.tokenizer, [*messages, {"role": "user", "content": "?"}], template=form
    )  # refuses before it asks
    for line in typed():
        if line == NEW:
            messages = list(start)
            continue
        messages.append({"role": "user", "content": line})
        try:
            done = printed(loaded.stream(chats.encode(loaded.tokenizer, messages, template=form), **sampling))
        except ContextError as error:
            echo(f"[{error} /new begins another conversation.]", err=True)
            done = None
        if done is None:
            messages.pop()
            continue
        messages.append({"role": "assistant", "content": done.text})
        if done.finish_reason == "context":
            echo("[the context is full: /new begins another conversation]", err=True)


def typed() -> Iterator[str]:
    """Yield the lines that are typed or piped, up to an empty one or the end."""
    while sys.stdin is not None:
        try:
            line = input("> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            return
        except UnicodeDecodeError:
            raise ArgumentError("What was typed is not UTF-8; a text is needed.") from None
        if not line:
            return
        yield line


def complete(sampling: dict[str, Any], model_options: dict[str, Any]) -> None:
    """Say which models chat, then let the one in the package continue each line: it was not trained to chat."""
    loaded = opened(None, **model_options)
    sampling = with_recommended(demonstration(click.get_current_context(), sampling), loaded.tokenizer)
    offer_models()
    echo("The model in the package does not chat: it continues your text, as the King James Bible might.", err=True)
    for line in typed():
        if line == NEW:  # each line is a text of its own
            continue
        try:
            printed(loaded.stream(line, **sampling), line)
        except ContextError as error:
            echo(f"[{error}]", err=True)


def offer_models() -> None:
    """Print what to type for a model that chats and fits this machine, and to install the packages it needs."""
    from tritium.machine.facts import bytes_text, memory_limit
    from tritium.models import catalogue
    from tritium.models.load import packages_of

    memory = memory_limit()
    rows, here = catalogue.chats_within(memory), f"the memory of this machine ({bytes_text(memory)})"
    if not rows:
        echo(f"No model was named, and none of those that chat fits into {here}; tritium models lists them.", err=True)
        return
    echo(f"No model was named. These chat and fit into {here}; tritium models lists more.", err=True)
    cells = [[row.command, row.parameters, f"{row.gigabytes:g} GB"] for row in rows]
    print_parts("", Table(cells, ["what to type", "parameters", "fetched"]), "", err=True)
    if missing := absent(packages_of(rows[0].repo, "chatting with")):
        echo(f"They need packages that are not installed: {pip_install(missing)}", err=True)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("-m", "--model", type=click.Path(), help="The model (default: the small one in the package).")
@click.option("--context", type=click.IntRange(2), help="Tokens per window (default: the model's context).")
@click.option("--stride", type=click.IntRange(1), help="Tokens scored per window (default: half of it).")
@json_option()
@options_of_a_model
def perplexity(
    file: str, model: str | None, context: int | None, stride: int | None, as_json: bool, **options: Any
) -> None:
    """Perplexity of a model on a text file. Bits per byte and standard errors are printed too."""
    loaded = opened(model, **options)
    words = read_text(file)
    count = len(loaded.tokenizer.encode(words, bos=False))
    with bar("scoring") as progress:
        hear = None if progress is None else lambda p: progress(p.tokens, count, f"{p.value:.4f}")
        p = loaded.perplexity(words, context=context, stride=stride, progress=hear)
    if as_json:
        record = {
            "model": loaded.name,
            "tokens": p.tokens,
            "windows": p.windows,
            "bytes": p.nbytes,
            "perplexity": p.value,
        }
        more = {
            "perplexity_error": p.value_error,
            "bits_per_byte": p.bits_per_byte,
            "bits_per_byte_error": p.bits_per_byte_error,
        }
        click.echo(json.dumps({k: v if v == v else None for k, v in (record | more).items()}, indent=2))  # NaN: null
        return
    echo(str(p))


@click.command()
@click.argument("model", type=click.Path())
@click.argument("target", metavar="OUT", type=click.Path())
@click.option(
    "--head",
    type=click.Choice(["f32", "f16", "bf16", "int8"]),
    help="Dtype of the output head (default: as stored). int8 makes a larger file for tied embeddings, and decodes faster.",
)
@click.option(
    "--storage",
    type=click.Choice(["tern2", "tern5"]),
    help="2 or 1.6 bits per weight (default: the faster decode here).",
)
@click.option("--certified/--no-certified", default=None, help="Store an int8 copy of a float head to read it through.")
@click.option("--variant", type=VARIANT, help=VARIANT_HELP)
@click.option("--ternarise", is_flag=True, help=TERNARISE_HELP)
@click.option("--mmap/--no-mmap", default=True, help="Map the model file (default), or read it into memory.")
@click.option("--overwrite", is_flag=True, help="Replace OUT if it exists.")
@options_of_a_name
@json_option()
def prepack(model: str, target: str, overwrite: bool, as_json: bool, **options: Any) -> None:
    """Write a model in the layout this machine's kernels read.

    Such a file loads at once. On CPUs with AVX-512 VNNI it has 1.6 bits per weight, which is faster to decode; 2 bits are
    faster to prefill.
    """
    from tritium.io.reader import read_start
    from tritium.io.stream import check_free
    from tritium.models.prepacked import is_prepacked

    check_free(Path(target), overwrite)
    if Path(model).is_file() and is_prepacked(read_start(Path(model), 64)):
        raise ArgumentError(
            f"{shown(Path(model).name)} is prepacked already: copy it, or prepack the file it was made from."
        )
    options["storage"] = options["storage"] or tritium.default_device().device.backend.densest().name
    loaded = opened(model, use="fetching", **options, device="cpu")  # whose kernels the file is made for
    with bar("writing") as progress:
        path = loaded.save(target, overwrite=overwrite, progress=progress)
    if as_json:
        facts = {"path": str(path), "bytes": path.stat().st_size, "layers": loaded.config.layers}
        print_json({**facts, "storage": options["storage"], "head": options["head"]})
        return
    say(shown(path.name), "bold", end="")
    echo(f"  {loaded.config.layers} layers · {size(path.stat().st_size)}")
    certified = loaded.network.certified
    if certified is not None:
        echo(
            f"the int8 copy of the head adds {size(certified.nbytes)}: tokens are decoded from it, with bounds (--no-certified leaves it out)"
        )
    head = loaded.network.head.weight
    if options["head"] is not None and loaded.config.tied and head is not loaded.network.embedding.weight:
        table = loaded.network.embedding.weight
        kind = table.weight.data.dtype if hasattr(table, "weight") else table.dtype  # a ternary table is a layer
        echo(
            f"the {options['head']} head adds {size(head.nbytes)}: tokens are still looked up in the {kind.name} table of "
            f"{size(table.nbytes)}"
        )


@click.command()
@click.argument("model", type=click.Path(), required=False)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; others than localhost need an API key.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="Port; 0 picks a free one."
)
@click.option(
    "--api-key-file",
    type=click.Path(exists=True, dir_okay=False),
    help="File with API keys, read again when it changes; or set TRITIUM_API_KEY.",
)
@click.option("--allow-anonymous", is_flag=True, help="Accept clients without an API key.")
@click.option("--allowed-host", multiple=True, metavar="NAME", help="Host name clients may use; repeatable.")
@click.option("--allowed-origin", multiple=True, metavar="URL", help="Web origin that may call the server; repeatable.")
@click.option("--name", help="Model name in the API (default: the file's name).")
@click.option(
    "--slots", type=click.IntRange(1, 64), default=4, show_default=True, help="Requests decoded at the same time."
)
@click.option("--context", type=click.IntRange(2), help="Tokens per request (default: the model's context).")
@click.option("--pool", type=click.IntRange(1), help="Tokens of all requests, on CUDA (default: as memory allows).")
@click.option(
    "--queue", type=click.IntRange(0), default=64, show_default=True, help="Requests that may wait in the queue."
)
@click.option("-n", "--max-tokens", type=click.IntRange(1), help="Most tokens of a completion.")
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), help="Requests per minute of one client (default: any)."
)
@click.option("--share", type=click.IntRange(1), help="Responses of one client at the same time (default: any).")
@click.option(
    "--template",
    type=click.Path(exists=True, dir_okay=False),
    help="Chat template (Jinja) to use instead of the model's.",
)
@click.option(
    "--tool-style",
    type=click.Choice(["hermes", "llama", "mistral"]),
    help="How the model writes tool calls (default: by its template).",
)
@click.option(
    "--grace",
    "grace_s",
    type=click.FloatRange(0, 86400),
    default=30.0,
    show_default=True,
    help="Seconds running requests get to finish on shutdown.",
)
@click.option(
    "--prefix-cache", metavar="SIZE", help="Most memory of prefixes kept for other requests, as 512MiB; 0 for none."
)
@click.option(
    "--lora", metavar="NAME=PATH", multiple=True, help="LoRA adapter that requests choose as their model; repeatable."
)
@click.option("--draft", type=click.Path(), help="Smaller model of the same vocabulary that guesses tokens.")
@click.option("--speculate/--no-speculate", default=None, help="Guess tokens where that is faster (default), or never.")
@click.option("--spans", is_flag=True, help="Record OpenTelemetry spans; start with opentelemetry-instrument.")
@options_of_a_model
def serve(
    model: str | None, api_key_file: str | None, allowed_host: tuple[str, ...], allowed_origin: tuple[str, ...],
    template: str | None, lora: tuple[str, ...], **options: Any,
) -> None:  # fmt: skip
    """Serve a model over the OpenAI API. Anthropic's too; Ctrl-C stops it."""
    from tritium.models.hub import PACKAGE, is_name
    from tritium.perf.meters.probe import probe
    from tritium.serve import Server
    from tritium.serve.server import serve

    model_options, rest = split(options, *MODEL)
    form = read_text(template) if template else None
    draft = rest.pop("draft")
    more = ["jinja2"] * (form is not None) + [PACKAGE] * is_name(draft) + ["opentelemetry-api"] * rest["spans"]
    loaded = opened(model, use="serving", more=more, **model_options)

    def ready(server: Server) -> None:
        echo(f"{shown(server.name)} at {server.url}/v1  (Ctrl-C ends it)", err=True)

    serve(
        with_adapters(loaded, lora), ready=ready, sensors=probe, api_key_file=api_key_file, allowed_hosts=allowed_host,
        allowed_origins=allowed_origin, chat_template=form, draft=None if draft is None else opened(draft, use="fetching"), **rest,
    )  # fmt: skip
    for group in _groups:
        group.check()


def with_adapters(model: Any, words: tuple[str, ...]) -> Any:
    """Return a model with adapters of words NAME=PATH; the model itself where there are none."""
    pairs = [word.partition("=") for word in words]
    for word, (name, sign, path) in zip(words, pairs, strict=True):
        if not (name and sign and path):
            raise click.BadParameter(f"{word!r} is not NAME=PATH.", param_hint="--lora")
        if name == model.name or [n for n, _, _ in pairs].count(name) > 1:
            raise click.BadParameter(
                f"the name {name!r} is given twice; the model has it, or another adapter.", param_hint="--lora"
            )
    if not pairs:
        return model
    try:
        return model.with_adapters({name: path for name, _, path in pairs})
    except TritiumError as error:
        raise type(error)(f"--lora NAME=PATH: {error}") from None


HARNESS = ("run", "ls", "validate")  # the commands of lm_eval


@click.command(
    name="lm-eval", context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]")
def lm_eval(arguments: tuple[str, ...]) -> None:
    """Run lm-eval on a model; options are those of lm_eval.

    The model is tritium: --model_args has path=FILE and other options of tritium.load.
    """
    from tritium.models.evaluation import NAME, register

    register()
    words = list(arguments)
    if not words or words[0] not in HARNESS:
        words.insert(0, "run")
    if words[0] == "run" and not any(w == "--model" or w.startswith("--model=") for w in words):
        words[1:1] = ["--model", NAME]
    from lm_eval.__main__ import cli_evaluate

    before, sys.argv = sys.argv, ["lm_eval", *words]
    try:
        cli_evaluate()
    finally:
        sys.argv = before


@click.command(name="model")
@click.argument("model", type=click.Path(), required=False)
@click.option("-p", "--prefill", type=click.IntRange(1), default=128, show_default=True, help="Prompt tokens.")
@click.option("-n", "--decode", type=click.IntRange(1), default=64, show_default=True, help="Tokens to decode.")
@click.option("-r", "--repeat", type=click.IntRange(3), default=5, show_default=True, help="Repetitions.")
@click.option("--batch", type=click.IntRange(1, 64), default=1, show_default=True, help="Sequences decoded together.")
@json_option("Print JSON with every sample.")
@options_of_a_model
def bench_model(
    model: str | None, prefill: int, decode: int, repeat: int, batch: int, as_json: bool, **options: Any
) -> None:
    """Tokens per second of a model.

    Prefill, decode, time to first token, load time, peak memory, and energy where the machine measures it. Tokens are
    random; speed does not depend on them.
    """
    from tritium.perf.suites.model import measure

    with bar("measuring") as progress:
        speed = measure(
            lambda: opened(model, use="fetching", **options),
            prefill=prefill,
            decode=decode,
            repeat=repeat,
            batch=batch,
            progress=progress,
        )
    if as_json:
        click.echo(json.dumps(speed.as_dict(), indent=2))
    else:
        echo(speed.page())


# ---- embeddings


@click.command()
@click.argument("model", type=click.Path())
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write the vectors: a .npy or .jsonl file.")
@click.option(
    "--pooling", type=click.Choice(["last", "mean", "cls"]), help="Pooling (default: as the model's files say)."
)
@click.option("--normalize/--no-normalize", default=True, help="Scale vectors to length 1 (default), or not.")
@click.option("--prompt", help="Text to put before every line.")
@click.option("--prompt-name", metavar="NAME", help="Prompt of the model's files, by its name.")
@click.option("--truncate", is_flag=True, help="Cut lines that the context cannot hold.")
@click.option("--batch", type=click.IntRange(1, 64), default=16, show_default=True, help="Lines in one program.")
@json_option("Print JSON with the vectors.")
@options_of_a_model
def embed(model: str, file: str, output: str | None, as_json: bool, **options: Any) -> None:
    """Embed the lines of a text file as vectors. '-' reads them from stdin.

    Every line is one text; its vector is pooled from the hidden states after the final norm.
    """
    check_output(output)
    model_options, rest = split(options, *MODEL)
    words = read_input() if file == "-" else read_text(file)
    lines = [line.removesuffix("\r") for line in words.removesuffix("\n").split("\n")]
    if empty := [i for i, line in enumerate(lines, start=1) if not line]:
        raise ArgumentError(f"{shown(file)}: line {empty[0]} is empty; every line is a text, which needs a character.")
    loaded = opened(model, **model_options)
    status(f"embedding {len(lines)} texts …")
    vectors = loaded.embed(lines, **rest)
    status("")
    pooling, source = (
        (rest["pooling"], "as asked") if rest["pooling"] else (loaded.recipe.pooling, loaded.recipe.source)
    )
    if output is not None:
        write_vectors(Path(output), lines, vectors)
    if as_json:
        facts = {"model": loaded.name, "pooling": pooling, "source": source, "normalized": rest["normalize"]}
        print_json({**facts, "texts": lines, "embeddings": None if output else [plain_numbers(v) for v in vectors]})
        return
    echo(f"{len(lines)} texts, {vectors.shape[1]} numbers each; pooling: {pooling} ({shown(source)})")
    if output is not None:
        echo(f"written to {shown(output)}")
    elif len(lines) <= MOST_COMPARED:
        print_parts("", similarities(lines, vectors))


MOST_COMPARED = 8  # texts whose similarities are printed


def check_output(output: str | None) -> None:
    """Raise for an output of another kind before a model is loaded."""
    if output is not None and Path(output).suffix not in (".npy", ".jsonl"):
        raise ArgumentError(f"--output {shown(output)}: a file that ends in .npy or .jsonl is needed.")


def plain_numbers(vector: Any) -> list[float]:
    """Return a vector as the shortest decimals that are the same f32."""
    return [float(str(x)) for x in vector]


def write_vectors(path: Path, lines: list[str], vectors: Any) -> None:
    """Write vectors as a NumPy file, or as a line of JSON for each text."""
    from io import BytesIO

    import numpy as np

    from tritium.machine.files import write_bytes

    if path.suffix == ".npy":
        file = BytesIO()
        np.save(file, vectors, allow_pickle=False)
        write_bytes(path, file.getvalue())
        return
    rows = ({"text": line, "embedding": plain_numbers(v)} for line, v in zip(lines, vectors, strict=True))
    write_bytes(path, "".join(json.dumps(row) + "\n" for row in rows).encode())


def similarities(lines: list[str], vectors: Any) -> Table:
    """Return the cosine of the angle between any two texts."""
    import numpy as np

    lengths = np.maximum(np.linalg.norm(vectors.astype(np.float64), axis=1), 1e-300)
    cosines = (vectors.astype(np.float64) @ vectors.T.astype(np.float64)) / np.outer(lengths, lengths)
    heads = ["", "text", *(str(i) for i in range(1, len(lines) + 1))]
    rows = [[str(i + 1), shown(line[:40]), *(f"{c:.3f}" for c in cosines[i])] for i, line in enumerate(lines)]
    return Table(rows, heads)


# ---- the list of models


@click.command()
@json_option()
def models(as_json: bool) -> None:
    """List the model families, formats and known repositories.

    A repository is fetched by typing its name: tritium generate owner/repo.
    """
    from tritium.models import catalogue

    families, formats, known = catalogue.families(), catalogue.formats(), catalogue.known()
    if as_json:
        rows = {"families": [f._asdict() for f in families], "formats": [f._asdict() for f in formats]}
        print_json({**rows, "models": [k.as_dict() for k in known]})
        return
    print_parts(
        Table(
            [[f.name, ", ".join(f.model_types), ", ".join(f.gguf), ", ".join(f.classes)] for f in families],
            ["family", "model_type", "GGUF", "transformers"],
        ),
        "",
        Table(
            [[f.name, f.container, "yes" if f.written else "no", f.doc] for f in formats],
            ["format", "in", "convert --to", "what it is"],
        ),
        "",
        Table(
            [
                [
                    k.command,
                    k.parameters,
                    k.format,
                    "" if k.gigabytes is None else f"{k.gigabytes:g} GB",
                    k.architecture,
                    "yes" if k.runs else "no",
                ]
                for k in known
            ],
            ["what to type", "parameters", "files", "fetched", "family", "runs"],
        ),
    )
