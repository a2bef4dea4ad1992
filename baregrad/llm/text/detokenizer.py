"""Text of an answer, token by token, without ever cutting a character in two."""

from __future__ import annotations

import codecs
from collections.abc import Callable


class Detokenizer:
    """Turns tokens into text as they come.

    `spell` gives a token's bytes (empty for one that is not shown), and `restarts` says whether
    the text after a token begins anew, where tokenisers that write ▁ before a text's first word
    mean no space by it. `is_start` says whether the first token begins a text. All that `add`
    returned and `finish` together are the decoded text of all tokens at once.
    """

    def __init__(
        self, spell: Callable[[int], bytes], restarts: Callable[[int], bool], is_start: bool
    ) -> None:
        self._spell = spell
        self._restarts = restarts
        self._is_start = is_start
        # It keeps the beginning of a character until the rest is there.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        """Return the text that is certain now; it may be empty.

        Raises IndexOutOfRange for a token that the vocabulary does not have.
        """
        data = self._spell(token)
        if self._restarts(token):
            self._is_start = True
        elif data:
            if self._is_start:
                data = data.removeprefix(b" ")
            self._is_start = False
        return self._decoder.decode(data)

    def finish(self) -> str:
        """Return what is left: U+FFFD for a character whose end never came."""
        return self._decoder.decode(b"", final=True)
