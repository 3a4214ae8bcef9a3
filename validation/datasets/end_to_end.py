"""TTFT and TPOT measured on serving engines: the 5,221 rows of ``systems/silicon_sample.csv`` in ``aiconfigurator-core``.

Two protocols. InferenceX rows (https://github.com/SemiAnalysisAI/InferenceX): a closed loop of C clients, about 10·C prompts of which
the first C arrive together, lengths uniform in [0.8 L, L]. The others are single measurements of NVIDIA's own.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self

import numpy as np

from costmodel.hardware.errors import InputError
from costmodel.validation.datasets.formats import NAMES
from costmodel.validation.datasets.package import SYSTEMS, package_folder
from costmodel.validation.datasets.tables import Column, Mask, check_mask

FILE: Final = Path("systems", "silicon_sample.csv")

Protocol = Literal["InferenceX", "other"]

FAMILIES: Final = {
    "MiniMaxAI/MiniMax-M2.5": "MiniMax-M2.5",
    "Qwen/Qwen3-235B-A22B-FP8": "Qwen3-235B-A22B",
    "Qwen/Qwen3-32B": "Qwen3-32B",
    "Qwen/Qwen3.5-397B-A17B": "Qwen3.5-397B-A17B",
    "deepseek-ai/DeepSeek-R1": "DeepSeek-V3",
    "deepseek-ai/DeepSeek-V3": "DeepSeek-V3",
    "meta-llama/Llama-3.1-70B": "Llama-3.1-70B",
    "meta-llama/Llama-3.1-8B-Instruct": "Llama-3.1-8B",
    "moonshotai/Kimi-K2.5": "Kimi-K2.5",
    "nvidia/DeepSeek-R1-NVFP4": "DeepSeek-V3",
    "nvidia/DeepSeek-V3.1-NVFP4": "DeepSeek-V3",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "Llama-3.1-8B",
    "nvidia/Qwen3-32B-NVFP4": "Qwen3-32B",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "zhipuai/GLM-5": "GLM-5",
}
"""Checkpoint → architecture that it has; checkpoints of one architecture are held out together."""

PRESETS: Final = {"MiniMax-M2.5": "MiniMax-M2", "Kimi-K2.5": "Kimi-K2-Instruct"}
"""Architecture → the preset that it is, where the names differ: M2.5 has the config.json of M2, and K2.5's language model is K2."""

BLOCK_QUANTISED: Final = frozenset(
    {
        "MiniMaxAI/MiniMax-M2.5",
        "Qwen/Qwen3-235B-A22B-FP8",
        "deepseek-ai/DeepSeek-R1",
        "deepseek-ai/DeepSeek-V3",
    }
)
"""Checkpoints whose fp8 weights have a scale per block of 128 × 128 (``weight_block_size`` of their config.json)."""

DENSE: Final = frozenset({"Llama-3.1-8B", "Llama-3.1-70B", "Qwen3-32B"})
"""Architectures without routed experts."""

FINAL_TEST: Final = frozenset({"DeepSeek-V3", "Kimi-K2.5", "GLM-5", "Qwen3.5-397B-A17B"})
"""Architectures whose rows are never fitted to and choose nothing: reported once, at the end."""

_CONCURRENCY = re.compile(r"\bsilicon_concurrency=(\d+)")
_INFERENCEX = re.compile(r"db-dump/|source_file=\d{4}-\d{2}-\d{2}\.csv\b")


@dataclass(frozen=True, slots=True)
class EndToEndRow:
    """One measured serving configuration.

    Attributes:
        name: identifier in the file.
        model: checkpoint.
        family: architecture (:data:`FAMILIES`).
        gpu: canonical name of the GPU profile.
        engine, version: ``vllm``, ``sglang`` or ``trtllm``; the version is empty where the file has none.
        disaggregated: prefill and decode ran on separate GPUs; then the file states no single parallelism, and all of
            ``batch_size``, ``tp`` … ``moe_ep`` are 0.
        linear_dtype, expert_dtype: formats of the weights, keys of :data:`~costmodel.validation.datasets.formats.QUANTISATIONS`.
            Where the file is silent they are bf16 (unquantised checkpoints). gpt-oss is stated as nvfp4 or fp8, but its only
            checkpoint has mxfp4 experts and bf16 elsewhere; fp8 checkpoints with block scales are fp8-block however stated.
        tp, pp, attention_dp: tensor, pipeline and attention-data parallelism; 1 where the file is silent or says 0.
        moe_tp, moe_ep: tensor and expert parallelism of the experts; 1 where the file says 0 (dense models).
        input_tokens, output_tokens: nominal lengths [tokens].
        batch_size: the file's batch size.
        concurrency: closed-loop clients; 0 where the source names none.
        ttft_s, tpot_s: mean time to first token, and per token after it [s].
        source: where the file says the row comes from.
        protocol: see the module.
        final_test: never fitted to.
    """

    name: str
    model: str
    family: str
    gpu: str
    engine: str
    version: str
    disaggregated: bool
    linear_dtype: str
    expert_dtype: str
    tp: int
    pp: int
    attention_dp: int
    moe_tp: int
    moe_ep: int
    input_tokens: int
    output_tokens: int
    batch_size: int
    concurrency: int
    ttft_s: float
    tpot_s: float
    source: str
    protocol: Protocol
    final_test: bool

    @property
    def dense(self) -> bool:
        """True if the model has no routed experts."""
        return self.family in DENSE

    @property
    def architecture(self) -> str:
        """Name of the preset."""
        return PRESETS.get(self.family, self.family)

    @property
    def weight_dtype(self) -> str | None:
        """Format of the layers' weights as :func:`costmodel.deploy` takes it; None for that of the checkpoint (gpt-oss)."""
        return None if self.expert_dtype == "mxfp4" else self.linear_dtype

    @property
    def deployment(self) -> tuple[str | int, ...]:
        """What is deployed, without the load: rows to calibrate a deployment with share it."""
        parallel = (self.tp, self.pp, self.attention_dp, self.moe_tp, self.moe_ep)
        return (self.model, self.gpu, self.engine, self.linear_dtype, self.expert_dtype, *parallel)

    @property
    def group(self) -> tuple[str | int, ...]:
        """What must not be split between fit and test: deployment and load, whatever the version and the day."""
        return (*self.deployment, self.disaggregated, self.input_tokens, self.output_tokens, self.concurrency)

    @property
    def configuration(self) -> tuple[str | int, ...]:
        """What was measured, version included: rows that share it are repetitions."""
        return (*self.group, self.version, self.batch_size)


@dataclass(frozen=True, slots=True)
class EndToEndTable:
    """Rows that can be selected by a mask."""

    rows: tuple[EndToEndRow, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[EndToEndRow]:
        return iter(self.rows)

    def select(self, mask: Mask) -> Self:
        """Return the rows where ``mask`` is true.

        Raises:
            InputError: the mask is not one truth value per row.
        """
        check_mask(mask, len(self))
        return type(self)(tuple(row for row, kept in zip(self.rows, mask.tolist(), strict=True) if kept))

    @property
    def ttft_s(self) -> Column:
        """Mean times to first token [s]."""
        return np.array([row.ttft_s for row in self.rows], dtype=np.float64)

    @property
    def tpot_s(self) -> Column:
        """Mean times per output token after the first [s]."""
        return np.array([row.tpot_s for row in self.rows], dtype=np.float64)


def end_to_end() -> EndToEndTable:
    """Read all rows, disaggregated and final-test rows included.

    Raises:
        InputError: aiconfigurator-core is not installed, or its file is not what it was.
    """
    path = package_folder() / FILE
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return EndToEndTable(tuple(_row(line) for line in csv.DictReader(file)))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"end-to-end rows {FILE.name}: cannot be read ({error})") from None
    except (KeyError, ValueError) as error:
        raise InputError(f"end-to-end rows {FILE.name}: unknown value or missing column {error}") from None


def _row(line: Mapping[str, str]) -> EndToEndRow:
    disaggregated = {"agg": False, "disagg": True}[line["mode"]]
    source, model = line["silicon_data_source"], line["model_path"]
    family = FAMILIES[model]
    stated = _CONCURRENCY.search(source)
    dtypes: tuple[str, ...] = (
        NAMES[line["gemm_quant_mode"] or "bfloat16"],
        NAMES[line["moe_quant_mode"] or "bfloat16"],
    )
    if model in BLOCK_QUANTISED:
        dtypes = tuple(dtype.replace("fp8", "fp8-block") if dtype == "fp8" else dtype for dtype in dtypes)
    linear_dtype, expert_dtype = ("bf16", "mxfp4") if family == "gpt-oss-120b" else dtypes

    def ways(name: str) -> int:
        return 0 if disaggregated else int(line[name] or 1) or 1

    return EndToEndRow(
        name=line["id"],
        model=model,
        family=family,
        gpu=SYSTEMS[line["system"]],
        engine=line["backend"],
        version=line["backend_version"],
        disaggregated=disaggregated,
        linear_dtype=linear_dtype,
        expert_dtype=expert_dtype,
        tp=ways("tp_size"),
        pp=ways("pp_size"),
        attention_dp=ways("attention_dp_size"),
        moe_tp=ways("moe_tp_size"),
        moe_ep=ways("moe_ep_size"),
        input_tokens=int(line["isl"]),
        output_tokens=int(line["osl"]),
        batch_size=int(line["batch_size"] or 0),
        concurrency=int(stated[1]) if stated else 0,
        ttft_s=float(line["silicon_ttft_ms"]) * 1e-3,
        tpot_s=float(line["silicon_tpot_ms"]) * 1e-3,
        source=source,
        protocol="InferenceX" if _INFERENCEX.match(source) else "other",
        final_test=family in FINAL_TEST,
    )
