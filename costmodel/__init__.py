"""How long one step of an LLM inference server takes, and what that means for the people whose answers stream through it.

    >>> import costmodel
    >>> costmodel.predict(prompt=8000, gpu="h100").rungs.textbook.spike_s  # doctest: +SKIP

Names are loaded when they are first used, so ``import costmodel`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from costmodel.adapters import Lora
    from costmodel.architecture.source import load_model, model_names
    from costmodel.architecture.types import Architecture
    from costmodel.clients import ClosedLoop, closed_loop
    from costmodel.deployment import Deployment, deploy
    from costmodel.documents import Prediction, Predictions
    from costmodel.embedding import predict_embedding
    from costmodel.embedding_documents import Embedding, Embeddings
    from costmodel.errors import CostModelError, InputError, NoAnswerError, UnsupportedError
    from costmodel.explaining.asking import explain
    from costmodel.explaining.documents import Explanations, RequestExplanation
    from costmodel.explaining.request import explain_request
    from costmodel.hardware.calibration import Calibration
    from costmodel.hardware.catalog import gpu_names, load_gpu
    from costmodel.hardware.profile import GpuProfile
    from costmodel.memory.documents import MemoryPlan
    from costmodel.memory.planning import plan_memory
    from costmodel.planning.chunks import plan_chunk
    from costmodel.planning.disaggregation import plan_disaggregation
    from costmodel.planning.documents import ChunkPlan, FleetPlan, GpuPlan, SizePlan
    from costmodel.planning.parts import plan_gpu
    from costmodel.planning.replicas import plan_replicas
    from costmodel.planning.sizes import plan_batch, plan_prompt
    from costmodel.prediction import predict
    from costmodel.simulation.detailing import Details, details
    from costmodel.simulation.interfering import simulate_interference
    from costmodel.simulation.pools import Pools
    from costmodel.simulation.results import Simulation
    from costmodel.simulation.running import Limits
    from costmodel.simulation.simulating import simulate_load, simulate_trace
    from costmodel.solving import Solution, solve
    from costmodel.speculation.asking import Speculation
    from costmodel.sweeping.asking import sweep
    from costmodel.sweeping.results import Sweep
    from costmodel.sweeping.rows import SimulatedRow, StepRow
    from costmodel.symbolic.formulas import Formula, formula
    from costmodel.symbolic.sensitivity import elasticities
    from costmodel.vectorised import step_times

    __version__: str

_HOMES = {
    "Architecture": "costmodel.architecture.types",
    "Calibration": "costmodel.hardware.calibration",
    "ChunkPlan": "costmodel.planning.documents",
    "ClosedLoop": "costmodel.clients",
    "CostModelError": "costmodel.errors",
    "Deployment": "costmodel.deployment",
    "Details": "costmodel.simulation.detailing",
    "Embedding": "costmodel.embedding_documents",
    "Embeddings": "costmodel.embedding_documents",
    "Explanations": "costmodel.explaining.documents",
    "FleetPlan": "costmodel.planning.documents",
    "Formula": "costmodel.symbolic.formulas",
    "GpuPlan": "costmodel.planning.documents",
    "GpuProfile": "costmodel.hardware.profile",
    "InputError": "costmodel.errors",
    "Limits": "costmodel.simulation.running",
    "Lora": "costmodel.adapters",
    "MemoryPlan": "costmodel.memory.documents",
    "NoAnswerError": "costmodel.errors",
    "Pools": "costmodel.simulation.pools",
    "Prediction": "costmodel.documents",
    "Predictions": "costmodel.documents",
    "RequestExplanation": "costmodel.explaining.documents",
    "SimulatedRow": "costmodel.sweeping.rows",
    "Simulation": "costmodel.simulation.results",
    "SizePlan": "costmodel.planning.documents",
    "Solution": "costmodel.solving",
    "Speculation": "costmodel.speculation.asking",
    "StepRow": "costmodel.sweeping.rows",
    "Sweep": "costmodel.sweeping.results",
    "UnsupportedError": "costmodel.errors",
    "closed_loop": "costmodel.clients",
    "deploy": "costmodel.deployment",
    "details": "costmodel.simulation.detailing",
    "elasticities": "costmodel.symbolic.sensitivity",
    "explain": "costmodel.explaining.asking",
    "explain_request": "costmodel.explaining.request",
    "formula": "costmodel.symbolic.formulas",
    "gpu_names": "costmodel.hardware.catalog",
    "load_gpu": "costmodel.hardware.catalog",
    "load_model": "costmodel.architecture.source",
    "model_names": "costmodel.architecture.source",
    "plan_batch": "costmodel.planning.sizes",
    "plan_chunk": "costmodel.planning.chunks",
    "plan_disaggregation": "costmodel.planning.disaggregation",
    "plan_gpu": "costmodel.planning.parts",
    "plan_memory": "costmodel.memory.planning",
    "plan_prompt": "costmodel.planning.sizes",
    "plan_replicas": "costmodel.planning.replicas",
    "predict": "costmodel.prediction",
    "predict_embedding": "costmodel.embedding",
    "simulate_interference": "costmodel.simulation.interfering",
    "simulate_load": "costmodel.simulation.simulating",
    "simulate_trace": "costmodel.simulation.simulating",
    "solve": "costmodel.solving",
    "step_times": "costmodel.vectorised",
    "sweep": "costmodel.sweeping.asking",
}
"""Public name → module that defines it."""

__all__ = [
    "Architecture",
    "Calibration",
    "ChunkPlan",
    "ClosedLoop",
    "CostModelError",
    "Deployment",
    "Details",
    "Embedding",
    "Embeddings",
    "Explanations",
    "FleetPlan",
    "Formula",
    "GpuPlan",
    "GpuProfile",
    "InputError",
    "Limits",
    "Lora",
    "MemoryPlan",
    "NoAnswerError",
    "Pools",
    "Prediction",
    "Predictions",
    "RequestExplanation",
    "SimulatedRow",
    "Simulation",
    "SizePlan",
    "Solution",
    "Speculation",
    "StepRow",
    "Sweep",
    "UnsupportedError",
    "__version__",
    "closed_loop",
    "deploy",
    "details",
    "elasticities",
    "explain",
    "explain_request",
    "formula",
    "gpu_names",
    "load_gpu",
    "load_model",
    "model_names",
    "plan_batch",
    "plan_chunk",
    "plan_disaggregation",
    "plan_gpu",
    "plan_memory",
    "plan_prompt",
    "plan_replicas",
    "predict",
    "predict_embedding",
    "simulate_interference",
    "simulate_load",
    "simulate_trace",
    "solve",
    "step_times",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("llm-costmodel")
    if name not in _HOMES:
        raise AttributeError(f"module 'costmodel' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
