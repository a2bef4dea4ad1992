"""The command list of a computation as a document: each word that a GPU reads, and what it does.

The list is made by the runtime itself, on the virtual GPU, and is not submitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from baregrad.engine.compiler import Compiler
from baregrad.engine.executor import Executable
from baregrad.runtime.nvidia.abi.vendor import VendorTables, load_tables
from baregrad.runtime.nvidia.device import LoadedKernel, NvDevice
from baregrad.runtime.nvidia.driver.port import open_port
from baregrad.runtime.nvidia.lists.list_image import ListImage
from baregrad.runtime.nvidia.lists.list_launches import ImageKind
from baregrad.runtime.nvidia.lists.list_plan import plan_list
from baregrad.runtime.nvidia.queue.push_decoder import PushDecoder, PushedWork, methods_of
from baregrad.schedule import Plan

_COMPUTE, _COPY = 1, 4
_RELEASE = "580.95.05"


def words_document(plan: Plan, compiler: Compiler, variables: Mapping[str, int]) -> Any:
    """Return the words of each channel: place, method by name, data, and what was done by it.

    Launches have the name of their kernel and its number in the plan, from 0.
    """
    device = NvDevice(port=open_port("virtual", architecture=compiler.target.name))
    try:
        # A real run's kernels are loaded on its own device.
        executable = Executable(plan, device, compiler.elsewhere())
        commands = device.command_list()
        executable.record(commands, executable.place, variables)
        recorded = commands.commands
        listed = plan_list(
            recorded, serial=False, timed=False, stamped=False, skipped=frozenset()
        )
        image = ListImage(recorded, listed, ImageKind(), device.style, *device.work.pair)
        try:
            return _document(device, image, executable)
        finally:
            image.close()
    finally:
        device.close()


def _document(device: NvDevice, image: ListImage, executable: Executable) -> Any:
    tables = load_tables(_RELEASE)
    generation = device.work.pair[0].gpu.generation
    bound = {_COMPUTE: generation.compute_class, _COPY: generation.copy_class}
    kernels = {
        launch.kernel.handle.kernel.address: launch.kernel.program.name
        for launch in executable.launches if isinstance(launch.kernel.handle, LoadedKernel)
    }  # fmt: skip
    channels = []
    for name, words in zip(("compute", "copies"), image.words, strict=True):
        decoder = PushDecoder(tables, image.read, dict(bound))
        channels.append({"name": name, "rows": _rows(decoder, tables, words, kernels)})
    return {"channels": channels}


def _rows(
    decoder: PushDecoder, tables: VendorTables, words: Sequence[int], kernels: Mapping[int, str]
) -> list[Any]:
    rows: list[Any] = []
    begin = 0
    for place, channel, method, data in methods_of(words):
        # Up to this word, so that what it does stands beside it.
        chunk = np.array(words[begin : place + 1], np.uint32).tobytes()
        begin = place + 1
        work = list(decoder.feed(chunk))
        rows.append([place, decoder.name(channel, method), data,
                     [[one.kind, _told(one, kernels)] for one in work]])  # fmt: skip
    return rows


def _told(work: PushedWork, kernels: Mapping[int, str]) -> str:
    name = kernels.get(int(str(dict(work.values).get("program", -1))), "")
    return f"{name}: {work.text}" if name else work.text
