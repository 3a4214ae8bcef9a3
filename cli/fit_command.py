"""``costmodel fit``."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from costmodel.cli.files import check_writable, write_atomically
from costmodel.cli.options import json_text
from costmodel.cli.text import count, percent, significant, table
from costmodel.hardware.catalog import resolve_gpu
from costmodel.hardware.errors import InputError, shown, unknown_name
from costmodel.validation.datasets.package import ENGINES

if TYPE_CHECKING:
    from costmodel.hardware.calibration import Calibration
    from costmodel.validation.fitting.holdout import Errors
    from costmodel.validation.fitting.kernels import OperatorFit


RULES = {
    "silicon": ("batch is not concurrency", "TTFT over 10 s"),
    "kernels": (
        *(
            "KV cache in L2",
            "above the token budget",
            "another kernel",
            "balanced",
            "below floor",
            "eager",
            "experts in L2",
        ),
        *("few tokens", "groups first", "huge messages", "narrow", "narrow experts", "not gated", "second kernel"),
        *("several hosts", "short prompts", "weights in L2", "windows not full"),
    ),
    "rtx4090": ("above the token budget", "beyond the KV cache", "below floor"),
}
"""Rules that ``--without-rule`` takes, by dataset; ``silicon`` takes those of ``kernels`` as well. Named here, because their modules load
NumPy, which the help does not need."""


@click.command(
    "fit",
    epilog=f"Rules for --without-rule: {', '.join(RULES['kernels'])}; with `silicon` also {', '.join(RULES['silicon'])}; "
    f"with `rtx4090`: {', '.join(RULES['rtx4090'])}. docs/accuracy.md has their reasons.",
)
@click.argument("measurement", required=False, default=None, type=click.Path(path_type=Path))
@click.option(
    "--dataset",
    type=click.Choice(["silicon", "kernels", "rtx4090"]),
    default="silicon",
    show_default=True,
    help="Instead of a MEASUREMENT: all that aiconfigurator-core "
    "measured (kernels, and end-to-end rows for the engine's overheads), its kernel tables alone, or the "
    "RTX 4090 layer tables and served run of LLMServingSim.",
)
@click.option(
    "--gpu",
    default=None,
    help="GPU whose kernels are fitted; must be given for `silicon` and `kernels`. Of a MEASUREMENT: the part, or the profile.toml of "
    "one that is not shipped.  [default: the one that it names]",
)
@click.option("--data", default=None, help="Folder of the `rtx4090` files.", metavar="FOLDER")
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default="vllm",
    show_default=True,
    help="Engine that they were measured with.",
)
@click.option(
    "--without-rule",
    "off",
    multiple=True,
    help="Switch off a rule of exclusion, of those below (may be given several times).",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Which shapes are held out.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    default=None,
    help="Draw the residuals of a MEASUREMENT (PNG, SVG or PDF).",
)
@click.option(
    "--output", "-o", type=click.Path(path_type=Path), default=None, help="Write the calibration into this TOML file."
)
@click.option("--force", is_flag=True, help="Overwrite the files that --output and --plot name.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
@click.pass_context
def command(
    context: click.Context,
    measurement: Path | None,
    dataset: str,
    gpu: str | None,
    data: str | None,
    engine: str,
    off: tuple[str, ...],
    seed: int,
    plot: Path | None,
    output: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Fit a calibration to measurements, with errors on what was held out.

    MEASUREMENT is a file of `costmodel measure`: steps of an engine on your own machine, and the calibration is of that machine and
    model.

    Without one a public data set is fitted. `silicon` and `kernels` need the extra `silicon` (pip install
    'llm-costmodel[silicon]'), whose package carries the measurements; `rtx4090` needs the folder with the files.
    """
    if measurement is not None:
        _measured(context, measurement, gpu, seed, plot, output, force, as_json)
        return
    if plot is not None:
        raise InputError("--plot is for a MEASUREMENT; docs/accuracy.md has the figures of the data sets")
    _check_options(dataset, gpu, data, off)
    from costmodel.validation.fitting.calibrate import to_toml

    if output is not None:
        check_writable(output, force)
    fits: list[OperatorFit] = []
    parts: dict[str, Errors] = {}
    if dataset == "rtx4090":
        calibration = _layers(gpu, data, engine, off, seed, fits, parts)
    elif gpu is None:
        raise click.MissingParameter(param_hint="'--gpu'", param_type="option")
    elif data is not None:
        raise InputError("--data is for --dataset rtx4090; those tables come with aiconfigurator-core")
    else:
        calibration = _silicon(dataset, gpu, engine, off, seed, fits, parts)
    said = _document(calibration, engine, fits, parts) if as_json else _report(calibration, fits, parts)
    if output is not None:
        write_atomically(output, to_toml(calibration), force)
        click.echo(f"wrote {output}: {calibration.name}", err=True)
    click.echo(said)


def _measured(
    context: click.Context,
    path: Path,
    gpu: str | None,
    seed: int,
    plot: Path | None,
    output: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Fit a measurement of the user's own."""
    from costmodel.cli.fit_measured import fit_measurement

    for name, option in (
        ("dataset", "--dataset"),
        ("data", "--data"),
        ("engine", "--engine"),
        ("off", "--without-rule"),
    ):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise InputError(f"{option} is for data sets, not for a MEASUREMENT; leave one of the two out")
    fit_measurement(path, gpu, seed, plot, output, force, as_json)


def _check_options(dataset: str, gpu: str | None, data: str | None, off: tuple[str, ...]) -> None:
    """Refuse what can be refused before anything is read.

    Raises:
        InputError: a rule that the data set does not take, an empty folder, or a profile where the name of a part is needed.
    """
    known = sorted({*RULES["kernels"], *RULES["silicon"]} if dataset == "silicon" else RULES[dataset])
    for name in off:
        if name not in known:
            raise unknown_name("rule", name, known, f"known for --dataset {dataset}: " + ", ".join(known))
    if data is not None and not data.strip():
        raise InputError("--data is empty; name the folder that holds the files")
    if gpu is not None and (gpu.casefold().endswith(".toml") or "/" in gpu):
        raise InputError(
            f"fit takes the name of a part that was measured, not a profile: {shown(gpu, 120)}; see `costmodel gpus list`"
        )


def _document(calibration: Calibration, engine: str, fits: list[OperatorFit], parts: dict[str, Errors]) -> str:
    """Return the JSON document; made before any file is written.

    Raises:
        InputError: the fit has numbers that are not finite, which JSON cannot hold.
    """
    document = {
        "schema": "costmodel.fit/1",
        "gpu": calibration.gpu,
        "engine": engine,
        "operators": [_summary(fit) for fit in fits],
        "overheads": _overheads(calibration, fits),
        "parts": {name: dataclasses.asdict(errors) for name, errors in parts.items()},
    }
    try:
        return json_text(document)
    except ValueError:
        raise InputError("the fit has numbers that are not finite; the measurements do not determine it") from None


def _silicon(
    dataset: str,
    gpu: str,
    engine: str,
    off: tuple[str, ...],
    seed: int,
    fits: list[OperatorFit],
    parts: dict[str, Errors],
) -> Calibration:
    """Fit kernel tables, one operator after the other, into ``fits``; for the dataset ``silicon`` also the engine's overheads."""
    from costmodel.validation.datasets.end_to_end_rules import SWITCHABLE
    from costmodel.validation.fitting.calibrate import kernel_calibration
    from costmodel.validation.fitting.kernels import fit_kernels
    from costmodel.validation.fitting.silicon import fit_all_engines, kernels_of, silicon_calibration

    rows_off = tuple(name for name in off if dataset == "silicon" and name in SWITCHABLE)
    for fit in fit_kernels(gpu, engine, tuple(name for name in off if name not in rows_off), seed):
        _add(fits, fit)
    name = resolve_gpu(gpu).name
    ran = f"costmodel fit --dataset {dataset} --gpu {name} --engine {engine} --seed {seed}{_without(off)}"
    kernels = kernel_calibration(gpu, engine, fits, ran)
    if dataset == "kernels":
        return kernels
    if sys.stderr.isatty():
        click.echo("fitting the overheads of the engines to end-to-end rows", err=True)
    engines = fit_all_engines(
        lambda part, of: kernels if (part, of) == (name, engine) else kernels_of(part, of), rows_off
    )
    errors, gpus = engines.residuals(name, engine)
    parts.update({f"{what.upper()} of closed loops on {', '.join(gpus)}": found for what, found in errors.items()})
    return silicon_calibration(gpu, engine, fits, engines, ran)


def _layers(
    gpu: str | None,
    data: str | None,
    engine: str,
    off: tuple[str, ...],
    seed: int,
    fits: list[OperatorFit],
    parts: dict[str, Errors],
) -> Calibration:
    """Fit the RTX 4090 folder into ``fits``, and errors of sums and parts into ``parts``."""
    from costmodel.validation.datasets.rtx4090 import GPU, checksums, rtx4090
    from costmodel.validation.fitting.calibrate import layer_calibration
    from costmodel.validation.fitting.rtx4090 import fit_rtx4090

    if gpu is not None and resolve_gpu(gpu).name != GPU:
        raise InputError(f"--dataset rtx4090 was measured on {GPU}, not on {gpu}")
    if engine != "vllm":
        raise InputError(f"--dataset rtx4090 was measured with vllm, not with {engine}")
    folder = rtx4090(data)
    for fit, errors in fit_rtx4090(folder, off, seed):
        _add(fits, fit)
        parts.update(errors)
    ran = f"costmodel fit --dataset rtx4090 --data FOLDER --engine vllm --seed {seed}{_without(off)}"
    return layer_calibration(fits, checksums(folder.folder), ran)


def _add(fits: list[OperatorFit], fit: OperatorFit) -> None:
    fits.append(fit)
    if sys.stderr.isatty():
        click.echo(f"fitted {fit.operator}: {percent(fit.errors.median)} median error on held-out shapes", err=True)


def _without(off: tuple[str, ...]) -> str:
    return "".join(f" --without-rule '{name}'" for name in off)


def _overheads(calibration: Calibration, fits: list[OperatorFit]) -> dict[str, dict[str, dict[str, float | None]]]:
    """Return the parameters that come from no kernel table, with standard errors, by operator."""
    kernels = {fit.operator for fit in fits}
    return {
        key: {
            name: {"value": parameter.value, "standard_error": parameter.standard_error}
            for name, parameter in operator.parameters.items()
        }
        for key, operator in calibration.operators.items()
        if key not in kernels
    }


def _report(calibration: Calibration, fits: list[OperatorFit], errors_of_parts: dict[str, Errors]) -> str:
    header = ["operator", "form", "rows", "excluded", "median", "mean", "p90", "bias", "like a server's", "all rows"]
    rows = [
        [
            fit.operator,
            fit.form,
            count(fit.rows_kept),
            count(sum(fit.excluded.values())),
            *_errors(fit.errors),
            percent(fit.errors_served.median) if fit.errors_served else "",
            percent(fit.errors_all.median),
        ]
        for fit in fits
    ]
    parts = [f"{calibration.name}: errors on held-out shapes", table(rows, header, left=2)]
    if errors_of_parts:
        shown = [[part, count(errors.rows), *_errors(errors)] for part, errors in errors_of_parts.items()]
        parts += [
            "Sums, parts and whole loops that were held out",
            table(shown, ["what", "rows", *header[4:8]], left=1),
        ]
    parts += ["Parameters (± standard error)"]
    parts.append(table([_parameters(fit) for fit in fits], left=2))
    if overheads := _overheads(calibration, fits):
        shown = [
            [
                key,
                ", ".join(
                    f"{name} {_number(each['value'] or 0.0)} ± {each['standard_error'] or 0.0:.1g}"
                    for name, each in made.items()
                ),
            ]
            for key, made in overheads.items()
        ]
        parts += ["Overheads of the engine (± standard error)", table(shown, left=2)]
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


def _errors(errors: Errors) -> list[str]:
    return [percent(errors.median), percent(errors.mean), percent(errors.p90), f"{errors.bias * 100:+.1f} %"]


def _parameters(fit: OperatorFit) -> list[str]:
    return [fit.operator, ", ".join(_parameter(fit, name) for name in fit.result.values)]


def _parameter(fit: OperatorFit, name: str) -> str:
    error = fit.result.standard_errors.get(name)
    return f"{name} {_number(fit.result.values[name])} " + (f"± {error:.1g}" if error is not None else "(undetermined)")


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
