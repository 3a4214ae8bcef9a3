"""``costmodel plan``: limits and what binds them. Its commands are loaded when they are used."""

from __future__ import annotations

import click

from costmodel.cli.lazy import LazyGroup

COMMANDS = {
    "memory": ("costmodel.cli.plan_memory", "What uses a GPU's memory, and how many sequences fit."),
    "chunk": (
        "costmodel.cli.plan_chunk",
        "The largest token budget for a limit on the gaps, and what it costs in TTFT.",
    ),
    "batch": ("costmodel.cli.plan_batch", "The most sequences at once, or the longest context, under limits."),
    "prompt": ("costmodel.cli.plan_prompt", "The longest prompt that may come among streams."),
    "gpu": ("costmodel.cli.plan_gpu", "The cheapest GPUs for limits at a load, with your prices."),
    "replicas": ("costmodel.cli.plan_replicas", "How many servers a rate or a trace takes for an SLO."),
    "disaggregation": ("costmodel.cli.plan_disaggregation", "How many servers that prefill and that decode."),
}
"""Command → module that defines it as ``command``, and its line in the help."""


@click.group("plan", cls=LazyGroup, modules=COMMANDS)
def command() -> None:
    """Plan a server: limits and what binds them. Docs: docs/planning.md."""
