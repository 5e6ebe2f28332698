"""Serves one page, on this machine alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

from lnexp.messages import UserError

HOST = "127.0.0.1"


class Served:
    """The page as it is now, and its stamp."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._now = (b"", "")

    def put(self, page: str, stamp: str) -> None:
        with self._lock:
            self._now = (page.encode("utf-8"), stamp)

    def get(self) -> tuple[bytes, str]:
        with self._lock:
            return self._now


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away while it is answered is no matter."""


@contextmanager
def serving(served: Served, port: int) -> Iterator[str]:
    """The page's address; `port` 0 takes any that is free."""
    try:
        server = Server((HOST, port), _handler(served))
    except OSError as problem:
        why = (problem.strerror or str(problem)).lower()
        raise UserError(f"--port {port}: {why}; write another, or 0 for any free one") from None
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


def _handler(served: Served) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(body=True)

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def _answer(self, body: bool) -> None:
            page, stamp = served.get()
            # Another name for this address is another site's page asking.
            host = self.headers.get("Host", "").rpartition(":")[0]
            known = host in (HOST, "localhost") and self.path.split("?")[0] == "/"
            if not known or not page:
                self.send_error(503 if known else 404)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(page)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("ETag", f'"{stamp}"')
            self.end_headers()
            if body:
                self.wfile.write(page)

        def log_message(self, format: str, *args: Any) -> None:
            """The terminal is the user's."""

    return Handler
