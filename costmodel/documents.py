"""The documents that costmodel hands out: frozen, and their JSON keys never change (docs/json.md). All quantities in SI units."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from costmodel.hardware.profile import Frozen
from costmodel.speculation.documents import PrefixCacheInfo, SpeculationInfo

RungName = Literal["textbook", "roofline", "calibrated"]
RUNG_NAMES: tuple[RungName, ...] = ("textbook", "roofline", "calibrated")
FormulaName = Literal["decode", "prefill", "mixed", "spike"]
FORMULA_NAMES: tuple[FormulaName, ...] = ("decode", "prefill", "mixed", "spike")


class ModelInfo(Frozen):
    """The model of a prediction."""

    name: str
    total_parameters: int
    active_parameters: int
    kv_bytes_per_token: int
    """Of the whole model, once, at the KV dtype in use [B]."""
    state_bytes_per_sequence: int = 0
    """What recurrent layers keep of a sequence, however long it is, of the whole model, once [B]."""
    layers: int
    weights_bytes: int
    """All weights, once, in the formats served [B]."""
    pooling: str | None = None
    """``cls``, ``mean`` or ``last`` where the model pools and writes no text."""


class GpuInfo(Frozen):
    """The GPUs of a prediction."""

    name: str
    """Exact part."""
    profile: str
    """Canonical name of the profile."""
    count: int


class LoraInfo(Frozen):
    """LoRA adapters, as the engine holds them."""

    rank: int
    """max_lora_rank: that of the buffers and kernels."""
    adapters: int
    """max_loras: places on the GPU, and the most that requests of one step use."""
    modules: tuple[str, ...]
    """Kernels that have adapters; ``experts`` are all routed experts."""
    fully_sharded: bool
    bytes_per_adapter: int
    """Buffers of one adapter on one GPU, of all pipeline stages together."""


class Workload(Frozen):
    """What was asked."""

    prompt_tokens: int
    cached_prefix_tokens: int = 0
    """Of each prompt, in the prefix cache."""
    prompts: int
    streams: int
    context_tokens: int
    chunk_tokens: int | None
    """Token budget per step (vLLM's max_num_batched_tokens), the streams' tokens included; None: the whole prompt in one step."""
    every_s: float
    dtype: str
    """Weights."""
    kv_dtype: str
    compute_dtype: str
    """Dtype that most products are computed in."""
    tensor_parallel: int
    pipeline_parallel: int
    expert_parallel: int
    lora: LoraInfo | None = None
    """None without adapters."""


class Images(Frozen):
    """The images of every prompt, which stand first in it; or the audio of every request."""

    kind: Literal["image", "audio"] = "image"
    count: int
    width: int
    """As they are sent [pixels]; of audio the frames of its spectrogram, whose bins are the height."""
    height: int
    resized_width: int
    """After resizing, all tiles but an overview together [pixels]."""
    resized_height: int
    tiles: int
    """Parts whose patches see one another, an overview included."""
    patches: int
    """Of one image: rows of the encoder's layers, class tokens included."""
    features: int
    """Of one image: rows of the projector."""
    tokens_per_image: int
    """That one image adds to the prompt, with the tokens that its processor sets around and between the features."""
    tokens: int
    """Of all images of a prompt, among its prompt_tokens."""


class Operator(Frozen):
    """One operator of a step, per GPU."""

    name: str
    flops: float
    bytes: float
    time_s: float
    bound: Literal["compute", "memory", "link", "latency"]


class Rung(Frozen):
    """One rung of fidelity."""

    decode_step_s: float
    """A step in which every stream decodes one token."""
    prefill_s: float
    """The prompts alone in one step."""
    prefill_linear_s: float
    """Of that, the layers' matrix products, without lm_head."""
    prefill_attention_s: float
    prefill_communication_s: float
    prefill_encoder_s: float = 0.0
    """Of the prefill, encoding the prompts' images."""
    spike_s: float
    """The longest mixed step (on the textbook rung: the prefill of the longest chunk alone, as in the lesson)."""
    spike_ratio: float
    """spike_s ÷ decode_step_s."""
    operators: tuple[Operator, ...]
    """Of the longest mixed step."""
    decode_operators: tuple[Operator, ...]
    """Of the decode step."""


class Rungs(Frozen):
    """The rungs side by side."""

    textbook: Rung
    roofline: Rung
    calibrated: Rung | None = None

    @model_serializer(mode="wrap")
    def _omit_missing(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: rung for name, rung in handler(self).items() if rung is not None}

    def get(self, name: RungName) -> Rung:
        """Return a rung by name; the roofline where a calibrated one is asked for and there is none."""
        return self.calibrated or self.roofline if name == "calibrated" else getattr(self, name)


class Spike(Frozen):
    """The spike that decoding streams see, on the headline rung."""

    chunks: int
    """Mixed steps."""
    height_s: float
    duration_s: float
    gaps_per_period: float
    """Gaps between tokens that one stream sees per injection period."""
    fraction_of_gaps: float
    overload: bool
    moves: dict[str, bool]
    """For p50, p99, p99.9 and max: is that statistic of a stream's gaps at the spike?"""


class Doubling(Frozen):
    """What doubling the prompt does, on the textbook and on the headline rung."""

    prompt_tokens: int
    spike_s: float
    ratio: float
    textbook_ratio: float


class Intervals(Frozen):
    """Prediction intervals of the calibrated rung [s], from the calibration's held-out residuals."""

    level: float
    decode_step_s: tuple[float, float]
    prefill_s: tuple[float, float]
    spike_s: tuple[float, float]


class MemoryInfo(Frozen):
    """Memory of the fullest GPU [B]."""

    weights_bytes: float
    activation_bytes: float
    non_torch_bytes: float
    cuda_graph_bytes: float
    usable_bytes: float
    kv_available_bytes: float
    kv_bytes_per_token: float
    kv_tokens: int
    kv_needed_bytes: float
    kv_blocks: int
    kv_blocks_needed: int
    fits: bool


class EngineInfo(Frozen):
    """What a vLLM server with default settings would do with the prompt; defaults of other engines are not known."""

    name: str
    """With the release whose defaults these are."""
    asked: str = "vllm"
    """Engine that the prediction is for."""
    max_num_batched_tokens: int
    max_num_seqs: int
    """Sequences that it runs at once."""
    splits_prompt: bool
    chunks: int | None
    """Steps that it takes for the prompts; None if the streams leave no room for a prompt."""
    one_step_budget: int
    """Token budget that takes the prompts in one step beside the streams."""


class PipelineInfo(Frozen):
    """Pipeline stages: a token passes all of them, but the slowest sets the rate."""

    layers: tuple[int, ...]
    slowest_stage_decode_s: float


class Prediction(Frozen):
    """``costmodel.prediction/1``: the answer of :func:`costmodel.predict`."""

    schema_: Literal["costmodel.prediction/1"] = Field(default="costmodel.prediction/1", alias="schema")
    model: ModelInfo
    gpu: GpuInfo
    workload: Workload
    headline: RungName
    images: Images | None = None
    rungs: Rungs
    spike: Spike
    doubling: Doubling
    memory: MemoryInfo
    engine: EngineInfo
    pipeline: PipelineInfo | None = None
    calibration: str | None = None
    intervals: Intervals | None = None
    prefix_cache: PrefixCacheInfo | None = None
    speculation: SpeculationInfo | None = None
    notes: tuple[str, ...] = ()
    """Choices made for the user, which part and which preset, and what the calibration says of itself."""
    warnings: tuple[str, ...] = ()

    @model_serializer(mode="wrap")
    def _omit_missing(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        optional = ("images", "pipeline", "calibration", "intervals", "prefix_cache", "speculation")
        return {key: value for key, value in handler(self).items() if value is not None or key not in optional}

    @property
    def best(self) -> Rung:
        """The headline rung."""
        return self.rungs.get(self.headline)


class Predictions(Frozen):
    """``costmodel.predictions/1``: several configurations in one document."""

    schema_: Literal["costmodel.predictions/1"] = Field(default="costmodel.predictions/1", alias="schema")
    predictions: tuple[Prediction, ...]
