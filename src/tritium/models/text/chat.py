"""Messages to one prompt, by the chat template of a model: Jinja in a sandbox, bounded in time and size.

Templates come with model files and are not trusted: they see messages as plain data, reach nothing of Python, and stop after
MAX_SECONDS of work or at the bounds of `models.chat_budget`. Needs `jinja2` (extra `run`).

    prompt = render(tokenizer.chat_template, [{"role": "user", "content": "Hello"}], bos_token="<s>")
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from tritium.errors import ArgumentError, FormatError, PackageError, imported
from tritium.escape import visible
from tritium.models.text.tokenizer import Tokenizer

MAX_SECONDS = 2.0  # of this thread's own time
MAX_TEMPLATE = 1 << 20
MAX_DEPTH = 32  # of data in a message
NEEDED = (3, 1, 6)  # jinja2 before it has known ways out of the sandbox
NO_TEMPLATE = (
    "This model has no chat template: it is a base model, or its file lacks one. Pass the template of its family with "
    "--template FILE (template=…; Hugging Face models have it as chat_template.jinja), or use generate with a plain prompt."
)


def render(
    template: str | None, messages: Sequence[Mapping[str, Any]], *, bos_token: str = "", eos_token: str = "",
    add_generation_prompt: bool = True, **more: Any,
) -> str:  # fmt: skip
    """The prompt for a chat. `more` are further names the template may read, such as `tools`."""
    if template is None:
        raise ArgumentError(NO_TEMPLATE)
    if not isinstance(template, str) or len(template) > MAX_TEMPLATE:
        raise ArgumentError(f"chat: the template must be a text of at most {MAX_TEMPLATE} characters.")
    names = {"messages": check(messages), "bos_token": bos_token, "eos_token": eos_token,
             "add_generation_prompt": bool(add_generation_prompt)} | {k: _plain(v, k) for k, v in more.items()}  # fmt: skip
    ready = _compiled(template)
    from tritium.models.text.chat_budget import Budget, SpentError, budget  # imports jinja2, which may be absent

    mark = budget.set(Budget(MAX_SECONDS))
    try:
        return str(ready.render(**names))
    except SpentError as error:
        raise FormatError(f"chat template: {error}. Do not trust this model; give another template.") from None
    except RecursionError:
        raise FormatError("chat template: it calls itself without end. Give another template.") from None
    except Exception as error:  # what a template does wrong is the template's fault, whatever Python calls it
        raise FormatError(f"chat template: {_reason(error)}. Check the messages, or give another template.") from None
    finally:
        budget.reset(mark)


def encode(
    tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], *, template: str | None = None, **options: Any
) -> list[int]:
    """The token ids of a chat, by the given template or the model's own; a first token only where the template writes it."""
    template = tokenizer.chat_template if template is None else template
    first, last = (getattr(tokenizer, f"{key}_token", "") for key in ("bos", "eos"))
    return tokenizer.encode(render(template, messages, bos_token=first, eos_token=last, **options), bos=False)


# ---- messages


def check(messages: Any) -> list[dict[str, Any]]:
    """Messages as plain data: a role, and text as one string; parts of text are joined."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence) or not messages:
        raise ArgumentError(
            f"chat: messages must be a list of at least one {{'role': …, 'content': …}}, given {_describe(messages)}."
        )
    return [_message(m, f"messages[{i}]") for i, m in enumerate(messages)]


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise ArgumentError(f"chat: {where} must be {{'role': …, 'content': …}}, given {_describe(message)}.")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not re.fullmatch(r"[a-zA-Z_]{1,32}", role):
        raise ArgumentError(f"chat: {where}.role must be a word such as 'user', given {_describe(role)}.")
    if content is None and "tool_calls" not in message:
        raise ArgumentError(f"chat: {where}.content is missing; a text is needed.")
    fields = {str(k): _plain(v, f"{where}.{k}") for k, v in message.items() if k != "content"}
    return fields | {"content": content if content is None else _content(content, f"{where}.content")}


def _content(content: Any, where: str) -> str:
    if isinstance(content, str):
        return str(content)
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise ArgumentError(f"chat: {where} must be a text or a list of text parts, given {_describe(content)}.")
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("text") if isinstance(part, Mapping) else None
        if kind != "text" or not isinstance(text, str):
            what = f"type {_describe(kind)}" if isinstance(part, Mapping) else _describe(part)
            raise ArgumentError(
                f"chat: {where}[{i}] must be {{'type': 'text', 'text': …}}, given {what}. Only text can be read."
            )
        texts.append(text)
    return "".join(texts)


def _plain(value: Any, where: str, depth: int = 0) -> Any:
    """The same out of JSON's own types: other objects have methods that a template should not reach."""
    if depth > MAX_DEPTH:
        raise ArgumentError(f"chat: {where} is nested deeper than {MAX_DEPTH}.")
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {str(k): _plain(v, where, depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v, where, depth + 1) for v in value]
    raise ArgumentError(f"chat: {where} must be made of text, numbers, lists and mappings, given {_describe(value)}.")


def _describe(value: Any) -> str:
    return repr(visible(value)) if isinstance(value, str) else f"a {type(value).__name__}"


# ---- Jinja


def package() -> Any:
    """Return jinja2, imported; raise PackageError where it is not installed, or too old to be safe."""
    jinja2 = imported("A chat template", "jinja2")
    if tuple(int(n) for n in re.findall(r"\d+", jinja2.__version__)[:3]) < NEEDED:
        raise PackageError(
            f"jinja2 {jinja2.__version__} has known ways out of its sandbox; pip install 'jinja2>={'.'.join(map(str, NEEDED))}'."
        )
    return jinja2


@lru_cache(maxsize=1)
def _environment() -> Any:
    package()
    from tritium.models.text.chat_sandbox import make_environment  # imports jinja2, which may be absent

    return make_environment()


@lru_cache(maxsize=8)
def _compiled(template: str) -> Any:
    environment = _environment()
    try:
        return environment.from_string(template)
    except RecursionError:
        raise FormatError("chat template: it is nested without end. Give another template.") from None
    except package().exceptions.TemplateSyntaxError as error:
        raise FormatError(
            f"chat template, line {error.lineno}: {visible(str(error.message).rstrip('.'), 400)}. Give another template."
        ) from None
    except Exception as error:  # also of Python's compiler, such as too many nested blocks
        raise FormatError(f"chat template: {_reason(error)}. Give another template.") from None


def _reason(error: Exception) -> str:
    return visible(str(error), 400).rstrip(".") or type(error).__name__
