from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from baregrad.base.errors import ArgumentError, FileFormatError
from baregrad.ir.core.node import toposort
from baregrad.viz.documents import RecordedDocuments
from baregrad.viz.filed import Documents, FiledDocuments, save
from baregrad.viz.recording import Recording, record


def read(documents: Documents, name: str) -> Any:
    text = documents.get(name)
    assert text is not None
    return json.loads(text)


def test_a_graph_has_every_node_once_after_its_sources(
    documents: RecordedDocuments, recording: Recording
) -> None:
    for number, computation in enumerate(recording.computations):
        for at, one in enumerate(computation.passes):
            graph = read(documents, f"graph/{number}/{at}")
            order = toposort(one.sink)
            assert [graph["names"][op] for op in graph["op"]] == [node.op.name for node in order]
            assert len(set(graph["id"])) == len(order)
            seen: set[int] = set()
            for node, sources in zip(graph["id"], graph["src"], strict=True):
                assert set(sources) <= seen
                seen.add(node)


def test_nodes_keep_their_number_from_pass_to_pass(
    documents: RecordedDocuments, recording: Recording
) -> None:
    first, second = (read(documents, f"graph/0/{at}") for at in (0, 1))
    passes = recording.computations[0].passes
    shared = set(toposort(passes[0].sink)) & set(toposort(passes[1].sink))
    assert shared
    assert len(set(first["id"]) & set(second["id"])) == len(shared)


def test_the_summary_adds_up(documents: RecordedDocuments, recording: Recording) -> None:
    summary = read(documents, "summary")
    runs = [one["runs"] * one["least_ns"] for one in summary["computations"]]
    assert sum(one["least_ns"] for one in summary["lines"]) == pytest.approx(sum(runs))
    costs = [one["least_ns"] for one in summary["lines"]]
    assert costs == sorted(costs, reverse=True)
    assert summary["target"] == "sm_90a"
    (source,) = summary["files"].values()
    assert source[7].strip() == "loss = y.exp().sum()"


def test_a_plan_says_why_values_were_stored(documents: RecordedDocuments) -> None:
    plan = read(documents, "plan/0")
    stored = [one for one in plan["decisions"] if one["stored"]]
    assert stored
    assert all(one["reason"] for one in plan["decisions"])
    computed = {each for step in plan["steps"] for each in step["computes"]}
    assert any(one["of"] in computed for one in stored)


def test_a_kernel_has_its_reasons_loops_and_source(documents: RecordedDocuments) -> None:
    kernels = [name for name in documents.names() if name.startswith("kernel/")]
    for name in kernels:
        kernel = read(documents, name)
        assert "why" in kernel["choice"]
        assert kernel["loops"]
        assert ".visible .entry" in kernel["stages"][-1]["text"]


def test_machine_code_is_there_or_what_it_takes_is_said(documents: RecordedDocuments) -> None:
    machine = read(documents, "machine/0")
    assert any(".visible .entry" in line for line in machine["text"])
    if machine["missing"]:
        assert not machine["code"] and "nvidia-cuda" in machine["missing"]
    else:
        assert max(row[2] for row in machine["code"]) <= len(machine["text"])
        assert 0 < max(row[3] for row in machine["code"]) <= machine["registers"]


def test_a_command_list_launches_the_kernels_of_its_plan(
    documents: RecordedDocuments, recording: Recording
) -> None:
    for number, computation in enumerate(recording.computations):
        (compute, copies) = read(documents, f"words/{number}")["channels"]
        assert (compute["name"], copies["rows"]) == ("compute", [])
        told = [text for *_, work in compute["rows"] for kind, text in work if kind == "launch"]
        names = [one.found.kernel.arg.name for one in computation.steps]
        assert [text.split(":")[0] for text in told] == names
        places = [row[0] for row in compute["rows"]]
        assert places == sorted(set(places))


@pytest.mark.parametrize(
    "gpu", ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120"]
)
def test_every_generation_has_its_command_lists(gpu: str, tmp_path: Path) -> None:
    path = tmp_path / "sum.py"
    path.write_text("from baregrad import Tensor\nprint((Tensor([1.0, 2.0]) * 2).numpy())\n")
    made = RecordedDocuments(record(path, gpu))
    assert "commands" in read(made, "summary")["views"]
    (compute, _) = read(made, "words/0")["channels"]
    names = {row[1] for row in compute["rows"]}
    signal = "SEND_SIGNALING_PCAS_B" if gpu == "sm_75" else "SEND_SIGNALING_PCAS2_B"
    assert signal in names and not any(" method 0x" in name for name in names)
    (launch,) = (text for *_, work in compute["rows"] for kind, text in work if kind == "launch")
    assert re.match(r"map_2: launch of 0x\w+: grid \(1, 1, 1\), block \(\d+, 1, 1\)", launch)


def test_a_processor_s_machine_code_is_its_assembly(program: Path) -> None:
    machine = read(RecordedDocuments(record(program)), "machine/0")
    assert any("ret" in row[1] for row in machine["code"]) and not machine["missing"]


def test_a_file_holds_what_the_recording_does(
    documents: RecordedDocuments, tmp_path: Path
) -> None:
    path = tmp_path / "shown.viz"
    save(documents, path)
    filed = FiledDocuments(path)
    assert sorted(filed.names()) == sorted(documents.names())
    assert all(filed.get(name) == documents.get(name) for name in documents.names())
    assert filed.get("kernel/999") is None
    assert documents.get("kernel/999") is None
    assert documents.get("../secret") is None
    assert list(tmp_path.iterdir()) == [path]


def test_a_damaged_file_opens_with_what_is_whole_of_it(
    documents: RecordedDocuments, tmp_path: Path
) -> None:
    path, chance = tmp_path / "shown.viz", random.Random(4)
    save(documents, path)
    whole = path.read_bytes()
    opened = damaged = 0
    for turn in range(60):
        data = bytearray(whole)
        if turn % 4:
            for _ in range(3):
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        else:
            del data[chance.randrange(len(data)) :]
        path.write_bytes(data)
        try:
            found = FiledDocuments(path)
        except ArgumentError:
            continue
        opened += 1
        for name in found.names():
            try:
                text = found.get(name)
            except FileFormatError as error:
                damaged += 1
                assert "this part of the recording is damaged" in str(error)
            else:
                assert text == documents.get(name)
    assert opened and damaged


def test_other_files_are_refused_by_name(tmp_path: Path) -> None:
    text, other, old = tmp_path / "text", tmp_path / "other.zip", tmp_path / "old.zip"
    text.write_text("no archive")
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("summary.json", "[")
    with zipfile.ZipFile(old, "w") as archive:
        archive.writestr("summary.json", '{"format": 0}')
    # Behind a password, or so it says: flags in the entry and in the directory.
    locked = bytearray(old.read_bytes())
    locked[6] |= 1
    locked[locked.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "locked.zip").write_bytes(locked)
    for path in (text, other, tmp_path / "none", tmp_path / "locked.zip"):
        with pytest.raises(ArgumentError, match="no recording of a program"):
            FiledDocuments(path)
    with pytest.raises(ArgumentError, match="another version"):
        FiledDocuments(old)


def test_what_was_recorded_opens_without_the_compiler(
    documents: RecordedDocuments, tmp_path: Path
) -> None:
    save(documents, tmp_path / "shown.viz")
    text = (
        "import sys; from pathlib import Path\n"
        "from baregrad.viz.command import open_documents\n"
        "assert open_documents(Path(sys.argv[1])).get('summary')\n"
        "print([name for name in sys.modules if name.startswith('baregrad.kernel')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", text, str(tmp_path / "shown.viz")],
        capture_output=True, text=True, check=True,
    )
    assert done.stdout == "[]\n"
