"""One HTTP request and its response, every piece stamped at the moment at which it comes out of the socket.

Bytes are stamped when the event loop reads them, and parsed (by h11) after the bytes of all other connections have been stamped. Nothing
but the given address is contacted: no redirects are followed and no proxies used.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import AsyncGenerator
from typing import Final, NamedTuple

import h11

from costmodel.hardware.errors import one_line, shown
from costmodel.validation.interference.addresses import Address

MOST_HEAD: Final = 256 << 10
"""Headers that are longer are none of a server that means well [B]."""
MOST_SHOWN: Final = 200
"""Bytes of what is no answer in an error."""


class RequestError(Exception):
    """A request that went wrong; the message says how, without the key.

    Attributes:
        status: HTTP status; None where there was none.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(one_line(message))
        self.status = status


class _Wire(asyncio.Protocol):
    """One connection: pieces of bytes with the time at which each came."""

    def __init__(self) -> None:
        self.pieces: deque[tuple[float, bytes]] = deque()
        self.over = False
        self._waiter: asyncio.Future[None] | None = None

    def data_received(self, data: bytes) -> None:
        self.pieces.append((time.monotonic(), data))
        self._wake()

    def eof_received(self) -> bool:
        self.over = True
        self._wake()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.over = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self, patience: float) -> tuple[float, bytes] | None:
        """Return the next piece; None at the end.

        Raises:
            RequestError: nothing came for so many seconds.
        """
        if not self.pieces and not self.over:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(patience):
                    await self._waiter
            except TimeoutError:
                raise RequestError(f"slow: the server sent nothing for {patience:g} s") from None
        return self.pieces.popleft() if self.pieces else None


class Head(NamedTuple):
    """Status and headers (in lower case) of a response."""

    status: int
    headers: dict[str, str]


Piece = tuple[Head, float, bytes]
"""Head of the response, when a piece of its body came (:func:`time.monotonic`) [s], and its bytes."""


async def exchange(
    address: Address,
    method: str,
    path: str,
    body: bytes | None,
    *,
    key: str | None,
    context: ssl.SSLContext | None,
    patience: float,
) -> AsyncGenerator[Piece, None]:
    """Send a request on a connection of its own and yield the pieces of its response; at least one, which may be empty.

    Args:
        address: of the server.
        method, path: of the request; ``path`` from ``/v1`` on.
        body: JSON; None for none.
        key: sent as a bearer token.
        context: of TLS; None for a plain connection.
        patience: a server that sends nothing, or no whole head, for so long is given up [s].

    Raises:
        RequestError: there is no connection, or no whole answer of an HTTP server.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(patience):
            transport, wire = await loop.create_connection(
                _Wire, address.host, address.port, ssl=context, server_hostname=address.host if context else None
            )
    except TimeoutError:
        raise RequestError(f"slow: no connection to {address.url} within {patience:g} s") from None
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RequestError(f"no connection to {address.url}: {reason}") from None
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=MOST_HEAD)
    try:
        transport.write(_request(connection, address, method, path, body, key))
        async for piece in _pieces(connection, wire, patience):
            yield piece
    finally:
        transport.abort()  # at once: the server sees that nobody listens, and ends the request


def _request(
    connection: h11.Connection, address: Address, method: str, path: str, body: bytes | None, key: str | None
) -> bytes:
    """Return a request as it is sent."""
    headers = [("Host", address.authority), ("Connection", "close")]
    headers.append(("Accept", "text/event-stream" if body is not None else "*/*"))
    if body is not None:
        headers += [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    if key:
        headers.append(("Authorization", f"Bearer {key}"))
    request = h11.Request(
        method=method,
        target=address.base + path,
        headers=[(name.encode(), value.encode("latin-1")) for name, value in headers],
    )
    parts = [connection.send(request)]
    if body:
        parts.append(connection.send(h11.Data(data=body)))
    parts.append(connection.send(h11.EndOfMessage()))
    return b"".join(part for part in parts if part)


async def _pieces(connection: h11.Connection, wire: _Wire, patience: float) -> AsyncGenerator[Piece, None]:
    """Yield the pieces of a response."""
    head: Head | None = None
    came, when, until, closed = b"", 0.0, time.monotonic() + patience, False
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError as error:
            raise _malformed(error, came if head is None else None, closed) from None
        if event is h11.NEED_DATA:
            piece = await wire.next(patience)
            closed = piece is None
            if piece is not None:
                when = piece[0]
            if head is None:
                came = (came + (piece[1] if piece is not None else b""))[:MOST_SHOWN]
                if when > until:
                    raise RequestError(f"slow: the headers of an answer took more than {patience:g} s")
            connection.receive_data(piece[1] if piece is not None else b"")
        elif isinstance(event, h11.Response):
            head = Head(event.status_code, {name.decode(): value.decode("latin-1") for name, value in event.headers})
            yield head, when, b""
        elif isinstance(event, h11.Data) and head is not None:
            yield head, when, bytes(event.data)
        elif not isinstance(
            event, h11.InformationalResponse
        ):  # its end; some servers say "continue" before they answer
            return


def _malformed(error: h11.RemoteProtocolError, came: bytes | None, closed: bool) -> RequestError:
    """Return what was wrong with a response: before its head was whole, of which ``came`` is the beginning, or in its body."""
    if came is None:
        if closed:
            return RequestError("dropped: the server closed the connection in the middle of its answer")
        return RequestError(f"malformed: {error}")
    if closed and not came:
        return RequestError("dropped: the server closed the connection before it answered")
    if closed:
        return RequestError(f"malformed: {shown(came)} is no whole answer of an HTTP server")
    if error.error_status_hint == 431:
        return RequestError("malformed: headers without end")
    hint = "; is it http or https?" if "status line" in str(error) else ""
    return RequestError(f"malformed: no answer of an HTTP server ({error}){hint}")
