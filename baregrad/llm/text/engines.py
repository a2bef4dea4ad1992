"""The library's tokenisers of plain text, made of a vocabulary.

Each maker returns a function from a text without special tokens to its tokens. Control tokens are
no words of theirs: no text becomes one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

from baregrad.base.errors import FileFormatError, MissingDependency, UnsupportedError
from baregrad.io.excerpt import excerpt
from baregrad.llm.text.byte_letters import LETTER_BYTES
from baregrad.llm.text.splits import SPLITS, WordSplit
from baregrad.llm.text.vocabulary import TokenKind, Vocabulary

Engine = Callable[[str], list[int]]
# A space, as SentencePiece writes it.
SPACE = "▁"
# Above it, a token is no word but an attack on whoever looks at all of its parts.
TOKEN_LENGTH = 4096
# Stands for characters that a vocabulary lacks: longer than any token, so no word.
_NOTHING = "\0" * (TOKEN_LENGTH + 1)
# BERT's own limit, above which a word is unknown.
WORD_LENGTH = 100
_SPOKEN = (TokenKind.UNDEFINED, TokenKind.NORMAL, TokenKind.USER_DEFINED, TokenKind.UNUSED)


def library() -> Any:
    """Return the package `tokenizers`; raises MissingDependency where it is not installed."""
    try:
        import tokenizers
    except ImportError as error:
        raise MissingDependency(package="tokenizers", extra="llm") from error
    return tokenizers


def byte_pair_engine(vocabulary: Vocabulary, split: WordSplit) -> Engine:
    """Return the engine that merges pairs by their order in the file."""
    tokenizers = library()
    kinds = (*_SPOKEN, TokenKind.BYTE)
    words = _words(vocabulary, kinds)
    merges = vocabulary.merges or ()
    if len(words) < vocabulary.size:
        # Nothing may be merged into a control token.
        silent = vocabulary.ids.keys() - words.keys()
        whole = {(text[:at], text[at:]) for text in silent for at in range(len(text) + 1)}
        if not (whole.isdisjoint(merges) and silent.isdisjoint(chain.from_iterable(merges))):
            merges = [
                pair for pair in merges
                if pair not in whole and pair[0] not in silent and pair[1] not in silent
            ]
    # What has no token is dropped, but keeps what is around it apart: bytes, or characters.
    absent = sorted(LETTER_BYTES.keys() - words.keys()) if split.in_bytes else [_NOTHING]
    parts = words | {letter: vocabulary.size + at for at, letter in enumerate(absent)}
    try:
        model = tokenizers.models.BPE(
            parts, merges, byte_fallback=not split.in_bytes,
            ignore_merges=split.whole_words_first,
            unk_token=None if split.in_bytes else _NOTHING,
        )
    except Exception as error:
        raise _merge_error(merges, words, error) from error
    engine = tokenizers.Tokenizer(model)
    cuts = tokenizers.pre_tokenizers
    steps = [_isolate(pattern) for pattern in split.passes]
    if split.in_bytes:
        steps.append(cuts.ByteLevel(add_prefix_space=False, use_regex=False))
    engine.pre_tokenizer = cuts.Sequence(steps)
    ids_of = _ids_of(engine)
    if not absent:
        return ids_of
    return lambda text: [index for index in ids_of(text) if index < vocabulary.size]


def score_engine(vocabulary: Vocabulary) -> Engine:
    """Return the engine that merges by the score of what comes out (SentencePiece's BPE).

    Where several pairs make a word of the best score, the leftmost is merged. The library merges
    by order of pairs, and so each pair that makes a token stands where the token's score puts it.
    """
    tokenizers = library()
    words = _words(vocabulary, _SPOKEN)
    scores = vocabulary.scores or ()
    letters = {letter for text in words for letter in text}
    parts = dict(words)
    # A letter that is no token may still be part of one.
    for letter in sorted(letters - words.keys()):
        parts[letter] = vocabulary.size + len(parts) - len(words)
    merges = []
    for text in sorted(words, key=lambda text: -scores[words[text]]):
        if len(text) > 1:
            merges += _halves(text, parts)
    bytes_of = _words(vocabulary, (TokenKind.BYTE,))
    unknown = None if vocabulary.unknown is None else vocabulary.texts[vocabulary.unknown]
    reserved = {} if unknown is None else {unknown: vocabulary.ids[unknown]}
    model = tokenizers.models.BPE(
        {**reserved, **bytes_of, **parts}, merges, unk_token=unknown, fuse_unk=True,
        byte_fallback=True,
    )
    engine = tokenizers.Tokenizer(model)
    if not any(SPACE in text.lstrip(SPACE) for text in words):
        # No token reaches over a space, and words are quicker one by one.
        engine.pre_tokenizer = _isolate(f"{SPACE}*[^{SPACE}]+|{SPACE}+")
    ids_of = _ids_of(engine)
    if len(parts) == len(words):
        return ids_of
    spelled = {
        index: _spell_letter(text, bytes_of, vocabulary.unknown)
        for text, index in parts.items() if index >= vocabulary.size
    }
    return lambda text: [
        index for found in ids_of(text) for index in spelled.get(found, (found,))
    ]


def word_piece_engine(vocabulary: Vocabulary) -> Engine:
    """Return the engine of BERT's kind: the longest piece first, a word without one unknown."""
    tokenizers = library()
    unknown = vocabulary.unknown
    if unknown is None:
        raise FileFormatError("the vocabulary has no unknown token, which WordPiece needs")
    # The file writes ▁ before what begins a word; the library ## before what does not.
    words = {
        (text[1:] if text.startswith(SPACE) else "##" + text): index
        for text, index in _words(vocabulary, _SPOKEN).items()
    }
    lowers = vocabulary.flag("normalizer.lowercase", True)
    words[vocabulary.texts[unknown]] = unknown
    engine = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(
            words, unk_token=vocabulary.texts[unknown], max_input_chars_per_word=WORD_LENGTH
        )
    )
    engine.normalizer = tokenizers.normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, lowercase=lowers,
        strip_accents=vocabulary.flag("normalizer.strip_accents", lowers),
    )
    engine.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    return _ids_of(engine)


def unigram_engine(vocabulary: Vocabulary) -> Engine:
    """Return the engine of T5's kind: of all ways to cut a text, the one with the best score."""
    tokenizers = library()
    scores = vocabulary.scores or ()
    if vocabulary.unknown is None:
        raise FileFormatError("the vocabulary has no unknown token, which Unigram needs")
    # A piece that must never be found keeps its place under a text that no input holds.
    pieces = [
        (text if kind in _SPOKEN else f"\0{index}\0", score)
        for index, (text, kind, score) in enumerate(
            zip(vocabulary.texts, vocabulary.kinds, scores, strict=True)
        )
    ]
    engine = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, vocabulary.unknown, False))
    normalizers = tokenizers.normalizers
    steps: list[Any] = []
    table = vocabulary.metadata.get("tokenizer.ggml.precompiled_charsmap")
    if table is not None:
        steps.append(_precompiled(normalizers, table))
    if vocabulary.flag("remove_extra_whitespaces", False):
        # Of spaces alone: what else is white the table before makes one, where it is to be.
        for pattern, instead in ((r"\A +| +\z", ""), (" {2,}", " ")):
            steps.append(normalizers.Replace(tokenizers.Regex(pattern), instead))
    if vocabulary.flag("add_space_prefix", False):
        # Before texts that begin with a space as well, but not before spaces alone.
        steps.append(normalizers.Replace(tokenizers.Regex(r"\A(?= *[^ ])"), SPACE))
    engine.normalizer = normalizers.Sequence(steps)
    engine.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(
        replacement=SPACE, prepend_scheme="never", split=False
    )
    return _ids_of(engine)


def split_of(vocabulary: Vocabulary) -> WordSplit:
    """Return how a byte-pair vocabulary cuts words; refuses a name that is not in the table."""
    name = vocabulary.pre or "default"
    if vocabulary.model == "gemma4":
        name = "gemma4"
    if name not in SPLITS:
        raise UnsupportedError(
            f"the pre-tokeniser {name!r} is not offered",
            hint="without its pattern words would be cut otherwise than in training",
        )
    return SPLITS[name]


def _words(vocabulary: Vocabulary, kinds: tuple[TokenKind, ...]) -> dict[str, int]:
    """Return the tokens of some kinds by text."""
    wanted = set(map(int, kinds))
    found = {
        text: index
        for index, (text, kind) in enumerate(zip(vocabulary.texts, vocabulary.kinds, strict=True))
        if kind in wanted
    }
    longest = max(found, key=len, default="")
    if len(longest) > TOKEN_LENGTH:
        raise FileFormatError(
            f"token {found[longest]} is too long", found=f"{len(longest)} characters",
            wanted=f"at most {TOKEN_LENGTH}",
        )
    return found


def _halves(text: str, parts: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return the ways to make a text of two parts."""
    cuts = range(1, len(text))
    return [
        (text[:cut], text[cut:]) for cut in cuts if text[:cut] in parts and text[cut:] in parts
    ]


def _spell_letter(
    letter: str, bytes_of: Mapping[str, int], unknown: int | None
) -> tuple[int, ...]:
    """Return a letter as byte tokens, or the unknown token where one is missing."""
    names = [f"<0x{byte:02X}>" for byte in letter.encode("utf-8", "replace")]
    if all(name in bytes_of for name in names):
        return tuple(bytes_of[name] for name in names)
    return () if unknown is None else (unknown,)


def _isolate(pattern: str) -> Any:
    tokenizers = library()
    return tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")


def _ids_of(engine: Any) -> Engine:
    def ids_of(text: str) -> list[int]:
        try:
            ids: list[int] = engine.encode(text, add_special_tokens=False).ids
        except BaseException as error:
            raise_broken(error)
            raise
        return ids

    return ids_of


def raise_broken(error: BaseException, what: str = "the tokeniser's tables are") -> None:
    """Raise FileFormatError for what the library dies of, or gives up; files can make it do so."""
    if type(error).__name__ == "PanicException" or type(error) is Exception:
        found = excerpt(str(error), 200)
        raise FileFormatError(f"{what} broken", found=found) from error


def _merge_error(
    merges: Any, words: Mapping[str, int], error: Exception
) -> FileFormatError:
    for first, second in merges:
        for text in (first, second, first + second):
            if text not in words:
                return FileFormatError(
                    "a merge names an unknown token", found=repr(text),
                    wanted="a text of tokenizer.ggml.tokens",
                )
    return FileFormatError(f"the merges are of no use: {error}")


def _precompiled(normalizers: Any, table: Any) -> Any:
    """Return the normaliser that a file holds as a table of bytes."""
    try:
        data = bytes(value & 0xFF for value in table)
        return normalizers.Precompiled(data)
    except BaseException as error:
        raise_broken(error)
        if not isinstance(error, Exception):
            raise
        raise FileFormatError(
            f"tokenizer.ggml.precompiled_charsmap is broken: {error}"
        ) from error
