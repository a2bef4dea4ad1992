"""The `baregrad` command: a dispatch table of subcommands."""

from __future__ import annotations

from baregrad.cli.dispatch import main as main

__all__ = ["main"]
