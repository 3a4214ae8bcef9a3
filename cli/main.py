"""Entry point: finds commands lazily, so that `costmodel predict` loads only what it needs, and turns every error into one line."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from typing import Any

import click

from costmodel.hardware.errors import CostModelError, nearest, one_line, shown, suggestion

COMMANDS = {
    "predict": ("costmodel.cli.predict_command", "Step times, the spike of a long prompt, and who sees it."),
    "simulate": (
        "costmodel.cli.simulate_command",
        "Continuous batching, step by step: what users feel, under load or when a long prompt comes.",
    ),
    "plan": (
        "costmodel.cli.plan_command",
        "Limits and what binds them: memory, token budget, batch, prompt, GPU, replicas.",
    ),
    "sweep": (
        "costmodel.cli.sweep_command",
        "Grids of configurations, predicted or simulated: GPUs, models, TP, dtypes, budgets, loads.",
    ),
    "interfere": (
        "costmodel.cli.interfere_command",
        "The long-prompt experiment on a live server, beside its prediction.",
    ),
    "explain": (
        "costmodel.cli.explain_command",
        "A request's way through a server, and nine misunderstandings, in numbers.",
    ),
    "formula": ("costmodel.cli.formula_command", "The model as formulas: print, export, solve, elasticities."),
    "gpus": ("costmodel.cli.gpus_command", "Hardware profiles: list, show, check, probe."),
    "measure": (
        "costmodel.cli.measure_command",
        "Short measurements of the steps of a real engine: vLLM, or torch alone.",
    ),
    "fit": ("costmodel.cli.fit_command", "Measurements to a calibration, with uncertainties."),
    "check": ("costmodel.cli.check_command", "Predictions against measurements: your own, or a benchmark client's."),
    "models": ("costmodel.cli.models_command", "Model architectures: list, show, import."),
}
"""Command → module that defines it as ``command``, and its line in the help."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used, and whose errors are one line on stderr."""

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

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run, and exit with 0, 1 (the answer is no) or 2 (bad usage or input) without a traceback."""
        kwargs["standalone_mode"] = False
        try:
            result = self._run(*args, **kwargs)
            if sys.stdout is not None:  # closed before the start (>&-)
                sys.stdout.flush()
            sys.exit(result if isinstance(result, int) else 0)
        except CostModelError as error:
            _fail(str(error), error.exit_code)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.ctx.get_help() if error.ctx else "")
            sys.exit(2)
        except click.ClickException as error:
            _fail(error.format_message(), 2)
        except (click.Abort, KeyboardInterrupt):
            _fail(str(Interrupted()), Interrupted.exit_code)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            _discard_output()
            _fail(f"cannot write the output: {error.strerror}", 2)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; click answers Ctrl-C with an empty line, so it does not get to see it."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted from None

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        """Run click's own main; a reader of a pipe that has seen enough, such as `head`, is no failure."""
        try:
            return super().main(*args, **kwargs)
        except SystemExit:
            if type(sys.stdout).__name__.endswith("PacifyFlushWrapper"):  # click met a closed pipe, and exits with 1
                return 0
            raise


class Interrupted(CostModelError):  # noqa: N818  it is no fault
    """Somebody pressed Ctrl-C."""

    exit_code = 130

    def __init__(self) -> None:
        super().__init__("interrupted")


NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What the system says where stdout is a file on a disk that is full."""


def _discard_output() -> None:
    """Let what is left in the buffer of stdout go nowhere: Python would try once more to write it, and say so."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _fail(message: str, code: int) -> None:
    click.echo("error: " + one_line(message), err=True)
    sys.exit(code)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Every command has --help. Start with: costmodel predict --prompt 8000 --gpu h100",
)
@click.version_option(package_name="llm-costmodel", prog_name="costmodel")
def main() -> None:
    """How long one step of an LLM inference server takes, and what that means for the people waiting for its tokens.

    Predicts step times and the spike that every stream sees when a long prompt is prefilled, from the model's architecture and the
    GPU's datasheet, with formulas that you can read.
    """
