"""What several tests of the command line share: files, whose numbers are invented, right and wrong; cases of formulas."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import costmodel
from costmodel.architecture.source import preset_config
from costmodel.documents import FormulaName, RungName

CALIBRATION = """\
schema = "costmodel.calibration/1"
name = "synthetic"
gpu = "h100-sxm"
engine = "vllm"

[provenance]
data = "synthetic"
rows = 1
date = "2025-01-31"
command = "pytest"

[operators."gemm.bf16"]
form = "smooth_roofline"
residuals = { level = 0.8, low = -0.06, high = 0.08 }
ranges = { tokens = [1, 4096] }

[operators."gemm.bf16".parameters]
compute_efficiency = { value = 0.81 }
bandwidth_efficiency = { value = 0.87 }
launch_s = { value = 4e-6 }
sharpness = { value = 3.7 }

[operators.gemm]
form = "smooth_roofline"
residuals = { level = 0.8, low = -0.2, high = 0.25 }
parameters = { compute_efficiency = { value = 0.7 }, bandwidth_efficiency = { value = 0.8 } }

[operators.experts]
form = "smooth_roofline"
residuals = { level = 0.8, low = -0.15, high = 0.2 }

[operators.experts.parameters]
compute_efficiency = { value = 0.55 }
bandwidth_efficiency = { value = 0.7 }
launch_s = { value = 9e-6 }
sharpness = { value = 2.2 }

[operators.prefill_attention]
form = "smooth_roofline"
residuals = { level = 0.8, low = -0.05, high = 0.10 }
parameters = { compute_efficiency = { value = 0.63 }, launch_s = { value = 1e-5 }, sharpness = { value = 6.0 } }

[operators.decode_attention]
form = "smooth_roofline"
residuals = { level = 0.9, low = -0.08, high = 0.08 }
parameters = { bandwidth_efficiency = { value = 0.85 }, launch_s = { value = 1e-5 } }

[operators.elementwise]
form = "elementwise"
residuals = { level = 0.8, low = -0.3, high = 0.3 }
parameters = { passes = { value = 11.0 }, bandwidth_efficiency = { value = 0.75 }, launch_s = { value = 2e-6 } }

[operators.all_reduce]
form = "link"
residuals = { level = 0.8, low = -0.1, high = 0.2 }

[operators.all_reduce.parameters]
latency_s = { value = 5e-6 }
latency_per_log2_s = { value = 2e-6 }
bandwidth_efficiency = { value = 0.7 }

[operators.dispatch]
form = "link"
residuals = { level = 0.8, low = -0.1, high = 0.2 }
parameters = { latency_s = { value = 1e-5 }, bandwidth_efficiency = { value = 0.5 }, imbalance = { value = 1.3 } }

[operators.pipeline]
form = "link"
residuals = { level = 0.8, low = -0.1, high = 0.2 }
parameters = { latency_s = { value = 8e-6 } }

[operators."overhead.graph"]
form = "overhead"
residuals = { level = 0.8, low = -0.5, high = 0.5 }
parameters = { per_step_s = { value = 3e-4 }, graph_multiple = { value = 8 } }

[operators."overhead.eager"]
form = "overhead"
residuals = { level = 0.8, low = -0.5, high = 0.5 }
parameters = { per_layer_s = { value = 4e-5 }, per_step_s = { value = 1e-3 } }
"""

GPU_PROFILE = """\
schema = "costmodel.gpu/1"
name = "Home-made 24GB"
vendor = "other"
architecture = "own"
memory_bandwidth = { value = 1e12, source = "me" }
memory_nominal = { value = 24e9, source = "me" }
memory_visible = { value = 23e9, source = "me" }

[peak_flops]
bf16 = { value = 1e14, source = "me" }
fp16 = { value = 1e14, source = "me" }

[link]
kind = "pcie"
bandwidth_per_direction = { value = 3e10, source = "me" }
gpus_per_node = { value = 4, source = "me" }

[sources]
me = { title = "my own measurement", url = "https://example.com/gpu" }
"""


def config(**changed: Any) -> str:
    """A config.json of a small Llama with some keys changed, or left out where the value is ``...``."""
    edited = {**preset_config("Llama-3.2-1B"), **changed}
    return json.dumps({key: value for key, value in edited.items() if value is not ...})


NOISE = bytes(range(128, 256))
FILES: Mapping[str, str | bytes] = {
    "corrupt.json": '{"model_type": "llama",',
    "list.json": "[1, 2]",
    "number.json": "17",
    "noise.json": NOISE,
    "nothing.json": "",
    "deep.json": "[" * 100_000,
    "no_type.json": "{}",
    "no_hidden.json": config(hidden_size=...),
    "no_layers.json": config(num_hidden_layers=...),
    "no_heads.json": config(num_attention_heads=0),
    "negative_heads.json": config(num_attention_heads=-32),
    "no_kv_heads.json": config(num_key_value_heads=0),
    "negative_kv_heads.json": config(num_key_value_heads=-8),
    "uneven_heads.json": config(num_key_value_heads=5),
    "text_heads.json": config(num_attention_heads="32"),
    "half_layer.json": config(num_hidden_layers=16.5),
    "huge.json": config(hidden_size=10**30),
    "infinite.json": config(intermediate_size=float("inf")),
    "mamba.json": config(model_type="mamba"),
    "unknown.json": config(model_type="not-a-model"),
    "quant.json": config(quantization_config={"quant_method": "homebrew"}),
    "quant_list.json": config(quantization_config=[4]),
    "dtype.json": config(torch_dtype="complex64"),
    "noise.toml": NOISE,
    "deep.toml": "a = " + "[" * 100_000,
    "syntax.toml": "name = = 1",
    "empty.toml": "",
    "gpu_key.toml": 'colour = "green"\n' + GPU_PROFILE,
    "gpu_zero.toml": GPU_PROFILE.replace("value = 1e12", "value = 0"),
    "gpu_no_bandwidth.toml": "\n".join(line for line in GPU_PROFILE.splitlines() if "memory_bandwidth" not in line),
    "fits_key.toml": 'colour = "green"\n' + CALIBRATION,
    "fits_operator.toml": CALIBRATION.replace("[operators.elementwise]", "[operators.elementwize]"),
    "fits_parameter.toml": CALIBRATION.replace("compute_efficiency = { value = 0.7 }", "efficiency = { value = 0.7 }"),
    "fits_above_one.toml": CALIBRATION.replace("value = 0.81", "value = 1.81"),
    "fits_nan.toml": CALIBRATION.replace("value = 0.81", "value = nan"),
    "fits.toml": CALIBRATION,
    "there.png": b"precious",
    "file": "",
}
PIPES = ("pipe", "pipe.toml")
FOLDERS = ("folder", "folder.toml", "folder.png", "folder.json")
LINKS = {
    "dangling.json": "nowhere",
    "dangling.toml": "nowhere",
    "circle.json": "circle.json",
    "circle.toml": "circle.toml",
}
MIXTURE = "--model gpt-oss-20b"

ROUNDING = 1e-12
MODELS = ("Llama-3.1-8B", "gemma-3-12b-it", "gpt-oss-20b", "Qwen3-30B-A3B", "DeepSeek-V2-Lite")
"""Dense; windows; windows and experts; experts; latent attention."""


@dataclass(frozen=True)
class Case:
    """A formula and where its number is in the document of ``predict``."""

    model: str
    rung: RungName
    name: FormulaName = "spike"
    chunk: int | None = None
    tp: int = 1
    ep: int = 1

    def __str__(self) -> str:
        sizes = f"-tp{self.tp}-ep{self.ep}" if self.tp * self.ep > 1 else ""
        return f"{self.model}-{self.rung}-{self.name}-{self.chunk or 'whole'}{sizes}"


Made = Callable[[Case], costmodel.Formula]
