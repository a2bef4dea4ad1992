"""The zip reader, against Python's zipfile and archives that lie."""

from __future__ import annotations

import io
import struct
import warnings
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baregrad.base.errors import FileFormatError
from baregrad.io.zip_archive import ZipArchive

LIMIT = 1 << 20


def pack(members: list[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", method) as file:
        warnings.simplefilter("ignore")
        for name, data in members:
            file.writestr(name, data)
    return buffer.getvalue()


def read(data: bytes, limit: int = LIMIT) -> ZipArchive:
    return ZipArchive(memoryview(data), "a.zip", limit)


@pytest.mark.differential
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_reads_what_python_writes(method):
    members = [("a", b""), ("b/c.txt", b"hello" * 99), ("b/ü", bytes(range(256)))]
    archive = read(pack(members, method))
    assert list(archive.members) == [name for name, _ in members]
    for name, data in members:
        assert bytes(archive.raw(name)) == data


@pytest.mark.differential
def test_reads_streamed_and_64_bit_archives():
    buffer = io.BytesIO()

    class Stream(io.RawIOBase):
        """No seeking back: sizes then follow the data and local headers hold zeros."""

        def writable(self) -> bool:
            return True

        def write(self, data: bytes) -> int:
            return buffer.write(data)

    with zipfile.ZipFile(Stream(), "w") as file, file.open("a", "w", force_zip64=True) as member:
        member.write(b"12345")
    assert bytes(read(buffer.getvalue()).raw("a")) == b"12345"


def test_64_bit_sizes_in_the_directory():
    """An archive of one byte whose directory leaves every size to the zip64 records."""
    local = struct.pack("<IHHHHHIIIHH", 0x04034B50, 45, 0, 0, 0, 0, 0, 1, 1, 1, 0) + b"a" + b"!"
    extra = struct.pack("<HHHHH", 0x9999, 2, 7, 0x0001, 24) + struct.pack("<QQQ", 1, 1, 0)
    central = struct.pack(
        "<IHHHHHHIIIHHHHHII",
        *(0x02014B50, 45, 45, 0, 0, 0, 0, 0, 0xFFFFFFFF, 0xFFFFFFFF, 1, len(extra)),
        *(0, 0, 0, 0, 0xFFFFFFFF),
    )
    central += b"a" + extra
    end64_at = len(local) + len(central)
    end64 = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, 1, 1, len(central), len(local))
    locator = struct.pack("<IIQI", 0x07064B50, 0, end64_at, 1)
    end = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    sound = local + central + end64 + locator + end
    assert zipfile.ZipFile(io.BytesIO(sound)).namelist() == ["a"]
    assert bytes(read(sound).raw("a")) == b"!"
    with pytest.raises(FileFormatError, match="no zip64 sizes"):
        read(sound.replace(struct.pack("<HH", 0x0001, 24), struct.pack("<HH", 0x0001, 8)))
    with pytest.raises(FileFormatError, match="is cut short: found data to byte"):
        read(sound.replace(struct.pack("<QQQ", 1, 1, 0), struct.pack("<QQQ", 1 << 60, 1 << 60, 0)))


def central_at(data: bytes) -> int:
    return data.rfind(b"PK\x01\x02")


def patched(data: bytes, offset: int, value: bytes) -> bytes:
    return data[:offset] + value + data[offset + len(value) :]


ONE = pack([("name", b"12345678")])
SQUEEZED = pack([("name", bytes(5000))], zipfile.ZIP_DEFLATED)
AT = central_at(ONE)
HOSTILE = {
    "empty": (b"", "no end record"),
    "text": (b"hello" * 9, "no end record"),
    "cut": (ONE[:-1], "no end record|ends early"),
    "bytes after the end": (ONE + b"!", "ends early"),
    "bytes before the start": (b"!" + ONE, "out of place"),
    "encrypted": (patched(ONE, AT + 8, b"\x01\x00"), "found encryption"),
    "bzip2": (pack([("a", b"1")], zipfile.ZIP_BZIP2), "method 12, wanted stored"),
    "repeated name": (pack([("a", b"1"), ("a", b"2")]), "repeats a name: found 'a'"),
    "climbing name": (pack([("../a", b"1")]), "leaves its folder: found '../a'"),
    "climbing name inside": (pack([("a/../../b", b"1")]), "leaves its folder"),
    "absolute name": (pack([("/etc/passwd", b"1")]), "leaves its folder: found '/etc/passwd'"),
    "backslash name": (pack([("a\\..\\b", b"1")]), "leaves its folder"),
    "name not UTF-8": (
        pack([("é", b"1")]).replace("é".encode(), b"\xff\xff"),
        "without a readable name",
    ),
    "two names for one member": (patched(ONE, AT + 46, b"nome"), "contradicts itself"),
    "count too large": (patched(ONE, len(ONE) - 12, b"\xff\x7f"), "has a short directory"),
    "count too small": (patched(ONE, len(ONE) - 12, b"\x00\x00"), "directory: found 0 bytes"),
    "directory elsewhere": (patched(ONE, len(ONE) - 6, b"\x01\x00\x00\x00"), "out of place"),
    "second disk": (patched(ONE, len(ONE) - 18, b"\x01\x00"), "is split"),
    "giant name": (patched(ONE, AT + 28, b"\xff\xff"), "has a cut directory"),
    "header out of range": (patched(ONE, AT + 42, b"\xfe\xff\xff\xff"), "no member header"),
    "header of something else": (patched(ONE, AT + 42, b"\x04\x00\x00\x00"), "no member header"),
    "stored size too large": (patched(ONE, AT + 20, b"\xfe\xff\xff\xff"), "is cut short"),
    "stored sizes differ": (patched(ONE, AT + 24, b"\x07\x00\x00\x00"), "impossible size: found 7"),
    "inflation beyond deflate": (
        patched(SQUEEZED, central_at(SQUEEZED) + 24, b"\xfe\xff\xff\x7f"),
        "impossible size: found 2147483646",
    ),
    "64-bit sizes are missing": (patched(ONE, AT + 24, b"\xff" * 4), "no zip64 sizes"),
    "64-bit end is missing": (patched(ONE, len(ONE) - 6, b"\xff" * 4), "no zip64 locator"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_archive(case):
    data, message = HOSTILE[case]
    with pytest.raises(FileFormatError, match=message) as caught:
        read(data)
    assert "'a.zip'" in str(caught.value)
    assert caught.value.hint


def test_members_that_share_bytes():
    """A member whose data holds the whole of another member, both listed."""
    inner = pack([("in", b"12")])
    inner_local = inner[: inner.index(b"PK\x01\x02")]
    outer = pack([("out", inner_local)], zipfile.ZIP_STORED)
    start = outer.index(inner_local)
    entry = bytearray(inner[inner.index(b"PK\x01\x02") : inner.index(b"PK\x05\x06")])
    entry[42:46] = struct.pack("<I", start)
    directory = outer[outer.rindex(b"PK\x01\x02") : outer.index(b"PK\x05\x06")] + bytes(entry)
    begin = outer.rindex(b"PK\x01\x02")
    end = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 2, 2, len(directory), begin, 0)
    with pytest.raises(FileFormatError, match="overlaps itself: found 'in' inside 'out'"):
        read(outer[:begin] + directory + end)


def test_inflation_is_bounded_and_must_match():
    archive = read(SQUEEZED, limit=6000)
    assert bytes(archive.raw("name")) == bytes(5000)
    # The limit is for the archive as a whole.
    with pytest.raises(FileFormatError, match=r"found 5000 bytes from .*, wanted at most 1000"):
        archive.raw("name")
    with pytest.raises(FileFormatError, match="wanted at most 10"):
        read(SQUEEZED).raw("name", 10)
    at = central_at(SQUEEZED) + 24
    for size in (4999, 5001):
        lying = read(patched(SQUEEZED, at, struct.pack("<I", size)))
        with pytest.raises(FileFormatError, match=f"another size, wanted {size}"):
            lying.raw("name")
    with pytest.raises(FileFormatError, match=r"invalid|another size"):
        read(patched(SQUEEZED, 34, b"\xff\xff\xff")).raw("name")


def test_missing_member():
    with pytest.raises(FileFormatError, match="lacks a member: found 1 others, wanted 'other'"):
        read(ONE).raw("other")


@pytest.mark.property
@settings(max_examples=500, deadline=None)
@given(data=st.data())
def test_corrupted_bytes_raise_only_our_error(data):
    content = bytearray(data.draw(st.sampled_from((ONE, SQUEEZED))))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.sampled_from((0, 1, 0x7F, 0xFF, content[at] ^ 1)))
    try:
        archive = read(bytes(content))
        for name, member in archive.members.items():
            assert len(archive.raw(name)) == member.nbytes
    except FileFormatError as error:
        assert str(error)
