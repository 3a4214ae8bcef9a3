"""``costmodel.embedding/1``: what :func:`costmodel.predict_embedding` answers of models that pool. All quantities in SI units."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from costmodel.documents import GpuInfo, MemoryInfo, ModelInfo, Operator, RungName
from costmodel.hardware.profile import Frozen


class EmbeddingWorkload(Frozen):
    """What was asked."""

    prompt_tokens: int
    """Of every document."""
    documents: int
    """That arrive together."""
    chunk_tokens: int
    """Token budget per step, max_num_batched_tokens."""
    dtype: str
    kv_dtype: str | None
    """None where no KV cache is kept."""
    compute_dtype: str
    tensor_parallel: int
    expert_parallel: int


class EmbeddingRung(Frozen):
    """One rung of fidelity."""

    latency_s: float
    """All documents, from the beginning of their first step to the end of their last."""
    linear_s: float
    """Of that, the layers' matrix products."""
    attention_s: float
    communication_s: float
    full_step_s: float
    """The longest step of a server that has more documents than fit."""
    documents_per_s: float
    """Of such a server."""
    tokens_per_s: float
    operators: tuple[Operator, ...]
    """Of the longest step of the documents."""
    full_step_operators: tuple[Operator, ...]


class EmbeddingRungs(Frozen):
    """The rungs side by side."""

    textbook: EmbeddingRung
    roofline: EmbeddingRung
    calibrated: EmbeddingRung | None = None

    @model_serializer(mode="wrap")
    def _omit_missing(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: rung for name, rung in handler(self).items() if rung is not None}


class EmbeddingSteps(Frozen):
    """How the documents go through the engine."""

    steps: int
    """That the documents take."""
    full_step_documents: int
    """Documents in a step of a server that has more than fit; 1 where a document takes several steps."""
    steps_per_document: int
    splits_prompts: bool
    """Whether a document may go in several steps."""


class EmbeddingEngine(Frozen):
    """What a vLLM server with default settings takes for this model."""

    name: str
    asked: str
    max_num_batched_tokens: int
    max_num_seqs: int


class Embedding(Frozen):
    """``costmodel.embedding/1``."""

    schema_: Literal["costmodel.embedding/1"] = Field(default="costmodel.embedding/1", alias="schema")
    model: ModelInfo
    gpu: GpuInfo
    workload: EmbeddingWorkload
    headline: RungName
    rungs: EmbeddingRungs
    steps: EmbeddingSteps
    memory: MemoryInfo
    engine: EmbeddingEngine
    calibration: str | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @model_serializer(mode="wrap")
    def _omit_missing(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in handler(self).items() if value is not None or key != "calibration"}

    @property
    def best(self) -> EmbeddingRung:
        """The headline rung."""
        return self.rungs.calibrated or self.rungs.roofline


class Embeddings(Frozen):
    """``costmodel.embeddings/1``: several configurations in one document."""

    schema_: Literal["costmodel.embeddings/1"] = Field(default="costmodel.embeddings/1", alias="schema")
    embeddings: tuple[Embedding, ...]
