"""Predicts the end-to-end rows of ``systems/silicon_sample.csv`` with aiconfigurator; exit code 3 where it is not installed.

Runs in the interpreter that has the packages aiconfigurator and aiconfigurator-core, and needs nothing else::

    python benchmarks/peer_end_to_end.py --output peer.csv

One line per row of the sample: ``id, ttft_s, tpot_s, tables, version, seconds, failure``. The method is aiconfigurator's own
(``tools/accuracy_regression_testing/predict_silicon_sample.py`` in its repository): ``cli_estimate`` with the row's parallelism,
formats, lengths and batch size. It differs only in the peer's favour, where the sample says less than is known of what was served:

- Its tables hold one complete version per GPU and engine and no other can be asked for, whatever the row's: that one is used.
- Checkpoints that the package carries no configuration of are replaced by one of the same architecture, with the row's formats.
- Formats of weights: :func:`formats`. Of the KV cache, which the sample doesn't state: :func:`kv_cache`.
- Where its measured tables (``SILICON``) lack fp8 experts they are looked up as block-scaled ones (``SILICON, block``), and what it
  has not measured it may estimate (``HYBRID``).
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import logging
import os
import re
import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Final

NOT_INSTALLED: Final = 3

STAND_INS: Final = {
    "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/DeepSeek-R1-NVFP4": "nvidia/DeepSeek-V3.1-NVFP4",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/Qwen3-32B-NVFP4": "Qwen/Qwen3-32B",
    "zhipuai/GLM-5": "zai-org/GLM-5",
}
"""Checkpoint of the sample → one of the same architecture in ``model_configs``."""

PARALLEL: Final = ("tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
DENSE: Final = re.compile(r"Llama|Qwen3-32B")
BLACKWELL: Final = frozenset({"b200_sxm", "b300_sxm", "gb200", "gb300"})

Arguments = dict[str, str | int]

TRIES: Final[tuple[tuple[str, Arguments], ...]] = (
    ("SILICON", {}),
    ("SILICON, block", {"moe_quant_mode": "fp8_block"}),
    ("HYBRID", {}),
)
"""Name of the tables → what is asked instead; the first that answers counts."""


@dataclass(frozen=True)
class Answer:
    """What aiconfigurator says of one row; times are empty where it fails, the failure where it doesn't."""

    ttft_s: str = ""
    tpot_s: str = ""
    tables: str = ""
    version: str = ""
    seconds: str = ""
    failure: str = ""


def main() -> int:
    """Write the file, or exit with 3."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="CSV file to write")
    parser.add_argument("--every", type=int, default=1, help="predict every n-th row only")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    try:
        import aiconfigurator.cli.api  # noqa: F401
        import aiconfigurator_core
    except ImportError as error:
        print(f"aiconfigurator is not installed ({error})", file=sys.stderr)
        return NOT_INSTALLED
    sample = Path(aiconfigurator_core.__file__).parent / "systems" / "silicon_sample.csv"
    with sample.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))[:: options.every]
    peer, answers = Peer(), []
    for number, row in enumerate(rows, 1):
        answers.append(peer.predict(arguments(row)))
        if number % 250 == 0 or number == len(rows):
            failed = sum(bool(answer.failure) for answer in answers)
            print(f"{number} of {len(rows)} rows, {failed} not predicted", file=sys.stderr)
    write(options.output, [row["id"] for row in rows], answers)
    return 0


def arguments(row: Mapping[str, str]) -> Arguments:
    """Return what ``cli_estimate`` is asked for a row; what the row leaves empty or 0 is left to aiconfigurator."""
    model = row["model_path"]
    asked: Arguments = {
        "model_path": STAND_INS.get(model, model),
        "system_name": row["system"],
        "backend_name": row["backend"],
        "mode": row["mode"],
        "isl": int(row["isl"]),
        "osl": int(row["osl"]),
    }
    names = [*PARALLEL, "batch_size"]
    if row["mode"] == "disagg":
        names = [f"{stage}_{field}" for stage in ("prefill", "decode") for field in (*names, "num_workers")]
    if DENSE.search(model):
        names = [field for field in names if "moe" not in field]
    asked |= {field: int(row[field]) for field in names if int(row[field] or 0)}
    return asked | formats(row) | kv_cache(row)


def formats(row: Mapping[str, str]) -> Arguments:
    """Return the formats of the weights: the row's, but for two checkpoints that have their own whatever the row's label.

    gpt-oss has mxfp4 experts, multiplied with mxfp8 activations on Blackwell (InferenceX's launch scripts) and with bf16 elsewhere.
    Qwen3-235B-A22B-FP8 is block-scaled, as the sample says of it on other engines.
    """
    if row["model_path"] == "openai/gpt-oss-120b":
        experts = "w4a8_mxfp4_mxfp8" if row["system"] in BLACKWELL else "w4a16_mxfp4"
        return {"gemm_quant_mode": "bfloat16", "moe_quant_mode": experts}
    if row["model_path"] == "Qwen/Qwen3-235B-A22B-FP8":
        return {"gemm_quant_mode": "fp8_block", "moe_quant_mode": "fp8_block"}
    return {field: row[field] for field in ("gemm_quant_mode", "moe_quant_mode") if row[field]}


def kv_cache(row: Mapping[str, str]) -> Arguments:
    """Return the format of the KV cache where more is known of it than aiconfigurator infers.

    InferenceX served Llama 70B, and gpt-oss on Blackwell, with an fp8 cache (its launch scripts). Dense models that TRT-LLM serves in
    fp8 or nvfp4 are ModelOpt's checkpoints, which ask for an fp8 cache.
    """
    model = row["model_path"]
    inferencex = model == "meta-llama/Llama-3.1-70B" or (model == "openai/gpt-oss-120b" and row["system"] in BLACKWELL)
    modelopt = bool(DENSE.search(model)) and row["backend"] == "trtllm" and row["gemm_quant_mode"] in {"fp8", "nvfp4"}
    return {"kvcache_quant_mode": "fp8"} if inferencex or modelopt else {}


class Peer:
    """aiconfigurator, asked once for each configuration."""

    def __init__(self) -> None:
        self._answers: dict[tuple[tuple[str, str | int], ...], Answer] = {}
        self._versions: dict[tuple[str, str], str] = {}

    def predict(self, asked: Arguments) -> Answer:
        """Return the answer; ``seconds`` is empty where it is a repeated one."""
        key = tuple(sorted(asked.items()))
        if key in self._answers:
            return replace(self._answers[key], seconds="")
        version = self._version(str(asked["system_name"]), str(asked["backend_name"]))
        start, answer = time.perf_counter(), Answer()
        for tables, other in TRIES:
            if other and asked.get("moe_quant_mode") != "fp8":
                continue
            answer = estimate(asked | other | {"backend_version": version, "database_mode": tables.partition(",")[0]})
            if not answer.failure:
                answer = replace(answer, tables=tables)
                break
        self._answers[key] = replace(answer, version=version, seconds=f"{time.perf_counter() - start:.4f}")
        return self._answers[key]

    def _version(self, system: str, engine: str) -> str:
        """Return the version that ``cli_estimate`` takes by default; it would read a thousand files each time to find it."""
        from aiconfigurator_core.sdk.perf_database import get_latest_database_version

        if (system, engine) not in self._versions:
            self._versions[system, engine] = get_latest_database_version(system=system, backend=engine) or ""
        return self._versions[system, engine]


def estimate(asked: Arguments) -> Answer:
    """Return one answer of ``cli_estimate``; it gives milliseconds."""
    from aiconfigurator.cli.api import cli_estimate

    try:
        with contextlib.redirect_stdout(sys.stderr):
            times = cli_estimate(**asked)
    except Exception as error:  # whatever its layers raise is the reason why a row isn't predicted
        return Answer(failure=reason(error))
    return Answer(f"{times.ttft / 1e3:.6g}", f"{times.tpot / 1e3:.6g}")


def reason(error: Exception) -> str:
    """Return the kind of a failure and the start of its message, without the folders of an installation."""
    text = re.sub(r"\s+", " ", re.sub(r" at /\S+", "", str(error)))
    return f"{type(error).__name__}: {text}"[:120]


def write(path: Path, names: list[str], answers: list[Answer]) -> None:
    """Write the file, all of it or nothing."""
    beside = path.with_name(path.name + ".part")
    with beside.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("id", *(field.name for field in fields(Answer))))
        writer.writerows((name, *astuple(answer)) for name, answer in zip(names, answers, strict=True))
    os.replace(beside, path)


if __name__ == "__main__":
    sys.exit(main())
