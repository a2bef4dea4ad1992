"""When no search for cycles runs: threads that enter and leave, blocks in blocks, forks."""

from __future__ import annotations

import gc
import os
import threading

import pytest

from baregrad.base.collecting import Uncollected


def test_cycles_are_looked_for_again_when_the_last_thread_leaves() -> None:
    held = Uncollected()
    assert gc.isenabled()
    other_in, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with held:
            other_in.set()
            leave.wait(60)

    thread = threading.Thread(target=stay)
    with held:
        assert not gc.isenabled()
        thread.start()
        assert other_in.wait(60)
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()
    # Who had stopped it finds it stopped.
    gc.disable()
    try:
        with held:
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_block_inside_a_block_ends_with_the_outer_one() -> None:
    held = Uncollected()
    with held:
        with pytest.raises(ZeroDivisionError), held:
            raise ZeroDivisionError
        assert not gc.isenabled()
    assert gc.isenabled()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_is_searched() -> None:
    held = Uncollected()
    with held:
        child = os.fork()
        if not child:
            os._exit(0 if gc.isenabled() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert gc.isenabled()
