"""What the page draws, pixel by pixel, beside pictures that are worked out here from the same data.

Text is left out of the comparison, since fonts are the machine's own; colours may differ by a few
steps, edges by a pixel. Nothing is stored that would have to be renewed.
"""

from __future__ import annotations

import colorsys
import json
import re
import struct
import subprocess
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from baregrad.viz import server
from baregrad.viz.documents import RecordedDocuments
from baregrad.viz.timeline import TimelineDocuments
from tests.viz.test_page import BROWSER, Given, large_graph, page, served

pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no chromium to show the page in")

Picture = npt.NDArray[np.int64]
WIDTH, HEIGHT = 1000, 420
# Writes down where the picture lies in the window, and every box of a graph.
PLACES = """
addEventListener("load", () => setTimeout(() => {
  const place = (one) => {
    const at = one.getBoundingClientRect();
    return [at.x, at.y, at.width, at.height];
  };
  const boxes = [...document.querySelectorAll("svg .box")].map(
    (one) => [one.getAttribute("class"), ...place(one.querySelector("rect"))]);
  const canvas = document.querySelector("#middle canvas, #middle svg");
  document.body.dataset.places = JSON.stringify({ picture: canvas ? place(canvas) : [], boxes });
}, 1500));
"""


def read_png(data: bytes) -> Picture:
    """Decode a picture of 8 bits a colour that is not interlaced: (height, width, 3 or 4)."""
    at, body, shape = 8, b"", (0, 0, 0)
    while at < len(data):
        nbytes, kind = struct.unpack_from(">I4s", data, at)
        if kind == b"IHDR":
            width, height, *form = struct.unpack_from(">IIBBBBB", data, at + 8)
            depth, colours, _, _, interlaced = form
            assert (depth, interlaced) == (8, 0) and colours in (2, 6)
            shape = (height, width, 3 if colours == 2 else 4)
        elif kind == b"IDAT":
            body += data[at + 8 : at + 8 + nbytes]
        at += nbytes + 12
    height, width, count = shape
    rows = np.frombuffer(zlib.decompress(body), np.uint8).reshape(height, 1 + width * count)
    result = np.zeros((height, width, count), np.int64)
    above = np.zeros((width, count), np.int64)
    for number, row in enumerate(rows):
        kind, line = int(row[0]), row[1:].reshape(width, count).astype(np.int64)
        if kind == 1:
            line = np.cumsum(line, 0) % 256
        elif kind == 2:
            line = (line + above) % 256
        elif kind:
            line = _slow(kind, line, above)
        result[number] = above = line
    return result


def _slow(kind: int, line: Picture, above: Picture) -> Picture:
    """The two filters of a row in which each byte needs the one before it."""
    count, values = line.shape[1], [0] * line.shape[1] + line.reshape(-1).tolist()
    upper = [0] * count + above.reshape(-1).tolist()
    for x in range(count, len(values)):
        left, up = values[x - count], upper[x]
        if kind == 3:
            guess = (left + up) // 2
        else:
            corner = upper[x - count]
            far = (abs(up - corner), abs(left - corner), abs(left + up - 2 * corner))
            guess = (left, up, corner)[far.index(min(far))]
        values[x] = (values[x] + guess) & 255
    return np.array(values[count:]).reshape(line.shape)


def seen(url: str, spot: str, folder: Path, *flags: str) -> Picture:
    """The window as it is drawn."""
    assert BROWSER is not None
    path = folder / "seen.png"
    subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--screenshot={path}",
         f"--window-size={WIDTH},{HEIGHT}", "--hide-scrollbars", "--force-device-scale-factor=1",
         f"--user-data-dir={folder / 'browser'}", "--virtual-time-budget=10000", *flags,
         f"{url}#{spot}"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return read_png(path.read_bytes())[..., :3]


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> None:
    original = server.page_file
    monkeypatch.setattr(
        server, "page_file",
        lambda name: original(name) + (PLACES.encode() if name == "app.js" else b""),
    )


def told(url: str, spot: str, folder: Path) -> dict[str, Any]:
    """Where the page says that its picture and its boxes lie."""
    shown = page(url, spot, folder / "browser", (WIDTH, HEIGHT))
    (found,) = re.findall(r'<body[^>]*data-places="([^"]*)"', shown)
    return dict(json.loads(found.replace("&quot;", '"')))


def colour(name: int, dark: bool = False) -> Picture:
    """The colour of the name of a number, by the rule that neighbours differ most."""
    red, green, blue = colorsys.hls_to_rgb(name * 137.5 % 360 / 360, 0.42 if dark else 0.72, 0.55)
    return np.array([round(255 * one) for one in (red, green, blue)])


def is_like(picture: Picture, wanted: Picture) -> npt.NDArray[np.bool_]:
    """Whether each pixel is of a colour, but for a few steps."""
    return np.asarray(np.abs(picture - wanted).max(-1) <= 6)


# Begin and end in microseconds, a name of low letters. The second lies in the first, the last is
# narrower than a pixel.
STRETCHES = ((0, 40, "a"), (10, 20, "e"), (50, 70, "e"), (72, 90, "a"), (99.95, 100, "c"))
HELD = ((0, 1000), (30, 3000), (60, 2000))


def profile(folder: Path) -> TimelineDocuments:
    rows: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "NV kernels"}}
    ]
    rows += [{"ph": "X", "name": name, "pid": 1, "tid": 2, "ts": begin, "dur": end - begin}
             for begin, end, name in STRETCHES]  # fmt: skip
    rows += [{"ph": "C", "name": name, "pid": 1, "ts": at, "args": {"bytes": value // part}}
             for name, part in (("NV memory", 1), ("NV memory of a.py:3", 2)) for at, value in HELD]
    path = folder / "p.json"
    path.write_text(json.dumps({"traceEvents": rows}))
    return TimelineDocuments(path)


@pytest.mark.parametrize("dark", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_stretches_lie_where_their_times_are(dark: bool, places: None, tmp_path: Path) -> None:
    documents = profile(tmp_path)
    texts = json.loads(documents.get("timeline") or b"{}")["texts"]
    with served(documents) as url:
        flags = ["--blink-settings=preferredColorScheme=0"] if dark else []
        picture = seen(url, "view=timeline", tmp_path, *flags)
        x, y, width, _ = map(round, told(url, "view=timeline", tmp_path)["picture"])
    ground = picture[y + 1, x + width * 3 // 4]
    assert (ground.max() < 60) if dark else (ground.min() > 240)
    # Below a row of 22 pixels for times and one of 15 for the lane's name; rows are 17 apart.
    for row, depth in ((22 + 15, 0), (22 + 15 + 17, 1)):
        # Above and below what is written in a stretch.
        for at in (row + 1, row + 13):
            line = picture[y + at, x : x + width]
            wanted = np.tile(ground, (width, 1))
            sure = np.ones(width, bool)
            for begin, end, name in STRETCHES:
                if (begin == 10) != bool(depth):
                    continue
                first, last = begin * width / 100, max(end * width / 100, begin * width / 100 + 1)
                wanted[round(first) : round(last)] = colour(texts.index(name), dark)
                # A stretch of half a pixel has the colour of what it covers as well.
                slack = 1 if end - begin > 1 else 2
                for edge in (first, last):
                    sure[max(round(edge) - slack, 0) : round(edge) + slack] = False
            painted = np.abs(wanted - ground).max(-1) > 6
            wrong = np.flatnonzero(~is_like(line, wanted) & sure & painted)
            assert not len(wrong), (row, at, wrong, line[wrong], wanted[wrong])
            # Lines for times are faint, and are those of the ruler.
            assert (np.abs(line - ground).max(-1)[sure & ~painted] < 60).all()
    # Memory is a curve of 46 pixels, below another name.
    top = 22 + 15 + 2 * 17 + 6 + 15
    for (begin, value), end in zip(HELD, (30, 60, 100), strict=True):
        column = picture[y + top : y + top + 46, x + round((begin + end) / 200 * width)]
        height = int((np.abs(column - ground).max(-1) > 60).sum())
        assert abs(height - 46 * value / 3000) <= 1


@pytest.mark.slow
def test_owners_of_memory_have_their_heights(places: None, tmp_path: Path) -> None:
    with served(profile(tmp_path)) as url:
        picture = seen(url, "view=memory", tmp_path)
        x, y, width, height = map(round, told(url, "view=memory", tmp_path)["picture"])
    assert height == 300
    # What lies below the window is not in the picture of it.
    for (begin, value), end in zip(HELD, (30, 60, 100), strict=True):
        column = picture[y + 20 : y + 300, x + round((begin + end) / 200 * width) + 2]
        owned = int(is_like(column, colour(1)).sum())
        others = int(is_like(column, np.array([140, 140, 140])).sum())
        shown = len(column)
        whole = 280 * value / 3000
        assert abs(owned - min(whole / 2, max(shown - 280 + whole, 0))) <= 2
        assert abs(others - max(whole / 2 - (280 - shown), 0)) <= 2


@pytest.mark.slow
def test_boxes_of_a_graph_are_drawn_where_the_page_says(
    places: None, documents: RecordedDocuments, tmp_path: Path
) -> None:
    given = Given({f"graph/0/{number}": large_graph(5, 5) for number in (0, 1)}, documents)
    with served(given) as url:
        picture = seen(url, "view=graph&c=0&p=1&node=2", tmp_path)
        found = told(url, "view=graph&c=0&p=1&node=2", tmp_path)
    assert len(found["boxes"]) == 5
    # Some may lie outside the part that is looked at.
    _, begin, _, room = found["picture"]
    boxes = [one for one in found["boxes"]
             if one[2] > begin + 2 and one[2] + one[4] < begin + room - 2]  # fmt: skip
    assert len(boxes) >= 3
    ink = picture.min(-1) < 215
    for kind, x, y, width, height in boxes:
        left, top, right, bottom = round(x), round(y), round(x + width), round(y + height)
        middle = (top + bottom) // 2
        # A border on each side, nothing inside it before the text, nothing right outside it.
        for edge in (left, right):
            assert ink[middle, edge - 2 : edge + 2].any(), kind
        assert ink[top - 2 : top + 2, left + 8 : right - 8].any(0).all()
        assert not ink[top + 4 : bottom - 4, left + 4 : left + 6].any()
        chosen = "chosen" in kind
        blue = picture[top - 2 : top + 3, left + 10, 2] - picture[top - 2 : top + 3, left + 10, 0]
        assert bool(blue.max() > 80) is chosen
    # Arrows lead from each to the next.
    for _, x, y, width, height in boxes[:-1]:
        middle, below = round(x + width / 2), round(y + height)
        assert ink[below + 4 : below + 16, middle - 2 : middle + 3].any(1).all()
