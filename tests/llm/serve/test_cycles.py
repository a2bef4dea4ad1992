"""Servers and engines that are started and stopped leave nothing behind."""

from __future__ import annotations

import gc
import http.client
import json
import logging
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn

from baregrad.llm.generation.engine import AnswerEngine
from baregrad.llm.generation.paged_cache import PagedCache
from baregrad.llm.generation.sampling import Sampling
from baregrad.llm.generation.stepper import Stepper
from baregrad.llm.serve import application
from baregrad.llm.text.templates import ChatTemplate
from tests.llm.generation.stand_in import WORDS, ByteTokenizer, SmallDecoder

BODY = json.dumps({"prompt": [1, 2, 3], "max_tokens": 2, "temperature": 0})


@pytest.fixture(scope="module")
def stepper() -> Stepper:
    decoder = SmallDecoder()
    return Stepper(
        decoder, PagedCache(decoder.cache_rows(), 9), WORDS, rows=2, chunk=16, context=64)


def left() -> tuple[int, int, float]:
    """Threads, open files, and memory in MiB."""
    gc.collect()
    files = sum(1 for _ in Path("/proc/self/fd").iterdir())
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return threading.active_count(), files, pages * 4096 / 2**20


def cycle(stepper: Stepper) -> str:
    """Start an engine and a server, ask once, and stop both."""
    engine = AnswerEngine(stepper, ByteTokenizer()).start()
    model: Any = SimpleNamespace(
        name="small", tokenizer=ByteTokenizer(), template=None, engine=engine,
        sampling=lambda **chosen: Sampling(**chosen),
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(application(model), log_config=None))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        asking = http.client.HTTPConnection("127.0.0.1", listening.getsockname()[1], timeout=60)
        asking.request("POST", "/v1/completions", BODY, {"content-type": "application/json"})
        answer = json.loads(asking.getresponse().read())
        asking.close()
        server.should_exit = True
        thread.join(60)
    engine.close()
    assert not thread.is_alive()
    return str(answer["choices"][0]["text"])


def test_a_few_cycles_leave_no_thread_and_no_file(stepper: Stepper) -> None:
    logging.getLogger("baregrad.serve").setLevel(logging.ERROR)
    text = cycle(stepper)
    threads, files, _ = left()
    assert {cycle(stepper) for _ in range(3)} == {text}
    assert left()[:2] == (threads, files)


@pytest.mark.slow
def test_a_thousand_cycles_leave_nothing(stepper: Stepper) -> None:
    logging.getLogger("baregrad.serve").setLevel(logging.ERROR)
    texts = {cycle(stepper) for _ in range(100)}
    threads, files, memory = left()
    texts |= {cycle(stepper) for _ in range(900)}
    now = left()
    assert len(texts) == 1
    assert now[:2] == (threads, files)
    assert now[2] < memory + 8, f"{memory:.1f} MiB became {now[2]:.1f} MiB"


@pytest.mark.slow
def test_templates_leave_no_process() -> None:
    processes = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    before, files = processes.read_text(encoding="ascii"), left()[1]
    for _ in range(30):
        template = ChatTemplate("{{ messages[0].content }}")
        assert template.render([{"role": "user", "content": "hi"}]) == "hi"
        template.close()
    assert processes.read_text(encoding="ascii") == before
    assert left()[1] == files
