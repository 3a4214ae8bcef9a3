"""A real server that sends whatever a test wants, byte by byte, and so need not speak HTTP; also behind TLS."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Answer = Callable[[str, bytes, asyncio.StreamWriter], Awaitable[None]]
"""Takes the request's head and body, and writes."""
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
TOKEN = b'data: {"choices": [{"index": 0, "text": "x", "finish_reason": null}]}\n\n'
LAST = b'data: {"choices": [{"index": 0, "text": "x", "finish_reason": "length"}]}\n\ndata: [DONE]\n\n'
CERTIFICATE = """-----BEGIN EC PRIVATE KEY-----
MHcCAQEEILam3Mo2v1ahHemhE41k6Y8kZfhUzcXbNU18Nuo+q2vzoAoGCCqGSM49
AwEHoUQDQgAEWb75S5szSBvyd5snpPzum8noGHgBfS41CtWGs0EqalddVuDZCHCf
PDf6zgCahHrdh5jfH5HVs+zP5665+8PC0A==
-----END EC PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBfjCCASWgAwIBAgIUGhYePqHxHLiJOQ+EzpiRyMDknd0wCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEzMDAyNTAwOVoYDzIxMjYxMTA2
MDI1MDA5WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAARZvvlLmzNIG/J3myek/O6byegYeAF9LjUK1YazQSpqV11W4NkIcJ88
N/rOAJqEet2HmN8fkdWz7M/nrrn7w8LQo1MwUTAdBgNVHQ4EFgQUkMd2EYyZowd9
fIagESB37Ewsh4UwHwYDVR0jBBgwFoAUkMd2EYyZowd9fIagESB37Ewsh4UwDwYD
VR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNHADBEAiAj3yJZkg5h80k+jH3PvwIK
zEN4M/JAjSRBPZYivvvbEgIgObAZG4JfZ/oBbEiYw+2kBX6+n0XQ0br9UqBHVqJH
B3E=
-----END CERTIFICATE-----
"""
"""Signed by itself, for tests alone: nobody trusts it."""


def page(status: int, content: bytes = b"", *headers: str) -> bytes:
    """Return a whole response."""
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(content)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + content


def always(*pieces: bytes, pause: float = 0.0, forever: bool = False, models: bool = False) -> Answer:
    """Return what answers every request with these pieces, the last again and again, or every prompt if it has ``models``."""

    async def answer(head: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        if models and head.startswith("GET"):
            found = head.startswith("GET /v1/models ")
            listed = json.dumps({"data": [{"id": "tiny", "max_model_len": 4096}]}).encode()
            writer.write(page(200, listed) if found else page(404))
            return
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)
        while forever:
            writer.write(pieces[-1])
            await writer.drain()
            await asyncio.sleep(pause)

    return answer


async def silent(head: str, body: bytes, writer: asyncio.StreamWriter) -> None:
    """Never answer."""
    await asyncio.sleep(60)


@contextmanager
def answering(answer: Answer, folder: Path | None = None, host: str = "127.0.0.1") -> Iterator[str]:
    """Answer on a free port, behind TLS if there is a folder for the certificate; yield the address."""
    context = None
    if folder is not None:
        (folder / "certificate.pem").write_text(CERTIFICATE, encoding="utf-8")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "certificate.pem")
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)
    ready, ended = threading.Event(), asyncio.Event()
    ports: list[int] = []

    async def serve() -> None:
        async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next((line for line in head.lower().split("\r\n") if line.startswith("content-length:")), ":0")
                await answer(head, await reader.readexactly(int(length.partition(":")[2])), writer)
                await writer.drain()
            except (ConnectionError, asyncio.IncompleteReadError):
                pass
            finally:
                writer.close()

        listening = await asyncio.start_server(one, host, 0, ssl=context)
        ports.append(listening.sockets[0].getsockname()[1])
        ready.set()
        await ended.wait()
        listening.close()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await asyncio.sleep(0.01)

    def work() -> None:
        loop.run_until_complete(serve())
        loop.close()

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait(10)
    try:
        name = f"[{host}]" if ":" in host else host
        yield f"{'https' if folder else 'http'}://{name}:{ports[0]}"
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(10)
