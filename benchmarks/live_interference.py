"""The long-prompt experiment on a live server, twice, against predictions of one calibration: writes docs/interference-measured.md.

python benchmarks/live_interference.py                  # measure, fit, serve with two token budgets; needs vLLM, about 6 minutes
python benchmarks/live_interference.py --redraw         # page and figures again, from what is kept of the last run; needs no vLLM
python benchmarks/live_interference.py --out FOLDER     # keep a run in a folder of your own, and print its page
python benchmarks/live_interference.py --out FOLDER --redraw

Everything is done by the commands that a user has: ``gpus probe`` (of a CPU), ``measure``, ``fit``, ``interfere`` with the prompt in one
step, ``interfere --chunk``. The calibration is made before any server is started, from steps of the engine in a process of its own; nothing
is fitted to the served runs.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from costmodel.architecture.source import preset_config
from costmodel.cli.interfere_figures import draw
from costmodel.errors import InputError
from costmodel.hardware.calibration import read_calibration
from costmodel.validation.backends.vllm_server import is_cpu_build
from costmodel.validation.checking.telling import Told, tell
from costmodel.validation.fitting.holdout import Errors
from costmodel.validation.fitting.measured import fit_steps
from costmodel.validation.measurements.files import read_measurement
from costmodel.validation.measurements.types import Measurement

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "interference-measured.md"
FIGURES: Final = {"percentiles": "interference-ladders.png", "gaps": "interference-gaps.png"}
KEPT: Final = Path(__file__).parent / "live_interference"
"""What is kept of the run of the page."""
PROFILE, STEPS, CALIBRATION = "cpu.toml", "steps.jsonl", "calibration.toml"
RECORDS: Final = ("one-step.jsonl", "small-budget.jsonl")
"""Records of the two servers; kept compressed."""
MODEL: Final = "random-weights"
"""Folder of the model."""
QUIET: Final = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


@dataclass(frozen=True, slots=True)
class Setting:
    """What is run on a kind of machine.

    Attributes:
        config: of the model; its weights are made up.
        prompt, streams, context: tokens of the injected prompt, chats, tokens of the prompt of each.
        every, first, duration, baseline: of the experiment [s].
        chunk: the small token budget.
        minutes: of measuring.
        measure, serve: further flags.
        environment: of both.
    """

    config: dict[str, Any]
    prompt: int
    streams: int
    context: int
    every: float
    first: float
    duration: float
    baseline: float
    chunk: int
    minutes: float
    measure: tuple[str, ...]
    serve: tuple[str, ...]
    environment: dict[str, str]


SMALL: Final = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 8,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 8000, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False, "torch_dtype": "float32",
}  # fmt: skip
"""A Llama of 31 million parameters: its steps are long beside what HTTP adds, and short enough for a CPU."""


def setting(cpu: bool) -> Setting:
    """Return what is run: a small model and one engine thread on a CPU, Llama-3.1-8B on a GPU."""
    if cpu:
        return Setting(
            config=SMALL, prompt=2200, streams=8, context=256, every=6.0, first=3.0, duration=33.0, baseline=15.0, chunk=256, minutes=2.0,
            measure=("--dtype", "fp32", "--enforce-eager", "--max-num-batched-tokens", "4096", "--max-model-len", "8192"),
            serve=("--dtype", "float32", "--enforce-eager", "--max-model-len", "8192"),
            environment={"OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "2"},
        )  # fmt: skip
    return Setting(
        config=preset_config("Llama-3.1-8B"), prompt=8000, streams=32, context=500, every=10.0, first=5.0, duration=60.0, baseline=30.0,
        chunk=512, minutes=3.0, measure=("--max-num-batched-tokens", "16384"), serve=("--max-model-len", "32768"), environment={},
    )  # fmt: skip


# --- running ------------------------------------------------------------------------------------------------------------


def run(folder: Path, note: str) -> None:
    """Measure, fit, and serve twice; everything is left in the folder.

    Args:
        folder: of the run.
        note: what else there is to say of the machine.

    Raises:
        InputError: a command failed.
    """
    cpu = is_cpu_build()
    chosen = setting(cpu)
    folder.mkdir(parents=True, exist_ok=True)
    model = folder / MODEL
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(chosen.config, indent=1) + "\n", encoding="utf-8")
    part = ["--gpu", PROFILE] if cpu else []

    def costmodel(*words: str) -> None:
        print("costmodel", *words, file=sys.stderr)
        command = [sys.executable, "-c", "from costmodel.cli.entry import main; main()", *words]
        environment = os.environ | QUIET | chosen.environment
        if subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=False).returncode:
            raise InputError(f"costmodel {words[0]} failed; see above")

    if cpu:
        costmodel("gpus", "probe", "--device", "cpu", "-o", PROFILE, "--force")
    costmodel(
        "measure", "--random-weights", f"{MODEL}/config.json", *part, "--minutes", f"{chosen.minutes:g}", "--out", STEPS, "--force",
        *chosen.measure,
    )  # fmt: skip
    costmodel("fit", STEPS, *part, "-o", CALIBRATION, "--force")
    for record, chunk in zip(RECORDS, ([], ["--chunk", str(chosen.chunk)]), strict=True):
        costmodel(
            "interfere", "--serve", MODEL, "--random-weights", "--prompt", str(chosen.prompt), "--streams", str(chosen.streams),
            "--context", str(chosen.context), "--every", f"{chosen.every:g}", "--first", f"{chosen.first:g}",
            "--duration", f"{chosen.duration:g}", "--baseline", f"{chosen.baseline:g}", *chunk, "--record", record, "--force",
            "--", *chosen.serve,
        )  # fmt: skip
        packed = folder / f"{record}.xz"
        packed.write_bytes(lzma.compress((folder / record).read_bytes(), preset=9 | lzma.PRESET_EXTREME))
        (folder / record).unlink()
    (folder / "machine.json").write_text(json.dumps({"cores": os.cpu_count(), "note": note}) + "\n", encoding="utf-8")


# --- what it says -------------------------------------------------------------------------------------------------------


class Comparison(NamedTuple):
    """The run in a folder.

    Attributes:
        measurement, fitted: of the engine's steps, and how well the fit predicts those that were held out.
        cores, note: of the machine.
        runs: the experiment with the prompt in one step, and with the small budget, with their predictions.
    """

    measurement: Measurement
    fitted: Errors
    cores: int
    note: str
    runs: tuple[Told, ...]


def compare(folder: Path) -> Comparison:
    """Predict what was measured, with the calibration in the folder.

    Raises:
        InputError: a file is missing or broken, or there is no prediction.
    """
    calibration = folder / CALIBRATION
    part = str(folder / PROFILE) if (folder / PROFILE).exists() else read_calibration(calibration).gpu
    runs = []
    with tempfile.TemporaryDirectory() as place:
        for name in RECORDS:
            path = Path(place, name)
            try:
                path.write_bytes(lzma.decompress((folder / f"{name}.xz").read_bytes()))
            except (OSError, lzma.LZMAError) as error:
                raise InputError(f"cannot read {name}.xz: {error}") from None
            told = tell(path, {"gpu": part, "calibration": str(calibration)})
            if told.missed is not None or told.compared is None or told.summary.simulated is None:
                raise InputError(told.missed or f"{name}: has no injected run to simulate")
            runs.append(told)
    try:
        machine = json.loads((folder / "machine.json").read_text(encoding="utf-8"))
        cores, note = int(machine["cores"]), str(machine["note"])
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError("machine.json: is missing or broken") from None
    measurement = read_measurement(folder / STEPS)
    return Comparison(measurement, fit_steps(measurement, part, 0).held_out["all"], cores, note, tuple(runs))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and compare, and write the page and its figures or print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder of the run; prints the page instead of writing it")
    parser.add_argument("--note", default="", help="what else there is to say of the machine; kept with the run")
    parser.add_argument("--redraw", action="store_true", help="from the run that is in the folder")
    given = parser.parse_args(arguments)
    folder = given.out or KEPT
    try:
        if not given.redraw:
            run(folder, given.note)
        found = compare(folder)
        figures = (given.out or PAGE.parent) / "figures"
        figures.mkdir(exist_ok=True)
        for figure, name in FIGURES.items():
            draw(figure, found.runs, figures / name, force=True)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    from live_interference_page import text

    if given.out is not None:
        print(text(found))
        return 0
    PAGE.write_text(text(found), encoding="utf-8")
    print(f"wrote {PAGE} and its figures", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
