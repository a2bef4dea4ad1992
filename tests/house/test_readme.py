"""What the documents say is true: programs run, commands and files exist."""

from __future__ import annotations

import fnmatch
import re
import subprocess
import sys
from pathlib import Path

import pytest

from baregrad.apps.bench_cpu import CPU_ROWS
from baregrad.apps.bench_table import put_table, read_records
from baregrad.base.options import PREFIX, options
from baregrad.cli.dispatch import COMMANDS
from tests.house.source import PACKAGE, ROOT
from tests.house.test_layers import RANKS

README = (ROOT / "README.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_programs_of_the_readme_run(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_two_commands_come_first() -> None:
    block = re.findall(r"```\n(.*?)```", README, re.DOTALL)[0].splitlines()
    assert [line.split()[:2] for line in block] == [["make", "demo"], ["make", "test"]]


def test_the_table_of_speeds_is_what_was_measured() -> None:
    records = read_records(ROOT / "benchmarks" / "cpu.json")
    assert put_table(README, records) == README
    assert not records["quick"]
    assert not [row["name"] for row in records["rows"] if row.get("wrong")]
    measured = [row["name"] for row in records["rows"]]
    assert [row.name for row in CPU_ROWS if row.name not in measured] == []


def test_every_command_is_listed() -> None:
    told = set(re.findall(r"^\| `baregrad (\w+)", README, re.MULTILINE))
    assert told == {one.name for one in COMMANDS}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    prose = re.sub(r"```.*?```|^    [^\n]*$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\(([^)#]+)\)", prose)
    missing = [one for one in links if "://" not in one and not (path.parent / one).exists()]
    assert missing == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_are_named_exist(path: Path) -> None:
    """A file is named by its path in the repository, in the package, or by its last parts."""
    folders = ("baregrad", "tests", "benchmarks")
    files = [str(one) for folder in folders for one in (ROOT / folder).rglob("*.*")]
    named = re.findall(r"(?<![\w.])[\w/*]+\.(?:py|json)\b", code_of(path.read_text()))
    # What a user's own program and files are called.
    users = ("train.py", "nanogpt.py", "FILE.py", "config.json", "tokenizer.json")
    named = [one for one in named if one not in users]
    missing = [one for one in named if not fnmatch.filter(files, f"*/{one}")]
    assert missing == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_options_that_are_named_exist(path: Path) -> None:
    named = set(re.findall(r"BAREGRAD_[A-Z_]*[A-Z]", path.read_text()))
    assert named <= {PREFIX + name.upper() for name in options.values()}


@pytest.mark.parametrize("page,room", [("nvidia-runtime", "nvidia"), ("cuda-device", "cuda")])
def test_every_file_of_a_runtime_is_in_its_table(page: str, room: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    told = {name for row in rows for name in re.findall(r"`([\w*/]+\.py)`", row)}
    files = (PACKAGE / "runtime" / room).glob("*.py")
    names = [file.name for file in files if file.name != "__init__.py"]
    assert [name for name in names if not any(fnmatch.fnmatch(name, one) for one in told)] == []


def test_the_ranks_told_are_the_ranks_checked() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    told = {}
    for rank, rooms in re.findall(r"^\| ([\d.]+) \| (.*) \|$", text, re.MULTILINE):
        for room in re.findall(r"`(\w+)(?:\.py)?`", rooms):
            told[room] = float(rank)
    checked = {room: rank for room, rank in RANKS.items() if room and room != "__main__"}
    assert told == checked


def code_of(text: str) -> str:
    """Return the parts of a document that are set as code."""
    blocks = re.findall(r"```.*?```|^    [^\n]*$|`[^`]+`", text, re.DOTALL | re.MULTILINE)
    return "\n".join(blocks)


def test_make_targets_that_are_told_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for path in DOCUMENTS:
        for target in re.findall(r"`?make (\w+)(?=[`\s])", code_of(path.read_text())):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_passes_told_are_the_passes_run() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    row = r"^\| `([\w-]+)` \| (?:tensor|kernel|loop|linear)[^|]*\| (.*) \|$"
    told = re.findall(row, text.partition("## Passes")[2], re.MULTILINE)
    listed = subprocess.run(
        [sys.executable, "-m", "baregrad", "explain", "--list"], cwd=ROOT,
        capture_output=True, text=True, check=True,
    ).stdout
    assert told == [tuple(line.split(maxsplit=1)) for line in listed.splitlines()]
