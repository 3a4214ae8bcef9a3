"""Groups of commands that are imported when they are used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

from costmodel.hardware.errors import nearest, shown, suggestion


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used.

    Args:
        modules: command → module that defines it as ``command``, and its line in the help.
    """

    def __init__(self, *args: Any, modules: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of the table."""
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in self._modules:
            return None
        command: click.Command = importlib.import_module(self._modules[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self._modules.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or name the nearest one."""
        name = args[0]
        if name not in self._modules and not name.startswith("-"):
            close = nearest(name, self._modules)
            hint = suggestion(close) if close else f"commands: {', '.join(self._modules)}"
            raise click.UsageError(f"no command {shown(name)}; {hint}")
        return super().resolve_command(ctx, args)
