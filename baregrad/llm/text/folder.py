"""The tokeniser of a Hugging Face folder: its `tokenizer.json`, as the library reads it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from baregrad.base.errors import FileFormatError, UnsupportedError
from baregrad.llm.text.byte_letters import bytes_of_letters
from baregrad.llm.text.engines import SPACE, library, raise_broken
from baregrad.llm.text.specials import SpecialSplitter, SpecialToken
from baregrad.llm.text.tokenizer import Encoder, Spelling, Tokenizer, byte_of_name
from baregrad.llm.text.vocabulary import end_ids

_LARGEST = 256 * 2**20


def tokenizer_of_folder(path: str | os.PathLike[str]) -> Tokenizer:
    """Return the tokeniser of a folder with `tokenizer.json`.

    `tokenizer_config.json` and `generation_config.json` beside it tell the beginning and the ends,
    where they are there. Raises UnsupportedError for a folder without `tokenizer.json` and
    for a decoder that is not offered, by its name, and FileFormatError for broken files.
    """
    folder = Path(path)
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise UnsupportedError(
            f"{folder} has no tokenizer.json", hint="other files of tokenisers are not read"
        )
    described = _object(file)
    text = file.read_text("utf-8")
    try:
        whole, plain = (library().Tokenizer.from_str(text) for _ in range(2))
    except BaseException as error:
        raise_broken(error, f"{file} is")
        raise
    for engine in (whole, plain):
        # Files bring those along from training; here no text is cut silently, nor made longer.
        engine.no_padding()
        engine.no_truncation()
    # The one reads special tokens that a text spells out, the other does not.
    plain.encode_special_tokens = True
    ids: dict[str, int] = whole.get_vocab(True)
    specials = [
        SpecialToken(int(token["id"]), str(token["content"]), bool(token.get("special")))
        for token in described.get("added_tokens") or ()
    ]
    settings = _optional(folder / "tokenizer_config.json")
    generation = _optional(folder / "generation_config.json")
    bos = _named(settings, "bos_token", ids)
    eos = _named(settings, "eos_token", ids)
    ends = end_ids(ids) | _numbers(generation.get("eos_token_id"))
    prefix, suffix = _around(whole)
    return Tokenizer(
        size=max(ids.values(), default=-1) + 1,
        prefix=prefix,
        suffix=suffix,
        bos=prefix[0] if bos is None and prefix else bos,
        eos=eos,
        ends=frozenset(ends | ({eos} if eos is not None else set())),
        ids=ids,
        encoder=_encoder(whole, plain, specials, _unknown(described, ids)),
        spelling=_spelling(described, ids, specials),
    )


def _encoder(
    whole: Any, plain: Any, specials: Sequence[SpecialToken], unknown: int | None
) -> Encoder:
    """Return the function from a text to its tokens."""
    control = {token.id: token.text for token in specials if token.is_control}
    forbidden = control.keys() - {unknown}
    splitter = SpecialSplitter([token for token in specials if token.is_control])

    def ids_of(engine: Any, text: str) -> list[int]:
        found: list[int] = _encoded(engine, text, add_special_tokens=False).ids
        return found

    newline = ids_of(plain, "\n")

    def ids_between(text: str) -> list[int]:
        # Behind a newline, so that it is not tokenised as the beginning of a text.
        found = ids_of(plain, "\n" + text)
        if newline and found[: len(newline)] == newline:
            return found[len(newline) :]
        return ids_of(plain, text)

    def without_control(ids: list[int]) -> list[int]:
        if forbidden.isdisjoint(ids):
            return ids
        # Some vocabularies have control tokens among their words: spell those by letters.
        found = []
        for token in ids:
            if token not in forbidden:
                found.append(token)
                continue
            for letter in control[token]:
                found += [part for part in ids_between(letter) if part not in forbidden]
        return found

    def encode(text: str, regions: Sequence[tuple[int, int]]) -> list[int]:
        if not regions:
            return without_control(ids_of(plain, text))
        if list(regions) == [(0, len(text))]:
            return ids_of(whole, text)
        allowed = splitter.split(text, regions)
        ids = ids_of(whole, text)
        wanted = [piece.id for piece in allowed if isinstance(piece, SpecialToken)]
        if [token for token in ids if token in forbidden] == [t for t in wanted if t in forbidden]:
            return ids
        # A user spells out a control token: the library's own cutting would take it for one.
        ids = []
        for piece in allowed:
            if isinstance(piece, SpecialToken):
                ids.append(piece.id)
            else:
                ids += without_control(ids_between(piece) if ids else ids_of(plain, piece))
        return ids

    return encode


def _unknown(described: Mapping[str, Any], ids: Mapping[str, int]) -> int | None:
    """Return the token that stands for what the vocabulary lacks: any text may hold it."""
    model = described.get("model")
    model = model if isinstance(model, Mapping) else {}
    if isinstance(model.get("unk_token"), str):
        return ids.get(model["unk_token"])
    return model.get("unk_id")


def _encoded(engine: Any, text: str, **options: Any) -> Any:
    try:
        return engine.encode(text, **options)
    except BaseException as error:
        raise_broken(error)
        raise


def _around(engine: Any) -> tuple[list[int], list[int]]:
    """Return what the library puts before and after a text."""
    encoding = _encoded(engine, "a")
    mask, ids = encoding.special_tokens_mask, encoding.ids
    before = next((at for at, special in enumerate(mask) if not special), len(mask))
    after = next((at for at, special in enumerate(reversed(mask)) if not special), 0)
    return ids[:before], ids[len(ids) - after :]


def _spelling(
    described: Mapping[str, Any], ids: Mapping[str, int], specials: Sequence[SpecialToken]
) -> Spelling:
    """Return how tokens are written, told from the parts of the tokeniser."""
    kinds = set(_types(described.get("decoder")))
    texts = {index: text for text, index in ids.items()}
    added = {token.id for token in specials}
    spell: Callable[[str], bytes]
    if "ByteLevel" in kinds:
        spell = bytes_of_letters
    elif kinds & {"ByteFallback", "Metaspace"} or SPACE in json.dumps(
        described.get("decoder"), ensure_ascii=False
    ):
        spell = _spell_piece
    elif "WordPiece" in kinds:
        spell = _spell_word
    elif not kinds:
        spell = _utf8
    else:
        raise UnsupportedError(f"the decoder {sorted(kinds)} of tokenizer.json is not offered")
    before = [described.get("normalizer"), described.get("pre_tokenizer")]
    schemes = {str(part.get("prepend_scheme", "")) for part in _parts(before)}
    everywhere = "Prepend" in _types(before) or "always" in schemes
    return Spelling(
        bytes_of=lambda token: (
            _utf8(texts.get(token, "")) if token in added else spell(texts.get(token, ""))
        ),
        hidden=frozenset(token.id for token in specials if token.is_control),
        cut=frozenset(added) if everywhere else frozenset(),
        drops_space=everywhere or "first" in schemes or "WordPiece" in kinds,
    )


def _spell_piece(text: str) -> bytes:
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        return byte_of_name(text)
    return _utf8(text.replace(SPACE, " "))


def _spell_word(text: str) -> bytes:
    return _utf8(text[2:] if text.startswith("##") else " " + text)


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _parts(value: Any) -> Iterator[Mapping[str, Any]]:
    """Return every object in a value of JSON."""
    if isinstance(value, Mapping):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _parts(inner)


def _types(value: Any) -> list[str]:
    names = (part.get("type") for part in _parts(value))
    return [name for name in names if isinstance(name, str) and name != "Sequence"]


def _object(file: Path) -> dict[str, Any]:
    """Return the object that a JSON file holds."""
    if file.stat().st_size > _LARGEST:
        raise FileFormatError(f"{file} is too large", wanted=f"at most {_LARGEST} bytes")
    try:
        found = json.loads(file.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{file} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise FileFormatError(f"{file} holds no object")
    return found


def _optional(file: Path) -> dict[str, Any]:
    return _object(file) if file.is_file() else {}


def _named(settings: Mapping[str, Any], name: str, ids: Mapping[str, int]) -> int | None:
    """Return the token that the settings name, by its text or as an object that has it."""
    found = settings.get(name)
    text = found.get("content") if isinstance(found, Mapping) else found
    return ids.get(text) if isinstance(text, str) else None


def _numbers(value: Any) -> set[int]:
    """Return one token or several."""
    values = value if isinstance(value, list) else [value]
    return {number for number in values if isinstance(number, int)}
