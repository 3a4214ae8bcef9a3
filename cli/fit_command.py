"""``costmodel fit``."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from costmodel.cli.files import check_writable, write_atomically
from costmodel.cli.options import echo_json
from costmodel.cli.text import count, percent, significant, table
from costmodel.hardware.catalog import resolve_gpu
from costmodel.validation.datasets.package import ENGINES

if TYPE_CHECKING:
    from costmodel.validation.fitting.kernels import OperatorFit


@click.command("fit")
@click.option(
    "--dataset",
    type=click.Choice(["kernels"]),
    default="kernels",
    show_default=True,
    help="Kernel tables of aiconfigurator-core.",
)
@click.option("--gpu", required=True, help="GPU whose kernels are fitted.")
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default="vllm",
    show_default=True,
    help="Engine that they were measured with.",
)
@click.option(
    "--without-rule", "off", multiple=True, help="Switch off a rule of exclusion (may be given several times)."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Which shapes are held out.")
@click.option(
    "--output", type=click.Path(path_type=Path), default=None, help="Write the calibration into this TOML file."
)
@click.option("--force", is_flag=True, help="Overwrite the file that --output names.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
def command(
    dataset: str,
    gpu: str,
    engine: str,
    off: tuple[str, ...],
    seed: int,
    output: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Fit a calibration to measurements, with errors on shapes that were held out.

    Needs the extra `silicon` (pip install 'llm-costmodel[silicon]'), whose package carries the measurements.
    """
    from costmodel.validation.fitting.calibrate import kernel_calibration, to_toml
    from costmodel.validation.fitting.kernels import fit_kernels

    if output is not None:
        check_writable(output, force)
    fits = []
    for fit in fit_kernels(gpu, engine, off, seed):
        fits.append(fit)
        if sys.stderr.isatty():
            click.echo(f"fitted {fit.operator}: {percent(fit.errors.median)} median error on held-out shapes", err=True)
    ran = f"costmodel fit --dataset {dataset} --gpu {resolve_gpu(gpu).name} --engine {engine} --seed {seed}"
    calibration = kernel_calibration(gpu, engine, fits, ran + "".join(f" --without-rule '{name}'" for name in off))
    if output is not None:
        write_atomically(output, to_toml(calibration))
        click.echo(f"wrote {output}: {calibration.name}", err=True)
    if as_json:
        echo_json(
            {
                "schema": "costmodel.fit/1",
                "gpu": calibration.gpu,
                "engine": engine,
                "operators": [_summary(fit) for fit in fits],
            }
        )
    else:
        click.echo(_report(calibration.name, fits))


def _report(name: str, fits: list[OperatorFit]) -> str:
    header = ["operator", "form", "rows", "excluded", "median", "mean", "p90", "bias", "like a server's", "all rows"]
    rows = [
        [
            fit.operator,
            fit.form,
            count(fit.rows_kept),
            count(sum(fit.excluded.values())),
            percent(fit.errors.median),
            percent(fit.errors.mean),
            percent(fit.errors.p90),
            f"{fit.errors.bias * 100:+.1f} %",
            percent(fit.errors_served.median) if fit.errors_served else "",
            percent(fit.errors_all.median),
        ]
        for fit in fits
    ]
    parts = [f"{name}: errors on held-out shapes", table(rows, header, left=2), "Parameters (± standard error)"]
    parts.append(table([_parameters(fit) for fit in fits], left=2))
    rules: Counter[str] = Counter()
    for fit in fits:
        rules.update(fit.excluded)
    parts.append("Excluded by rule: " + "; ".join(f"{rule} {number:,}" for rule, number in rules.items()))
    remarks = [f"note: {name} of {fit.operator} is at its bound" for fit in fits for name in fit.result.at_bound]
    remarks += [
        f"note: nothing in these data depends on {name} of {fit.operator}"
        for fit in fits
        for name in fit.result.undetermined
    ]
    remarks += [
        f"note: {first} and {second} of {fit.operator} cannot be told apart from these data"
        for fit in fits
        for first, second in fit.result.indistinct
    ]
    return "\n\n".join([*parts, "\n".join(remarks)] if remarks else parts)


def _parameters(fit: OperatorFit) -> list[str]:
    shown = (
        f"{name} {_number(value)} ± {fit.result.standard_errors.get(name, float('nan')):.1g}"
        for name, value in fit.result.values.items()
    )
    return [fit.operator, ", ".join(shown)]


def _number(value: float) -> str:
    return significant(value, 3) if value >= 1e-3 else f"{value:.3g}"


def _summary(fit: OperatorFit) -> dict[str, Any]:
    return {
        "operator": fit.operator,
        "form": fit.form,
        "rows": fit.rows_kept,
        "excluded": fit.excluded,
        "held_out": dataclasses.asdict(fit.errors),
        "held_out_like_a_servers": dataclasses.asdict(fit.errors_served) if fit.errors_served else None,
        "held_out_all_rows": dataclasses.asdict(fit.errors_all),
        "parameters": fit.result.values,
        "standard_errors": fit.result.standard_errors,
        "correlations": fit.result.correlations.tolist(),
        "at_bound": list(fit.result.at_bound),
        "undetermined": list(fit.result.undetermined),
        "indistinct": [list(pair) for pair in fit.result.indistinct],
    }
