"""What is sent: unique prompts, and requests in the words that a server understands."""

from __future__ import annotations

import random
import string
from dataclasses import dataclass
from typing import Any, Final, Literal

from costmodel.hardware.errors import InputError
from costmodel.validation.interference.answers import Answered
from costmodel.validation.interference.client import Client, encoded
from costmodel.validation.interference.exchange import RequestError

Api = Literal["tokens", "text", "chat"]
APIS: Final[tuple[Api, ...]] = ("tokens", "text", "chat")
"""Prompts of token ids, which are as long as asked for; prompts of words; chats, for servers that have nothing else."""

LOWEST_ID, HIGHEST_ID = 1000, 8000
"""Ids of prompts: ordinary tokens in the vocabularies of today's models, whose special ones are below or far above."""
PROBE_WORDS: Final = 256
REFUSED: Final = (400, 422)
"""Statuses of a request with words that a server does not know."""


class Prompts:
    """Makes prompts that nobody has sent before, so that no prefix cache knows them.

    Args:
        vocabulary: of the model, where it is known [tokens].
        seed: for tests; None for prompts that differ from run to run.
    """

    def __init__(self, vocabulary: int | None = None, seed: int | None = None) -> None:
        self._random = random.Random(seed)
        highest = min(HIGHEST_ID, vocabulary or HIGHEST_ID)
        self._low, self._high = (LOWEST_ID, highest) if highest >= 2 * LOWEST_ID else (highest // 8, highest)
        self.tokens_per_word = 1.0
        """Of texts; measured with a first prompt."""
        self.tokens_around = 0.0
        """What the server puts around a text, such as a chat template."""

    def ids(self, count: int) -> list[int]:
        """Return a prompt of token ids."""
        return self._random.choices(range(self._low, self._high), k=count)

    def text(self, tokens: int) -> str:
        """Return a prompt of about so many tokens."""
        words = max(round((tokens - self.tokens_around) / self.tokens_per_word), 1)
        return self.words(words)

    def words(self, count: int) -> str:
        """Return so many words of random letters."""
        return " ".join("".join(self._random.choices(string.ascii_lowercase, k=5)) for _ in range(count))


@dataclass
class Speech:
    """How to ask a server: which API, and whether it takes what is not in OpenAI's.

    Attributes:
        model: name, as the server calls it.
        extended: it takes ``ignore_eos`` and counts tokens in every piece, as vLLM and SGLang do.
    """

    model: str
    api: Api
    prompts: Prompts
    extended: bool = True

    @property
    def path(self) -> str:
        """Path of the API."""
        return "/v1/chat/completions" if self.api == "chat" else "/v1/completions"

    def body(self, prompt: int, output: int, text: str | None = None) -> dict[str, Any]:
        """Return a request for ``output`` tokens after a unique prompt of ``prompt`` tokens, or after this text."""
        found: dict[str, Any] = {"model": self.model, "max_tokens": output, "temperature": 0.0, "stream": True}
        found["stream_options"] = {"include_usage": True}
        if self.extended:
            found |= {"ignore_eos": True, "return_token_ids": True}
            found["stream_options"]["continuous_usage_stats"] = True
        if self.api == "tokens":
            found["prompt"] = self.prompts.ids(prompt)
            return found
        words = self.prompts.text(prompt) if text is None else text
        if self.api == "text":
            return found | {"prompt": words}
        return found | {"messages": [{"role": "user", "content": words}]}


async def learn(client: Client, speech: Speech) -> list[str]:
    """Ask for two tokens, to find out what the server takes; return what there is to say about that.

    Of texts, also find out how many tokens a word has.

    Raises:
        InputError: the server takes nothing of it; the message says what it answered.
    """
    notes = []
    try:
        answered = await _ask(client, speech, PROBE_WORDS)
    except RequestError as error:
        if error.status not in REFUSED:
            raise _no_answer(client, speech, error) from None
        speech.extended = False
        try:
            answered = await _ask(client, speech, PROBE_WORDS)
        except RequestError as again:
            raise _no_answer(client, speech, again) from None
        notes.append("the server takes no ignore_eos: streams end where the model ends them, and begin anew")
    if speech.api != "tokens":
        if answered.prompt_tokens is None:
            notes.append("the server does not say how long a prompt is: a word is taken for two tokens")
            speech.prompts.tokens_per_word = 2.0
            return notes
        longer = await _ask_again(client, speech, 2 * PROBE_WORDS)
        more = (longer.prompt_tokens or 0) - answered.prompt_tokens
        speech.prompts.tokens_per_word = max(more / PROBE_WORDS, 0.1)
        speech.prompts.tokens_around = max(answered.prompt_tokens - more, 0)
    return notes


async def _ask_again(client: Client, speech: Speech, words: int) -> Answered:
    try:
        return await _ask(client, speech, words)
    except RequestError as error:
        raise _no_answer(client, speech, error) from None


async def _ask(client: Client, speech: Speech, words: int) -> Answered:
    text = None if speech.api == "tokens" else speech.prompts.words(words)
    return await client.stream(speech.path, encoded(speech.body(16, 2, text)), lambda _, __: None, 2)


def _no_answer(client: Client, speech: Speech, error: RequestError) -> InputError:
    hint = ""
    if error.status in (401, 403):
        hint = "; a key comes from the environment: --api-key-env NAME"
    elif error.status == 404 or (error.status in REFUSED and speech.api == "tokens"):
        others = " or ".join(f"--api {api}" for api in APIS if api != speech.api)
        hint = f"; try {others}, or another --served-model-name"
    return InputError(f"the server at {client.clean(client.address.url)} does not answer a first prompt: {error}{hint}")
