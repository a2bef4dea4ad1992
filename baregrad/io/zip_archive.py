"""Zip archives read from memory, with every length checked before it is believed.

Members stored without compression are slices of the archive; compressed ones are inflated up to a
stated limit. Names are keys and never become paths. Source: PKWARE APPNOTE.TXT, sections 4.3
(records), 4.4 (fields) and 4.5.3 (the zip64 extra field).
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from baregrad.base.errors import FileFormatError
from baregrad.io.excerpt import excerpt

# Signature, fields in the order of the records.
_END = struct.Struct("<IHHHHIIH")
_END64_LOCATOR = struct.Struct("<IIQI")
_END64 = struct.Struct("<IQHHIIQQQQ")
_CENTRAL = struct.Struct("<IHHHHHHIIIHHHHHII")
_LOCAL = struct.Struct("<IHHHHHIIIHH")
_END_SIGNATURE = 0x06054B50
_END64_LOCATOR_SIGNATURE = 0x07064B50
_END64_SIGNATURE = 0x06064B50
_CENTRAL_SIGNATURE = 0x02014B50
_LOCAL_SIGNATURE = 0x04034B50
_MAX_COMMENT = 0xFFFF
_ZIP64_TAG = 0x0001
_FLAG_ENCRYPTED = 0x0001
_FLAG_UTF8 = 0x0800
_STORED = 0
_DEFLATED = 8
# No deflate stream grows by more than this: a 258-byte match costs at least two bits.
_MAX_DEFLATE_RATIO = 1032
_DAMAGED = "the file is damaged or hostile: fetch or save it again"


@dataclass(frozen=True, slots=True)
class Member:
    """One member: `offset` is where its data starts; sizes are in bytes."""

    name: str
    method: int
    offset: int
    stored_nbytes: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class _Record:
    """What the central directory says of a member, before its local header is looked at."""

    name: str
    raw_name: bytes
    method: int
    header_offset: int
    stored_nbytes: int
    nbytes: int


class ZipArchive:
    """The members of a zip archive held in `view`, checked on opening.

    `inflate_limit_nbytes` bounds all that is ever inflated from this archive. Raises
    FileFormatError, naming `path`, for broken, encrypted, split or self-overlapping archives,
    repeated names and names that climb out of a folder.
    """

    def __init__(self, view: memoryview, path: str, inflate_limit_nbytes: int) -> None:
        self.path = path
        self._view = view
        self._inflatable_nbytes = inflate_limit_nbytes
        self.members: dict[str, Member] = {}
        begin, end, count = self._directory()
        spans: list[tuple[int, int, str]] = []
        place = begin
        for _ in range(count):
            record, place = self._record(place, end)
            member = self._member(record, begin)
            if member.name in self.members:
                raise self._error(
                    "repeats a name", found=excerpt(member.name), wanted="each name once"
                )
            self.members[member.name] = member
            spans.append((record.header_offset, member.offset + member.stored_nbytes, member.name))
        if place != end:
            raise self._error("directory", found=f"{place - begin} bytes", wanted=f"{end - begin}")
        self._check_overlap(spans)

    def raw(self, name: str, limit_nbytes: int | None = None) -> memoryview:
        """Return the bytes of member `name`: a slice of the archive, or inflated where compressed.

        `limit_nbytes` bounds what this member may inflate to, beside the archive's own limit.
        Raises FileFormatError for a missing member, a wrong size and too large an inflation.
        """
        member = self.members.get(name)
        if member is None:
            raise self._error(
                "lacks a member", found=f"{len(self.members)} others", wanted=excerpt(name)
            )
        stored = self._view[member.offset : member.offset + member.stored_nbytes]
        if member.method == _STORED:
            return stored
        return memoryview(self._inflate(member, stored, limit_nbytes))

    def _inflate(self, member: Member, stored: memoryview, limit_nbytes: int | None) -> bytes:
        limit = self._inflatable_nbytes
        if limit_nbytes is not None:
            limit = min(limit, limit_nbytes)
        if member.nbytes > limit:
            raise self._error(
                f"member {excerpt(member.name)} inflates to too much",
                found=f"{member.nbytes} bytes from {member.stored_nbytes}",
                wanted=f"at most {limit}",
                hint="if you trust the file, store it uncompressed, as torch.save does",
            )
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            # One byte more than promised is enough to see that the promise was false.
            data = inflater.decompress(stored, member.nbytes + 1)
        except zlib.error as error:
            raise self._error(
                f"member {excerpt(member.name)}", found=str(error), wanted="a deflate stream"
            ) from error
        if len(data) != member.nbytes or not inflater.eof:
            raise self._error(
                f"member {excerpt(member.name)}",
                found="another size",
                wanted=f"{member.nbytes} bytes",
            )
        self._inflatable_nbytes -= len(data)
        return data

    def _error(
        self, message: str, *, found: object, wanted: object, hint: str = _DAMAGED
    ) -> FileFormatError:
        return FileFormatError(
            f"{self.path!r}: the zip archive {message}", found=found, wanted=wanted, hint=hint
        )

    def _unpack(self, fields: struct.Struct, offset: int, signature: int, what: str) -> list[int]:
        if offset < 0 or offset + fields.size > len(self._view):
            raise self._error(
                f"has no {what}", found=f"offset {offset}", wanted="a place in the file"
            )
        values = list(fields.unpack_from(self._view, offset))
        if values[0] != signature:
            raise self._error(
                f"has no {what} at byte {offset}",
                found=f"signature {values[0]:#010x}",
                wanted=f"{signature:#010x}",
            )
        return values

    def _directory(self) -> tuple[int, int, int]:
        """Return where the central directory begins and ends and how many members it lists."""
        size = len(self._view)
        tail_start = max(0, size - _END.size - _MAX_COMMENT)
        tail = bytes(self._view[tail_start:])
        at = tail.rfind(_END_SIGNATURE.to_bytes(4, "little"), 0, max(0, len(tail) - _END.size + 4))
        if at < 0:
            raise self._error(
                "has no end", found="no end record", wanted="one in the last 65557 bytes"
            )
        end_at = tail_start + at
        end = self._unpack(_END, end_at, _END_SIGNATURE, "end record")
        _, disk, first_disk, _, count, nbytes, begin, comment = end
        if end_at + _END.size + comment != size:
            raise self._error(
                "ends early", found="bytes after its end", wanted="a comment of their length"
            )
        if disk or first_disk:
            raise self._error("is split", found=f"disk {disk}", wanted="one file")
        locator = bytes(self._view[max(0, end_at - _END64_LOCATOR.size) : end_at][:4])
        wide = locator == _END64_LOCATOR_SIGNATURE.to_bytes(4, "little")
        # torch.save writes the 64-bit records always, others where a number needs them.
        if wide or count == 0xFFFF or 0xFFFFFFFF in (nbytes, begin):
            end_at, count, nbytes, begin = self._directory64(end_at)
        if begin + nbytes != end_at:
            raise self._error(
                "has a directory out of place",
                found=f"bytes {begin} to {begin + nbytes}",
                wanted=f"one that ends at {end_at}",
            )
        # Each entry takes a header at least, so the count cannot promise more than the file holds.
        if count * _CENTRAL.size > nbytes:
            raise self._error(
                "has a short directory", found=f"{nbytes} bytes", wanted=f"{count} entries"
            )
        return begin, begin + nbytes, count

    def _directory64(self, end_at: int) -> tuple[int, int, int, int]:
        locator_at = end_at - _END64_LOCATOR.size
        locator = self._unpack(
            _END64_LOCATOR, locator_at, _END64_LOCATOR_SIGNATURE, "zip64 locator"
        )
        end64_at = locator[2]
        end64 = self._unpack(_END64, end64_at, _END64_SIGNATURE, "zip64 end record")
        if end64[4] or end64[5]:
            raise self._error("is split", found=f"disk {end64[4]}", wanted="one file")
        return end64_at, end64[7], end64[8], end64[9]

    def _record(self, at: int, end: int) -> tuple[_Record, int]:
        """Read the directory entry at `at`; return it and where the next one starts."""
        values = self._unpack(_CENTRAL, at, _CENTRAL_SIGNATURE, "directory entry")
        flags, method, stored, size = values[3], values[4], values[8], values[9]
        name_size, extra_size, comment_size, header_offset = *values[10:13], values[16]
        name_at = at + _CENTRAL.size
        extra_at = name_at + name_size
        after = extra_at + extra_size + comment_size
        if after > end:
            raise self._error(
                "has a cut directory", found=f"entry to byte {after}", wanted=f"<= {end}"
            )
        raw_name = bytes(self._view[name_at:extra_at])
        name = self._name(raw_name, flags)
        if flags & _FLAG_ENCRYPTED:
            raise self._error(f"member {excerpt(name)}", found="encryption", wanted="plain data")
        if method not in (_STORED, _DEFLATED):
            raise self._error(
                f"member {excerpt(name)}", found=f"method {method}", wanted="stored or deflated"
            )
        extra = self._view[extra_at : extra_at + extra_size]
        size, stored, header_offset = self._widen(name, extra, size, stored, header_offset)
        return _Record(name, raw_name, method, header_offset, stored, size), after

    def _name(self, raw: bytes, flags: int) -> str:
        try:
            name = raw.decode("utf-8" if flags & _FLAG_UTF8 else "cp437")
        except UnicodeDecodeError as error:
            raise self._error(
                "has a member without a readable name", found=str(error), wanted="UTF-8"
            ) from error
        parts = name.replace("\\", "/").split("/")
        if name.startswith("/") or "\\" in name or ".." in parts or "\0" in name or not name:
            raise self._error(
                "has a member that leaves its folder", found=excerpt(name), wanted="a plain name"
            )
        return name

    def _widen(
        self, name: str, extra: memoryview, size: int, stored: int, offset: int
    ) -> tuple[int, int, int]:
        """Take 64-bit values from the zip64 extra field for those that say 0xffffffff."""
        narrow = [size, stored, offset]
        if 0xFFFFFFFF not in narrow:
            return size, stored, offset
        at = 0
        while at + 4 <= len(extra):
            tag, length = struct.unpack_from("<HH", extra, at)
            field = extra[at + 4 : at + 4 + length]
            at += 4 + length
            if tag == _ZIP64_TAG:
                wide = [value for (value,) in struct.iter_unpack("<Q", field[: length // 8 * 8])]
                wanted = narrow.count(0xFFFFFFFF)
                if len(field) != length or len(wide) < wanted:
                    break
                values = iter(wide)
                size, stored, offset = (
                    next(values) if value == 0xFFFFFFFF else value for value in narrow
                )
                return size, stored, offset
        raise self._error(
            f"member {excerpt(name)}", found="no zip64 sizes", wanted="a zip64 extra field"
        )

    def _member(self, record: _Record, data_end: int) -> Member:
        values = self._unpack(_LOCAL, record.header_offset, _LOCAL_SIGNATURE, "member header")
        name_at = record.header_offset + _LOCAL.size
        name_size, extra_size = values[9], values[10]
        local_name = bytes(self._view[name_at : name_at + name_size])
        if local_name != record.raw_name or values[3] != record.method:
            raise self._error(
                f"contradicts itself about member {excerpt(record.name)}",
                found=f"{excerpt(local_name)}, method {values[3]} in its header",
                wanted="what the directory says",
            )
        offset = name_at + name_size + extra_size
        if offset + record.stored_nbytes > data_end:
            raise self._error(
                f"member {excerpt(record.name)} is cut short",
                found=f"data to byte {offset + record.stored_nbytes}",
                wanted=f"at most {data_end}",
            )
        bound = record.stored_nbytes * (1 if record.method == _STORED else _MAX_DEFLATE_RATIO)
        stretched = record.nbytes > bound
        if stretched or (record.method == _STORED and record.nbytes != bound):
            raise self._error(
                f"member {excerpt(record.name)} has an impossible size",
                found=f"{record.nbytes} bytes from {record.stored_nbytes}",
                wanted=f"{bound}" if record.method == _STORED else f"at most {bound}",
            )
        return Member(record.name, record.method, offset, record.stored_nbytes, record.nbytes)

    def _check_overlap(self, spans: list[tuple[int, int, str]]) -> None:
        """Refuse members that share bytes: that is how small archives inflate to huge ones."""
        place = 0
        previous = ""
        for begin, end, name in sorted(spans):
            if begin < place:
                raise self._error(
                    "overlaps itself",
                    found=f"{excerpt(name)} inside {excerpt(previous)}",
                    wanted="none",
                )
            place, previous = end, name
