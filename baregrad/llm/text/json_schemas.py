"""JSON schemas as grammars take them: the white space between an answer's parts has an end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# A space, or one or two ends of lines with the indentation of the next. Where white space may go
# on, small models write nothing else until an answer's tokens are spent.
_WHITE_SPACE = r" |\n{1,2}[ \t]{0,40}"


def with_bounded_space(schema: Any) -> Any:
    """Return a schema that says so to `llguidance`, by the key that it reads options from."""
    options = {"x-guidance": {"whitespace_pattern": _WHITE_SPACE}}
    if schema is True:
        return options
    return {**schema, **options} if isinstance(schema, Mapping) else schema
