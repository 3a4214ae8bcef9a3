"""``costmodel fit MEASUREMENT``: the report, the document and the figure of a fit to measured steps."""

from __future__ import annotations

import dataclasses
import hashlib
import shlex
from pathlib import Path
from typing import Any

import click

from costmodel.cli.figures import check_target, draw_residuals, save_figure
from costmodel.cli.files import check_writable, write_atomically
from costmodel.cli.options import json_text
from costmodel.cli.text import count, percent, plural, significant, table, wrapped
from costmodel.hardware.calibration import Calibration
from costmodel.hardware.catalog import gpu_names
from costmodel.hardware.reading import read_bytes
from costmodel.lines import MOST_BYTES
from costmodel.validation.fitting.calibrate import to_toml
from costmodel.validation.fitting.choosing import Chosen
from costmodel.validation.fitting.holdout import LEVEL, Errors
from costmodel.validation.fitting.measured import KINDS, StepFit, fit_steps
from costmodel.validation.fitting.step_calibration import step_calibration
from costmodel.validation.fitting.step_model import label
from costmodel.validation.measurements.files import read_measurement
from costmodel.validation.measurements.types import Measurement

WORDS = {"decode": "decodes alone", "prefill": "prompts alone", "mixed": "prompts beside decodes", "all": "all"}
"""Kinds of steps, as people read them."""


def fit_measurement(
    path: Path, gpu: str | None, seed: int, plot: Path | None, output: Path | None, force: bool, as_json: bool
) -> None:
    """Fit a measurement, write the calibration and the figure, and print what was found.

    Args:
        path: of the measurement.
        gpu: name of the part, or the path of its profile.
        seed: which steps are held out, where the measurement does not say.
        plot, output: figure and calibration to write; None for none.
        force: replace them.
        as_json: print a document.

    Raises:
        InputError: a file that cannot be read or written, or steps that cannot be fitted.
    """
    if output is not None:
        check_writable(output, force)
    if plot is not None:
        check_target(plot, force)
    measurement = read_measurement(path)
    fit = fit_steps(measurement, gpu, seed)
    checksum = hashlib.sha256(read_bytes(path, "measurement", MOST_BYTES)).hexdigest()
    calibration = step_calibration(measurement, fit, {path.name: checksum}, _ran(path, gpu, seed))
    said = _document(measurement, fit, calibration) if as_json else _report(measurement, fit, calibration)
    if output is not None:
        write_atomically(output, to_toml(calibration), force)
        click.echo(f"wrote {output}: {calibration.name}", err=True)
    if plot is not None:
        save_figure(_figure(measurement, fit, calibration), plot, force)
        click.echo(f"wrote {plot}", err=True)
    click.echo(said)
    if output is not None and not as_json:
        click.echo("\n" + _use(measurement, fit, path, output, gpu))


def _ran(path: Path, gpu: str | None, seed: int) -> str:
    """Return the command, files without their folders: a calibration is passed on, and those are nobody's business."""
    part = f" --gpu {gpu if gpu in gpu_names() else Path(gpu).name}" if gpu else ""
    return f"costmodel fit {path.name}{part} --seed {seed}"


def _use(measurement: Measurement, fit: StepFit, path: Path, output: Path, gpu: str | None) -> str:
    """Return what to do with the calibration."""
    given = f"--gpu {shlex.quote(gpu or fit.deployment.gpu)} --calibration {shlex.quote(str(output))}"
    return (
        f"Check it: costmodel check {shlex.quote(str(path))} {given} --held-out\n"
        f"Use it:   costmodel predict --model MODEL --dtype {measurement.model.dtype} {given}"
    )


def _document(measurement: Measurement, fit: StepFit, calibration: Calibration) -> str:
    whole = fit.whole_step
    return json_text(
        {
            "schema": "costmodel.step_fit/1",
            "gpu": calibration.gpu,
            "engine": measurement.engine.name,
            "model": measurement.model.name,
            "calibration": calibration.name,
            "parameters": [
                {
                    "operator": each.key[0],
                    "name": each.key[1],
                    "value": each.value if each.value != float("inf") else None,
                    "standard_error": each.error,
                    "how": each.how,
                    "reason": each.reason,
                }
                for each in fit.chosen
            ],
            "fitted": {kind: _errors(errors) for kind, errors in fit.fitted.items()},
            "held_out": {kind: _errors(errors) for kind, errors in fit.held_out.items()},
            "interval": {"level": LEVEL, "low": whole.low, "high": whole.high},
            "ranges": fit.ranges,
            "notes": list(fit.notes),
        }
    )


def _errors(errors: Errors) -> dict[str, float]:
    return dataclasses.asdict(errors)


def _report(measurement: Measurement, fit: StepFit, calibration: Calibration) -> str:
    engine, machine = measurement.engine, measurement.machine
    steps = len(fit.rows)
    parts = [
        wrapped(
            f"{calibration.name}: {plural(steps, 'kind of step', 'kinds of steps')} of {engine.name} {engine.version} on {machine.device}, "
            f"{sum(row.fitted for row in fit.rows)} fitted"
        )
    ]
    header = ["steps", "fitted", "median error", "held out", "median error", "mean", "p90", "bias"]
    rows = [[WORDS[kind], *_known(fit.fitted.get(kind)), *_seen(fit.held_out.get(kind))] for kind in (*KINDS, "all")]
    parts.append(table(rows, header))
    if "all" in fit.held_out:
        held = fit.held_out["all"]
        parts.append(
            wrapped(
                f"Of the steps that the fit has not seen half are predicted to {percent(held.median)}, nine in ten to {percent(held.p90)}. "
                f"The intervals of predictions, {percent(LEVEL)} of what is measured, are {_signed(fit.whole_step.low)} to "
                f"{_signed(fit.whole_step.high)}."
            )
        )
    parts += ["Parameters", table([_parameter(each) for each in fit.chosen], left=3)]
    parts += ["\n".join(wrapped(f"note: {note}") for note in fit.notes)] if fit.notes else []
    return "\n\n".join(parts)


def _known(errors: Errors | None) -> list[str]:
    return [count(errors.rows), percent(errors.median)] if errors else ["0", ""]


def _seen(errors: Errors | None) -> list[str]:
    if errors is None:
        return ["0", "", "", "", ""]
    return [count(errors.rows), percent(errors.median), percent(errors.mean), percent(errors.p90), _signed(errors.bias)]


def _signed(share: float) -> str:
    return f"{100 * share:+.1f} %".replace("-", "−")


def _parameter(each: Chosen) -> list[str]:
    return [label(each.key), _value(each), each.how if each.how != "fitted" else "", each.reason]


def _value(each: Chosen) -> str:
    """Return a number with its error: seconds with a unit, efficiencies as shares."""
    name = each.key[1]
    unit, factor = ("ms", 1e3) if name == "per_step_s" else ("µs", 1e6) if name.endswith("_s") else ("", 1.0)
    value = f"{significant(each.value * factor, 3)} {unit}".rstrip()
    return value + (f" ± {significant(each.error * factor, 2)} {unit}".rstrip() if each.error is not None else "")


def _figure(measurement: Measurement, fit: StepFit, calibration: Calibration) -> Any:
    held = fit.held_out.get("all")
    title = (
        f"Half of the steps that the fit has not seen are predicted to {percent(held.median)}, nine in ten to {percent(held.p90)}"
        if held
        else f"Half of the fitted steps are predicted to {percent(fit.fitted['all'].median)}; none were held out"
    )
    foot = (
        f"{calibration.name} · {measurement.engine.name} {measurement.engine.version} on {measurement.machine.device} · "
        f"band: interval of {100 * LEVEL:.0f} %"
    )
    from costmodel.cli.figures.agreement import Point

    points = [Point(WORDS[row.kind], row.step.seconds, row.predicted, row.fitted) for row in fit.rows]
    return draw_residuals(points, (fit.whole_step.low, fit.whole_step.high), title, foot)
