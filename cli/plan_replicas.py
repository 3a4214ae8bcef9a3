"""``costmodel plan replicas``."""

from __future__ import annotations

from typing import Any

import click

from costmodel.cli.plan_fleet_options import fleet_options, hide_pools, scheduler_option, take_fleet, told
from costmodel.cli.plan_options import answer_options, check_plot, show
from costmodel.planning.fleets import BALANCING
from costmodel.planning.replicas import plan_replicas

AROUND = 2
"""Numbers of servers on both sides of the answer that a figure shows as well."""


@click.command("replicas")
@hide_pools
@fleet_options
@scheduler_option
@click.option(
    "--balancing",
    type=click.Choice(BALANCING),
    default="round-robin",
    show_default=True,
    help="How servers get requests: in turns, or at random.",
)
@answer_options()
def command(as_json: bool, plot: str | None, force: bool, **options: Any) -> int:
    """How many servers a rate or a trace takes for an SLO at a percentile.

    A closed form says where to begin; then fleets are simulated until N servers hold all limits and N − 1 do not. Exit code 1 if no number
    of servers will do.
    """
    path = check_plot(plot, force)
    load, server = take_fleet(options)
    plan = plan_replicas(
        **load, balancing=options.pop("balancing"), around=0 if path is None else AROUND, progress=told, **server
    )
    if path is not None:
        from costmodel.cli.figures import draw_fleets, save_figure

        save_figure(draw_fleets(plan), path, force)
        click.echo(f"wrote {path}", err=True)
    return show(plan, as_json)
