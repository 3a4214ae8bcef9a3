"""``costmodel plan``: limits and what binds them. Its commands are loaded when they are used."""

from __future__ import annotations

import importlib

import click

from costmodel.hardware.errors import nearest, shown, suggestion

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


class PlanGroup(click.Group):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of :data:`COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or name the nearest one."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            close = nearest(name, COMMANDS)
            hint = suggestion(close) if close else f"commands: {', '.join(COMMANDS)}"
            raise click.UsageError(f"no command {shown(name)}; {hint}")
        return super().resolve_command(ctx, args)


@click.group("plan", cls=PlanGroup)
def command() -> None:
    """Plan a server: limits and what binds them. Docs: docs/planning.md."""
