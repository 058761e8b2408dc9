"""The format of an answer as the dialects of OpenAI, vLLM, SGLang and llama.cpp ask for it: one of their fields to one `Format`.

A schema, grammar or regular expression is compiled when the vocabulary is known (`Answers.requests`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tritium.errors import ArgumentError
from tritium.models.text.constraints import Format
from tritium.serve.protocols.fields import JSON_SCHEMA, RESPONSE_FORMAT, STRUCTURED_OUTPUTS, FieldError

ANY_OBJECT = {"type": "object"}
TYPES = "text, json_object or json_schema"


class NamedFormat(NamedTuple):
    """A format and the field that asked for it."""

    form: Format
    param: str


def make(param: str, **options: Any) -> NamedFormat:
    """Return a format of `Format.of`; FieldError names the field at fault."""
    try:
        form = Format.of(**options)
    except ArgumentError as e:
        raise FieldError(param, f"{param} is not valid: {e}") from None
    assert form is not None
    return NamedFormat(form, param)


def direct(param: str, kind: str) -> Callable[[Any], NamedFormat | None]:
    """Return the reader of a field that holds a schema, a regular expression, a grammar or choices itself."""

    def read(value: Any) -> NamedFormat | None:
        if kind == "grammar" and value == "":
            return None  # as llama.cpp sends it for no grammar
        return make(param, **{kind: value})

    return read


def response_format(value: Any) -> NamedFormat | None:
    """Return the format of OpenAI's response_format; llama.cpp's schema in it is read as well."""
    if not isinstance(value, dict) or value.get("type") not in ("text", "json_object", "json_schema"):
        raise FieldError("response_format", f"response_format must be an object whose type is {TYPES}.")
    fields = RESPONSE_FORMAT.select(value, "response_format.")
    if fields["type"] == "text":
        return None
    if "json_schema" not in fields:
        if "schema" in fields:
            return make("response_format.schema", schema=fields["schema"])
        if fields["type"] == "json_schema":
            raise FieldError("response_format.json_schema", "response_format.json_schema is missing.")
        return make("response_format", schema=ANY_OBJECT)
    described = fields["json_schema"]
    if not isinstance(described, dict):
        raise FieldError("response_format.json_schema", "response_format.json_schema must be an object with a schema.")
    schema = JSON_SCHEMA.select(described, "response_format.json_schema.").get("schema", ANY_OBJECT)
    return make("response_format.json_schema.schema", schema=schema)


def structured_outputs(value: Any) -> NamedFormat | None:
    """Return the format of vLLM's structured_outputs."""
    if not isinstance(value, dict):
        raise FieldError("structured_outputs", 'structured_outputs must be an object such as {"regex": "[0-9]+"}.')
    fields = STRUCTURED_OUTPUTS.select(value, "structured_outputs.")
    if fields.get("json_object") is False:
        del fields["json_object"]
    if not fields:
        return None
    if len(fields) > 1:
        raise FieldError("structured_outputs", f"An answer has one format; structured_outputs has {', '.join(fields)}.")
    ((name, setting),) = fields.items()
    if name == "json_object":
        if setting is not True:
            raise FieldError("structured_outputs.json_object", "structured_outputs.json_object must be true or false.")
        return make("structured_outputs.json_object", schema=ANY_OBJECT)
    return make(f"structured_outputs.{name}", **{"schema" if name == "json" else name: setting})


READERS: dict[str, Callable[[Any], NamedFormat | None]] = {
    "response_format": response_format,
    "structured_outputs": structured_outputs,
    "guided_json": direct("guided_json", "schema"),
    "json_schema": direct("json_schema", "schema"),
    "guided_regex": direct("guided_regex", "regex"),
    "regex": direct("regex", "regex"),
    "guided_choice": direct("guided_choice", "choice"),
    "guided_grammar": direct("guided_grammar", "grammar"),
    "grammar": direct("grammar", "grammar"),
    "ebnf": direct("ebnf", "grammar"),
}


def only(values: Mapping[str, Any]) -> NamedFormat | None:
    """Return the one format among fields that were read; FieldError where there are several."""
    formats = [values[name] for name in READERS if values[name] is not None]
    if len(formats) > 1:
        names = " and ".join(f.param for f in formats)
        raise FieldError(formats[1].param, f"An answer has one format; {names} were given. Leave out all but one.")
    return formats[0] if formats else None
