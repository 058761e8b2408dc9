"""The parser of graphs as text: `parse` reads what str(graph) printed.

A text is read token by token and never evaluated; every spec in it is checked against the op's own shape rule, so that a
parsed graph is as sound as a traced one.

    %2: f32[2,2] = matmul(%0, %1, algorithm='blas')     # a comment
    return %2
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, NoReturn

from tritium import dtype as dt, ops
from tritium.dtype import DType
from tritium.errors import ArgumentError, BoundsError, FormatError, nearest
from tritium.fragment import Fragment, Step, spec_text, value_text
from tritium.graph.graph import Graph, Node, Trace
from tritium.layout import AT, Layout
from tritium.op import OPS, SCALARS, Kind, Op, Spec
from tritium.tensor import Tensor

# ---- words

_WORD = re.compile(
    r"""\s*(?:\#.*|(?P<value>%[0-9]+)
    |(?P<number>-?(?:(?:inf|nan)\b|[0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?))
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<mark>[()\[\]{},;:=])
    |(?P<stray>\S))?""",
    re.VERBOSE,
)
_DEPTH = 32  # of tuples in tuples and fragments in fragments
_LITERALS = {"True": True, "False": False, "None": None}


class Word(NamedTuple):
    """A token of a line: its kind, its text, and the column it starts at."""

    kind: str
    text: str
    column: int


class Reader:
    """The tokens of one line, and the position of the next."""

    def __init__(self, line: str, number: int) -> None:
        self.line, self.number, self.position = line, number, 0
        self.end = Word("end", "", len(line.rstrip()) + 1)

    @cached_property
    def words(self) -> list[Word]:
        """Return the tokens, found when they are first read: a line like an earlier one needs none."""
        matches = _WORD.finditer(self.line)
        return [Word(m.lastgroup, m[m.lastgroup], m.start(m.lastgroup) + 1) for m in matches if m.lastgroup]

    @property
    def next(self) -> Word:
        return self.words[self.position] if self.position < len(self.words) else self.end

    def take(self, kind: str, expected: str) -> str:
        """Return the next word and advance; raise if it is not of a kind."""
        if self.next.kind != kind:
            self.fail(expected)
        self.position += 1
        return self.words[self.position - 1].text

    def mark(self, mark: str, expected: str = "") -> None:
        """Advance past a mark or name; raise if the next word is another."""
        if not self.skip(mark):
            self.fail(expected or repr(mark))

    def skip(self, word: str) -> bool:
        """Advance past the next word if it is this mark or name; return True if it was."""
        matches = self.next.text == word and self.next.kind in ("mark", "name")
        self.position += matches
        return matches

    def fail(self, expected: str) -> NoReturn:
        """Raise that the next word is not what was expected."""
        actual = "the end of the line" if self.next.kind == "end" else repr(self.next.text)
        self.refuse(f"expected {expected}, found {actual} (column {self.next.column})")

    def refuse(self, why: str) -> NoReturn:
        """Raise an error that names the line."""
        raise FormatError(f"parse: line {self.number}: {why}.")

    def listed(self, close: str, read: Callable[[], Any], expected: str) -> tuple[list[Any], bool]:
        """Read items between commas up to a mark; return them, and True if a comma came last."""
        items: list[Any] = []
        while not self.skip(close):
            items.append(read())
            if not self.skip(","):
                self.mark(close, f"',' or {close!r} after {expected}")
                return items, False
        return items, bool(items)


# ---- values


def _int(r: Reader, expected: str) -> int:
    word = r.next.text
    if r.next.kind != "number" or not word.lstrip("-").isdigit() or len(word) > 40:
        r.fail(expected)
    r.position += 1
    return int(word)


def _spec(r: Reader) -> Spec:
    name = r.next.text
    if r.next.kind != "name" or not dt.is_name(name):
        r.fail(f"a spec such as f32[2,3]{hint(name, dt.names())}")
    r.position += 1
    r.mark("[", f"'[' and the sizes of {name}")
    sizes, _ = r.listed("]", lambda: _int(r, "a size"), "a size")
    return (
        Spec(ops.size_of(tuple(sizes)), dt.dtype(name)) if min(sizes, default=0) >= 0 else r.refuse("a size is below 0")
    )


def hint(word: str, known: Any) -> str:
    """Return the most similar known word in parentheses, for the inside of a sentence; "" if none is close."""
    advice = nearest(word, known)
    return f" ({advice.strip()[:1].lower()}{advice.strip()[1:]})" if advice else ""


def _value(r: Reader, specs: tuple[Any, ...], depth: int = 0) -> Any:
    """Read an attribute. `specs` are those of the node's inputs, which are also those of a fragment."""
    if depth > _DEPTH:
        r.refuse(f"values are nested more than {_DEPTH} deep")
    word = r.next
    if word.kind == "number":
        if word.text.lstrip("-").isdigit():
            return _int(r, "a number of at most 40 digits")
        r.position += 1
        return float(word.text)
    if word.kind == "string":
        return _string(r)
    if r.skip("("):
        items, comma = r.listed(")", lambda: _value(r, specs, depth + 1), "a value")
        if len(items) == 1 and not comma:
            r.refuse("a tuple of one value ends in ',)'")
        return tuple(items)
    if r.skip("{"):
        return _fragment(r, specs, depth + 1)
    if word.kind == "name":
        return _named_value(r, word.text)
    return r.fail("a value")


def parse_value(text: str) -> Any:
    """Return the number, string, dtype, spec, None or tuple of them that `value_text` wrote."""
    r = Reader(text, 1)
    value = _value(r, ())
    if r.next.kind != "end":
        r.fail("the end of the value")
    return value


def _string(r: Reader) -> str:
    try:
        text: str = ast.literal_eval(r.next.text)  # one quoted word: its escapes, nothing else
    except (SyntaxError, ValueError):
        r.fail("a string")
    r.position += 1
    return text


def _named_value(r: Reader, name: str) -> Any:
    if name in _LITERALS:
        r.position += 1
        return _LITERALS[name]
    if name == "Layout":
        return _layout(r)
    if name == "complex":
        return _complex(r)
    if not dt.is_name(name):
        r.fail(f"a value{hint(name, [*dt.names(), *_LITERALS])}")
    after = r.words[r.position + 1] if r.position + 1 < len(r.words) else r.end
    if after.text == "[":
        return _spec(r)
    r.position += 1
    return dt.dtype(name)


def _complex(r: Reader) -> complex:
    r.position += 1
    r.mark("(")
    parts, _ = r.listed(")", lambda: _value(r, ()), "a number")
    if len(parts) != 2 or not all(isinstance(p, float) for p in parts):
        r.refuse("a complex number is complex(real, imaginary), given other values")
    return complex(*parts)


def _layout(r: Reader) -> Layout:
    r.position += 1
    r.mark("(")
    fields: dict[str, Any] = {}
    for i, name in enumerate(Layout._fields):
        if i:
            r.mark(",")
        r.mark(name, f"{name}=")
        r.mark("=")
        fields[name] = _value(r, ())
    r.mark(")")
    parts = fields["shape"], fields["strides"], (fields["offset"],)
    if not all(isinstance(t, tuple) and all(type(n) is int for n in t) for t in parts) or len(parts[0]) != len(
        parts[1]
    ):
        r.refuse("a Layout has shape and strides of as many integers, and an integer offset")
    return Layout(**fields)


def _fragment(r: Reader, specs: tuple[Any, ...], depth: int) -> Fragment:
    """Read the fragment of a fused node; its inputs are those of the node."""
    known: list[Any] = list(specs)
    steps: list[Step] = []
    while not r.skip("return"):
        name = r.take("value", "a step '%n = …' or 'return'")
        if name != f"%{len(known)}":
            r.refuse(f"{name} of the body must be %{len(known)}: steps are numbered after its {len(specs)} inputs")
        r.mark("=")
        op, inputs, attrs, input_specs = _call(r, lambda v: _body_value(r, v, known), depth)
        views = (ops.reshape, ops.expand_dims, ops.squeeze, ops.item)
        if op is ops.given or (op.kind is Kind.VIEW and op not in views):
            r.refuse(f"{op.name} cannot be a step of a body")
        spec = _decide(r, op, input_specs, attrs)
        steps.append(Step(op, inputs, tuple(attrs.items()), spec))
        known.append(spec)
        r.mark(";", "';' after a step")
    results, _ = r.listed("}", lambda: _body_value(r, r.take("value", "a value '%n'"), known)[0], "a value")
    if not results:
        r.refuse("a body returns at least one value")
    return Fragment(tuple(specs), tuple(steps), tuple(results))


def _body_value(r: Reader, word: str, known: list[Any]) -> tuple[int, Any]:
    number = int(word[1:]) if len(word) < 12 else len(known)
    if number >= len(known):
        r.refuse(f"{word} is not a value of the body before this step")
    return number, known[number]


# ---- calls

_TYPES: dict[str, Any] = {"dtype": DType, "spec": Spec, "body": Fragment, "layout": Layout, "device": str}
Operand = tuple[Any, Any]  # an input, as a node or a number, and its spec


def _call(
    r: Reader, find: Callable[[str], Operand], depth: int = 0
) -> tuple[Op, tuple[Any, ...], dict[str, Any], tuple[Any, ...]]:
    """Read op(%0, none, name=value); return the op, its inputs, its attributes, and the specs of the inputs."""
    name = r.next.text
    if r.next.kind != "name" or name not in OPS:
        r.fail(f"the name of an op{hint(name, OPS)}")
    r.position += 1
    op = OPS[name]
    r.mark("(")
    inputs: list[Operand] = []
    attrs: dict[str, Any] = {}

    def argument() -> None:
        if not attrs and r.next.kind == "value":
            inputs.append(find(r.take("value", "")))
        elif not attrs and r.skip("none"):
            inputs.append((None, None))
        else:
            key = r.take("name", "an attribute 'name=…'" if attrs else "a value '%n', 'none' or an attribute 'name=…'")
            if key not in op.params or key in attrs:
                what = "is given twice" if key in attrs else f"is not an attribute of {name}{hint(key, op.params)}"
                r.refuse(f"{key} {what}")
            r.mark("=")
            attrs[key] = _value(r, tuple(s for _, s in inputs), depth)

    r.listed(")", argument, "an argument")
    _check_inputs(r, op, inputs)
    missing = [p for p in op.params if p not in attrs and p not in op.defaults]
    if missing:
        r.refuse(f"{name} needs {', '.join(missing)}")
    for key, value in attrs.items():
        if key in _TYPES and value is not None and not isinstance(value, _TYPES[key]):
            r.refuse(f"{key} of {name} must be a {_TYPES[key].__name__}, given {value_text(value)}")
        if key not in _TYPES and isinstance(value, (DType, Spec, Layout, Fragment)):
            r.refuse(f"{key} of {name} cannot be a {type(value).__name__}, given {value_text(value)}")
    attrs |= {k: v for k, v in op.defaults.items() if k not in attrs and k != "device"}
    attrs = attrs if op.settle is None else op.settle(attrs)
    return op, tuple(n for n, _ in inputs), attrs, tuple(s for _, s in inputs)


def _check_inputs(r: Reader, op: Op, inputs: list[Operand]) -> None:
    expected = "at least one input" if op.variadic else f"{len(op.inputs)} inputs ({', '.join(op.inputs)})"
    if not inputs if op.variadic else len(inputs) != len(op.inputs):
        r.refuse(f"{op.name} takes {expected}, given {len(inputs)}; write none for one that is left out")
    for i, (node, spec) in enumerate(inputs):
        if node is None and (op.variadic or op.inputs[i] not in op.optional):
            r.refuse(f"{op.name} cannot do without {'an input' if op.variadic else op.inputs[i]}, given none")
        if not isinstance(spec, (Spec, type(None))) and op is not ops.item:
            r.refuse(f"{op.name} reads one result, given {spec_text(spec)}; take one with item(%n, index=…)")


def _decide(r: Reader, op: Op, specs: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
    """Return the spec the op decides for these inputs, which must be in the dtypes it computes in."""
    if op.kind is Kind.DYNAMIC:
        r.refuse(f"the size of the result of {op.name} depends on values, so it cannot be part of a graph")
    if op is ops.item:
        index, parts = attrs["index"], specs[0]
        if isinstance(parts, Spec) or type(index) is not int or not 0 <= index < len(parts):
            r.refuse(f"item takes index=0 … of a node of several results, given {spec_text(parts)} and index={index!r}")
        return parts[index]
    try:
        if op is ops.const:
            if not isinstance(attrs["value"], SCALARS):
                raise FormatError(f"a number is needed, given {value_text(attrs['value'])}")
            dt.check_fits(attrs["value"], attrs["dtype"])
        decision = op.decide(specs, attrs)
        check_bounds(op, specs, attrs)
    except Exception as error:  # a rule may fail in any way on attributes of the wrong type
        r.refuse(f"{op.name}: {str(error).removeprefix(op.name + ': ').rstrip('.')}")
    for actual, expected in zip(specs, decision.inputs, strict=True):
        if actual is not None and expected is not None and actual != expected:
            r.refuse(
                f"{op.name} computes with {expected} here, given {actual}; cast it: astype(…, dtype={expected.dtype})"
            )
    return decision.out


def check_bounds(op: Op, specs: tuple[Any, ...], attrs: dict[str, Any]) -> None:
    """Raise if a key or a layout reaches outside its tensor; one that was traced never does, one that was typed may."""
    if op is ops.update:
        shape, strides, offset = attrs["layout"]
        ends = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
        low, high = offset + sum(e for e in ends if e < 0), offset + sum(e for e in ends if e > 0)
        if min(shape, default=0) < 0 or (0 not in shape and not 0 <= low <= high < specs[0].size):
            raise BoundsError(f"{attrs['layout']} is outside {specs[0]}.")
    if "key" not in attrs:
        return
    axes = [k for k in attrs["key"] if k is not None]
    tensors = len(specs) - {"index": 1, "gather": 1, "put": 2}[op.name]
    if len(axes) != specs[0].ndim or axes.count(AT) != tensors:
        raise BoundsError(f"key {attrs['key']} does not name the axes of {specs[0]} and the index tensors once each.")
    for k, n in zip(axes, specs[0].shape, strict=True):
        positions = range(0) if k == AT else range(k, k + 1) if type(k) is int else range(*k)
        if len(positions) and not (0 <= positions[0] < n and 0 <= positions[-1] < n):
            raise BoundsError(f"key {attrs['key']} is outside {specs[0]}.")


# ---- graphs


# A line as str(graph) prints it: a name, what the text claims and the op, the operands, and the rest.
_FORM = re.compile(
    r"(?P<name>%[0-9]+)(?P<claim>: [^=]* = [a-z0-9_]+)\((?P<operands>(?:(?:%[0-9]+|none)(?:, |(?=\))))*)(?P<rest>.*)"
)


_INDEX = re.compile(r"index=(?P<number>-?[0-9]{1,9}), spec=(?P<spec>[^()]*)\)")  # the rest of the line of an input


class Known(NamedTuple):
    """A line that was read: a line with the same text but other operands of the same specs is the same call."""

    op: Op
    attrs: dict[str, Any]
    spec: Any


class Definitions:
    """The lines that define values, searched when a message needs one."""

    def __init__(self, readers: list[Reader]) -> None:
        self.readers = readers

    @cached_property
    def lines(self) -> dict[str, int]:
        """Return the number of the first line that defines each value."""
        return {r.words[0].text: r.number for r in reversed(self.readers) if r.words[0].kind == "value"}


def _repeat(form: re.Match[str], trace: Trace, nodes: dict[str, Node], known: dict[Any, Known]) -> bool:
    """Record the node of a line that differs from an earlier one only in its name and operands; False: there is none."""
    words = form["operands"].rstrip(", ").split(", ") if form["operands"] else []
    operands = tuple([None if word == "none" else nodes.get(word) for word in words])
    specs = tuple([None if n is None else n.spec for n in operands])
    line = known.get((form["claim"], form["rest"], specs))
    name = form["name"]
    if line is None or name in nodes or any(n is None and w != "none" for n, w in zip(operands, words, strict=True)):
        return False
    nodes[name] = trace.node(line.op, operands, line.spec, line.attrs)
    return True


def _repeat_input(
    form: re.Match[str], trace: Trace, nodes: dict[str, Node], inputs: dict[int, Node], known: dict[Any, Known]
) -> bool:
    """Record an input of a spec that an earlier input has, under another index; False: it is no such line."""
    line, index = known.get((form["claim"], "given")), _INDEX.fullmatch(form["rest"])
    if line is None or index is None or form["claim"] != f": {index['spec']} = given":
        return False
    number = int(index["number"])
    if form["operands"] or form["name"] in nodes or number in inputs:
        return False
    nodes[form["name"]] = inputs[number] = trace.placeholder(number, line.spec)
    return True


Captured = Sequence[Tensor] | Callable[[list[Spec]], Sequence[Tensor]] | None


def parse(text: str, captured: Captured = None) -> Graph:
    """Return the graph of a text. `captured`: the tensors of its lines given(index=-1), given(index=-2), …, in that order.

    A function in their place is called with their specs once all of the text is read.
    """
    lines = enumerate(text.split("\n"), 1)
    readers = [Reader(line, i) for i, line in lines if line.partition("#")[0].strip()]
    defined = Definitions(readers)
    known: dict[Any, Known] = {}
    nodes: dict[str, Node] = {}
    inputs: dict[int, Node] = {}
    writes: dict[int, Node] = {}
    trace = Trace()
    for i, r in enumerate(readers):
        form = _FORM.fullmatch(r.line)
        if form is not None and (
            _repeat(form, trace, nodes, known) or _repeat_input(form, trace, nodes, inputs, known)
        ):
            continue
        if r.skip("return"):
            outputs, comma = _results(r, nodes, defined)
            if i + 1 < len(readers):
                readers[i + 1].fail("nothing after 'return'")
            return _graph(r, inputs, writes, outputs, len(outputs) == 1 and not comma, captured)
        if r.skip("write"):
            index = _int(r, "the number of an argument")
            r.mark("=")
            writes[index] = _find(r, r.take("value", "a value '%n'"), nodes, defined)[0]
        else:
            _line(r, trace, nodes, inputs, defined, form, known)
        if r.next.kind != "end":
            r.fail("the end of the line")
    raise FormatError(f"parse: line {text.count(chr(10)) + 1}: expected 'return %n' at the end of the text.")


def _results(r: Reader, nodes: dict[str, Node], defined: Definitions) -> tuple[list[Node], bool]:
    results: list[Node] = []
    comma = False
    while r.next.kind != "end":
        node, spec = _find(r, r.take("value", "a value '%n' to return"), nodes, defined)
        if not isinstance(spec, Spec):
            r.refuse(f"return takes single results, given {spec_text(spec)}; take one with item(%n, index=…)")
        results.append(node)
        comma = r.skip(",")
        if not comma and r.next.kind != "end":
            r.fail("',' or the end of the line")
    return results, comma


def _find(r: Reader, word: str, nodes: dict[str, Node], defined: Definitions) -> tuple[Node, Any]:
    if word not in nodes:
        why = "is never defined"
        if word in defined.lines:
            why = f"is used before line {defined.lines[word]}, where it is defined; a graph has no cycles"
        r.refuse(f"{word} {why}")
    return nodes[word], nodes[word].spec


def _line(
    r: Reader, trace: Trace, nodes: dict[str, Node], inputs: dict[int, Node], defined: Definitions,
    form: re.Match[str] | None, known: dict[Any, Known],
) -> None:  # fmt: skip
    """Read a line such as `%5: f32[2,2] = multiply(%3, %4)` and record its node."""
    name = r.take("value", "a line '%n: spec = op(…)', 'write n = %n' or 'return %n'")
    if name in nodes:
        r.refuse(f"{name} was defined before, at line {defined.lines[name]}")
    r.mark(":")
    claimed = tuple(r.listed(")", lambda: _spec(r), "a spec")[0]) if r.skip("(") else _spec(r)
    r.mark("=")
    op, operands, attrs, specs = _call(r, lambda word: _find(r, word, nodes, defined))
    spec = _decide(r, op, specs, attrs)
    if spec != claimed:
        r.refuse(f"{op.name} returns {spec_text(spec)} here, the text says {spec_text(claimed)}")
    if op is ops.given:
        attrs = {"index": attrs["index"], "spec": spec}
        if type(attrs["index"]) is not int or attrs["index"] in inputs:
            r.refuse(
                f"given: index={attrs['index']!r} must be an integer of its own, 0 … for arguments, -1 … for captured"
            )
    nodes[name] = trace.node(op, operands, spec, attrs)
    if op is ops.given:
        inputs[attrs["index"]] = nodes[name]
        if form is not None:
            known[form["claim"], "given"] = Known(op, attrs, spec)
    elif form is not None:
        known[form["claim"], form["rest"], specs] = Known(op, attrs, spec)


def _graph(
    r: Reader, inputs: dict[int, Node], writes: dict[int, Node], outputs: list[Node], single: bool,
    captured: Captured,
) -> Graph:  # fmt: skip
    arguments = sorted(i for i in inputs if i >= 0)
    if arguments != list(range(len(arguments))):
        missing = min(set(range(len(arguments))) - set(arguments))
        r.refuse(f"argument {missing} has no line; write %n: spec = given(index={missing}, spec=…)")
    for i, node in writes.items():
        if i not in arguments or node.spec != inputs[i].spec:
            r.refuse(f"write {i} needs an argument {i} of spec {spec_text(node.spec)}")
    indices = sorted((i for i in inputs if i < 0), reverse=True)
    specs = ", ".join(f"{i}: {inputs[i].spec}" for i in indices)
    captured = captured([inputs[i].spec for i in indices]) if callable(captured) else captured or ()
    if len(captured) != len(indices):
        raise ArgumentError(
            f"parse: the text has {len(indices)} captured tensors ({specs or 'none'}), {len(captured)} were given; "
            f"pass captured=[…] with one for each, in that order."
        )
    for i, x in zip(indices, captured, strict=True):
        if not isinstance(x, Tensor) or x.spec != inputs[i].spec:
            actual = x.spec if isinstance(x, Tensor) else type(x).__name__
            raise ArgumentError(f"parse: captured tensor {i} must be a tensor {inputs[i].spec}, given {actual}.")
    bound = {inputs[i]: x for i, x in zip(indices, captured, strict=True)}
    return Graph(tuple(inputs[i] for i in arguments), tuple(outputs), bound, single, tuple(sorted(writes.items())))
