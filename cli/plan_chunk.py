"""``costmodel plan chunk``."""

from __future__ import annotations

from typing import Any

import click

from costmodel.cli.options import image_options
from costmodel.cli.plan_options import (
    answer_options,
    check_plot,
    every_option,
    limit_option,
    model_options,
    number,
    prefix_option,
    show,
    take_limits,
    take_model,
    take_single,
    tokens,
)
from costmodel.hardware.errors import InputError
from costmodel.planning.chunks import plan_chunk


@click.command("chunk")
@limit_option("itl", "Limit on every gap between two tokens of a stream.")
@limit_option(
    "ttft", "Limit on the TTFT of the long prompt, from when it is sent, at the worst moment.  [default: none]"
)
@tokens("--prompt", default="8000", help="Tokens of the long prompt.")
@number("--streams", default="32", help="Streams that decode.")
@number("--context", default="500", help="Tokens that each has in the KV cache: the longest that they reach.")
@every_option()
@click.option("--prompts", type=int, default=1, show_default=True, help="Long prompts that come at once.")
@prefix_option("Tokens of the prompt that the prefix cache has.")
@image_options
@number("--multiple", default="256", help="The budget is a multiple of this.")
@model_options()
@answer_options()
def command(as_json: bool, plot: str | None, force: bool, **options: Any) -> int:
    """The largest --max-num-batched-tokens for a limit on the gaps, what it costs in TTFT, and the trade-off.

    A larger budget makes every mixed step longer, a smaller one the prompt. Checked by simulation, at the answer and at the next multiple.
    Exit code 1 if no budget will do, with the limit that binds and the nearest one that can be held.
    """
    path = check_plot(plot, force)
    limits = take_limits(options, "itl", "ttft")
    if limits["itl"] is None:
        raise InputError("give a limit on the gaps between tokens: --itl-ms, e.g. --itl-ms 50")
    load = take_single(
        options, "prompt", "streams", "context", "every", "prompts", "multiple", "cached_prefix", "images", "image_size"
    )
    plan = plan_chunk(**load, **limits, **take_model(options))
    if path is not None:
        from costmodel.cli.figures import draw_budgets, save_figure

        save_figure(draw_budgets(plan), path, force)
        click.echo(f"wrote {path}", err=True)
    return show(plan, as_json)
