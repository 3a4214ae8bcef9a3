"""Running the experiment of ``costmodel interfere``: the server, the record, Ctrl-C."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from costmodel.checks import positive, whole
from costmodel.cli.ending import ended_as_by_ctrl_c
from costmodel.cli.interfere_options import Output, Source, make_plan, read_key, serve_flags
from costmodel.cli.interfere_progress import Line
from costmodel.cli.options import single

if TYPE_CHECKING:
    from costmodel.validation.backends.vllm_server import Running
    from costmodel.validation.interference.client import Client
    from costmodel.validation.interference.records import Plan

INTERRUPTED = 130
ENDING = 5.0
"""Time that a server which gives no answer may take to end, before its log is looked at no more [s]."""


def run_experiment(source: Source, output: Output, options: dict[str, Any]) -> int:
    """Run the experiment and write its record; return the exit code.

    Raises:
        InputError: a server that does not start or does not answer, or numbers out of range.
        KeyboardInterrupt: before the record was begun.
    """
    with ended_as_by_ctrl_c():
        return _run_on(source, output, options)


def _run_on(source: Source, output: Output, options: dict[str, Any]) -> int:
    from costmodel.validation.interference.addresses import parse_url
    from costmodel.validation.interference.client import Client

    make_plan(options, 1)  # refuse wrong numbers before a server is started
    patience = positive(options["timeout"], "timeout", 1e6)
    if source.url is not None:
        address = parse_url(source.url)
        return _attached(Client(address, read_key(options["api_key_env"]), patience), source, output, options, None)
    from costmodel.validation.backends import vllm_server

    assert source.serve is not None
    flags = serve_flags(source.serve, options)
    longest = int(single("prompt", options["prompt"])) + 1
    config = vllm_server.check_folder(source.serve, options["random_weights"], longest)
    line = Line()
    try:
        with vllm_server.serving(
            source.serve,
            flags,
            lambda passed: line.show(f"the server starts: {passed:,.0f} s"),
            positive(options["start_timeout"], "start-timeout", 1e6),
        ) as running:
            line.clear()
            options["vocabulary"] = config.get("vocab_size")
            return _attached(Client(parse_url(running.url), None, patience), source, output, options, running)
    finally:
        line.clear()


def _attached(client: Client, source: Source, output: Output, options: dict[str, Any], running: Running | None) -> int:
    """Run the experiment on a server that answers; return the exit code."""
    from costmodel.validation.interference.experiment import ServerLostError

    line, begun = Line(), threading.Event()
    try:
        asyncio.run(_run(client, source, output, options, running.flags if running else {}, line, begun))
    except (KeyboardInterrupt, asyncio.CancelledError):
        line.clear()
        if not begun.is_set():
            raise KeyboardInterrupt from None
        click.echo("interrupted: the numbers are of what had happened until then", err=True)
        return INTERRUPTED
    except ServerLostError as error:
        line.clear()
        why = ""
        until = time.monotonic() + ENDING
        while running is not None and running.alive() and time.monotonic() < until:
            time.sleep(0.1)
        if running is not None and not running.alive():
            why = f"; the server is gone, the last lines of its log: {running.tail()}"
        click.echo(f"the experiment ended early: {error}{why}", err=True)
        return 1
    finally:
        line.clear()
    return 0


async def _run(
    client: Client,
    source: Source,
    output: Output,
    options: dict[str, Any],
    flags: dict[str, Any],
    line: Line,
    begun: threading.Event,
) -> None:
    """Learn what the server is, and run the plan; ``begun`` is set when there is a record."""
    from costmodel.validation.interference.experiment import Experiment
    from costmodel.validation.interference.preparing import inspect, output_tokens
    from costmodel.validation.interference.records import Recorder
    from costmodel.validation.interference.streams import Prompts, Speech, learn

    found = await inspect(client, options["served_model_name"])
    plan = make_plan(options, 1)
    tokens = output_tokens(found, plan.context_tokens, plan.prompt_tokens, options["output"])
    plan = make_plan(options, whole(tokens, "output", 3))
    speech = Speech(found.model, options["api"], Prompts(options.get("vocabulary")))
    notes = await learn(client, speech)
    header = _header(client, source, options, plan, found, flags, notes)
    if output.force:
        output.record.unlink(missing_ok=True)
    with Recorder(output.record, header) as recorder:
        begun.set()
        await Experiment(client, speech, recorder, plan, line.progress).run()


def _header(
    client: Client,
    source: Source,
    options: dict[str, Any],
    plan: Plan,
    found: Any,
    flags: dict[str, Any],
    notes: list[str],
) -> Any:
    from costmodel.validation.interference.preparing import printable
    from costmodel.validation.interference.records import Header, Server

    if source.url is not None and isinstance(chunk := single("chunk", options["chunk"]), int):
        flags = {"max_num_batched_tokens": chunk}
    server = Server(
        url=client.clean(client.address.url),
        engine=found.engine,
        version=found.version,
        flags={**found.flags, **flags},
        started=source.serve is not None,
    )
    machine, model = None, None
    if source.serve is not None:
        from costmodel.validation.backends.devices import local_machine
        from costmodel.validation.backends.vllm_server import is_cpu_build

        count = flags.get("tensor_parallel_size", 1)
        machine = local_machine("cpu" if is_cpu_build() else "cuda", count if isinstance(count, int) else 1)
        model = _model(source.serve, options, flags)
    return Header(
        server=server,
        model_name=source.serve.resolve().name if source.serve is not None else client.clean(printable(found.model)),
        model=model,
        machine=machine,
        plan=plan,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command=_command(source, plan),
        versions={"python": sys.version.split()[0]},
        notes=tuple(notes),
    )


def _model(folder: Path, options: dict[str, Any], flags: dict[str, Any]) -> Any:
    """Return what is served, from its folder; weights have the checkpoint's format, activations what vLLM makes of it."""
    from costmodel.architecture.families import architecture_from_config
    from costmodel.validation.backends.asked import Asked, find_files, short_dtype, weight_dtype
    from costmodel.validation.measurements.types import Model

    files = find_files(Asked(str(folder)))
    stored = architecture_from_config(files.config, files.name, files.quant).dtype
    activation = short_dtype(str(flags.get("dtype", "auto"))) or stored
    return Model(
        name=folder.resolve().name,
        config=files.config,
        dtype=weight_dtype(files, activation),
        random_weights=options["random_weights"],
    )


def _command(source: Source, plan: Plan) -> str:
    """Return the command in short: numbers of the plan, no paths, no secrets."""
    where = "--serve MODEL_DIR" if source.serve is not None else "--url URL"
    return (
        f"costmodel interfere {where} --prompt {plan.prompt_tokens} --streams {plan.streams} --context {plan.context_tokens} "
        f"--every {plan.every_s:g} --first {plan.first_s:g} --duration {plan.duration_s:g} --baseline {plan.baseline_s:g} "
        f"--output {plan.output_tokens}"
    )
