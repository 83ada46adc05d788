"""A report that follows the store: until the command ends, it is served on 127.0.0.1 to those who know its token.

The token is in the address, as with Jupyter: any program on the machine can connect to the port, but only a program
that knows the address gets an answer. The page asks once a second for news; usually there is none.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from hmac import compare_digest
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from time import monotonic
from urllib.parse import parse_qs, urlsplit

from ktuned.report.document import Document
from ktuned.report.html_page import encode_document, render_page

HOST = "127.0.0.1"

TOKEN_BYTES = 24
"""192 random bits, which nobody can guess."""

REQUEST_S = 10.0
"""How long a request may take to arrive, so that a peer that sends nothing does not keep a thread for longer."""

SHARE_OF_TIME = 5.0
"""Pause before the document is read again, as a multiple of the time that reading took: with a large store, reading
takes at most about a sixth of a core."""

_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class DocumentCache:
    """The newest document. It is ``read`` again when ``version``, which is cheap to call, has changed and the pause is
    over.
    """

    def __init__(self, read: Callable[[], Document], version: Callable[[], object]) -> None:
        self._read = read
        self._version = version
        self._lock = Lock()
        self._of: object = None
        self._next = 0.0
        self._document: Document | None = None

    def get_document(self) -> Document:
        """Return the document; it may be slightly older than the store."""
        with self._lock:
            began = monotonic()
            now = self._version()
            if self._document is None or (now != self._of and began >= self._next):
                self._document, self._of = self._read(), now
                self._next = monotonic() + SHARE_OF_TIME * (monotonic() - began)
            return self._document


class LiveServer(ThreadingHTTPServer):
    """Serves the report at :attr:`address`, and answers no other request."""

    daemon_threads = True
    allow_reuse_address = False

    def __init__(self, latest: DocumentCache, port: int = 0) -> None:
        self.latest = latest
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        super().__init__((HOST, port), _Handler)

    @property
    def address(self) -> str:
        """The page's address, with its token."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"


class _Handler(BaseHTTPRequestHandler):
    """Answers ``GET /TOKEN/`` with the page and ``GET /TOKEN/data?since=TIME`` with the document, if it is newer."""

    server: LiveServer
    timeout = REQUEST_S
    server_version = "ktuned"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer one request."""
        # The host is checked because a foreign name may resolve to this address (DNS rebinding).
        host = self.headers.get("Host", "")
        parts = urlsplit(self.path)
        token, _, place = parts.path.removeprefix("/").partition("/")
        is_known = (
            compare_digest(token.encode(), self.server.token.encode()) and host == f"{HOST}:{self.server.server_port}"
        )
        if not is_known or place not in ("", "data"):
            self._send_answer(HTTPStatus.NOT_FOUND, "text/plain", b"")
            return
        document = self.server.latest.get_document()
        if place == "":
            self._send_answer(HTTPStatus.OK, "text/html; charset=utf-8", render_page(document).encode())
        elif parse_qs(parts.query).get("since") == [repr(document.made)]:
            self._send_answer(HTTPStatus.NO_CONTENT, "application/json", b"")
        else:
            self._send_answer(HTTPStatus.OK, "application/json", encode_document(document).encode())

    def _send_answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *values: object) -> None:  # noqa: A002 - the base class's name
        """Write nothing, because each line would contain the token."""
