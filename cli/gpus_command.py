"""``costmodel gpus``: list, show, check, probe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from costmodel.cli.files import check_writable, write_atomically
from costmodel.cli.options import echo_json
from costmodel.cli.text import count, gib, large, table
from costmodel.hardware.calibration import read_calibration
from costmodel.hardware.catalog import aliases, gpu_names, load_gpu, resolve_gpu
from costmodel.hardware.errors import InputError
from costmodel.hardware.profile import GpuProfile, read_profile
from costmodel.hardware.reading import read_text
from costmodel.hardware.shipped import shipped_calibration, shipped_calibrations

DTYPES = ("fp8", "int8", "fp4")

LONGEST_PROBE = 3600
"""Seconds that a probe measures at most."""


@click.group("gpus")
def command() -> None:
    """List, show and check hardware profiles; probe makes one of this machine."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
def list_gpus(as_json: bool) -> None:
    """List the GPUs that have a profile: dense peaks, bandwidth, capacity, link."""
    profiles = {name: load_gpu(name)[0] for name in gpu_names()}
    if as_json:
        fitted = _engines()
        gpus = [
            {"profile": name, **_figures(profile), "calibrations": fitted.get(name, [])}
            for name, profile in profiles.items()
        ]
        echo_json({"schema": "costmodel.gpus/1", "gpus": gpus})
        return
    header = ["name", "part", "16-bit", *DTYPES, "TB/s", "GB", "link GB/s"]
    click.echo(table([_row(name, profile) for name, profile in profiles.items()], header, left=2))
    click.echo(
        "\nPeaks are dense, in TFLOP/s (16-bit: bf16, or fp16 where there is no bf16); link bandwidth is per direction.\n"
        "Other names are understood too: `costmodel gpus show h100` shows one part with its sources.\n\n"
        "Calibrations are shipped for\n"
        + "\n".join(f"  {name}: {', '.join(engines)}" for name, engines in _engines().items())
    )


@command.command("show")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
def show(name: str, as_json: bool) -> None:
    """Show every number of a GPU and where it was read."""
    profile, choice = load_gpu(name)
    if as_json:
        echo_json(profile)
        return
    click.echo(f"{profile.name} ({choice.name}): {profile.architecture}")
    others = aliases().get(choice.name, ())
    if others:
        click.echo(f"also called {', '.join(others)}")
    if choice.note:
        click.echo(f"note: {choice.note}")
    rows = []
    for field, figure in profile.figures().items():
        note = f" ({figure.note})" if figure.note else ""
        rows.append([field, _value(field, figure.value), f"[{figure.source}]{note}"])
    click.echo()
    aligned = table([row[:2] for row in rows]).splitlines()
    for line, row in zip(aligned, rows, strict=True):
        click.echo(f"{line}  {row[2]}")
    click.echo("\nSources")
    for key, source in profile.sources.items():
        click.echo(f"  [{key}] {source.title}: {source.url}" + (f" ({source.note})" if source.note else ""))
    calibrations = [shipped_calibration(choice.name, engine) for engine in _engines().get(choice.name, [])]
    if calibrations:
        click.echo("\nCalibrations")
    for calibration in calibrations:
        if calibration is not None:
            made = calibration.provenance
            click.echo(f"  {calibration.engine}: {made.data}; {count(made.rows)} rows, {made.date}; {made.command}")


@command.command("check")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
def check(files: tuple[Path, ...]) -> None:
    """Check profiles or calibrations of your own against their schema."""
    for path in files:
        if "costmodel.calibration/" in _text(path):
            calibration = read_calibration(path)
            click.echo(f"{path}: calibration {calibration.name} of {calibration.gpu} is valid{_whose(calibration.gpu)}")
        else:
            click.echo(f"{path}: profile of {read_profile(path).name} is valid")


@command.command("probe")
@click.option(
    "--output", "-o", type=click.Path(path_type=Path), default=None, help="Write the profile into this TOML file."
)
@click.option("--force", is_flag=True, help="Overwrite the file that --output names.")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default=None, help="[default: a GPU if torch finds one]")
@click.option("--name", default=None, help="Name of the part.  [default: the driver's or the system's]")
@click.option("--seconds", type=float, default=20.0, show_default=True, help="Time to measure [s].")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
def probe(
    output: Path | None, force: bool, device: str | None, name: str | None, seconds: float, as_json: bool
) -> None:
    """Measure this machine's GPU or CPU with torch, as a profile for a part that nobody has described.

    Copies, reads and matrix products give bandwidth and peaks as torch gets them: a little below a datasheet's.
    """
    if not 0 < seconds <= LONGEST_PROBE:
        raise InputError(f"--seconds must be more than 0 and at most {LONGEST_PROBE:,}, not {seconds:g}")
    if output is not None:
        if output.suffix != ".toml":
            raise InputError(f"--output {output} must end in .toml: that is how --gpu tells a profile from a name")
        check_writable(output, force)
    from costmodel.validation.backends.torch_probe import probe as measure
    from costmodel.validation.backends.torch_probe import to_toml

    found = measure(device, seconds, name)
    if output is not None:
        write_atomically(output, to_toml(found.profile), force)
        click.echo(f"wrote {output}", err=True)
    if as_json:
        echo_json(found.profile)
        return
    click.echo(f"{found.profile.name}: {found.profile.architecture}")
    rows = [
        [rate.what, f"{large(rate.value)}{'FLOP/s' if 'product' in rate.what else 'B/s'}", rate.detail]
        for rate in found.rates
    ]
    click.echo(table(rows, ["measured", "rate", "with"], left=1))
    if output is not None:
        click.echo(f"\nNext: costmodel measure MODEL --gpu {output}")


def _engines() -> dict[str, list[str]]:
    """Return the engines of every part that has shipped calibrations."""
    found: dict[str, list[str]] = {}
    for gpu, engine in shipped_calibrations():
        found.setdefault(gpu, []).append(engine)
    return found


def _text(path: Path) -> str:
    try:
        return read_text(path, "")
    except InputError:
        return ""


def _whose(gpu: str) -> str:
    """Return what to add where no shipped part has a calibration's name for its GPU."""
    try:
        resolve_gpu(gpu)
    except InputError:
        return f"; no shipped part is called {gpu}, so it serves a profile of that name"
    return ""


def _row(name: str, profile: GpuProfile) -> list[str]:
    sixteen = profile.peak_flops.get("bf16") or profile.peak_flops.get("fp16")
    peaks = [sixteen, *(profile.peak_flops.get(dtype) for dtype in DTYPES)]  # type: ignore[call-overload]
    return [
        name,
        profile.name.removeprefix("NVIDIA ").partition(" (")[0],
        *("–" if peak is None else f"{round(peak.value / 1e12, 1):,g}" for peak in peaks),
        f"{profile.memory_bandwidth.value / 1e12:.4g}",
        f"{profile.memory_nominal.value / 1e9:g}",
        f"{profile.link.bandwidth_per_direction.value / 1e9:g} {profile.link.kind}",
    ]


def _figures(profile: GpuProfile) -> dict[str, Any]:
    return {
        "name": profile.name,
        "peak_flops": {dtype: figure.value for dtype, figure in profile.peak_flops.items()},
        "memory_bandwidth": profile.memory_bandwidth.value,
        "memory_nominal_bytes": profile.memory_nominal.value,
        "memory_visible_bytes": profile.memory_visible.value,
        "link": profile.link.kind,
        "link_bandwidth_per_direction": profile.link.bandwidth_per_direction.value,
        "gpus_per_node": profile.link.gpus_per_node.value,
    }


def _value(field: str, value: float) -> str:
    if field.startswith("peak"):
        return f"{large(value)}FLOP/s"
    if "bandwidth" in field:
        return f"{large(value)}B/s"
    if field in ("memory_visible", "l2_cache"):
        return gib(value) if value >= 2**30 else f"{value / 2**20:,.1f} MiB"
    if field == "memory_nominal":
        return f"{value / 1e9:g} GB"
    return f"{value:g} W" if field == "power" else f"{value:g}"
