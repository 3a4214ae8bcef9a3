"""Five minutes on a GPU with torch alone: measure it, fit it, and hold it against its datasheet and its shipped calibration.

python benchmarks/gpu_check.py                       # the GPU here; prints Markdown, keeps the record in the folder gpu-check
python benchmarks/gpu_check.py --minutes 3 --out h200 --json
python benchmarks/gpu_check.py --device cpu          # the same on a CPU: no shipped calibration, so only the fit and the floor

Prompts beside decodes are never fitted: they are what the fit is checked on. The steps are those of torch's kernels, not of a serving
engine's. Ctrl-C, SIGTERM or the end of the time leave what was measured before, fitted and printed; `kill -9` leaves it in the file.
"""

from __future__ import annotations

import time

BEGAN = time.monotonic()  # before torch is imported, which may take ten seconds

import argparse  # noqa: E402
import hashlib  # noqa: E402
import json  # noqa: E402
import shlex  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
from collections.abc import Sequence  # noqa: E402
from dataclasses import dataclass, field  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from gpu_check_numbers import Way, errors_beside, rates_beside, steps_beside  # noqa: E402
from gpu_check_page import errors_table, rates_table, steps_table  # noqa: E402

from costmodel.architecture.source import load_model  # noqa: E402
from costmodel.cli.files import check_writable, write_atomically  # noqa: E402
from costmodel.hardware.calibration import Calibration  # noqa: E402
from costmodel.hardware.catalog import load_gpu  # noqa: E402
from costmodel.hardware.errors import CostModelError, InputError  # noqa: E402
from costmodel.hardware.shipped import shipped_calibration  # noqa: E402
from costmodel.validation.backends.asked import Asked  # noqa: E402
from costmodel.validation.backends.devices import device_name, profile_of  # noqa: E402
from costmodel.validation.backends.torch_engine import TorchEngine, device_kind, import_torch  # noqa: E402
from costmodel.validation.backends.torch_llama import shape_of  # noqa: E402
from costmodel.validation.backends.torch_probe import Probe, probe, to_toml  # noqa: E402
from costmodel.validation.fitting.calibrate import to_toml as calibration_toml  # noqa: E402
from costmodel.validation.fitting.measured import fit_steps, measured_deployment  # noqa: E402
from costmodel.validation.fitting.step_calibration import step_calibration  # noqa: E402
from costmodel.validation.measurements.files import Writer, read_measurement  # noqa: E402
from costmodel.validation.measurements.measuring import EngineStopped, Progress, measure  # noqa: E402

MINUTES = 4.5
"""Of everything, so that five are kept."""
PROBE_SHARE, PROBE_MOST = 0.15, 25.0
"""Of the time, and at most so many seconds, go to bandwidth and matrix products."""
FIT_SHARE, FIT_MOST = 0.15, 20.0
"""The same of the fit and the tables, at the end."""
LEAST = 5.0
"""Seconds of measuring below which nothing can be fitted."""
ENGINE = "vllm"
"""Whose shipped calibration is compared."""
MODELS = ("Llama-3.1-8B", "Llama-3.2-3B", "Llama-3.2-1B")
"""On a GPU the first whose weights in 16 bits take less than MODEL_SHARE of the free memory."""
MODEL_SHARE = 0.4
SMALL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1376,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 8000,
    "max_position_embeddings": 4096,
    "torch_dtype": "float32",
}
"""The model on a CPU: 31 million parameters, more than a cache holds."""
NAMES = {
    "profile": "profile.toml",
    "model": "llama-31m.json",
    "steps": "steps.jsonl",
    "calibration": "calibration.toml",
}
NAMES |= {"summary": "summary.json", "page": "report.md"}
INTERRUPTED = 130


@dataclass
class Check:
    """A check as far as it is.

    Attributes:
        given: on the command line.
        kind: of device.
        name: of the part's shipped profile; None for a part without one.
        ended: Ctrl-C, SIGTERM or the engine ended it early.
        page: printed so far.
    """

    given: argparse.Namespace
    kind: str
    name: str | None
    ended: str = ""
    page: list[str] = field(default_factory=list)
    document: dict[str, Any] = field(default_factory=dict)

    def say(self, text: str) -> None:
        """Print a part of the page at once: what ends the run later does not take it back."""
        self.page.append(text)
        if not self.given.json:
            print(text + "\n", flush=True)

    def file(self, what: str) -> Path:
        """Return a file of the record."""
        return Path(self.given.out) / NAMES[what]

    def left(self) -> float:
        """Return the seconds until the end of the time."""
        return self.given.began + 60 * self.given.minutes - time.monotonic()

    @property
    def reserve(self) -> float:
        """Seconds that the fit and the tables need at the end."""
        return float(min(FIT_SHARE * 60 * self.given.minutes, FIT_MOST))


def main(arguments: Sequence[str] | None = None, began: float | None = None) -> int:
    """Check the device here; print the page and keep the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"of everything, start-up too [{MINUTES}]")
    parser.add_argument("--out", type=Path, default=Path("gpu-check"), help="folder of the record [gpu-check]")
    parser.add_argument("--force", action="store_true", help="replace a record that is there")
    parser.add_argument("--device", choices=["cuda", "cpu"], help="[a GPU if torch finds one]")
    parser.add_argument("--gpu", help="the part, where the driver's name does not tell")
    parser.add_argument("--model", help="preset or config.json of a Llama-shaped model [one that suits the memory]")
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    given = parser.parse_args(arguments)
    given.began = time.monotonic() if began is None else began
    given.command = shlex.join(
        ["python", "benchmarks/gpu_check.py", *(sys.argv[1:] if arguments is None else arguments)]
    )
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # `timeout` ends it as Ctrl-C does
    try:
        return _check(given)
    except CostModelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        steps = Path(given.out) / NAMES["steps"]
        where = f"what was measured is in {steps}" if steps.exists() else "before anything was measured"
        print(f"interrupted; {where}", file=sys.stderr)
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)


def _check(given: argparse.Namespace) -> int:
    if not given.minutes > 0:
        raise InputError(f"--minutes must be more than 0, not {given.minutes:g}")
    _prepare(Path(given.out), given.force)
    kind = device_kind(given.device)
    if kind == "cpu":
        import_torch().set_num_threads(1)  # so that CPU time, which other processes hardly disturb, is an honest clock
    check = Check(given, kind, profile_of("" if given.gpu else device_name(kind), given.gpu))
    found = _probe(check)
    progress = _measure(check)
    return _compare(check, found, progress)


def _prepare(folder: Path, force: bool) -> None:
    """Refuse a record that is there, unless it is to be replaced."""
    files = [folder / name for name in NAMES.values()]
    for file in files:
        check_writable(file, force, new_folder=True)


def _probe(check: Check) -> Probe:
    """Measure bandwidth and matrix products, and print them beside the datasheet."""
    _progress("measuring bandwidth and matrix products")
    found = probe(check.kind, min(PROBE_SHARE * 60 * check.given.minutes, PROBE_MOST))
    for (
        name
    ) in NAMES:  # --force: an old record goes when there is something new, and as a whole, so that no two are mixed
        check.file(name).unlink(missing_ok=True)
    write_atomically(check.file("profile"), to_toml(found.profile), check.given.force)
    profile = load_gpu(check.given.gpu or check.name)[0] if check.name else None
    rates = rates_beside(found.rates, profile)
    part = (
        f"`{check.name}`, {profile.name}" if profile else "no shipped profile: the floor is at the rates measured here"
    )
    versions = ", ".join(f"{name} {value}" for name, value in found.versions.items() if name != "system")
    check.say(f"# {device_name(check.kind)}\n\nPart: {part}. {versions}.")
    check.say(rates_table(rates))
    check.document |= {
        "schema": "costmodel.gpu_check/1",
        "device": device_name(check.kind),
        "gpu": check.name,
        "command": check.given.command,
        "versions": found.versions,
        "rates": [{**rate.model_dump(), "share": rate.share} for rate in rates],
    }
    return found


def _measure(check: Check) -> Progress:
    """Run the steps into the file, as long as there is time."""
    _progress("building the model")
    engine = TorchEngine(_asked(check), check.kind)
    try:
        seconds = check.left() - check.reserve
        if seconds < LEAST:
            raise InputError(
                f"--minutes {check.given.minutes:g} is too short: {max(seconds, 0):.0f} s are left to measure after start-up and probe; "
                f"give {(60 * check.given.minutes - seconds + 30) / 60:.1f} or more"
            )
        with Writer(check.file("steps"), engine.header()) as writer:
            try:
                progress = measure(engine, writer, seconds, watch=_watch)
            except EngineStopped:
                progress, check.ended = Progress(), "the engine stopped"  # a note in the file says where and why
        if progress.interrupted:
            check.ended = "interrupted"
    finally:
        engine.close()
    _progress("")
    return progress


def _asked(check: Check) -> Asked:
    """Return the model and its limits."""
    model, on_gpu = check.given.model, check.kind == "cuda"
    if model is None and not on_gpu:
        write_atomically(check.file("model"), json.dumps(SMALL, indent=2) + "\n", check.given.force)
        model = str(check.file("model"))
    return Asked(
        model=model or _fitting_model(),
        random_weights=True,
        dtype="fp32" if not on_gpu else "bf16" if import_torch().cuda.get_device_capability() >= (8, 0) else "fp16",
        max_num_batched_tokens=16384 if on_gpu else 2048,
        max_model_len=32768 if on_gpu else 4096,
        gpu=check.given.gpu,
        command=check.given.command,
    )


def _fitting_model() -> str:
    """Return the largest model of the list that leaves room for its KV cache, else the smallest."""
    free = import_torch().cuda.mem_get_info()[0]
    weights = {name: 2 * shape_of(load_model(name)[0]).weights for name in MODELS}
    return next((name for name in MODELS if weights[name] < MODEL_SHARE * free), MODELS[-1])


def _compare(check: Check, found: Probe, progress: Progress) -> int:
    """Fit, compare, print and write the rest of the record."""
    _progress("fitting")
    measurement = read_measurement(check.file("steps"))
    if not measurement.steps:
        why = check.ended or f"the time ended first; give more than --minutes {check.given.minutes:g}"
        print("; ".join([f"error: no step was measured: {why}", *measurement.notes[1:]]), file=sys.stderr)
        return INTERRUPTED if check.ended == "interrupted" else 2
    gpu = check.given.gpu or check.name or str(check.file("profile"))
    notes = [*measurement.notes, *([check.ended] if check.ended else [])]
    calibrations: dict[Way, Calibration] = {}
    try:
        fit = fit_steps(measurement, gpu)
        checksum = hashlib.sha256(check.file("steps").read_bytes()).hexdigest()
        part = f" --gpu {gpu if check.name else NAMES['profile']}"
        command = f"costmodel fit {NAMES['steps']}{part} --seed 0"
        calibrations["fit"] = step_calibration(measurement, fit, {NAMES["steps"]: checksum}, command)
        write_atomically(check.file("calibration"), calibration_toml(calibrations["fit"]), check.given.force)
        notes += [note for note in fit.notes if note not in notes]
    except InputError as error:
        notes.append(f"no fit: {error}")
    shipped = shipped_calibration(check.name, ENGINE) if check.name else None
    if shipped is not None:
        calibrations["shipped"] = shipped
        notes.append(
            f"shipped is {shipped.name}: kernels and overheads of a serving engine, while these steps are torch's"
        )
    else:
        notes.append("no calibration is shipped for this part: only the fit and the floor are compared")
    if check.name is None:
        notes.append("the floor is at the rates that were measured here, not at those of a datasheet")
    steps = steps_beside(measurement, measured_deployment(measurement, gpu), calibrations)
    errors = errors_beside(steps)
    below = [step for step in steps if step.below_floor]
    machine = measurement.machine
    if machine.throttled:
        notes.append(f"the clocks were held back while measuring: {', '.join(machine.throttled)}")
    check.say(f"## Steps of {measurement.model.name} in {measurement.model.dtype}, random weights")
    check.say(errors_table(errors))
    check.say(steps_table(steps))
    if below:
        check.say(
            "Faster than the floor, which no step of the part can be: "
            + "; ".join(f"{step.what} ({step.measured_s / step.predicted_s['floor']:.3f} of it)" for step in below)
        )
    seconds = time.monotonic() - check.given.began
    done = f"{len(steps)} kinds of steps, {'complete' if measurement.complete else 'partial'}, {seconds:.0f} s in all."
    check.say("\n".join([*(f"- {note}" for note in notes), f"- {done}"]))
    check.document |= {
        "model": measurement.model.name,
        "dtype": measurement.model.dtype,
        "clocks_mhz": machine.clocks_mhz,
        "throttled": machine.throttled,
        "planned": len(progress.points),
        "complete": measurement.complete,
        "seconds": seconds,
        "calibrations": {way: calibration.name for way, calibration in calibrations.items()},
        "errors": [each.model_dump() for each in errors],
        "below_floor": [step.what for step in below],
        "steps": [step.model_dump() for step in steps],
        "notes": notes,
    }
    text = json.dumps(check.document, indent=2) + "\n"
    write_atomically(check.file("summary"), text, check.given.force)
    write_atomically(check.file("page"), "\n\n".join(check.page) + "\n", check.given.force)
    _progress("")
    if check.given.json:
        print(text, end="")
    if check.ended:
        print(check.ended, file=sys.stderr)
    return INTERRUPTED if check.ended == "interrupted" else 2 if check.ended else 0


def _watch(progress: Progress) -> None:
    left = max(progress.deadline - time.monotonic(), 0)
    _progress(f"{progress.measured} of {len(progress.points)} steps, {left:,.0f} s left: {progress.now}")


def _progress(text: str) -> None:
    """Show what is going on, on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text[:100]}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(began=BEGAN))
