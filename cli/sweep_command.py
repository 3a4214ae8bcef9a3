"""``costmodel sweep``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from costmodel.checks import positive
from costmodel.cli.ending import ended_as_by_ctrl_c
from costmodel.cli.options import echo_json
from costmodel.cli.sweep_options import (
    axis_options,
    model_options,
    refuse_simulation_options,
    simulation_options,
    take_axes,
)
from costmodel.hardware.errors import InputError

INTERRUPTED = 130
"""Exit code after Ctrl-C."""
FIGURES = ("tpot", "interactivity", "price")


@click.command(
    "sweep", epilog="Options that show [,…] take several values, and may be given again. Docs: docs/sweep.md."
)
@axis_options
@model_options
@simulation_options
@click.option(
    "--out", type=click.Path(path_type=Path), default=None, help="Table of all rows: .csv or .parquet (extra parquet)."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
@click.option(
    "--plot", type=click.Path(path_type=Path), default=None,
    help="Draw tokens/s per GPU against TPOT into this .png, .svg or .pdf.",
)  # fmt: skip
@click.option(
    "--figure", type=click.Choice(FIGURES), default=None,
    help="What --plot draws: against TPOT or against tokens/s of a user; tokens per price.  [default: tpot]",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Overwrite the files that --out and --plot name.")
def command(out: Path | None, as_json: bool, plot: Path | None, figure: str | None, force: bool, **options: Any) -> int:
    """Predict or simulate every combination of GPUs, models, TP, dtypes, token budgets and loads.

    A combination that cannot be is a row with the reason. Without --simulate a million rows take seconds; simulations run on all cores
    of this machine, or on a Dask scheduler.
    """
    _check_files(out, plot, figure, force, options)
    from costmodel.cli.sweep_progress import ProgressLine
    from costmodel.sweeping.asking import sweep

    axes = take_axes(options)
    ttft, tpot = options.pop("ttft_slo_ms"), options.pop("tpot_slo_ms")
    journal = options["journal"]
    derived = journal is None and out is not None and options["simulate"] is not None
    if derived and out is not None:
        journal = out.with_name(out.name + ".journal.jsonl")
    options = {name: value for name, value in options.items() if value is not None and name != "journal"}
    if ttft is not None or tpot is not None:
        from costmodel.simulation.running import Limits

        options["limits"] = Limits(ttft=_seconds(ttft, "ttft-slo-ms"), tpot=_seconds(tpot, "tpot-slo-ms"))
    with ended_as_by_ctrl_c(), ProgressLine() as line:
        found = sweep(**axes, **options, journal=journal, progress=line if "simulate" in options else None)
    if found.interrupted:
        kept = f"; {journal} has what was simulated, --resume goes on with it" if journal is not None else ""
        click.echo(f"interrupted after {len(found):,} rows{kept}", err=True)
    else:
        _write(found, out, plot, figure or "tpot", force)
        if derived and journal is not None:
            journal.unlink(missing_ok=True)
    if as_json:
        echo_json(found.document())
    else:
        from costmodel.cli.sweep_report import report

        click.echo(report(found))
    return INTERRUPTED if found.interrupted else 0


def _check_files(out: Path | None, plot: Path | None, figure: str | None, force: bool, options: dict[str, Any]) -> None:
    """Refuse what cannot be written, and options without a use, before any work is done."""
    if options["simulate"] is None:
        refuse_simulation_options(options)
    if figure is not None and plot is None:
        raise InputError(f"--figure {figure} needs --plot FILE, where it is saved")
    if figure == "price" and options["prices"] is None:
        raise InputError("--figure price needs --prices FILE, a table of what GPUs cost")
    if options["resume"] and options["journal"] is None and out is None:
        raise InputError("--resume needs --out or --journal, beside or in which the results are kept")
    if out is not None:
        from costmodel.cli.simulate_table import check_table

        check_table(out, force)
    if plot is not None:
        from costmodel.cli.figures.saving import check_target

        check_target(plot, force)
    if options["journal"] is not None and options["journal"] in (out, plot):
        raise InputError(f"--journal names the same file as another option, {options['journal']}")


def _seconds(value: float | None, name: str) -> float | None:
    return None if value is None else positive(value, name) / 1e3


def _write(found: Any, out: Path | None, plot: Path | None, figure: str, force: bool) -> None:
    if out is not None:
        from costmodel.cli.sweep_table import write_sweep

        write_sweep(out, found, force)
        click.echo(f"wrote {out}", err=True)
    if plot is not None:
        from costmodel.cli.figures import draw_pareto, save_figure

        save_figure(draw_pareto(found, figure), plot, force)
        click.echo(f"wrote {plot}", err=True)
