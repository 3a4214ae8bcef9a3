"""A small client of OpenAI-compatible servers: pages, and streamed answers whose tokens have the time at which they came."""

from __future__ import annotations

import asyncio
import html
import json
import ssl
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from costmodel.hardware.errors import shown
from costmodel.validation.interference.addresses import Address
from costmodel.validation.interference.answers import MOST_SHOWN, Answered, Events, words_of
from costmodel.validation.interference.exchange import Head, Piece, RequestError, exchange

MOST_BYTES: Final = 16 << 20
"""A page that is longer is no answer of a language model [B]."""
LEAST_KNOWN: Final = 4
"""Characters of a key that are taken away where an error was cut within it."""
ROOM: Final = 64
"""Tokens by which an answer may be longer than twice what was asked for; servers count them in different ways."""


class Page(NamedTuple):
    """A page that was asked for: status, headers (in lower case) and text."""

    status: int
    headers: dict[str, str]
    text: str


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
            said = words_of(json.loads(text))
        except (ValueError, RecursionError):
            said = shown(text, MOST_SHOWN)
        if status == 200:
            return RequestError(f"malformed: the answer is no event stream: {said}")
        return RequestError(f"status {status}: {said}", status)

    async def _exchange(self, method: str, path: str, body: bytes | None) -> AsyncGenerator[Piece, None]:
        """Yield the pieces of a response; no error shows the key."""
        pieces = exchange(
            self.address, method, path, body, key=self._key, context=self._context, patience=self.patience
        )
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    yield piece
        except RequestError as error:
            raise RequestError(self.clean(str(error)), error.status) from None


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
