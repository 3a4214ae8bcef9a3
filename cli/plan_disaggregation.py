"""``costmodel plan disaggregation``."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from costmodel.checks import positive
from costmodel.cli.plan_fleet_options import fleet_options, hide_pools, take_fleet, told
from costmodel.cli.plan_options import answer_options, show
from costmodel.planning.disaggregation import plan_disaggregation


@click.command("disaggregation")
@partial(lambda command: hide_pools(command, "kv_bandwidth", "kv_latency_ms"))
@fleet_options
@click.option(
    "--compare/--no-compare", default=True, show_default=True, help="Find the number of servers that do both, too."
)
@answer_options(plot=False)
def command(as_json: bool, **options: Any) -> int:
    """How many servers that prefill and how many that decode an SLO takes: the ratio, and the GPUs beside those of servers that do both.

    Exit code 1 if no number of servers will do.
    """
    bandwidth, latency, compare = options.pop("kv_bandwidth"), options.pop("kv_latency_ms"), options.pop("compare")
    load, server = take_fleet(options)
    plan = plan_disaggregation(
        **load,
        bandwidth=None if bandwidth is None else positive(bandwidth, "kv-bandwidth", 1e9) * 1e9,
        latency=0.0 if not latency else positive(latency, "kv-latency-ms", 1e12) / 1e3,
        compare=compare,
        progress=told,
        **server,
    )
    return show(plan, as_json)
