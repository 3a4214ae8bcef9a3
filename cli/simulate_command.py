"""``costmodel simulate``: interference, load, trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from costmodel.cli.options import Values, echo_json, single
from costmodel.cli.simulate_options import (
    Output,
    fixed_step_options,
    output_options,
    server_options,
    take_limits,
    take_output,
    take_pools,
    take_server,
)
from costmodel.cli.simulate_running import Watch
from costmodel.hardware.errors import InputError

if TYPE_CHECKING:
    from costmodel.simulation.simulating import Simulated

INTERRUPTED = 130
"""Exit code after Ctrl-C."""

TIMED_FIGURES = ("itl",)
"""Figures that need the time of every gap."""


@click.group("simulate")
def command() -> None:
    """Simulate continuous batching step by step: what users feel.

    Steps take the times of the model; the scheduler is vLLM's, or one of those that it is compared with. Latencies count from when a
    request is sent. Docs: docs/simulate.md.
    """


@command.command(
    "interference", epilog="--chunk takes several values, e.g. 512,one-step; the answer is then a comparison."
)
@click.option(
    "--prompt",
    type=Values("tokens", several=False),
    default="8000",
    show_default=True,
    help="Tokens of an injected prompt.",
)
@click.option(
    "--streams",
    type=Values("whole", several=False),
    default="32",
    show_default=True,
    help="Streams that decode from beginning to end.",
)
@click.option(
    "--context",
    type=Values("whole", several=False),
    default="500",
    show_default=True,
    help="Tokens each stream has in the KV cache.",
)
@click.option("--every", type=float, default=10.0, show_default=True, help="Seconds from one injection to the next.")
@click.option("--first", type=float, default=5.0, show_default=True, help="Time of the first injection [s].")
@click.option("--duration", type=float, default=40.0, show_default=True, help="Length of the run [s].")
@click.option("--prompts", type=int, default=1, show_default=True, help="Prompts injected at once.")
@click.option(
    "--grow", is_flag=True, help="Contexts grow by a token per step; without, they are held, as of chats at all stages."
)
@click.option(
    "--injected-output", type=int, default=1, show_default=True, help="Tokens of the answer to an injected prompt."
)
@click.option(
    "--chunk",
    "--max-num-batched-tokens",
    "chunk",
    type=Values("chunk"),
    default=None,
    help="Token budget per step; `engine` for vLLM's default, `one-step` for the whole prompt in one step.  [default: one-step]",
)
@fixed_step_options
@server_options
@output_options(("itl", "percentiles", "distribution", "load"))
def interference(**options: Any) -> int:
    """The long-prompt experiment: streams that decode, with and without prompts injected among them."""
    output = take_output(options, "itl")
    _refuse_empty_tpot(options)
    chunks = options.pop("chunk") or [None]
    if len(chunks) > 1 and output.requests_file is not None:
        raise InputError(
            f"--requests-file takes the requests of one simulation, not of {len(chunks)}; give one --chunk"
        )
    limits, pools = take_limits(options), take_pools(options)
    server = take_server(options, None)
    from costmodel.simulation.simulating import run_interference

    for name in ("prompt", "streams", "context"):
        options[name] = single(name, options[name])
    timed = output.plot is not None and output.figure in TIMED_FIGURES
    found = []
    with Watch() as watch:
        for chunk in chunks:
            made = run_interference(
                **options,
                limits=limits,
                pools=pools,
                options={**server, "chunk": chunk},
                keep_times=timed,
                progress=watch,
            )
            found.append(made)
            if made.document.interrupted:
                break
        watch.done()
        return _finish(found, output)


def _refuse_empty_tpot(options: dict[str, Any]) -> None:
    """Refuse a limit on the TPOT of answers of one token."""
    if options["tpot_slo_ms"] is not None and options["injected_output"] == 1:
        raise InputError(
            "--tpot-slo-ms is about the injected prompts, whose answers of one token have no TPOT; "
            "--stall-ms counts the gaps of the streams, --injected-output makes the answers longer"
        )


@command.command("load")
@click.option(
    "--clients", "--concurrency", "clients", type=Values("whole", several=False), default=None,
    help="Clients that each send their next request when their last answer ends.",
)  # fmt: skip
@click.option("--rate", type=float, default=None, help="Requests per second at random, instead of clients.")
@click.option(
    "--burstiness",
    type=float,
    default=None,
    help="Shape of the gamma distribution of their gaps; less than 1 comes in bursts.  [default: 1, Poisson]",
)
@click.option(
    "--requests",
    type=Values("whole", several=False),
    default=None,
    help="Requests in all.  [default: ten per client; 1,000 at a rate]",
)
@click.option("--duration", type=float, default=None, help="Seconds of arrivals at a rate, instead of --requests.")
@click.option(
    "--prompt", type=Values("tokens", several=False), default="1024", show_default=True, help="Longest prompt."
)
@click.option(
    "--output", type=Values("whole", several=False), default="1024", show_default=True, help="Longest answer [tokens]."
)
@click.option(
    "--spread",
    type=float,
    default=0.0,
    show_default=True,
    help="Lengths are uniform from (1 − spread) of the longest to the longest.",
)
@click.option(
    "--think-s", "think", type=float, default=None, help="Pause of a client before it asks again [s].  [default: 0]"
)
@click.option(
    "--ramp-s",
    "ramp",
    type=float,
    default=None,
    help="Time over which the clients begin [s].  [default: 0, all at once]",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of lengths and arrivals.")
@click.option(
    "--chunk",
    "--max-num-batched-tokens",
    "chunk",
    type=Values("chunk", several=False),
    default=None,
    help="Token budget per step.  [default: vLLM's on this GPU]",
)
@fixed_step_options
@server_options
@output_options(("load", "distribution", "percentiles"))
def load(**options: Any) -> int:
    """A load: clients that wait for their answers (--clients), or requests that come at a --rate."""
    output = take_output(options, "load")
    for name in ("clients", "requests", "prompt", "output"):
        options[name] = single(name, options[name])
    waiting = options["clients"] is not None
    for name, value in (("think-s", options["think"]), ("ramp-s", options["ramp"])):
        if value is not None and not waiting:
            raise InputError(f"--{name} is for clients that wait for their answers; give --clients instead of --rate")
    if waiting and options["burstiness"] is not None:
        raise InputError("--burstiness is for arrivals at a --rate; clients send when their last answer ends")
    defaults = {"burstiness": 1.0, "think": 0.0, "ramp": 0.0}
    options |= {name: value for name, value in defaults.items() if options[name] is None}
    limits, pools = take_limits(options), take_pools(options)
    server = take_server(options, _budget(options))
    from costmodel.simulation.simulating import run_load

    with Watch() as watch:
        made = run_load(**options, limits=limits, pools=pools, options=server, progress=watch)
        watch.done()
        return _finish([made], output)


@command.command("trace", epilog="Formats of traces: docs/traces.md.")
@click.argument("path", metavar="FILE", type=click.Path())
@click.option(
    "--format",
    "form",
    default="auto",
    show_default=True,
    help="azure, burstgpt, csv, mooncake, timed-trace, records or vllm-bench.",
)
@click.option("--limit", type=Values("whole", several=False), default=None, help="Only so many requests, the first.")
@click.option("--speed", type=float, default=1.0, show_default=True, help="Requests come so many times faster.")
@click.option(
    "--chunk",
    "--max-num-batched-tokens",
    "chunk",
    type=Values("chunk", several=False),
    default=None,
    help="Token budget per step.  [default: vLLM's on this GPU]",
)
@server_options
@output_options(("load", "distribution", "percentiles"))
def trace(**options: Any) -> int:
    """The requests of a recorded trace: Azure, BurstGPT, Mooncake, vLLM's timed traces and benchmark results, or your own CSV."""
    output = take_output(options, "load")
    options["limit"] = single("limit", options["limit"])
    limits, pools = take_limits(options), take_pools(options)
    server = take_server(options, _budget(options))
    from costmodel.simulation.simulating import run_trace

    with Watch() as watch:
        made = run_trace(**options, limits=limits, pools=pools, options=server, progress=watch)
        watch.done()
        return _finish([made], output)


def _budget(options: dict[str, Any]) -> int | str | None:
    """Take the token budget out of the options; None for vLLM's default."""
    values = options.pop("chunk")
    if values is None:
        return None
    chunk: int | str | None = single("chunk", values)
    if chunk is None:
        raise InputError("--chunk must be a number of tokens here, or `engine` for vLLM's default")
    return chunk


def _finish(found: Sequence[Simulated], output: Output) -> int:
    """Write and print what was simulated; return the exit code."""
    from costmodel.simulation.results import Simulations

    documents = [each.document for each in found]
    last = found[-1]
    if output.requests_file is not None:
        from costmodel.cli.simulate_table import write_table

        write_table(output.requests_file, last.runs[-1].served)
        click.echo(f"wrote {output.requests_file}", err=True)
    if output.plot is not None:
        _plot(found, output)
    if output.as_json:
        echo_json(documents[0] if len(documents) == 1 else Simulations(simulations=tuple(documents)))
    else:
        from costmodel.cli.simulate_report import comparison, report

        click.echo(report(documents[0]) if len(documents) == 1 else comparison(documents))
    if last.document.interrupted:
        click.echo("interrupted: the numbers are of what was simulated until then", err=True)
        return INTERRUPTED
    return _verdict(found, output)


def _plot(found: Sequence[Simulated], output: Output) -> None:
    """Draw the figure; one that cannot be drawn of a run that was cut short is left out, as the report counts more."""
    from costmodel.cli.simulate_figures import draw

    if output.plot is None:
        return
    try:
        draw(output.figure, found, output.plot, output.force)
    except InputError as error:
        if not found[-1].document.interrupted:
            raise
        click.echo(f"no figure: {error}", err=True)
        return
    click.echo(f"wrote {output.plot}", err=True)


def _verdict(found: Sequence[Simulated], output: Output) -> int:
    """Return 1 if fewer requests are good than asked for, else 0."""
    if output.slo_share is None:
        return 0
    share = min((_share(each) for each in found), default=0.0)
    if share >= output.slo_share:
        return 0
    click.echo(f"{share:.2%} of the requests are good, fewer than {output.slo_share:.2%}", err=True)
    return 1


def _share(each: Simulated) -> float:
    goodput = each.runs[-1].result.goodput
    return goodput.share if goodput is not None else 0.0
