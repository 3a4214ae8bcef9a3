"""``costmodel plan prompt``."""

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
    show,
    take_chunk,
    take_limits,
    take_model,
    take_single,
    tokens,
)
from costmodel.planning.sizes import plan_prompt


@click.command("prompt")
@limit_option("itl", "Limit on every gap of the streams: the height of the spike.  [default: none]")
@limit_option("ttft", "Limit on the TTFT of the prompt, from when it is sent, at the worst moment.  [default: none]")
@number("--streams", default="32", help="Streams that decode.")
@tokens("--context", default="500", help="Tokens that each has in the KV cache: the longest that they reach.")
@every_option(None)
@prefix_option("Tokens of the prompt that the prefix cache has.")
@image_options
@chunk_option("one-step")
@model_options()
@answer_options(plot=False)
def command(as_json: bool, **options: Any) -> int:
    """The longest prompt that may come among decoding streams, under limits on the spike, TTFT, KV cache and max_model_len.

    Exit code 1 if not even a prompt of one token will do.
    """
    limits, chunk = take_limits(options, "itl", "ttft"), take_chunk(options)
    load = take_single(options, "streams", "context", "every", "cached_prefix", "images", "image_size")
    return show(plan_prompt(**load, **limits, chunk=chunk, **take_model(options)), as_json)
