"""``costmodel plan gpu``."""

from __future__ import annotations

from typing import Any

import click

from costmodel.cli.options import Values, prices_option
from costmodel.cli.plan_options import (
    answer_options,
    check_plot,
    chunk_option,
    every_option,
    limit_option,
    model_options,
    number,
    show,
    take_chunk,
    take_limits,
    take_model,
    take_single,
    tokens,
)
from costmodel.hardware.errors import InputError
from costmodel.planning.parts import plan_gpu


@click.command("gpu")
@limit_option("tpot", "Limit on the mean gap of a stream.  [default: none]")
@limit_option("ttft", "Limit on the TTFT of the long prompt, at the worst moment.  [default: none]")
@limit_option("itl", "Limit on every gap of the streams.  [default: none]")
@tokens("--prompt", default="8000", help="Tokens of the long prompt.")
@number("--streams", default="32", help="Streams that decode.")
@tokens("--context", default="500", help="Tokens that each has in the KV cache: the longest that they reach.")
@every_option()
@click.option(
    "--gpu",
    "gpus",
    type=Values("text"),
    default=None,
    help="Parts to choose from.  [default: those with a price; all, without prices]",
)
@prices_option
@number("--max-gpus", "most", help="GPUs at most.  [default: a node of the part]")
@chunk_option("engine")
@model_options(parts=False)
@answer_options()
def command(as_json: bool, plot: str | None, force: bool, **options: Any) -> int:
    """The cheapest GPUs for limits at a load: for each part the smallest tensor-parallel size that holds them.

    Exit code 1 if no part will do, with the nearest limits that one holds.
    """
    path = check_plot(plot, force)
    chunk = take_chunk(options)
    if chunk == "one-step":
        raise InputError("--chunk must be a number of tokens here, or `engine` for vLLM's default on each part")
    limits = take_limits(options, "tpot", "ttft", "itl")
    load = take_single(options, "prompt", "streams", "context", "every", "most")
    parts, prices = options.pop("gpus"), options.pop("prices")
    plan = plan_gpu(**load, **limits, gpus=parts, prices=prices, chunk=chunk or "engine", **take_model(options))
    if path is not None:
        from costmodel.cli.figures import draw_costs, save_figure

        save_figure(draw_costs(plan), path, force)
        click.echo(f"wrote {path}", err=True)
    return show(plan, as_json)
