"""Handing the page and the documents to a browser on this machine.

Only the loopback address is bound. A request whose Host is another name is refused, so that a page
from elsewhere, whose name was made to point here, reads nothing.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from baregrad.viz.filed import Documents

_TYPES = MappingProxyType({
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
})
# What the page needs, by the path that it is asked for.
_FILES = MappingProxyType({
    "/": "index.html",
    "/style.css": "style.css",
    "/model.js": "model.js",
    "/drawing.js": "drawing.js",
    "/machine.js": "machine.js",
    "/timeline.js": "timeline.js",
    "/words.js": "words.js",
    "/app.js": "app.js",
    "/dagre.js": "vendor/dagre.min.js",
})
_POLICY = "default-src 'self'; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'"
_HOSTS = ("127.0.0.1", "localhost")


class PageServer(ThreadingHTTPServer):
    """The server of one set of documents; `url` is where it is found."""

    daemon_threads = True

    def __init__(self, documents: Documents, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Answer)
        self.documents = documents

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a browser that hung up; other errors are told as ever."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """Where a browser finds the page."""
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def make_ready(self) -> threading.Thread:
        """Make documents beforehand, on a thread of its own, which is returned.

        Machine code and command lists wait until somebody asks for them: they take an assembler,
        and a GPU, if a virtual one.
        """

        def work() -> None:
            for name in self.documents.names():
                if not name.startswith(("machine/", "words/")):
                    # Who asks for it is told why it cannot be made.
                    with contextlib.suppress(Exception):
                        self.documents.get(name)

        thread = threading.Thread(target=work, name="viz documents", daemon=True)
        thread.start()
        return thread


class _Answer(BaseHTTPRequestHandler):
    server: PageServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer with a file of the page or with a document."""
        host = self.headers.get("Host", "")
        # Without a port it is the web's own.
        if (host.rpartition(":")[0] or host) not in _HOSTS:
            self._send(HTTPStatus.FORBIDDEN, b"another host's name", "text/plain")
            return
        path = urlsplit(self.path).path
        if path in _FILES:
            name = _FILES[path]
            self._send(HTTPStatus.OK, page_file(name), _TYPES[name.rpartition(".")[2]])
            return
        document = None
        if path.startswith("/data/"):
            try:
                document = self.server.documents.get(path.removeprefix("/data/"))
            except Exception as error:  # noqa: BLE001  the rest of the page is as good as before
                told = f"{type(error).__name__}: {error}".encode(errors="replace")
                self._send(HTTPStatus.INTERNAL_SERVER_ERROR, told, "text/plain; charset=utf-8")
                return
        if document is None:
            self._send(HTTPStatus.NOT_FOUND, b"there is no such page", "text/plain")
        else:
            self._send(HTTPStatus.OK, document, "application/json")

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the terminal belongs to the user."""


@lru_cache
def page_file(name: str) -> bytes:
    """A file of the page."""
    return resources.files("baregrad.viz").joinpath("page", *name.split("/")).read_bytes()
