"""Load on a server: many streams at once for minutes, clients that leave, a worker that is killed.

    python benchmarks/serve_load.py MODEL.gguf [--seconds 180] [--streams 200]

Starts `baregrad serve` on loopback. Each client asks one of a few prompts, greedily, and reads the
stream; some leave in the middle. Whole answers have to be those that the server gave before the
load began, when it was asked one at a time. Half-way the process that renders chat templates is
killed. Prints what was answered, refused (429) and left, and the server's memory, threads and open
files over time. The exit status is 1 where an answer was lost, wrong, or not ended in its form,
where memory grows by more than GROWTH from the first third of the time to the last, or where the
server does not come to rest: pages of answers that have ended are computed for the next turn, and
all have to be free in the end, however slowly. Nothing here is a speed: `nice` it on a machine that
others use.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROMPTS = tuple(
    f"{what} {thing}." for what in ("Tell me about", "Write a line on", "What is the use of")
    for thing in ("the sea", "old trees", "a clock", "tea")
)
ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
_LEAVES = 0.25
# MiB: what an allocator may keep of streams that were open at once, and no leak of a stream's own.
GROWTH = 16
# Seconds without a step of the engine, after which nothing more is to come.
_REST_SECONDS = 60.0
_SAMPLE_SECONDS = 5.0


@dataclass
class Load:
    """What happened under load."""

    port: int
    rng: random.Random
    until: float = 0.0
    wanted: dict[tuple[str, str, int], str] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def body_of(path: str, prompt: str, tokens: int) -> dict[str, Any]:
    """Return a request for a greedy answer in a stream."""
    common = {"temperature": 0, "stream": True}
    if path == "/v1/completions":
        return {**common, "prompt": prompt, "max_tokens": tokens}
    if path == "/v1/responses":
        return {**common, "input": prompt, "max_output_tokens": tokens}
    return {**common, "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens}


def text_of(path: str, data: Any) -> str:
    """Return the text that an event adds."""
    if path == "/v1/completions":
        return "".join(choice["text"] for choice in data["choices"])
    if path == "/v1/chat/completions":
        return "".join(choice["delta"].get("content") or "" for choice in data["choices"])
    if path == "/v1/responses":
        return str(data["delta"]) if data["type"] == "response.output_text.delta" else ""
    return str(data["delta"]["text"]) if data["type"] == "content_block_delta" else ""


def is_last(path: str, text: str) -> bool:
    """Whether an event is the one that a whole answer ends with."""
    if path.endswith("completions"):
        return text == "[DONE]"
    kind = json.loads(text)["type"]
    return kind in ("message_stop", "response.completed", "response.incomplete")


async def ask(
    port: int, path: str, prompt: str, tokens: int, leave_after: int | None = None
) -> tuple[int, str | None]:
    """Return the status and the text; None for an answer that did not end in its form."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        data = json.dumps(body_of(path, prompt, tokens)).encode()
        writer.write(
            f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            f"connection: close\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data
        )
        status = int((await reader.readline()).split()[1])
        if status != 200:
            return status, None
        text, count, is_whole = "", 0, False
        while line := await reader.readline():
            if not line.startswith(b"data: "):
                continue
            event = line[6:].decode().strip()
            is_whole = is_last(path, event)
            if event != "[DONE]":
                text += text_of(path, json.loads(event))
            count += 1
            if leave_after is not None and count >= leave_after:
                return status, None
        return status, text if is_whole else None
    finally:
        writer.close()


async def client(load: Load) -> None:
    """Ask until the time is over."""
    while time.monotonic() < load.until:
        key = load.rng.choice(list(load.wanted))
        leaves = load.rng.randrange(1, 6) if load.rng.random() < _LEAVES else None
        try:
            status, text = await ask(load.port, *key, leaves)
        except (OSError, ValueError, IndexError, KeyError) as error:
            load.wrong.append(f"{key}: {type(error).__name__}: {error}")
            continue
        if status == 429:
            load.seen["refused"] += 1
            await asyncio.sleep(load.rng.uniform(0.5, 2))
        elif status != 200:
            load.wrong.append(f"{key}: status {status}")
        elif leaves is not None:
            load.seen["left"] += 1
        elif text != load.wanted[key]:
            load.wrong.append(f"{key}: {text!r} instead of {load.wanted[key]!r}")
        else:
            load.seen["answered"] += 1


def figures(pid: int) -> dict[str, float]:
    """Return a process's memory in MiB, its threads and its open files."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    values = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    return {
        "memory_mib": int(values["VmRSS"].split()[0]) / 1024, "threads": int(values["Threads"]),
        "files": sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()),
    }


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(word) for word in text.split()]


async def metrics(port: int) -> dict[str, float]:
    """Return the server's own counts."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    lines = (await reader.read()).decode().splitlines()
    writer.close()
    rows = [line.split() for line in lines if line.startswith("baregrad_")]
    return {name: float(value) for name, value in rows}


async def watch(load: Load, pid: int, samples: list[dict[str, float]]) -> None:
    """Note figures now and then, and kill the template's process half-way."""
    begun, killed = time.monotonic(), False
    while time.monotonic() < load.until:
        samples.append({"seconds": round(time.monotonic() - begun), **figures(pid)})
        print(samples[-1], dict(load.seen), f"{len(load.wrong)} wrong", flush=True)
        if not killed and time.monotonic() - begun > (load.until - begun) / 2:
            killed = True
            for child in children(pid):
                os.kill(child, signal.SIGKILL)
                print("killed", child, flush=True)
        await asyncio.sleep(_SAMPLE_SECONDS)


def is_at_rest(counts: dict[str, float]) -> bool:
    """Whether nothing runs or waits, and nobody owns a page."""
    is_idle = not counts["baregrad_running"] and not counts["baregrad_waiting"]
    return is_idle and counts["baregrad_pages_free"] == counts["baregrad_pages"]


async def rest(port: int) -> dict[str, float]:
    """Return the server's counts when it is at rest, or has taken no step for _REST_SECONDS."""
    steps, moved = -1.0, time.monotonic()
    while not is_at_rest(counts := await metrics(port)):
        if counts["baregrad_steps_total"] != steps:
            steps, moved = counts["baregrad_steps_total"], time.monotonic()
        elif time.monotonic() - moved > _REST_SECONDS:
            break
        await asyncio.sleep(0.5)
    return counts


async def run(load: Load, pid: int, seconds: float, streams: int) -> bool:
    """Load a server that listens; whether all was as it has to be."""
    while True:
        try:
            await metrics(load.port)
            break
        except OSError:
            await asyncio.sleep(0.5)
    for prompt in PROMPTS:
        path, tokens = load.rng.choice(ENDPOINTS), load.rng.randrange(2, 14)
        _, text = await ask(load.port, path, prompt, tokens)
        if text is None:
            raise SystemExit(f"{path} does not answer {prompt!r}")
        load.wanted[path, prompt, tokens] = text
    load.until = time.monotonic() + seconds
    samples: list[dict[str, float]] = []
    before = figures(pid)
    await asyncio.gather(watch(load, pid, samples), *(client(load) for _ in range(streams)))
    counts = await rest(load.port)
    if not is_at_rest(counts):
        load.wrong.append(f"the server does not come to rest: {counts}")
    print("before", before, "after", figures(pid))
    print({name: value for name, value in counts.items() if value})
    third = max(len(samples) // 3, 1)
    early, late = (
        max(each["memory_mib"] for each in part) for part in (samples[:third], samples[-third:])
    )
    print(f"memory {early:.0f} MiB in the first third, {late:.0f} MiB in the last")
    if late > early + GROWTH:
        load.wrong.append(f"memory grows by {late - early:.0f} MiB")
    print(dict(load.seen), f"{len(load.wrong)} wrong")
    print("\n".join(load.wrong[:20]))
    return not load.wrong and load.seen["answered"] > 0


def main() -> int:
    """Run the load; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--answers", type=int, default=16)
    given = parser.parse_args()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "baregrad", "serve", given.file, "--port", str(port),
        "--context", "256", "--answers", str(given.answers), "--contexts", "16",
        "--waiting", str(given.streams * 3 // 4),
    ]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        try:
            load = Load(port, random.Random(0))
            is_right = asyncio.run(run(load, server.pid, given.seconds, given.streams))
        finally:
            server.send_signal(signal.SIGINT)
            print("the server ended with", server.wait(60))
    return 0 if is_right else 1


if __name__ == "__main__":
    raise SystemExit(main())
