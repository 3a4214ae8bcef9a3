"""``costmodel predict``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from costmodel.cli.options import Values, calibration_options, deployment_options, echo_json, grid, load_options, single
from costmodel.cli.report import comparison, report
from costmodel.cli.speculative_options import speculative_options, take_speculation
from costmodel.documents import Prediction, Predictions
from costmodel.hardware.errors import InputError
from costmodel.prediction import predict

FIGURES = ("timeline", "heights", "breakdown", "roofline")


@click.command(
    "predict",
    epilog="Options that show [,…] take several values; with more than one configuration the answer is a table.",
)
@load_options
@deployment_options
@click.option(
    "--cached-prefix",
    type=Values("tokens", several=False),
    default="0",
    show_default=True,
    help="Tokens of the prompt that the prefix cache has: they are not computed.",
)
@click.option("--prompts", type=int, default=1, show_default=True, help="Long prompts that arrive together.")
@click.option("--every", type=float, default=10.0, show_default=True, help="Seconds between long prompts.")
@click.option(
    "--params",
    type=float,
    default=None,
    help="Parameter count P of the textbook rung, e.g. 8e9.  [default: the model's]",
)
@speculative_options
@calibration_options
@click.option(
    "--assume-efficiency",
    is_flag=True,
    help="For a GPU without a calibration: the efficiencies of its nearest measured relative, if there is one.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
@click.option("--plot", type=click.Path(), default=None, help="Draw a figure into this .png, .svg or .pdf.")
@click.option(
    "--figure", type=click.Choice(FIGURES), default=None, help="Which figure --plot draws.  [default: timeline]"
)
@click.option("--force", is_flag=True, help="Overwrite the file that --plot names.")
def command(as_json: bool, plot: str | None, figure: str | None, force: bool, **options: Any) -> None:
    """Predict step times, the spike of a long prompt, and who sees it.

    Three rungs side by side: textbook (weights ÷ bandwidth, 2·params·tokens ÷ peak), roofline (exact operator counts at datasheet
    rates: the physical floor) and calibrated (the same with fitted efficiencies and overheads of GPU and engine, where there are data).
    """
    if figure is not None and plot is None:
        raise InputError(f"--figure {figure} needs --plot FILE, where it is saved")
    if plot is not None:
        from costmodel.cli.figures.saving import check_target

        check_target(Path(plot), force)
    options["cached_prefix"] = single("cached-prefix", options["cached_prefix"])
    options["speculation"] = take_speculation(options)
    names = ("model", "gpu", "tp", "dtype", "streams", "context", "prompt", "chunk")
    values = {name: options.pop(name) or [None] for name in names}
    asked = [{**combination, **options} for combination in grid(**values)]
    predictions = [predict(**each) for each in asked]
    if plot is not None:
        from costmodel.cli.predict_figures import draw

        draw(figure or "timeline", predictions, asked, Path(plot), force)
        click.echo(f"wrote {plot}", err=True)
    _show(predictions, [name for name in names if len(values[name]) > 1], as_json)


def _show(predictions: list[Prediction], changing: list[str], as_json: bool) -> None:
    if as_json:
        echo_json(predictions[0] if len(predictions) == 1 else Predictions(predictions=tuple(predictions)))
    elif len(predictions) == 1:
        click.echo(report(predictions[0]))
    else:
        click.echo(comparison(predictions, changing))
