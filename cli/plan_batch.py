"""``costmodel plan batch``."""

from __future__ import annotations

from typing import Any

import click

from costmodel.cli.options import image_options
from costmodel.cli.plan_options import (
    answer_options,
    chunk_option,
    every_option,
    limit_option,
    model_options,
    number,
    prefix_option,
    refuse_typed,
    show,
    take_chunk,
    take_limits,
    take_model,
    take_single,
    tokens,
)
from costmodel.planning.sizes import plan_batch


@click.command("batch")
@click.option(
    "--solve",
    "unknown",
    type=click.Choice(["streams", "context"]),
    default="streams",
    show_default=True,
    help="What is to be as large as can be.",
)
@limit_option("tpot", "Limit on the mean gap of a stream.  [default: none]")
@limit_option("itl", "Limit on every gap.  [default: none]")
@number("--streams", default="32", help="Streams that decode, where the context is asked for.")
@tokens("--context", default="500", help="Tokens of each, where the batch is asked for: the longest that they reach.")
@tokens("--prompt", help="A long prompt that comes among them.  [default: none]")
@every_option()
@prefix_option("Tokens of the prompt that the prefix cache has.")
@image_options
@chunk_option("with a prompt one-step, else engine")
@model_options()
@answer_options(plot=False)
def command(as_json: bool, **options: Any) -> int:
    """The most sequences at once (max_num_seqs), or the longest context, under limits on times, the KV cache and flags.

    Exit code 1 if not even one will do.
    """
    if options["unknown"] == "context":
        refuse_typed("is what --solve context asks for; leave it out", "context")
    else:
        refuse_typed("is what is asked for here; for the longest context beside so many add --solve context", "streams")
    if options["prompt"] is None:
        refuse_typed("is for --prompt, a long prompt that comes again and again", "every")
    limits, chunk = take_limits(options, "tpot", "itl"), take_chunk(options)
    load = take_single(
        options, "unknown", "streams", "context", "prompt", "every", "cached_prefix", "images", "image_size"
    )
    return show(plan_batch(**load, **limits, chunk=chunk, **take_model(options)), as_json)
