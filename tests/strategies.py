"""Random models, deployments, loads and calibrations that the property tests share."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st

from costmodel.architecture.families import architecture_from_config
from costmodel.architecture.formats import PLAIN_FORMATS
from costmodel.architecture.types import Architecture, Attention, FeedForward, LayerFormats, LayerKind
from costmodel.deployment import Deployment, deploy
from costmodel.dtypes import layer_formats, main_format
from costmodel.equations.work import Chunk, Decodes
from costmodel.hardware.calibration import DTYPE_SUFFIXED, FORMS, OPERATORS, OTHER_FORMS, Calibration
from tests.architecture.mixed_configs import MIXED

PRESETS = (
    "Llama-3.1-8B",
    "Llama-3.2-1B",
    "Llama-3.1-405B",
    "Qwen2.5-7B",
    "Qwen3-30B-A3B",
    "Mistral-7B-v0.1",
    "Mixtral-8x7B-v0.1",
    "gemma-3-12b-it",
    "gpt-oss-20b",
    "DeepSeek-V2-Lite",
    "DeepSeek-V3",
    "GLM-4.5-Air",
    "MiniMax-M2",
)
"""One or two of each family: dense, windowed, mixtures, latent attention, tied embeddings, quantised."""

PARTS = ("h100-sxm", "a100-80gb-sxm", "l40s", "b200", "mi300x")
FORMATS = tuple(PLAIN_FORMATS[name] for name in ("bf16", "fp8", "int4", "mxfp4"))


def examples(count: int, shrink: bool = True) -> settings:
    """Return settings for ``count`` examples, the same ones in every run; slow tests report a failure as found, not shrunk."""
    phases = (Phase.explicit, Phase.generate, *([Phase.shrink] if shrink else []))
    return settings(max_examples=count, derandomize=True, deadline=None, database=None, phases=phases)


@st.composite
def attentions(draw: st.DrawFn) -> Attention:
    """Grouped-query attention with or without a window, or latent attention; heads are powers of two, so that TP divides them."""
    heads = 2 ** draw(st.integers(2, 6))
    if draw(st.integers(0, 3)) == 0:
        nope, rope = draw(st.sampled_from([32, 128])), draw(st.sampled_from([16, 64]))
        return Attention(
            "mla",
            heads,
            heads,
            nope + rope,
            draw(st.sampled_from([32, 128])),
            q_lora_rank=draw(st.sampled_from([0, 384, 1536])),
            kv_lora_rank=draw(st.sampled_from([128, 512])),
            rope_head_dim=rope,
        )
    head_dim = draw(st.sampled_from([48, 64, 80, 128, 256]))
    return Attention(
        "gqa",
        heads,
        max(heads // 2 ** draw(st.integers(0, 5)), 1),
        head_dim,
        head_dim,
        window=draw(st.none() | st.integers(1, 5000)),
        output_gate=draw(st.booleans()),
        qkv_bias=draw(st.booleans()),
    )


@st.composite
def feed_forwards(draw: st.DrawFn) -> FeedForward:
    """Dense, or a mixture of experts with or without a shared expert."""
    width = 64 * draw(st.integers(1, 300))
    if draw(st.booleans()):
        return FeedForward("dense", width, gated=draw(st.booleans()))
    experts = 8 * draw(st.integers(1, 32))
    return FeedForward(
        "moe",
        width,
        gated=draw(st.booleans()),
        experts=experts,
        experts_per_token=draw(st.integers(1, min(experts, 8))),
        shared_intermediate=draw(st.just(0) | st.integers(1, 50).map(lambda n: 64 * n)),
        shared_gate=draw(st.booleans()),
    )


@st.composite
def architectures(draw: st.DrawFn) -> Architecture:
    """A synthetic model of one to three layer kinds."""
    plain = PLAIN_FORMATS["bf16"]
    kinds = tuple(
        LayerKind(
            draw(attentions()),
            draw(feed_forwards()),
            LayerFormats(*(draw(st.sampled_from(FORMATS)) for _ in range(3)), plain),
        )
        for _ in range(draw(st.integers(1, 3)))
    )
    pattern = [*range(len(kinds)), *draw(st.lists(st.integers(0, len(kinds) - 1), max_size=12))]
    return Architecture(
        name="synthetic",
        model_type="synthetic",
        hidden=64 * draw(st.integers(1, 200)),
        vocabulary=64 * draw(st.integers(1, 4000)),
        kinds=kinds,
        pattern=tuple(pattern),
        dtype="bf16",
        tied_embeddings=draw(st.booleans()),
        lm_head_format=draw(st.sampled_from([plain, PLAIN_FORMATS["fp8"]])),
    )


@cache
def _base(gpu: str) -> Deployment:
    return deploy("Llama-3.1-8B", gpu)


def deployment_of(architecture: Architecture, gpu: str = "h100-sxm", **sizes: Any) -> Deployment:
    """Return a deployment of an architecture that was not read from a file."""
    formats = {fmt for kind in architecture.kinds for fmt in layer_formats(kind)}
    formats |= {architecture.lm_head_format, architecture.embedding_format}
    return replace(
        _base(gpu),
        architecture=architecture,
        layer_counts=tuple(architecture.pattern.count(index) for index in range(len(architecture.kinds))),
        format_bytes={fmt: fmt.bytes_per_weight for fmt in formats},
        dtype=main_format(architecture).name,
        **sizes,
    )


@st.composite
def deployments(draw: st.DrawFn, pipelines: bool = True) -> Deployment:
    """A preset or a synthetic model on some part, divided by TP, PP and, for mixtures, EP."""
    gpu = draw(st.sampled_from(PARTS))
    fp8_cache = draw(st.booleans())
    tp, pp = 2 ** draw(st.integers(0, 2)), draw(st.integers(1, 3)) if pipelines else 1
    name = draw(st.none() | st.sampled_from([*PRESETS, *MIXED]))
    if name in MIXED:
        architecture = architecture_from_config(MIXED[name], name)
    else:
        architecture = draw(architectures()) if name is None else deploy(name, gpu).architecture
    mixture = any(kind.feed_forward.kind == "moe" for kind in architecture.kinds)
    ep = draw(st.sampled_from([1, tp, 2 * tp])) if mixture else 1
    pp = min(pp, architecture.layer_count)
    cache_dtype, cache_bytes = ("fp8", 1.0) if fp8_cache else ("bf16", 2.0)
    return deployment_of(architecture, gpu, tp=tp, pp=pp, ep=ep, kv_dtype=cache_dtype, kv_bytes=cache_bytes)


def counts(most: int, least: int = 1) -> st.SearchStrategy[float]:
    """Whole numbers as floats."""
    return st.integers(least, most).map(float)


def chunks() -> st.SearchStrategy[Chunk]:
    """Prefill chunks, with cached tokens before them."""
    return st.builds(Chunk, counts(20_000), counts(100_000, 0))


def decodes() -> st.SearchStrategy[Decodes]:
    """Groups of decoding sequences."""
    return st.builds(Decodes, counts(512), counts(100_000, 0))


def _values(form: str, name: str) -> st.SearchStrategy[float]:
    """Plausible values of a fitted parameter, the ends of what is allowed included."""
    if name.endswith("efficiency"):
        return st.floats(0.01, 1.0)
    return {
        "sharpness": st.floats(1.0, 30.0),
        "passes": st.floats(0.0, 40.0),
        "imbalance": st.floats(1.0, 3.0),
        "graph_multiple": st.sampled_from([1.0, 8.0, 16.0]),
        "ramp_inputs": st.floats(0.0, 500.0),
        "depth_s": st.floats(0.0, 1e-8),
        "tile_rows": st.floats(4.0, 512.0),
        "slowdown": st.floats(0.0, 1.0),
        "few_rows": st.floats(1.0, 64.0),
        "shared_passes": st.floats(0.0, 20.0),
        "block_rows": st.floats(1.0, 512.0),
        "cached_bytes": st.floats(0.0, 1e8),
        "kv_passes": st.floats(0.0, 20.0),
        "padding_tokens": st.floats(0.0, 300.0),
        "saturation_tokens": st.floats(1.0, 20_000.0),
        "key_s": st.floats(0.0, 1e-7),
        "large_bytes": st.sampled_from([2.0**20, 2.0**23]),
    }.get(name, st.floats(0.0, 1e-4))


@st.composite
def fitted(draw: st.DrawFn, form: str) -> dict[str, Any]:
    """One operator of a calibration; a parameter that is left out takes its default."""
    names = [name for name in FORMS[form] if draw(st.integers(0, 3))]
    made: dict[str, Any] = {
        "form": form,
        "parameters": {name: {"value": draw(_values(form, name))} for name in names},
    }
    if draw(st.booleans()):
        low, high = draw(st.floats(-0.5, 0.0)), draw(st.floats(0.0, 0.8))
        made["residuals"] = {"level": draw(st.sampled_from([0.8, 0.9, 0.95])), "low": low, "high": high}
    return made


def calibration_of(operators: dict[str, Any], gpu: str = "h100-sxm") -> Calibration:
    """Return a calibration with these operators."""
    provenance = {"data": "synthetic", "rows": 1, "date": "2025-01-31", "command": "pytest"}
    return Calibration.model_validate(
        {
            "schema": "costmodel.calibration/1",
            "name": "synthetic",
            "gpu": gpu,
            "engine": "vllm",
            "provenance": provenance,
            "operators": operators,
        }
    )


@st.composite
def calibrations(draw: st.DrawFn) -> Calibration:
    """A calibration of some or all operators, some of them by dtype."""
    operators: dict[str, Any] = {}
    for operator, form in OPERATORS.items():
        forms = st.sampled_from((form, *OTHER_FORMS.get(operator, ())))
        if draw(st.integers(0, 4)):
            operators[operator] = draw(fitted(draw(forms)))
        if operator in DTYPE_SUFFIXED and draw(st.booleans()):
            operators[f"{operator}.{draw(st.sampled_from(['bf16', 'fp8']))}"] = draw(fitted(draw(forms)))
    return calibration_of(operators or {"gemm": draw(fitted("smooth_roofline"))})


NOTHING_LOST = calibration_of({name: {"form": form, "parameters": {}} for name, form in OPERATORS.items()})
"""Every operator, every parameter at its default."""
