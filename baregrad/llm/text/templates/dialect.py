"""The dialect of Jinja that chat templates are written in, run in Jinja's sandbox.

It is the one that `transformers` defined: blocks and their newlines are trimmed, `break` and
`continue` exist, `{% generation %}` marks answers, `tojson` writes plain JSON, and
`raise_exception` and `strftime_now` are there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import wraps
from typing import Any

from baregrad.base.errors import MissingDependency
from baregrad.llm.text.templates.marked import Marked, holds_marked, join, mark, replace, text_of

# Filters that keep the masks of what they are given by themselves, or give no text.
_FAITHFUL = frozenset((
    "trim", "lower", "upper", "list", "first", "last", "default", "d", "map", "select",
    "reject", "selectattr", "rejectattr", "items", "dictsort", "sort", "unique", "reverse", "min",
    "max", "batch", "slice", "groupby", "attr", "length", "count", "int", "float", "abs", "sum",
    "round", "wordcount", "random", "capitalize", "title",
))


class TemplateRefusal(Exception):
    """What a template says by `raise_exception`."""


def dialect() -> Any:
    """Return a fresh environment for one template; raises MissingDependency without jinja2."""
    try:
        import jinja2.ext
    except ImportError as error:
        raise MissingDependency(package="jinja2", extra="llm") from error
    environment = _sandbox()(
        trim_blocks=True, lstrip_blocks=True, finalize=text_of,
        extensions=[_generation_blocks(), jinja2.ext.loopcontrols],
    )
    for name, function in environment.filters.items():
        if name not in _FAITHFUL:
            environment.filters[name] = _marking(function)
    environment.filters["string"] = text_of
    environment.filters["tojson"] = _to_json
    environment.filters["join"] = _join_filter
    environment.filters["replace"] = _replace_filter
    # It writes random text, and is known for the way out of the sandbox that it once was.
    del environment.globals["lipsum"]
    environment.globals["dict"] = _dict
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _generation_blocks() -> Any:
    """Return the extension that knows `{% generation %}`."""
    import jinja2.ext
    import jinja2.nodes

    class Generation(jinja2.ext.Extension):  # type: ignore[misc]
        """A block that says which text is an answer; its text stays."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.Scope(body, lineno=line)

    return Generation


def _sandbox() -> Any:
    """Return the class of sandboxes in which strings keep their masks."""
    import jinja2.sandbox
    from jinja2.compiler import CodeGenerator

    class MaskedGenerator(CodeGenerator):  # type: ignore[misc]
        """Code whose `~` keeps masks."""

        def visit_Concat(self, node: Any, frame: Any) -> None:  # noqa: N802
            """Write the joining of some values."""
            self.write("environment.joined((")
            for part in node.nodes:
                self.visit(part, frame)
                self.write(", ")
            self.write("))")

    class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):  # type: ignore[misc]
        """The sandbox, with calls and operators that keep masks."""

        code_generator_class = MaskedGenerator
        intercepted_binops = frozenset(("%",))

        @staticmethod
        def concat(parts: Iterable[str]) -> str:
            """Join what a template wrote."""
            return join("", parts)

        @staticmethod
        def joined(values: Iterable[Any]) -> str:
            """Join values as text."""
            return join("", map(text_of, values))

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            """Divide, or write values into a text."""
            return _marked_like(super().call_binop(context, operator, left, right), (left, right))

        def call(self, context: Any, called: Any, /, *args: Any, **named: Any) -> Any:
            """Call what a template calls."""
            owner = getattr(called, "__self__", None)
            if isinstance(owner, str) and holds_marked(args):
                # A plain string's own methods would lose the masks.
                if called.__name__ == "join" and len(args) == 1:
                    return join(owner, args[0])
                if called.__name__ == "replace" and not named:
                    return replace(owner, *args)
            result = super().call(context, called, *args, **named)
            if not isinstance(owner, str) or isinstance(owner, Marked):
                return result
            return _marked_like(result, (args, named))

    return Sandbox


def _marked_like(result: Any, given: Any) -> Any:
    """Return a result, marked where it is a text and what it was made of is marked."""
    if isinstance(result, str) and not isinstance(result, Marked) and holds_marked(given):
        return mark(str(result))
    return result


def _marking(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose text is marked where an argument is."""

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        return _marked_like(function(*args, **named), (args, named))

    return call


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | str | None = None,
    separators: Any = None, sort_keys: bool = False,
) -> str:
    """Write a value as JSON; no control token of a template is ever in it."""
    return mark(json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
        sort_keys=sort_keys,
    ))


def _join_filter(value: Any, d: str = "", attribute: str | int | None = None) -> str:
    """Join values as text, or an attribute of each."""
    if attribute is not None:
        value = [_attribute(item, attribute) for item in value]
    return join(str(d), map(text_of, value))


def _attribute(item: Any, path: str | int) -> Any:
    """Follow a path of names and numbers, as Jinja's filters do; items only, nothing hidden."""
    for name in str(path).split("."):
        if isinstance(item, dict):
            item = item.get(name, "")
        elif isinstance(item, list | tuple) and name.isdigit():
            item = item[int(name)]
        else:
            return ""
    return item


def _replace_filter(value: Any, old: Any, new: Any, count: int | None = None) -> str:
    """Replace in a text."""
    return replace(text_of(value), str(old), text_of(new), -1 if count is None else count)


def _dict(*pairs: Any, **named: Any) -> dict[Any, Any]:
    """Make a mapping, without giving away the class."""
    return dict(*pairs, **named)


def _raise_exception(message: object) -> None:
    raise TemplateRefusal(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
