"""How each family of byte-pair tokenisers cuts a text into words before merging.

A row of the table is a name of `tokenizer.ggml.pre`. Its passes are patterns, applied in order to
the pieces that are left: each match is a piece, and so is what lies between two matches. The
patterns are those of the families' own `tokenizer.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

_ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_DIGIT = r"\p{N}"
_DIGITS = r"\p{N}{1,3}"
_GPT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CJK = "[一-龥぀-ゟ゠-ヿ]+"
_UPPER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
_LOWER = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_MARKS = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
_DEEPSEEK = (
    _MARKS + r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES
)
# The letters of DeepSeek's first models: alphabets with capitals, without scripts that have none.
_CASED = (
    r"A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕ"
    r"Ἐ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\x{1F7D}ᾀ-ᾴᾶ-ᾼ\x{1FBE}ῂ-ῄῆ-ῌῐ-\x{1FD3}ῖ-\x{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ"
    r"-ℝℤ\x{2126}ℨ\x{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-"
    r"𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)


def _words(digits: str, *, marks: str = "", endings: str = _ENDINGS + "|") -> str:
    """Return the pattern of GPT-4's kind: a word may begin with one mark of punctuation."""
    letters = rf"[\p{{L}}{marks}]" if marks else r"\p{L}"
    others = rf" ?[^\s\p{{L}}{marks}\p{{N}}]+[\r\n]*"
    return rf"{endings}[^\r\n\p{{L}}\p{{N}}]?{letters}+|{digits}|{others}|{_SPACES}"


def _cased_words(digits: str, *, endings: str = "", but: str = "") -> str:
    """Return the pattern of GPT-4o's kind: a word is cut where a capital follows a small letter.

    `but` is what no word may hold, as an intersection of classes.
    """
    upper, lower = f"[{_UPPER}{but}]", f"[{_LOWER}{but}]"
    start = r"[^\r\n\p{L}\p{N}]?"
    # The family whose words leave out a script keeps no slash with punctuation.
    tail = r"[\r\n]*" if but else r"[\r\n/]*"
    return (
        rf"{start}{upper}*{lower}+{endings}|{start}{upper}+{lower}*{endings}|"
        rf"{digits}| ?[^\s\p{{L}}\p{{N}}]+{tail}|{_SPACES}"
    )


@dataclass(frozen=True)
class WordSplit:
    """One way of cutting: its passes, and what else a family of tokenisers does.

    `whole_words_first`: a word that is a token is not merged from its parts. `adds_bos` is
    what files of the family mean that do not say; `needs_bos`: whatever files say, which do so by
    mistake, as the family gives nonsense without. `in_bytes`: words are spelled by bytes;
    otherwise spaces become ▁ and unknown characters `<0xNN>`.
    """

    passes: tuple[str, ...]
    whole_words_first: bool = False
    adds_bos: bool = False
    in_bytes: bool = True
    needs_bos: bool = False


_LINES = WordSplit((r"[^\n]+|\n+",), in_bytes=False)
_ROWS: tuple[tuple[str, WordSplit], ...] = (
    ("llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
     WordSplit((_words(_DIGITS),), whole_words_first=True, adds_bos=True)),
    ("dbrx smaug-bpe chatglm-bpe", WordSplit((_words(_DIGITS),))),
    ("glm4 glm5", WordSplit((_words(_DIGITS),), whole_words_first=True)),
    ("qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 megrez hunyuan solar-open grok-2",
     WordSplit((_words(_DIGIT),))),
    ("qwen35", WordSplit((_words(_DIGIT, marks=r"\p{M}"),))),
    ("ufakzeka", WordSplit((_words(_DIGIT, endings=""),))),
    ("laguna", WordSplit((r"[^\n]+|\n+", _words(_DIGIT)))),
    ("minicpm5", WordSplit((_DIGITS, _words(r"\p{N}+")), whole_words_first=True)),
    ("gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert "
     "exaone4 mpt olmo jais trillion granite-docling jina-v1-en jina-v2-code roberta-bpe",
     WordSplit((_GPT,))),
    ("starcoder refact command-r smollm codeshell exaone minerva-7b mellum2",
     WordSplit((_DIGIT, _GPT))),
    ("falcon", WordSplit((r"[\p{P}\$\+<=>\^~\|`]+", _GPT, "[0-9][0-9][0-9]"))),
    ("deepseek-llm", WordSplit((
        r"[\r\n]", rf"\s?[{_CASED}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+\z",
        "[一-龥ࠀ-一가-퟿]+", r"\p{N}+"))),
    ("deepseek-coder", WordSplit((
        r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"))),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", WordSplit((_DIGITS, _CJK, _DEEPSEEK))),
    ("tekken", WordSplit((_cased_words(_DIGIT),), whole_words_first=True, adds_bos=True)),
    ("gpt-4o llama4 kanana2 talkie minimax-m2",
     WordSplit((_cased_words(_DIGITS, endings=_ENDINGS + "?"),))),
    ("granite-embed-multi-97m",
     WordSplit((_cased_words(_DIGITS, endings=_ENDINGS + "?"),), whole_words_first=True)),
    ("kimi-k2", WordSplit((
        r"\p{Han}+|" + _cased_words(_DIGITS, endings=_ENDINGS + "?", but=r"&&[^\p{Han}]"),))),
    ("tiny_aya cohere2moe", WordSplit((
        r"\d{1,3}(?=(?:\d{3})*\b)", _cased_words(_DIGITS, endings=_ENDINGS + "?")))),
    ("seed-coder", WordSplit((
        rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",
    ))),
    ("bailingmoe bailingmoe2 llada-moe", WordSplit((
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|"
        r"\s*[\r\n]|\s+(?!\S)|\s+",))),
    ("exaone-moe", WordSplit((
        rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}|"
        r" ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",))),
    ("poro-chat bloom gpt3-finnish", WordSplit((r" ?[^(\s|.,!?…。，、।۔،)]+",))),
    ("viking", WordSplit((r" ?[^(\s|.,!?…。，、।۔،)]+", r"\p{N}"))),
    ("chameleon", WordSplit((
        "<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )",
        r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]", _GPT), adds_bos=True)),
    ("gemma4 granite-embed-multi-311m", replace(_LINES, needs_bos=True)),
    ("sarvam-moe", _LINES),
    ("default", WordSplit((
        r"[\p{P}\$\+<=>\^~\|]+", _GPT, r"\p{N}+", "[0-9][0-9][0-9]"))),
)

SPLITS: Mapping[str, WordSplit] = MappingProxyType({
    name: split for names, split in _ROWS for name in names.split()
})
