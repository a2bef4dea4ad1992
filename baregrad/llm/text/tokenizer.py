"""Text to tokens and back, whatever kind of tokeniser a model has."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from baregrad.base.errors import FileFormatError, IndexOutOfRange
from baregrad.llm.text.byte_letters import bytes_of_letters
from baregrad.llm.text.detokenizer import Detokenizer
from baregrad.llm.text.engines import (
    SPACE,
    Engine,
    byte_pair_engine,
    score_engine,
    split_of,
    unigram_engine,
    word_piece_engine,
)
from baregrad.llm.text.specials import SpecialSplitter, SpecialToken
from baregrad.llm.text.splits import WordSplit
from baregrad.llm.text.vocabulary import TokenKind, Vocabulary, read_vocabulary

# (text, ranges of it in which control tokens may lie) to tokens.
Encoder = Callable[[str, Sequence[tuple[int, int]]], list[int]]


@dataclass(frozen=True)
class Spelling:
    """How tokens are written out.

    `bytes_of` gives a token's bytes. `hidden` are control tokens, which no text shows. `cut` are
    the tokens that are cut out of a text; where `drops_space`, the text before the first token and
    after each of those is written without the space that its first token begins with.
    """

    bytes_of: Callable[[int], bytes]
    hidden: frozenset[int]
    cut: frozenset[int]
    drops_space: bool


class Tokenizer:
    """A model's tokeniser.

    `size` is the number of tokens; `bos` and `eos` are None where there is none; `ends` are all
    tokens that end an answer. `adds_bos` and `adds_eos` say what `encode` puts around a text.
    """

    def __init__(
        self, *, size: int, prefix: Sequence[int], suffix: Sequence[int], bos: int | None,
        eos: int | None, ends: frozenset[int], ids: Mapping[str, int], encoder: Encoder,
        spelling: Spelling,
    ) -> None:
        self.size = size
        self.bos = bos
        self.eos = eos
        self.ends = ends
        self.adds_bos = bool(prefix)
        self.adds_eos = bool(suffix)
        self._prefix = list(prefix)
        self._suffix = list(suffix)
        self._ids = ids
        self._encoder = encoder
        self._spelling = spelling
        self._bytes: dict[int, bytes] = {}

    def encode(
        self, text: str, *, specials: bool = False, add_bos: bool | None = None
    ) -> list[int]:
        """Return a text's tokens.

        `specials`: whether control tokens that the text spells out become those tokens. Unless
        `add_bos` is False, what the model wants around a text is there as well; where it is True,
        the beginning is there even if the model does not ask for it.
        """
        text = _sound(text)
        ids = self._encoder(text, [(0, len(text))] if specials else [])
        if add_bos is False:
            return ids
        prefix = self._prefix
        if add_bos and not prefix and self.bos is not None:
            prefix = [self.bos]
        return prefix + ids + self._suffix

    def encode_spans(
        self, spans: Sequence[tuple[str, bool]], *, add_bos: bool | None = None
    ) -> list[int]:
        """Return the tokens of a prompt of which some parts are a template's and others a user's.

        Each span is (text, whether it is the template's). The spans are tokenised as one text, but
        only a template's part becomes control tokens. The beginning is added where the model wants
        it (or `add_bos` says so) and the prompt does not bring its own.
        """
        parts = []
        regions: list[tuple[int, int]] = []
        length = 0
        for text, is_template in spans:
            text = _sound(text)
            parts.append(text)
            if is_template and text:
                begin = length
                if regions and regions[-1][1] == length:
                    begin = regions.pop()[0]
                regions.append((begin, length + len(text)))
            length += len(text)
        ids = self._encoder("".join(parts), regions)
        wanted = self.adds_bos if add_bos is None else add_bos
        if not wanted or self.bos is None or ids[:1] == [self.bos]:
            return ids
        return [self.bos, *ids]

    def decode(self, ids: Iterable[int], *, specials: bool = False) -> str:
        """Return the text of tokens; control tokens are left out unless `specials`.

        Raises IndexOutOfRange for a token that the vocabulary does not have.
        """
        text = self.detokenizer(specials=specials, is_start=True)
        return "".join([text.add(token) for token in ids] + [text.finish()])

    def detokenizer(
        self, *, specials: bool = False, shown: Collection[str] = (), is_start: bool = False
    ) -> Detokenizer:
        """Return what turns tokens into text as they come.

        `specials`: whether control tokens are written out; `shown` names some that are, whatever
        that says. `is_start`: whether the first token begins a text, or continues a prompt.
        """
        spelling = self._spelling
        hidden: Collection[int] = ()
        if not specials:
            hidden = spelling.hidden - {self._ids[text] for text in shown if text in self._ids}

        def spell(token: int) -> bytes:
            data = self.token_bytes(token)
            return b"" if token in hidden else data

        if not spelling.drops_space:
            return Detokenizer(spell, lambda token: False, False)
        return Detokenizer(spell, spelling.cut.__contains__, is_start)

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token stands for: part of a character, maybe.

        Raises IndexOutOfRange for a token that the vocabulary does not have.
        """
        found = self._bytes.get(token)
        if found is None:
            if not 0 <= token < self.size:
                raise IndexOutOfRange(
                    "no such token", found=token, wanted=f"0 to {self.size - 1}"
                )
            found = self._bytes[token] = self._spelling.bytes_of(token)
        return found

    def id_of(self, text: str) -> int | None:
        """Return the token that is spelled so in the vocabulary, or None."""
        return self._ids.get(text)

    def is_control(self, token: int) -> bool:
        """Whether a token steers the model, and no text shows it."""
        return token in self._spelling.hidden


def tokenizer_of(metadata: Mapping[str, object]) -> Tokenizer:
    """Return the tokeniser that a GGUF file's metadata describes.

    Raises FileFormatError for metadata that is broken, UnsupportedError, by its name, for a
    tokeniser or pre-tokeniser that is not offered, and MissingDependency without `tokenizers`.
    """
    vocabulary = read_vocabulary(metadata)
    if vocabulary.model in ("gpt2", "gemma4"):
        split = split_of(vocabulary)
        if vocabulary.pre is None and vocabulary.model == "gpt2":
            warnings.warn(
                "the file does not say how its tokeniser cuts words (tokenizer.ggml.pre); an old "
                "guess is used, and answers may be worse. Convert the model anew.",
                stacklevel=2,
            )
        engine = byte_pair_engine(vocabulary, split)
        return _assemble(vocabulary, engine, split)
    engines = {"llama": score_engine, "bert": word_piece_engine, "t5": unigram_engine}
    return _assemble(vocabulary, engines[vocabulary.model](vocabulary), None)


def _assemble(vocabulary: Vocabulary, engine: Engine, split: WordSplit | None) -> Tokenizer:
    """Return the tokeniser of an engine for plain text and a vocabulary's special tokens."""
    model = vocabulary.model
    specials = _special_tokens(vocabulary)
    splitter = SpecialSplitter(specials)
    prefixed = model == "llama" and vocabulary.flag("add_space_prefix", True)
    escapes = model == "llama" or (split is not None and not split.in_bytes)

    def encode(text: str, regions: Sequence[tuple[int, int]]) -> list[int]:
        ids: list[int] = []
        begins = True
        for piece in splitter.split(text, regions):
            if isinstance(piece, SpecialToken):
                ids.append(piece.id)
                begins = True
                continue
            if prefixed and begins:
                piece = " " + piece
            ids += engine(piece.replace(" ", SPACE) if escapes else piece)
            begins = False
        return ids

    prefix, suffix = _around(vocabulary, split)
    hidden = frozenset(_of_kinds(vocabulary, TokenKind.CONTROL, TokenKind.UNKNOWN))
    return Tokenizer(
        size=vocabulary.size,
        prefix=prefix,
        suffix=suffix,
        bos=vocabulary.bos,
        eos=vocabulary.eos,
        ends=vocabulary.ends,
        ids=vocabulary.ids,
        encoder=encode,
        spelling=Spelling(
            bytes_of=lambda token: _bytes_of(vocabulary, token, split),
            hidden=hidden,
            cut=frozenset(token.id for token in specials),
            drops_space=prefixed or model in ("bert", "t5"),
        ),
    )


def _special_tokens(vocabulary: Vocabulary) -> list[SpecialToken]:
    """Return the tokens to cut out, with what the families do to the space around them."""
    name = str(vocabulary.metadata.get("general.name", "")).lower()
    architecture = str(vocabulary.metadata.get("general.architecture", ""))
    is_phi = "phi-3" in name or "phi3" in name
    masks = {"<mask>", "[MASK]"} if (
        any(part in (vocabulary.pre or "") for part in ("jina-v2-", "modern-bert"))
        or architecture in ("nomic-bert-moe", "jina-bert-v3") or "modern-bert" in name
    ) else set()
    found = []
    kinds = (TokenKind.CONTROL, TokenKind.USER_DEFINED, TokenKind.UNKNOWN)
    for index in _of_kinds(vocabulary, *kinds):
        text = vocabulary.texts[index]
        found.append(SpecialToken(
            index, text, vocabulary.kinds[index] != TokenKind.USER_DEFINED,
            strips_left=text in masks,
            strips_right=is_phi and text not in ("<unk>", "<s>", "<|endoftext|>"),
        ))
    return found


def _of_kinds(vocabulary: Vocabulary, *kinds: TokenKind) -> list[int]:
    """Return the tokens of some kinds, few of many, ascending."""
    # An enumeration's members are compared by a method of their class, plain numbers at once.
    wanted = frozenset(map(int, kinds))
    return [index for index, kind in enumerate(vocabulary.kinds) if kind in wanted]


def _around(vocabulary: Vocabulary, split: WordSplit | None) -> tuple[list[int], list[int]]:
    """Return what the model wants before and after a text."""
    model = vocabulary.model
    adds_bos = vocabulary.adds_bos
    if adds_bos is None:
        adds_bos = model in ("llama", "bert") or (split is not None and split.adds_bos)
    if split is not None and split.needs_bos:
        adds_bos = True
    adds_eos = vocabulary.adds_eos
    if adds_eos is None:
        adds_eos = model == "t5"
    end = vocabulary.eos
    if model == "bert":
        adds_bos = adds_eos = True
        end = vocabulary.separator
    for name, wanted, index in (("bos", adds_bos, vocabulary.bos), ("eos", adds_eos, end)):
        if wanted and index is None:
            raise FileFormatError(
                f"texts want a token around them that the file does not name: {name}",
                wanted=f"tokenizer.ggml.{name}_token_id",
            )
    return (
        [vocabulary.bos] if adds_bos and vocabulary.bos is not None else [],
        [end] if adds_eos and end is not None else [],
    )


def _bytes_of(vocabulary: Vocabulary, token: int, split: WordSplit | None) -> bytes:
    """Return the bytes that a token stands for."""
    text, kind = vocabulary.texts[token], vocabulary.kinds[token]
    if kind == TokenKind.BYTE:
        return byte_of_name(text)
    if kind in (TokenKind.CONTROL, TokenKind.USER_DEFINED, TokenKind.UNKNOWN):
        return text.encode("utf-8", "replace")
    if split is not None and split.in_bytes:
        return bytes_of_letters(text)
    return text.replace(SPACE, " ").encode("utf-8", "replace")


def byte_of_name(name: str) -> bytes:
    """Return the byte of a token that is written `<0xNN>`; raises FileFormatError otherwise."""
    try:
        if len(name) != 6 or not (name.startswith("<0x") and name.endswith(">")):
            raise ValueError
        return bytes([int(name[3:5], 16)])
    except ValueError as error:
        raise FileFormatError(
            "a byte's token is misspelled", found=repr(name), wanted="<0x00> to <0xFF>"
        ) from error


def _sound(text: str) -> str:
    """Return a text without halves of surrogate pairs, which no UTF-8 holds."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
