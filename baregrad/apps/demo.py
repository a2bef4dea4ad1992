"""`baregrad demo`: real models on real data, trained or run on any device."""

from __future__ import annotations

import argparse
from pathlib import Path

from baregrad.base.options import DEVICE_NAMES, options


def main(argv: list[str]) -> int:
    """Run one of the demonstrations; 1 where what it checks about itself does not hold."""
    words = _parser().parse_args(argv)
    with options.override(device=words.device or options.device):
        if words.demo == "digits":
            from baregrad.apps import digits

            settings = digits.Settings(epochs=words.epochs, seed=words.seed, is_jitted=words.jit)
            return digits.run(settings, words.output)
        if words.demo == "chat":
            from baregrad.apps import talk

            return talk.run(words.texts)
        from baregrad.apps import embed

        return embed.run(words.texts)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="baregrad demo",
        description="Train or run a real model: `demo digits`, `demo embed TEXT ...`, or "
        "`demo chat QUESTION ...`.",
    )
    demos = parser.add_subparsers(dest="demo", required=True, metavar="DEMO")
    digits = demos.add_parser(
        "digits", help="train a network on scanned digits and test it on a held-out fifth"
    )
    digits.add_argument("--epochs", type=_count, default=20, help="times through the training part")
    digits.add_argument("--seed", type=int, default=0, help="of initial values, order and dropout")
    digits.add_argument("--output", type=Path, help="keep the weights in this safetensors file")
    digits.add_argument(
        "--no-jit", dest="jit", action="store_false", help="run every step eagerly, without capture"
    )
    embed = demos.add_parser("embed", help="encode sentences and print how alike they are")
    embed.add_argument("texts", nargs="+", metavar="TEXT", help="a sentence")
    chat = demos.add_parser("chat", help="have a small language model answer questions")
    chat.add_argument("texts", nargs="+", metavar="QUESTION", help="a question")
    for one in (digits, embed, chat):
        one.add_argument(
            "--device", type=str.upper, choices=DEVICE_NAMES, help="default: the option DEVICE"
        )
    return parser


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value
