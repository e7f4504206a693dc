"""A proxy before the S3 server of tests: a slow network, refusals, connections cut, answers lost."""

from __future__ import annotations

import http.client
import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import urlsplit

from tests.object_storage import S3Server

HOP_HEADERS = {"connection", "expect", "keep-alive", "transfer-encoding"}
"""Headers that hold for one connection, and are not handed on."""

REFUSAL = b"<Error><Code>SlowDown</Code><Message>slow down</Message></Error>"


@dataclass(frozen=True)
class Faults:
    """Faults are what a proxy does to requests, counted by kind of fault; 0: to none.

    Attributes:
        delay: seconds before each request.
        refuse: one of so many requests is answered by 503, and the server does not see it.
        cut: of one of so many answers to GET half of the body is sent, then the connection ends.
        lose: of one of so many PUT or POST requests the answer is lost: the connection ends without one.
    """

    delay: float = 0.0
    refuse: int = 0
    cut: int = 0
    lose: int = 0


class Request(NamedTuple):
    """A request that a proxy handed on: seconds since 1970 at its start and when the server answered."""

    method: str
    path: str
    start: float
    end: float


@dataclass
class Proxy:
    """A running proxy: the server as it is reached through it, and what it has done.

    Attributes:
        server: the server with the proxy's address.
        requests: those since the last `take_requests`.
        done: number of requests by method, and of faults by name.
    """

    server: S3Server
    faults: Faults
    requests: list[Request] = field(default_factory=list, repr=False)
    done: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, name: str) -> int:
        """Count an event, and return how many there were."""
        with self.lock:
            self.done[name] += 1
            return self.done[name]

    def take_requests(self) -> list[Request]:
        """Return the requests since the last call."""
        with self.lock:
            taken, self.requests = self.requests, []
        return taken

    def strike(self, fault: str, candidates: str) -> bool:
        """Return whether a fault strikes this one of its candidates."""
        every = getattr(self.faults, fault)
        if not every or self.count(candidates) % every:
            return False
        self.count(fault)
        return True


@contextmanager
def disturb(server: S3Server, faults: Faults) -> Iterator[Proxy]:
    """Serve a proxy on a loopback port, and stop at the end."""
    upstream = urlsplit(server.endpoint).netloc

    class Handler(_Forwarder):
        address = upstream

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listener.daemon_threads = True
    Handler.proxy = Proxy(replace(server, endpoint=f"http://127.0.0.1:{listener.server_port}"), faults)
    thread = threading.Thread(target=listener.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield Handler.proxy
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()


class _Forwarder(BaseHTTPRequestHandler):
    """Hand on a request with the headers that its signature covers, and the answer or a fault."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else a body waits for the acknowledgement of its headers
    address = ""
    proxy: Proxy

    def handle(self) -> None:
        """Serve a connection; a client that is killed ends it without a word."""
        with suppress(ConnectionError):
            super().handle()

    def handle_request(self) -> None:
        started = time.time()
        body = self.read_body()
        time.sleep(self.proxy.faults.delay)
        self.proxy.count(self.command)
        if self.proxy.strike("refuse", "requests"):
            self.answer(503, [("Content-Type", "application/xml")], REFUSAL)
            return
        status, headers, content = self.ask_server(body)
        with self.proxy.lock:  # before the answer, so that who has it finds the request here
            self.proxy.requests.append(Request(self.command, self.path, started, time.time()))
        if self.command in {"PUT", "POST"} and self.proxy.strike("lose", "writes"):
            self.close_connection = True
            return
        half = self.command == "GET" and len(content) > 1 and self.proxy.strike("cut", "reads")
        self.answer(status, headers, content, sent=len(content) // 2 if half else len(content))

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_request  # noqa: N815

    def read_body(self) -> bytes:
        """Read a body by its length, or in chunks."""
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():  # trailers
            pass
        return b"".join(chunks)

    def ask_server(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        """Return the server's status, headers and body."""
        connection = http.client.HTTPConnection(self.address, timeout=60)
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in HOP_HEADERS | {"content-length"}:
                connection.putheader(name, value)
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in HOP_HEADERS]
        content = answer.read()
        connection.close()
        return answer.status, headers, content

    def answer(
        self, status: int, headers: list[tuple[str, str]], content: bytes, sent: int | None = None
    ) -> None:
        """Answer with a body, or with its first bytes and the end of the connection."""
        self.send_response_only(status)
        named = {name.lower() for name, _ in headers}
        length = [] if "content-length" in named else [("Content-Length", str(len(content)))]
        for name, value in itertools.chain(headers, length):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            with suppress(ConnectionError):  # the client has read enough
                self.wfile.write(content[:sent])
        self.close_connection |= sent is not None and sent < len(content)

    def log_message(self, *_: object) -> None:
        """Keep the output of tests free of requests."""
