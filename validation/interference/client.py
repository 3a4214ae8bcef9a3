"""A small client of OpenAI-compatible servers that stamps what it receives at the moment at which it comes out of the socket.

One event loop serves all connections: bytes are stamped when the loop reads them, and parsed after the bytes of all other connections
have been stamped. Nothing but the given address is contacted: no redirects are followed and no proxies used.
"""

from __future__ import annotations

import asyncio
import html
import json
import re
import ssl
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

from costmodel.hardware.errors import InputError, one_line, shown

MOST_BYTES: Final = 16 << 20
"""A page, a header or a chunk that is longer is no answer of a language model."""
MOST_HEAD: Final = 256 << 10
"""Headers that are longer are none of a server that means well."""
MOST_LINE: Final = 4 << 20
"""A line of a stream that is longer is none either."""
MOST_SHOWN: Final = 200
"""Characters of a server's own words in an error."""
MOST_AT_ONCE: Final = 100_000
"""Tokens of one piece; a server that counts more cannot be believed."""
LEAST_KNOWN: Final = 4
"""Characters of a key that are taken away where an error was cut within it."""
ROOM: Final = 64
"""Tokens by which an answer may be longer than twice what was asked for; servers count them in different ways."""
WHOLE: Final = ("length", "stop")
"""Reasons to finish that are no failure."""


class RequestError(Exception):
    """A request that went wrong; the message says how, without the key.

    Attributes:
        status: HTTP status; None where there was none.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(one_line(message))
        self.status = status


class Address(NamedTuple):
    """Where a server is.

    Attributes:
        host: as it is connected to; ``authority`` as it is written in the Host line.
        base: path before ``/v1``, without a slash at its end.
    """

    secure: bool
    host: str
    port: int
    base: str
    authority: str

    @property
    def url(self) -> str:
        """The address as it is shown."""
        return f"{'https' if self.secure else 'http'}://{self.authority}{self.base}"


def parse_url(url: str) -> Address:
    """Return the address of a server; ``/v1`` at its end may be left out.

    Raises:
        InputError: it is none, or it carries a password or a query, which would be secrets in a record.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InputError("--url: is no address; it looks like http://localhost:8000") from None
    if parts.username or parts.password or parts.query or parts.fragment:
        raise InputError(
            "--url: user, password, query and fragment do not belong into it; a key comes from the environment (--api-key-env NAME)"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise InputError(f"--url {shown(url)}: is no address; it looks like http://localhost:8000")
    if any(character.isspace() or not character.isprintable() for character in url) or not url.isascii():
        raise InputError(f"--url {shown(url)}: has characters that an address cannot have")
    secure = parts.scheme == "https"
    base = parts.path.rstrip("/").removesuffix("/v1")
    return Address(secure, parts.hostname, port or (443 if secure else 80), base, parts.netloc)


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


class Page(NamedTuple):
    """A page that was asked for: status, headers (in lower case) and text."""

    status: int
    headers: dict[str, str]
    text: str


def parse_head(content: bytes) -> Head:
    """Return the head of a response.

    Raises:
        RequestError: it is none.
    """
    first, *lines = content.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdecimal():
        raise RequestError(
            f"malformed: the answer begins with {shown(first)}, not with an HTTP status; is it http or https?"
        )
    if len(words[1]) != 3:
        raise RequestError(f"malformed: {shown(words[1])} is no HTTP status")
    pairs = (line.partition(":") for line in lines if line)
    return Head(int(words[1]), {name.strip().lower(): value.strip() for name, _, value in pairs})


class Unchunker:
    """Takes the framing off a body in chunks."""

    def __init__(self) -> None:
        self.over = False
        self._buffer = bytearray()
        self._size: int | None = None

    def feed(self, data: bytes) -> bytes:
        """Return what came whole.

        Raises:
            RequestError: it is no body in chunks.
        """
        self._buffer += data
        found = bytearray()
        while not self.over:
            if self._size is None:
                end = self._buffer.find(b"\r\n")
                if end < 0:
                    break
                line = bytes(self._buffer[:end]).split(b";")[0].strip()
                try:
                    self._size = int(line, 16)
                except ValueError:
                    raise RequestError(f"malformed: {shown(line)} is no size of a chunk") from None
                if not 0 <= self._size <= MOST_BYTES:
                    raise RequestError(f"malformed: a chunk of {self._size:,} bytes")
                del self._buffer[: end + 2]
                self.over = self._size == 0
                continue
            if len(self._buffer) < self._size + 2:
                break
            if self._buffer[self._size : self._size + 2] != b"\r\n":
                raise RequestError("malformed: a chunk is longer than it says")
            found += self._buffer[: self._size]
            del self._buffer[: self._size + 2]
            self._size = None
        if len(self._buffer) > MOST_BYTES + 1024:
            raise RequestError("malformed: a line without end")
        return bytes(found)


class Events:
    """Takes server-sent events apart."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._data: list[str] = []
        self._begun = False

    def feed(self, data: bytes) -> list[str]:
        """Return the data of every event that is whole.

        Raises:
            RequestError: a line is none of an event stream.
        """
        if not self._begun and len(self._buffer + data) >= 3:
            self._begun = True
            data, self._buffer = bytes(self._buffer + data).removeprefix(b"\xef\xbb\xbf"), bytearray()
        self._buffer += data
        if len(self._buffer) > MOST_LINE:
            raise RequestError("malformed: a line without end")
        if b"\n" not in data:
            return []
        *lines, rest = bytes(self._buffer).split(b"\n")
        self._buffer = bytearray(rest)
        found = []
        for raw in lines:
            try:
                line = raw.rstrip(b"\r").decode("utf-8")
            except UnicodeDecodeError:
                raise RequestError(f"malformed: {shown(raw)} is no text") from None
            name, _, value = line.partition(":")
            if not line:
                if self._data:
                    found.append("\n".join(self._data))
                self._data = []
            elif name == "data":
                self._data.append(value.removeprefix(" "))
            elif name not in ("", "event", "id", "retry"):
                raise RequestError(f"malformed: {shown(line)} is no line of an event stream")
        return found


@dataclass
class Answered:
    """What became of one streamed answer.

    Attributes:
        finish: reason that the server gave.
        tokens: that were counted.
        prompt_tokens, cached_tokens, output_tokens: as the server counted them.
        most: tokens that an answer can have; None where nobody knows.
    """

    finish: str | None = None
    tokens: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    most: int | None = None

    def take(self, content: Any) -> int:
        """Take one event; return how many tokens came with it.

        Raises:
            RequestError: it is an error, or no event of an answer.
        """
        if not isinstance(content, dict):
            raise RequestError(f"malformed: {shown(content)} is no part of an answer")
        if content.get("error") is not None:
            raise RequestError(f"the server broke off: {_words(content)}")
        choices = content.get("choices")
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            raise RequestError(f"malformed: {shown(content)} has no choices")
        usage = content.get("usage")
        total = self._take_usage(usage) if isinstance(usage, dict) else None
        if not choices:
            return 0
        choice = choices[0]
        ids = choice.get("token_ids")
        if isinstance(ids, list):
            count = len(ids)
        elif total is not None:
            count = max(total - self.tokens, 0)
        else:
            count = int(_has_token(choice))
        if count > MOST_AT_ONCE or (self.most is not None and self.tokens + count > self.most):
            raise RequestError(
                f"malformed: the server does not end an answer: {self.tokens + count:,} tokens where fewer were asked for"
            )
        self.finish = choice.get("finish_reason") or self.finish
        self.tokens += count
        return count

    def _take_usage(self, usage: dict[str, Any]) -> int | None:
        """Take the counts of the server; return the tokens of the answer so far."""
        prompt, total, details = (
            usage.get(key) for key in ("prompt_tokens", "completion_tokens", "prompt_tokens_details")
        )
        if _is_count(prompt):
            self.prompt_tokens = prompt
        if isinstance(details, dict) and _is_count(details.get("cached_tokens")):
            self.cached_tokens = details["cached_tokens"]
        if not _is_count(total):
            return None
        self.output_tokens = total
        return total

    def check(self) -> None:
        """Check a stream that has ended.

        Raises:
            RequestError: it is not whole.
        """
        if self.finish is None:
            raise RequestError(f"stopped mid-stream: no reason to finish after {self.tokens:,} tokens")
        if self.finish not in WHOLE:
            raise RequestError(f"the server ended the answer: {shown(self.finish)}")


def _is_count(value: Any) -> bool:
    """Tell whether a server's number can be one of tokens."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**9


def _has_token(choice: dict[str, Any]) -> bool:
    """Tell whether a piece without counts holds a token: text, or nothing yet of a letter that takes several."""
    delta = choice.get("delta")
    if isinstance(delta, dict):
        return any(delta.get(key) for key in ("content", "reasoning_content", "reasoning"))
    return bool(choice.get("text")) or choice.get("finish_reason") is None


def _words(content: Any) -> str:
    """Return what a server says of an error, without the framing."""
    error = content.get("error", content) if isinstance(content, dict) else content
    message = error.get("message", error) if isinstance(error, dict) else error
    return shown(message, MOST_SHOWN)


class Client:
    """Talks to one server; every request has a connection of its own.

    Args:
        address: of the server.
        key: sent with every request; never shown.
        patience: a server that sends nothing for so long is given up [s].
    """

    def __init__(self, address: Address, key: str | None = None, patience: float = 60.0) -> None:
        self.address, self.patience = address, patience
        self._key = key
        self._forms = _forms(key) if key else ()
        self._context = ssl.create_default_context() if address.secure else None

    @property
    def has_key(self) -> bool:
        """A key is sent."""
        return bool(self._key)

    def clean(self, text: str) -> str:
        """Return a text without the key, which servers like to quote: as it is, escaped, or cut off where a text was shortened."""
        if not self._key:
            return text
        for form in self._forms:
            text = text.replace(form, "***")
            for length in range(len(form) - 1, LEAST_KNOWN - 1, -1):
                text = text.replace(form[:length] + "...", "***...")
        return text

    async def get(self, path: str) -> Page:
        """Return a page.

        Raises:
            RequestError: there is none.
        """
        body = bytearray()
        head = Head(0, {})
        try:
            async with asyncio.timeout(self.patience), aclosing(self._exchange("GET", path, None)) as pieces:
                async for head, _, data in pieces:  # noqa: B007  the last one is returned
                    body += data
                    if len(body) > MOST_BYTES:
                        raise RequestError("malformed: a page without end")
        except TimeoutError:
            raise RequestError(f"slow: {path} took more than {self.patience:g} s") from None
        return Page(head.status, head.headers, body.decode("utf-8", errors="replace"))

    async def stream(
        self, path: str, body: bytes, on_tokens: Callable[[float, int], None], asked: int | None = None
    ) -> Answered:
        """Ask for an answer and hear its tokens.

        Args:
            path: of the API, from ``/v1`` on.
            body: of the request (:func:`encoded`).
            on_tokens: called with the time (``time.monotonic``) and the number of tokens of every piece that has any.
            asked: tokens that the request asks for at most; None where nobody knows.

        Raises:
            RequestError: anything went wrong; what came before has been heard.
        """
        try:
            return await self._stream(path, body, on_tokens, None if asked is None else 2 * asked + ROOM)
        except RequestError as error:
            raise RequestError(self.clean(str(error)), error.status) from None

    async def _stream(
        self, path: str, body: bytes, on_tokens: Callable[[float, int], None], most: int | None
    ) -> Answered:
        answered, events = Answered(most=most), Events()
        wrong: bytes | None = None
        status, heard = 0, time.monotonic()
        async with aclosing(self._exchange("POST", path, body)) as pieces:
            async for head, when, data in pieces:
                status = head.status
                if (refused := _no_stream(head)) is not None:
                    if refused:
                        raise RequestError(refused)
                    wrong = (wrong or b"") + data
                    if len(wrong) > MOST_BYTES or when - heard > self.patience:
                        break
                    continue
                texts = events.feed(data)
                if texts:
                    heard = when
                elif when - heard > self.patience:
                    raise RequestError(f"slow: no token came for {self.patience:g} s, though the server sent something")
                if self._hear(texts, answered, when, on_tokens):
                    break
        if wrong is not None:
            raise self._refusal(status, wrong)
        answered.check()
        return answered

    def _hear(self, texts: list[str], answered: Answered, when: float, on_tokens: Callable[[float, int], None]) -> bool:
        """Take the events of one piece, whose tokens came together; tell whether the stream is over."""
        count, over = 0, False
        try:
            for text in texts:
                over = text == "[DONE]"
                if over:
                    break
                count += answered.take(_parsed(text))
        finally:
            if count:
                on_tokens(when, count)
        return over

    def _refusal(self, status: int, body: bytes) -> RequestError:
        text = self.clean(body.decode("utf-8", errors="replace"))
        try:
            said = _words(json.loads(text))
        except (ValueError, RecursionError):
            said = shown(text, MOST_SHOWN)
        if status == 200:
            return RequestError(f"malformed: the answer is no event stream: {said}")
        return RequestError(f"status {status}: {said}", status)

    async def _exchange(
        self, method: str, path: str, body: bytes | None
    ) -> AsyncGenerator[tuple[Head, float, bytes], None]:
        """Send a request and yield head, time and bytes of every piece of the body; at least one, which may be empty."""
        address, loop = self.address, asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.patience):
                transport, wire = await loop.create_connection(
                    _Wire, address.host, address.port, ssl=self._context, server_hostname=address.host if address.secure else None
                )  # fmt: skip
        except TimeoutError:
            raise RequestError(f"slow: no connection to {address.url} within {self.patience:g} s") from None
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise RequestError(f"no connection to {address.url}: {reason}") from None
        try:
            transport.write(self._request(method, path, body))
            async for piece in self._pieces(wire):
                yield piece
        except RequestError as error:
            raise RequestError(self.clean(str(error)), error.status) from None
        finally:
            transport.abort()  # at once: the server sees that nobody listens, and ends the request

    def _request(self, method: str, path: str, body: bytes | None) -> bytes:
        content = body or b""
        lines = [
            f"{method} {self.address.base}{path} HTTP/1.1",
            f"Host: {self.address.authority}",
            "Connection: close",
            "Accept: text/event-stream" if body is not None else "Accept: */*",
        ]
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
        if self._key:
            lines.append(f"Authorization: Bearer {self._key}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + content

    async def _head(self, wire: _Wire) -> tuple[Head, float, bytes]:
        """Return the head of a response, when it came, and what came behind it."""
        buffer = bytearray()
        until = time.monotonic() + self.patience
        while True:
            while (end := buffer.find(b"\r\n\r\n")) < 0:
                piece = await wire.next(self.patience)
                if piece is None and buffer:
                    raise RequestError(
                        f"malformed: {shown(bytes(buffer[:MOST_SHOWN]))} is no whole answer of an HTTP server"
                    )
                if piece is None:
                    raise RequestError("dropped: the server closed the connection before it answered")
                when, data = piece
                buffer += data
                if len(buffer) > MOST_HEAD:
                    raise RequestError("malformed: headers without end")
                if when > until:
                    raise RequestError(f"slow: the headers of an answer took more than {self.patience:g} s")
            head, rest = parse_head(bytes(buffer[:end])), bytes(buffer[end + 4 :])
            if head.status // 100 != 1:
                return head, when, rest
            buffer = bytearray(rest)  # a server that says "continue" before it answers

    async def _pieces(self, wire: _Wire) -> AsyncGenerator[tuple[Head, float, bytes], None]:
        """Yield the pieces of a response."""
        head, when, rest = await self._head(wire)
        unchunker = Unchunker() if "chunked" in head.headers.get("transfer-encoding", "").lower() else None
        length = head.headers.get("content-length")
        if length is not None and not re.fullmatch("[0-9]{1,18}", length):
            raise RequestError(f"malformed: {shown(length)} is no length of an answer")
        left = int(length) if length is not None and unchunker is None else None
        yield head, when, b""
        while True:
            if rest:
                if left is not None:
                    rest = rest[:left]
                    left -= len(rest)
                yield head, when, rest if unchunker is None else unchunker.feed(rest)
            if left == 0 or (unchunker is not None and unchunker.over):
                return
            piece = await wire.next(self.patience)
            if piece is None:
                if left is None and unchunker is None:
                    return
                raise RequestError("dropped: the server closed the connection in the middle of its answer")
            when, rest = piece


def encoded(body: dict[str, Any]) -> bytes:
    """Return a request's body as it is sent."""
    return json.dumps(body, separators=(",", ":")).encode()


def _no_stream(head: Head) -> str | None:
    """Tell why a response is no stream of events; nothing where its body says why, None where it is one."""
    if head.status != 200 or "text/event-stream" not in head.headers.get("content-type", "").lower():
        return redirection(head.status, head.headers) or ""
    encoding = head.headers.get("content-encoding", "identity").lower()
    if encoding not in ("", "identity"):
        return f"malformed: the answer is compressed ({shown(encoding)}), which nobody asked for"
    return None


def redirection(status: int, headers: dict[str, str]) -> str | None:
    """Say where a server sends its clients, without what may be secret there; None if it does not."""
    if status // 100 != 3:
        return None
    target = headers.get("location", "").partition("?")[0].partition("#")[0]
    scheme, mark, rest = target.partition("://")
    host, slash, path = rest.partition("/")
    shorter = scheme + mark + host.rpartition("@")[2] + slash + path
    return f"status {status}: it sends its clients to {shown(shorter, MOST_SHOWN)}, which is not followed; give the address that is meant"


def _forms(key: str) -> tuple[str, ...]:
    """Return how a key may be written in an answer, the longest first."""
    forms = {key, quote(key, safe=""), quote(key), html.escape(key)}
    forms |= {key.replace("/", "\\/"), key.replace("/", "\\\\/")}  # as JSON may have it, and as Python shows that
    return tuple(sorted(forms, key=lambda form: (-len(form), form)))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise RequestError(f"malformed: {shown(text)} is no JSON") from None
