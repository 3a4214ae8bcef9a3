"""How fast costmodel answers: one run measures everything side by side and prints medians, ratios and targets.

Calibrated lines take the shipped calibration of the H100 with vLLM, as ``costmodel.predict`` does by default.

    python benchmarks/speed.py                          # all; under a minute
    python benchmarks/speed.py --quick                  # fewer repeats: shows that it works
    python benchmarks/speed.py --peer-python PYTHON     # an interpreter that has aiconfigurator, if this one has not
    python benchmarks/speed.py --json

Times differ from machine to machine, and on shared cores from minute to minute; ratios within one run are what to quote.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from timing import Command, paired, per_call, prompt_tokens

import costmodel
from costmodel.building import build_parameters
from costmodel.equations.step import step_times
from costmodel.equations.work import Chunk, Decodes, make_work

STEPS = 1_000_000
ROOFLINE: dict[str, Any] = {"calibration": "none"}
"""Options of a prediction without a calibration; without options it takes the shipped one (H100, vLLM)."""
BASELINE = "import numpy; from pydantic import BaseModel; import click"
OUR_STEP = "one mixed step as floats, costmodel.step_times, roofline"
NOT_INSTALLED = 3


@dataclass(frozen=True)
class Row:
    """One line of the result; ``value`` and ``target`` are in ``unit``, and smaller is better."""

    what: str
    unit: str
    value: float | None
    target: float | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        """``met``, ``missed``, or empty without a target."""
        if self.value is None or self.target is None:
            return ""
        return "met" if self.value <= self.target else "missed"


def cold_rows(pairs: int, folder: Path) -> list[Row]:
    """Time `costmodel predict --json` from a new process, in turns with the imports that any such tool needs."""
    ours, bare = costmodel_command(folder), Command("imports", (sys.executable, "-c", BASELINE), folder)
    result = paired(ours, bare, pairs)
    return [
        Row("cold `costmodel predict --prompt 8000 --gpu h100 --json`", "s", result.first_s),
        Row(f"cold `python -c '{BASELINE}'`", "s", result.second_s),
        Row("ratio of the two", "×", result.ratio, 2.0, f"median of {result.pairs} pairs, in turns"),
    ]


def costmodel_command(folder: Path) -> Command:
    """Return the command that users run."""
    script = Path(sysconfig.get_path("scripts")) / "costmodel"
    return Command("costmodel", (str(script), "predict", "--prompt", "8000", "--gpu", "h100", "--json"), folder)


def warm_rows(repeats: int) -> list[Row]:
    """Time single predictions inside this process."""
    parameters = build_parameters(costmodel.deploy())

    def equations(number: int) -> object:
        chunks, decodes = [Chunk(float(prompt_tokens(number)))], [Decodes(32.0, 500.0)]
        return step_times(parameters, make_work(chunks, decodes, parameters.windows))

    def step(number: int, **options: Any) -> object:
        return costmodel.step_times(prefill_tokens=prompt_tokens(number), decodes=32, decode_context=500, **options)

    def document(number: int, **options: Any) -> object:
        return costmodel.predict(prompt=prompt_tokens(number), **options)

    roofline_step, roofline_document = partial(step, **ROOFLINE), partial(document, **ROOFLINE)
    return [
        Row("one mixed step as floats, equations, roofline", "µs", 1e6 * per_call(equations, repeats), 25.0),
        Row(OUR_STEP, "µs", 1e6 * per_call(roofline_step, repeats), 25.0),
        Row("the same, calibrated", "µs", 1e6 * per_call(step, repeats)),
        Row("one document, costmodel.predict, roofline", "ms", 1e3 * per_call(roofline_document, repeats), 1.0),
        Row("the same, calibrated", "ms", 1e3 * per_call(document, repeats), 1.0),
    ]


def array_rows(repeats: int) -> list[Row]:
    """Time a million distinct steps at once."""
    random = np.random.default_rng(0)
    steps = {
        "prefill_tokens": random.integers(1, 16_384, STEPS),
        "prefill_cached": random.integers(0, 16_384, STEPS),
        "decodes": random.integers(1, 512, STEPS),
        "decode_context": random.integers(1, 16_384, STEPS),
    }
    rows = []
    for name, target, options in (("roofline", 0.25, ROOFLINE), ("calibrated", 0.6, {})):
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            costmodel.step_times(**steps, **options)
            times.append(time.perf_counter() - start)
        rows.append(Row(f"{STEPS:,} distinct mixed steps as arrays, {name}", "s", statistics.median(times), target))
    return rows


def sdk_rows(python: str, repeats: int, ours: list[Row]) -> list[Row]:
    """Time aiconfigurator's SDK in its own process, beside our equations of this run."""
    script = Path(__file__).with_name("peer_aiconfigurator.py")
    done = subprocess.run(
        [python, str(script), "--repeats", str(repeats)],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode == NOT_INSTALLED:
        return [Row("aiconfigurator SDK", "µs", None, note="not installed")]
    if done.returncode != 0:
        return [Row("aiconfigurator SDK", "µs", None, note="failed: " + " ".join(done.stderr.split())[-160:])]
    found = json.loads(done.stdout.splitlines()[-1])
    step = next(row.value for row in ours if row.what == OUR_STEP)
    rows = [Row(f"aiconfigurator {found['version']} SDK, import and load of its tables", "s", found["load_s"])]
    for kind, predicted in (("decode", "decode_step_s"), ("prefill", "prefill_s"), ("mixed", "mixed_step_s")):
        seconds = found[f"{kind}_call_s"]
        ratio = f"{1e6 * seconds / step:.2g} × one step of costmodel; " if step else ""
        note = f"{ratio}it predicts {1e3 * found[predicted]:.4g} ms"
        rows.append(Row(f"aiconfigurator SDK, one warm {kind} step", "µs", 1e6 * seconds, note=note))
    return rows


def command_rows(python: str, pairs: int, folder: Path) -> list[Row]:
    """Time aiconfigurator's command in turns with ours."""
    script = Path(python).parent / "aiconfigurator"
    if not (script.is_file() and os.access(script, os.X_OK)):
        return [Row("cold `aiconfigurator cli estimate`", "s", None, note="not installed")]
    arguments = (
        "cli estimate --model-path meta-llama/Meta-Llama-3.1-8B --system h100_sxm --backend vllm --isl 8000 --osl 100"
    )
    peer = Command("aiconfigurator", (str(script), *arguments.split(), "--batch-size", "32"), folder)
    try:
        result = paired(peer, costmodel_command(folder), pairs)
    except RuntimeError as error:
        return [Row("cold `aiconfigurator cli estimate`", "s", None, note=" ".join(str(error).split())[-160:])]
    note = f"{result.ratio:.3g} × cold `costmodel predict`, median of {pairs} pairs in turns"
    return [Row("cold `aiconfigurator cli estimate`", "s", result.first_s, note=note)]


def table(rows: list[Row]) -> str:
    """Return the rows for people."""
    cells = [("what", "median", "target", "verdict", "note")]
    for row in rows:
        value = "–" if row.value is None else f"{row.value:.3g} {row.unit}"
        target = "" if row.target is None else f"≤ {row.target:g} {row.unit}"
        cells.append((row.what, value, target, row.verdict, row.note))
    widths = [max(len(line[column]) for line in cells) for column in range(5)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    return "\n".join([lines[0], "  ".join("─" * width for width in widths), *lines[1:]])


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repeats: shows that everything works")
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    parser.add_argument(
        "--peer-python", default=sys.executable, help="interpreter of an environment with aiconfigurator"
    )
    options = parser.parse_args()
    repeats, pairs, peer_pairs = (3, 2, 1) if options.quick else (11, 15, 5)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [*cold_rows(pairs, folder), *warm_rows(repeats), *array_rows(repeats)]
        rows += [*sdk_rows(options.peer_python, repeats, rows), *command_rows(options.peer_python, peer_pairs, folder)]
    versions = {"costmodel": costmodel.__version__, "python": platform.python_version(), "numpy": np.__version__}
    if options.json:
        results = [{**asdict(row), "verdict": row.verdict} for row in rows]
        document = {"schema": "costmodel.benchmark/1", "quick": options.quick, "versions": versions, "rows": results}
        print(json.dumps(document, indent=2, ensure_ascii=False))
        return 0
    print(", ".join(f"{name} {version}" for name, version in versions.items()) + f", {os.cpu_count()} cores")
    print(table(rows))
    if options.quick:
        print("\nA quick run: too few repeats for its verdicts to mean much.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
