"""Cases one after the other: what is wrong with each."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator

from baregrad.base.errors import OutOfMemory
from baregrad.base.options import options
from baregrad.engine.session import Session, use_session
from baregrad.testing.fuzz_products.attentions import check_attention
from baregrad.testing.fuzz_products.cases import AttentionCase, Case, CaseLimits, drawn
from baregrad.testing.fuzz_products.contractions import check_contraction
from baregrad.testing.fuzz_workers import Chunk

SESSION_EVERY = 1000


def check_case(case: Case, seed: int) -> str | None:
    """Run a case; what is wrong with it, None for nothing. Where memory does not do, so be it."""
    try:
        if isinstance(case, AttentionCase):
            return check_attention(case, seed)
        return check_contraction(case, seed)
    except OutOfMemory:
        return None
    except Exception:  # noqa: BLE001 - whatever it is, it is the finding
        return traceback.format_exc().strip().splitlines()[-1]


def check_chunk(limits: CaseLimits, chunk: Chunk) -> Iterator[tuple[int, str | None]]:
    """Check the seeds of a chunk, in sessions of a thousand."""
    seeds = range(chunk.first, chunk.first + chunk.count)
    with options.override(device=chunk.device, cache=False):
        for start in range(0, len(seeds), SESSION_EVERY):
            with use_session(Session()):
                for seed in seeds[start : start + SESSION_EVERY]:
                    if chunk.end is not None and time.time() > chunk.end:
                        return
                    case = drawn(seed, limits)
                    problem = check_case(case, seed)
                    yield seed, None if problem is None else f"{case}: {problem}"


def crashed(seed: int, chunk: Chunk, how: str) -> str:
    """What is said of a seed at which its process died."""
    return f"the process ended by {how}"
