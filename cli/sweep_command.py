"""``costmodel sweep``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from costmodel.checks import positive
from costmodel.cli.ending import ended_as_by_ctrl_c
from costmodel.cli.options import echo_json
from costmodel.cli.speculative_options import refuse_speculation
from costmodel.cli.sweep_options import (
    axis_options,
    model_options,
    refuse_simulation_options,
    simulation_options,
    take_axes,
)
from costmodel.hardware.errors import InputError
from costmodel.hardware.reading import shown_path

INTERRUPTED = 130
"""Exit code after Ctrl-C."""
FIGURES = ("tpot", "interactivity", "price")


@click.command(
    "sweep", epilog="Options that show [,…] take several values, and may be given again. Docs: docs/sweep.md."
)
@axis_options
@model_options
@simulation_options
@refuse_speculation
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
    of this machine, or on a Dask scheduler. Exit code 1 if no row has an answer.
    """
    from costmodel.cli.sweep_progress import ProgressLine
    from costmodel.sweeping.asking import sweep

    axes = take_axes(options)
    out, plot, journal = (None if path is None else path.expanduser() for path in (out, plot, options.pop("journal")))
    _check_use(axes, options, figure, plot, out, journal)
    _check_files(out, plot, journal, force)
    _check_size(axes, options["simulate"], as_json, plot)
    derived = journal is None and out is not None and options["simulate"] is not None
    if derived and out is not None:
        journal = out.with_name(out.name + ".journal.jsonl")
    ttft, tpot = options.pop("ttft_slo_ms"), options.pop("tpot_slo_ms")
    options = {name: value for name, value in options.items() if value is not None}
    if ttft is not None or tpot is not None:
        from costmodel.simulation.running import Limits

        options["limits"] = Limits(ttft=_seconds(ttft, "ttft-slo-ms"), tpot=_seconds(tpot, "tpot-slo-ms"))
    with ended_as_by_ctrl_c():
        with ProgressLine() as line:
            found = sweep(**axes, **options, journal=journal, progress=line if "simulate" in options else None)
        if out is not None and not found.interrupted:
            from costmodel.cli.sweep_table import write_sweep

            write_sweep(out, found, force)
            click.echo(f"wrote {out}", err=True)
            if derived and journal is not None:
                journal.unlink(missing_ok=True)
    if found.interrupted:
        there = journal is not None and journal.exists()
        kept = f"; {journal} has what was simulated, --resume goes on with it" if there else ""
        click.echo(f"interrupted after {len(found):,} rows{kept}", err=True)
    if as_json:
        echo_json(found.document())
    else:
        from costmodel.cli.sweep_report import report

        click.echo(report(found))
    if found.interrupted:
        return INTERRUPTED
    answered = bool(found.answered.any())
    if plot is not None and answered:
        from costmodel.cli.figures import draw_pareto, save_figure

        save_figure(draw_pareto(found, figure or "tpot"), plot, force)
        click.echo(f"wrote {plot}", err=True)
    elif plot is not None:
        click.echo(f"{plot} is not drawn: no row has an answer", err=True)
    return 0 if answered else 1


def _check_use(
    axes: dict[str, Any],
    options: dict[str, Any],
    figure: str | None,
    plot: Path | None,
    out: Path | None,
    journal: Path | None,
) -> None:
    """Refuse options without a use."""
    if options["simulate"] is None:
        refuse_simulation_options({**options, "journal": journal})
    if options["simulate"] == "interference" and "output" in axes:
        raise InputError("--output is for loads: the streams of the long-prompt experiment decode until its end")
    if figure is not None and plot is None:
        raise InputError(f"--figure {figure} needs --plot FILE, where it is saved")
    if figure == "price" and options["prices"] is None:
        raise InputError("--figure price needs --prices FILE, a table of what GPUs cost")
    if options["resume"] and journal is None and out is None:
        raise InputError("--resume needs --out or --journal, beside or in which the results are kept")


def _check_files(out: Path | None, plot: Path | None, journal: Path | None, force: bool) -> None:
    """Refuse what cannot be written, before any work is done."""
    if out is not None:
        from costmodel.cli.simulate_table import check_table

        check_table(out, force)
    if plot is not None:
        from costmodel.cli.figures.saving import check_target

        check_target(plot, force)
    if journal is not None and journal.resolve() in [path.resolve() for path in (out, plot) if path is not None]:
        raise InputError(f"--journal names the same file as another option, {shown_path(journal)}")


def _check_size(axes: dict[str, Any], simulate: str | None, as_json: bool, plot: Path | None) -> None:
    """Refuse a document of too many rows, and a figure of too many lines where it would be simulated first."""
    from costmodel.sweeping.results import check_document

    if as_json:
        check_document(math.prod(len(values) for values in axes.values()))
    if plot is not None and simulate is not None:
        from costmodel.cli.figures.pareto import check_lines
        from costmodel.sweeping.grid import part_of
        from costmodel.sweeping.pareto import WORK

        gpus = {part_of(name) for name in axes.get("gpu", ["h100"])}
        names = ["model", *(name.partition("_")[0] for name in WORK[simulate])]  # type: ignore[index]
        check_lines(math.prod([len(gpus), *(len(set(axes.get(name, [None]))) for name in names)]))


def _seconds(value: float | None, name: str) -> float | None:
    return None if value is None else positive(value, name) / 1e3
