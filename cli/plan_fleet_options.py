"""Options of ``costmodel plan replicas`` and ``plan disaggregation``: requests, SLO, and a line per simulated fleet."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from costmodel.cli.options import Values
from costmodel.cli.plan_options import limit_option, take_chunk, take_limits, take_single
from costmodel.cli.simulate_options import server_options
from costmodel.cli.simulate_taking import take_server
from costmodel.hardware.errors import InputError
from costmodel.planning.documents import FleetRun
from costmodel.simulation.settings import SCHEDULERS

Command = TypeVar("Command", bound=Callable[..., Any])
POOLS = ("prefill_gpus", "decode_gpus", "kv_bandwidth", "kv_latency_ms")


def fleet_options(command: Command) -> Command:
    """Add requests, limits and the flags of each server."""
    whole = Values("whole", several=False)
    for option in reversed(
        (
            limit_option("ttft", "Limit on TTFT.  [default: none]"),
            limit_option("tpot", "Limit on TPOT.  [default: none]"),
            limit_option("itl", "Limit on the gaps between tokens, all of them pooled.  [default: none]"),
            limit_option("e2e", "Limit on end-to-end latency.  [default: none]"),
            click.option("--percentile", type=float, default=99.0, show_default=True, help="At which the limits hold."),
            click.option("--rate", type=float, default=None, help="Requests per second, of all servers together."),
            click.option("--trace", type=click.Path(), default=None, help="Recorded requests instead (docs/traces.md)."),
            click.option("--format", "form", default="auto", show_default=True, help="Format of the trace."),
            click.option("--limit", type=whole, default=None, help="Only so many requests of the trace, the first."),
            click.option("--speed", type=float, default=1.0, show_default=True, help="The trace comes so many times faster."),
            click.option("--burstiness", type=float, default=1.0, show_default=True, help="Of arrivals at a rate: 1 is Poisson."),
            click.option(
                "--requests", type=whole, default=None,
                help="Requests that are simulated at a rate.  [default: what comes in 5 times the time of an answer, 2,000 to 30,000]",
            ),
            click.option("--prompt", type=Values("tokens", several=False), default="1024", show_default=True, help="Longest prompt."),
            click.option("--output", type=whole, default="1024", show_default=True, help="Longest answer [tokens]."),
            click.option(
                "--spread", type=float, default=0.0, show_default=True,
                help="Lengths are uniform from (1 − spread) of the longest to the longest.",
            ),
            click.option("--seed", type=int, default=0, show_default=True, help="Of lengths and arrivals."),
            click.option(
                "--chunk", "--max-num-batched-tokens", "chunk", type=Values("chunk", several=False), default=None,
                help="Token budget per step.  [default: vLLM's on this GPU]",
            ),
            server_options,
        )
    ):  # fmt: skip
        command = option(command)
    return command


def scheduler_option(command: Command) -> Command:
    """Add the scheduler of each replica."""
    option = click.option(
        "--scheduler",
        type=click.Choice(SCHEDULERS),
        default=None,
        help="Of each server.  [default: vllm; prefill-first with sglang]",
    )
    return option(command)


def hide_pools(command: Command, *kept: str) -> Command:
    """Leave out the options that give the number of servers, which is what is asked for."""
    parameters = [
        each for each in getattr(command, "__click_params__", ()) if each.name not in POOLS or each.name in kept
    ]
    command.__click_params__ = parameters  # type: ignore[attr-defined]
    return command


def take_fleet(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return requests and limits, and the options of a server.

    Raises:
        InputError: options that contradict each other.
    """
    asked = take_limits(options, "ttft", "tpot", "itl", "e2e")
    if all(value is None for value in asked.values()):
        raise InputError("give a limit: --ttft-ms, --tpot-ms, --itl-ms or --e2e-ms")
    names = (
        "rate",
        "trace",
        "percentile",
        "form",
        "limit",
        "speed",
        "burstiness",
        "requests",
        "prompt",
        "output",
        "spread",
        "seed",
    )
    load = take_single(options, *names)
    if (load["rate"] is None) == (load["trace"] is None):
        raise InputError("give either --rate (requests per second) or --trace FILE")
    chunk = take_chunk(options)
    if chunk == "one-step":
        raise InputError("--chunk must be a number of tokens here, or `engine` for vLLM's default")
    server: dict[str, Any] = {**take_server(options), "chunk": chunk, "scheduler": options.pop("scheduler", None)}
    return {**load, **asked}, {name: value for name, value in server.items() if value is not None}


def told(run: FleetRun) -> None:
    """Say on a terminal that a fleet was simulated."""
    if sys.stderr.isatty():
        text = "holds the limits" if run.meets else f"misses {', '.join(run.missed)}"
        click.echo(f"simulated {run.servers:,} servers: {text}", err=True)
