from __future__ import annotations

import http.client
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from baregrad.viz.documents import RecordedDocuments
from baregrad.viz.server import PageServer


@pytest.fixture(scope="module")
def server(documents: RecordedDocuments) -> Iterator[PageServer]:
    with PageServer(documents) as made:
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def ask(
    server: PageServer, path: str, **headers: str
) -> tuple[int, bytes, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection(*server.server_address[:2])
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    found = (answer.status, answer.read(), answer.headers)
    connection.close()
    return found


def test_the_page_and_what_it_needs_are_there(server: PageServer) -> None:
    status, page, headers = ask(server, "/")
    assert status == 200
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    wanted = [part.split(b'"')[0].decode() for part in page.split(b'src="')[1:]]
    wanted += [part.split(b'"')[0].decode() for part in page.split(b'href="')[1:]]
    assert len(wanted) == 8
    for name in wanted:
        assert "//" not in name, "the page loads nothing from elsewhere"
        assert ask(server, "/" + name)[0] == 200


def test_documents_come_as_they_are(server: PageServer, documents: RecordedDocuments) -> None:
    long = max(documents.names(), key=lambda name: len(documents.get(name) or b""))
    for name in ("summary", long):
        status, body, headers = ask(server, "/data/" + name)
        assert (status, body) == (200, documents.get(name))
        assert headers["Content-Type"] == "application/json"


@pytest.mark.parametrize("path", ["/data/none", "/../server.py", "/data/kernel/-1", "/vendor/"])
def test_nothing_else_is_there(server: PageServer, path: str) -> None:
    assert ask(server, path)[0] == 404


def test_another_name_for_this_machine_is_refused(server: PageServer) -> None:
    assert ask(server, "/data/summary", Host="elsewhere.example:80")[0] == 403
    assert ask(server, "/data/summary", Host="elsewhere.example")[0] == 403
    assert ask(server, "/data/summary", Host="localhost")[0] == 200
    assert server.server_address[0] == "127.0.0.1"


class _Broken:
    """Documents of which one cannot be made."""

    def names(self) -> list[str]:
        return ["broken", "fine"]

    def get(self, name: str) -> bytes | None:
        if name == "broken":
            raise ValueError("an é in it")
        return b"{}"


def test_what_cannot_be_made_is_told_and_the_rest_is_there(
    capsys: pytest.CaptureFixture[str]
) -> None:
    with PageServer(_Broken()) as server:
        server.make_ready().join()
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        status, body, headers = ask(server, "/data/broken")
        assert (status, body.decode()) == (500, "ValueError: an é in it")
        assert headers["Content-Type"].startswith("text/plain")
        assert ask(server, "/data/fine")[:2] == (200, b"{}")
        server.shutdown()
        thread.join()
    assert capsys.readouterr().err == ""


class _Long:
    """Documents of which one is longer than a socket holds."""

    def names(self) -> list[str]:
        return ["summary"]

    def get(self, name: str) -> bytes | None:
        return b"0" * (1 << 26)


def test_a_browser_that_hangs_up_is_not_worth_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    with PageServer(_Long()) as server:
        # Threads that are waited for, so that what they say is there to be read.
        server.daemon_threads = False
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        with socket.create_connection(server.server_address[:2]) as asking:
            asking.sendall(b"GET /data/summary HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n")
            asking.recv(100)
            asking.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        server.shutdown()
        thread.join()
    assert capsys.readouterr().err == ""
