"""``costmodel simulate``: interference, load, trace."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from costmodel.cli.options import Values, echo_json, image_options, single
from costmodel.cli.simulate_options import compared_options, fixed_step_options, output_options, server_options
from costmodel.cli.simulate_running import Watch
from costmodel.cli.simulate_taking import Output, check_output, take_limits, take_output, take_server, take_variants
from costmodel.cli.text import percent, significant
from costmodel.hardware.errors import InputError
from costmodel.simulation.settings import DISAGGREGATED

if TYPE_CHECKING:
    from costmodel.simulation.options import ServerOptions
    from costmodel.simulation.pools import Pools
    from costmodel.simulation.running import Limits
    from costmodel.simulation.simulating import Simulated

INTERRUPTED = 130
"""Exit code after Ctrl-C."""

TIMED_FIGURES = ("itl",)
"""Figures that need the time of every gap."""


COMPARED = "--chunk and --scheduler take several values, e.g. 512,2048; the answer is then a comparison."


@click.group("simulate")
def command() -> None:
    """Simulate continuous batching step by step: what users feel.

    Steps take the times of the model; the scheduler is vLLM's, or one of those that it is compared with. Latencies count from when a
    request is sent. Docs: docs/simulate.md.
    """


@command.command("interference", epilog=COMPARED)
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
    "--cached-prefix",
    type=Values("tokens", several=False),
    default="0",
    show_default=True,
    help="Tokens of an injected prompt that the prefix cache has.",
)
@image_options
@compared_options("one-step")
@fixed_step_options
@server_options
@output_options(("itl", "percentiles", "distribution", "load"))
def interference(**options: Any) -> int:
    """The long-prompt experiment: streams that decode, with and without prompts injected among them."""
    output = take_output(options, "itl")
    _refuse_empty_tpot(options)
    for name in ("prompt", "streams", "context", "cached_prefix"):
        options[name] = single(name, options[name])

    def simulate(asked: Asked, **watched: Any) -> Simulated:
        from costmodel.simulation.interfering import run_interference

        return run_interference(**options, limits=asked.limits, pools=asked.pools, options=asked.server, **watched)

    return _simulate(options, output, simulate)


def _refuse_empty_tpot(options: dict[str, Any]) -> None:
    """Refuse a limit on the TPOT of answers of one token."""
    if options["tpot_slo_ms"] is not None and options["injected_output"] == 1:
        raise InputError(
            "--tpot-slo-ms is about the injected prompts, whose answers of one token have no TPOT; "
            "--stall-ms counts the gaps of the streams, --injected-output makes the answers longer"
        )


@command.command("load", epilog=COMPARED)
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
@image_options
@compared_options("vLLM's on this GPU")
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
    _refuse_one_step(options)
    if waiting and DISAGGREGATED in (options["scheduler"] or ()):
        raise InputError("--scheduler disaggregated takes arrivals at a --rate, not a closed loop of --clients")

    def simulate(asked: Asked, **watched: Any) -> Simulated:
        from costmodel.simulation.simulating import run_load

        return run_load(**options, limits=asked.limits, pools=asked.pools, options=asked.server, **watched)

    return _simulate(options, output, simulate)


@command.command("trace", epilog=f"Formats of traces: docs/traces.md. {COMPARED}")
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
@compared_options("vLLM's on this GPU")
@fixed_step_options
@server_options
@output_options(("load", "distribution", "percentiles"))
def trace(**options: Any) -> int:
    """The requests of a recorded trace: Azure, BurstGPT, Mooncake, vLLM's timed traces and benchmark results, or your own CSV."""
    output = take_output(options, "load")
    options["limit"] = single("limit", options["limit"])
    _refuse_one_step(options)
    for name, written in (("--requests-file", output.requests_file), ("--plot", output.plot)):
        if written is not None and _same_file(written, options["path"]):
            raise InputError(f"{name} {written} is the trace itself, which would be lost; name another file")

    def simulate(asked: Asked, **watched: Any) -> Simulated:
        from costmodel.simulation.simulating import run_trace

        return run_trace(**options, limits=asked.limits, pools=asked.pools, options=asked.server, **watched)

    return _simulate(options, output, simulate)


def _same_file(one: Path, other: str) -> bool:
    """Tell whether two names are those of one file that there is."""
    try:
        return os.path.samefile(one.expanduser(), other)
    except (OSError, ValueError, RuntimeError):
        return False


def _refuse_one_step(options: dict[str, Any]) -> None:
    """Refuse the token budget of one step, which is about one prompt."""
    if None in (options["chunk"] or ()):
        raise InputError("--chunk must be a number of tokens here, or `engine` for vLLM's default")


class Asked(NamedTuple):
    """What one of the simulations of a call is asked for, besides its workload."""

    limits: Limits
    pools: Pools | None
    server: ServerOptions


def _simulate(options: dict[str, Any], output: Output, simulate: Callable[..., Simulated]) -> int:
    """Simulate every variant, write and print; return the exit code.

    Args:
        options: of the command; all but those of the workload are taken out.
        output: what is written where.
        simulate: runs the workload with what is asked, and with ``keep_times`` and ``progress``.
    """
    variants = take_variants(options)
    check_output(output, len(variants), "streams" in options)
    limits, server = take_limits(options), take_server(options)
    found: list[Simulated] = []
    with Watch() as watch:
        for chunk, scheduler, pools in variants:
            asked = Asked(limits, pools, {**server, "chunk": chunk, "scheduler": scheduler})
            timed = output.plot is not None and output.figure in TIMED_FIGURES
            found.append(simulate(asked, keep_times=timed, progress=watch))
            if found[-1].document.interrupted:
                break
        watch.done()
        return _finish(found, output)


def _finish(found: Sequence[Simulated], output: Output) -> int:
    """Write and print what was simulated; return the exit code."""
    from costmodel.simulation.results import Simulations

    documents = [each.document for each in found]
    last = found[-1]
    missed: InputError | None = None
    try:
        _write(found, output)
    except InputError as error:  # what was simulated is told in any case
        missed = error
    if output.as_json:
        echo_json(documents[0] if len(documents) == 1 else Simulations(simulations=tuple(documents)))
    else:
        from costmodel.cli.simulate_report import report
        from costmodel.cli.simulate_tables import comparison

        click.echo(report(documents[0]) if len(documents) == 1 else comparison(documents))
    if missed is not None:
        raise missed
    if last.document.interrupted:
        click.echo("interrupted: the numbers are of what was simulated until then", err=True)
        return INTERRUPTED
    return _verdict(found, output)


def _write(found: Sequence[Simulated], output: Output) -> None:
    """Write the files that were asked for."""
    if output.requests_file is not None:
        from costmodel.cli.simulate_table import write_table

        write_table(output.requests_file, found[-1].runs[-1].served, output.force)
        click.echo(f"wrote {output.requests_file}", err=True)
    if output.plot is not None:
        _plot(found, output)


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
    good, wanted = percent(share), percent(output.slo_share)
    if good == wanted:
        good, wanted = (f"{significant(100 * each, 6)} %" for each in (share, output.slo_share))
    click.echo(f"{good} of the requests are good, fewer than {wanted}", err=True)
    return 1


def _share(each: Simulated) -> float:
    goodput = each.runs[-1].result.goodput
    return goodput.share if goodput is not None else 0.0
