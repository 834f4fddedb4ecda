"""A web server of files, for tests of what lies behind URLs."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Server(ThreadingHTTPServer):
    """Files of a folder over HTTP, in ranges if asked so; counts the bytes it has sent of each."""

    def __init__(self, folder: Path, ranges: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder, self.ranges, self.sent = folder, ranges, dict[str, int]()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: Any) -> None: ...

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        place = self.server.folder / self.path.lstrip("/").partition("?")[0]
        if not place.is_file():
            self.send_error(404)
            return
        data, asked = place.read_bytes(), self.headers.get("Range")
        size = len(data)
        if asked and self.server.ranges:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(int(last or size - 1), size - 1)
            data = data[begin : end + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{end}/{size}")
        else:
            self.send_response(200)
        if self.server.ranges:
            self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{hash(place.read_bytes())}"')
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.server.sent[place.name] = self.server.sent.get(place.name, 0) + len(data)
            self.wfile.write(data)
