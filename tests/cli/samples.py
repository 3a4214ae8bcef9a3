"""Files that several tests of the command line read. Their numbers are invented."""

from __future__ import annotations

CALIBRATION = """\
schema = "costmodel.calibration/1"
name = "synthetic"
gpu = "h100-sxm"
engine = "none"

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
