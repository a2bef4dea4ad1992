"""`python -m baregrad` is the `baregrad` command."""

from __future__ import annotations

import sys

from baregrad.cli import main

if __name__ == "__main__":
    sys.exit(main())
