"""Calls as the families write them: readers that stand behind what opens a call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from baregrad.llm.text.calls.parts import PartWriter
from baregrad.llm.text.calls.reading import AnswerSource, MalformedCall, Reading

_ARGUMENTS = ("arguments", "parameters", "args", "input")
_KEYS = ("name", "id", "type", *_ARGUMENTS)


class CallReader:
    """Reads calls from an answer and writes them as parts.

    `tools` are the parameters' schemas of the tools that there are, by name. A call's name is
    looked for among them only where `strict`: where nothing else tells a call from a text in JSON.
    """

    def __init__(
        self, source: AnswerSource, out: PartWriter, tools: Mapping[str, Any], strict: bool
    ) -> None:
        self.source = source
        self.out = out
        self.tools = tools
        self.strict = strict
        self._opener = ""
        self._told = 0

    def begin(self, opener: str = "") -> None:
        """Note that what may be a call begins here, behind an opener that was read."""
        self.source.mark()
        self._opener = opener
        self._told = self.out.calls

    def give_up(self) -> None:
        """Make text of what was read since the beginning, unless it was told as a call."""
        if self.out.calls == self._told:
            self.out.raw(self._opener + self.source.seen)
        self.begin()

    def json_object(self) -> Reading[None]:
        """Read `{"name": ..., "arguments": {...}}`, whatever the order and whatever else is there.

        Arguments are handed on as they come once the name is known.
        """
        source = self.source
        yield from source.skip()
        yield from source.expect("{")
        name, id, early = "", "", None
        begun = False
        while True:
            yield from source.skip()
            if (yield from source.starts("}")):
                break
            key = _text((yield from source.whole_json()))
            if self.strict and key not in _KEYS:
                raise MalformedCall(key)
            yield from source.skip()
            yield from source.expect(":")
            if key in _ARGUMENTS and name and not begun:
                begun = True
                yield from self._arguments(name, id)
            elif key in _ARGUMENTS and not begun:
                early = yield from source.whole_json()
            else:
                value = yield from source.whole_json()
                if key == "name":
                    name = self._known(_text(value))
                elif key == "id" and value.startswith('"'):
                    id = _text(value)
            if early is not None and name and not begun:
                begun = True
                self.out.call(name, id)(_plain(early))
                self.out.call_end()
            yield from source.skip()
            if not (yield from source.starts(",")):
                yield from source.expect("}")
                break
        if not name:
            raise MalformedCall("no name")
        if not begun:
            self.out.call(name, id)("{}")
            self.out.call_end()
        self.begin()

    def json_objects(self) -> Reading[None]:
        """Read an array of calls, or one call."""
        source = self.source
        yield from source.skip()
        if not (yield from source.starts("[")):
            yield from self.json_object()
            return
        while True:
            yield from self.json_object()
            yield from source.skip()
            if not (yield from source.starts(",")):
                yield from source.expect("]")
                return

    def named(self, name: str, id: str = "") -> Reading[None]:
        """Read the arguments of a call whose name came before them."""
        name = self._known(name.strip())
        if not name:
            raise MalformedCall("no name")
        yield from self._arguments(name, id)
        self.begin()

    def tagged(self) -> Reading[None]:
        """Read `<function=f>` and its `<parameter=p>`, up to `</function>`."""
        source = self.source
        yield from source.skip()
        yield from source.expect("<function=")
        name: list[str] = []
        yield from source.until((">",), name.append)
        function = self._known("".join(name).strip())
        if not function:
            raise MalformedCall("no name")
        schema = self.tools.get(function)
        add = self.out.call(function)
        add("{")
        is_first = True
        while True:
            yield from source.skip()
            if (yield from source.starts("</function>")) or not (yield from source.peek(1)):
                break
            if not (yield from source.starts("<parameter=")):
                # Whatever it is, the call ends here.
                break
            parts: list[str] = []
            yield from source.until((">",), parts.append)
            key = "".join(parts).strip()
            add(("" if is_first else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
            is_first = False
            value: list[str] = []
            yield from source.until(("</parameter>",), value.append)
            add(_typed("".join(value), _schema_of(schema, key)))
        add("}")
        self.out.call_end()
        self.begin()

    def _arguments(self, name: str, id: str) -> Reading[None]:
        """Read a call's arguments and hand them on as they come."""
        yield from self.source.skip()
        first = yield from self.source.peek(1)
        if first == "{":
            yield from self.source.json(self.out.call(name, id))
        elif first and first in '"n':
            # Some models write the arguments as JSON in a string, or none as null.
            value = yield from self.source.whole_json()
            self.out.call(name, id)(_plain(value))
        else:
            raise MalformedCall(first)
        self.out.call_end()

    def _known(self, name: str) -> str:
        """Return the name of a tool; one that is none is no call, where nothing else says so."""
        if self.strict and name not in self.tools:
            raise MalformedCall(name)
        return name


def _text(value: str) -> str:
    """Return the text that a JSON value is."""
    try:
        found = json.loads(value)
    except ValueError as error:
        raise MalformedCall(value) from error
    if not isinstance(found, str):
        raise MalformedCall(value)
    return found


def _plain(value: str) -> str:
    """Return arguments as JSON, of which some models make a string; null means none."""
    if value == "null":
        return "{}"
    if not value.startswith('"'):
        return value
    try:
        inner = json.loads(value)
    except ValueError:
        return value
    return str(inner)


def _schema_of(schema: Any, key: str) -> Any:
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return properties.get(key) if isinstance(properties, Mapping) else None


def _typed(raw: str, schema: Any) -> str:
    """Return a value that stands between tags as JSON, of the type that the tool's schema says."""
    raw = raw.removeprefix("\n").removesuffix("\n")
    kinds = schema.get("type") if isinstance(schema, Mapping) else None
    is_text = kinds == "string" or (isinstance(schema, Mapping) and raw in schema.get("enum", ()))
    if not is_text:
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError):
            value = {"True": True, "False": False, "None": None}.get(raw.strip(), raw)
        if kinds is not None or not isinstance(value, str):
            return json.dumps(value, ensure_ascii=False)
    return json.dumps(raw, ensure_ascii=False)
