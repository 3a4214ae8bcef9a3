"""What is known of a server before the experiment: its model, its limits, its flags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from costmodel.hardware.errors import InputError, shown
from costmodel.validation.interference import metrics
from costmodel.validation.interference.client import Client, redirection
from costmodel.validation.interference.exchange import RequestError

MOST_OUTPUT: Final = 100_000
"""Tokens of an answer, where the model would take more."""
USUAL_OUTPUT: Final = 4_000
"""Where nobody knows the longest sequence."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a server says of itself.

    Attributes:
        model: its name for requests.
        longest: sequence that it takes [tokens]; None where it does not say.
        engine, version, flags: as of :class:`~costmodel.validation.interference.records.Server`.
    """

    model: str
    longest: int | None
    engine: str | None
    version: str | None
    flags: dict[str, str]


async def inspect(client: Client, name: str | None) -> Found:
    """Ask a server what it is.

    Args:
        client: of the server.
        name: of the model, if it serves several; None for its first.

    Raises:
        InputError: it does not answer, has no model or none of this name.
    """
    where = f"the server at {client.clean(client.address.url)}"
    try:
        page = await client.get("/v1/models")
    except RequestError as error:
        raise InputError(f"{where} does not answer: {error}") from None
    if page.status in (401, 403):
        raise InputError(
            f"{where} wants {'another' if client.has_key else 'a'} key (status {page.status}); "
            "name the variable that holds it: --api-key-env NAME"
        )
    if (sent := redirection(page.status, page.headers)) is not None:
        raise InputError(f"{where} does not answer: {client.clean(sent)}")
    if page.status == 429 or page.status >= 500:
        raise InputError(
            f"{where} does not answer: status {page.status}: {client.clean(shown(client.clean(page.text), 200))}"
        )
    listed = metrics.parsed(page.text) if page.status == 200 else {}
    data = listed.get("data")
    models = (
        [each for each in data if isinstance(each, dict) and isinstance(each.get("id"), str)]
        if isinstance(data, list)
        else []
    )
    chosen = next((each for each in models if name in (None, each["id"])), None)
    if chosen is None and (name is None or models):
        known = ", ".join(printable(each["id"]) for each in models)
        raise InputError(
            client.clean(f"{where} has no model {shown(name)}; it has: {known}")
            if known
            else f"{where} lists no model (status {page.status}); name one with --served-model-name, or check the address: "
            "it ends where /v1 begins"
        )
    version = (await metrics.document(client, "/version")).get("version")
    flags = metrics.flags(await metrics.page(client, "/metrics") or "")
    longest = chosen.get("max_model_len") if chosen else None
    vllm = bool(flags) or (chosen is not None and chosen.get("owned_by") == "vllm")
    return Found(
        model=chosen["id"] if chosen else str(name),
        longest=longest if isinstance(longest, int) and not isinstance(longest, bool) and longest > 0 else None,
        engine="vllm" if vllm else None,
        version=client.clean(printable(version)) if isinstance(version, str) else None,
        flags={key: client.clean(printable(value)) for key, value in flags.items()},
    )


def printable(text: str) -> str:
    """Return a server's words as they can be shown and kept: no control characters, and not too many."""
    return "".join(each if each.isprintable() else "?" for each in text[:200])


def output_tokens(found: Found, context: int, prompt: int, asked: int | None) -> int:
    """Return how long the answers of the streams are: as long as the model takes, so that they last.

    Raises:
        InputError: the prompts do not fit into the longest sequence.
    """
    if found.longest is None:
        return asked or USUAL_OUTPUT
    for name, tokens in (("--prompt", prompt), ("--context", context)):
        if tokens >= found.longest:
            raise InputError(
                f"{name} {tokens:,}: the server takes sequences of up to {found.longest:,} tokens (its --max-model-len)"
            )
    room = found.longest - context
    if asked is not None and asked > room:
        raise InputError(f"--output {asked:,}: after a context of {context:,} the server has room for {room:,} tokens")
    return asked or min(room, MOST_OUTPUT)
