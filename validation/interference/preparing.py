"""What is known of a server before the experiment: its model, its limits, its flags, and the machine that it runs on."""

from __future__ import annotations

import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from costmodel.hardware.errors import InputError, shown
from costmodel.validation.interference import metrics
from costmodel.validation.interference.client import Client, RequestError
from costmodel.validation.measurements.types import Machine

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
    try:
        status, text = await client.get("/v1/models")
    except RequestError as error:
        raise InputError(f"the server at {client.address.url} does not answer: {error}") from None
    if status in (401, 403):
        raise InputError(
            f"the server at {client.address.url} wants a key (status {status}); name the variable that holds it: --api-key-env NAME"
        )
    listed = await metrics.document(client, "/v1/models") if status == 200 and text else {}
    models = [each for each in listed.get("data") or [] if isinstance(each, dict) and isinstance(each.get("id"), str)]
    chosen = next((each for each in models if name in (None, each["id"])), None)
    if chosen is None and (name is None or models):
        known = ", ".join(each["id"] for each in models)
        raise InputError(
            f"the server at {client.address.url} has no model {shown(name)}; it has: {known}"
            if known
            else f"the server at {client.address.url} lists no model (status {status}); name one with --served-model-name"
        )
    version = (await metrics.document(client, "/version")).get("version")
    flags = metrics.flags(await metrics.page(client, "/metrics") or "")
    longest = chosen.get("max_model_len") if chosen else None
    vllm = bool(flags) or (chosen is not None and chosen.get("owned_by") == "vllm")
    return Found(
        model=chosen["id"] if chosen else str(name),
        longest=longest if isinstance(longest, int) else None,
        engine="vllm" if vllm else None,
        version=version if isinstance(version, str) else None,
        flags=flags,
    )


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


def local_machine(cpu: bool, count: int = 1) -> Machine:
    """Return the machine that this process runs on.

    Args:
        cpu: the engine computes on the CPU.
        count: GPUs of the engine.
    """
    if cpu:
        return Machine(profile=None, device=_processor(), count=1)
    names = _gpus()
    return Machine(profile=None, device=names[0] if names else "unknown GPU", count=count)


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "unknown CPU"


def _gpus() -> list[str]:
    """Return the names of the GPUs here, as the driver gives them; none where it does not tell."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        found = subprocess.run(
            [program, "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in found.stdout.splitlines() if line.strip()]
