"""What a streamed answer says: server-sent events, their tokens, and the server's own counts of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from costmodel.hardware.errors import shown
from costmodel.validation.interference.exchange import RequestError

MOST_LINE: Final = 4 << 20
"""A line of a stream that is longer is none of a language model [B]."""
MOST_SHOWN: Final = 200
"""Characters of a server's own words in an error."""
MOST_AT_ONCE: Final = 100_000
"""Tokens of one piece; a server that counts more cannot be believed."""
WHOLE: Final = ("length", "stop")
"""Reasons to finish that are no failure."""


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
            raise RequestError(f"the server broke off: {words_of(content)}")
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


def words_of(content: Any) -> str:
    """Return what a server says of an error, without the framing."""
    error = content.get("error", content) if isinstance(content, dict) else content
    message = error.get("message", error) if isinstance(error, dict) else error
    return shown(message, MOST_SHOWN)
