"""From the content of a ``config.json`` to an :class:`~costmodel.architecture.types.Architecture`.

A registry maps ``model_type`` to the family that understands it. What no family understands is refused: a wrong
number is worse than none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from costmodel.architecture import (
    families_classic,
    families_compressed,
    families_dense,
    families_encoder,
    families_hybrid,
    families_kimi,
    families_minimax,
    families_moe,
    families_step,
    families_varied,
    towers,
    towers_crossing,
    towers_recent,
)
from costmodel.architecture.blueprint import Blueprint
from costmodel.architecture.formats import PLAIN_FORMATS
from costmodel.architecture.pooling import pooled
from costmodel.architecture.quantization import PLAIN, Quantization, read_quantization, with_experts
from costmodel.architecture.reader import ConfigReader
from costmodel.architecture.types import Architecture, LayerKind, Pooling
from costmodel.architecture.vision import VisionTower
from costmodel.hardware.errors import InputError, UnsupportedError, nearest, suggestion

Family = Callable[[ConfigReader], Blueprint]

FAMILIES: Final[dict[str, Family]] = {
    "bert": families_encoder.bert,
    "cohere": families_dense.cohere,
    "cohere2": families_dense.cohere2,
    "deepseek_ref": families_compressed.deepseek_ref,
    "deepseek_v2": families_moe.deepseek,
    "deepseek_v3": families_moe.deepseek,
    "deepseek_v32": families_moe.deepseek_sparse,
    "deepseek_v4": families_compressed.deepseek_v4,
    "falcon": families_classic.falcon,
    "gemma": families_dense.gemma,
    "gemma2": families_dense.gemma2,
    "gemma3_text": families_dense.gemma3_text,
    "gemma4_text": families_varied.gemma4_text,
    "glm": families_dense.glm,
    "glm4": families_dense.glm4,
    "glm4_moe": families_moe.glm4_moe,
    "glm_moe_dsa": families_moe.deepseek_sparse,
    "gpt_neox": families_classic.gpt_neox,
    "gpt_oss": families_moe.gpt_oss,
    "gptj": families_classic.gptj,
    "granite": families_dense.granite,
    "kimi_k2": families_moe.deepseek,
    "kimi_linear": families_kimi.kimi_linear,
    "llama": families_dense.llama,
    "llama4_text": families_varied.llama4_text,
    "mimo": families_dense.mimo,
    "mimo_v2_flash": families_varied.mimo_v2,
    "minimax_m2": families_moe.minimax_m2,
    "minimax_m3": families_minimax.minimax_m3,
    "mistral": families_dense.mistral,
    "mixtral": families_moe.mixtral,
    "mllama_text_model": families_varied.mllama_text,
    "modernbert": families_encoder.modernbert,
    "nemotron-nas": families_varied.nemotron_nas,
    "nemotron_h": families_hybrid.nemotron_h,
    "nomic_bert": families_encoder.nomic_bert,
    "olmo2": families_dense.olmo2,
    "phi": families_classic.phi,
    "phi3": families_dense.phi3,
    "phimoe": families_moe.phimoe,
    "qwen2": families_dense.qwen2,
    "qwen2_5_vl_text": families_dense.qwen2,
    "qwen2_moe": families_moe.qwen2_moe,
    "qwen2_vl_text": families_dense.qwen2,
    "qwen3": families_dense.qwen3,
    "qwen3_5_moe_text": families_hybrid.qwen3_5_moe,
    "qwen3_5_text": families_hybrid.qwen3_5,
    "qwen3_moe": families_moe.qwen3_moe,
    "qwen3_next": families_hybrid.qwen3_next,
    "qwen3_vl_moe_text": families_moe.qwen3_moe,
    "qwen3_vl_text": families_dense.qwen3,
    "roberta": families_encoder.roberta,
    "smollm3": families_dense.smollm3,
    "step3p5": families_step.step3p5,
    "starcoder2": families_classic.starcoder2,
    "whisper": families_varied.whisper,
    "xlm-roberta": families_encoder.roberta,
}
"""Model types of text decoders and encoders that are understood."""

TOWERS: Final[dict[str, Callable[[ConfigReader, ConfigReader], VisionTower]]] = {
    "gemma3": towers.gemma3,
    "gemma4": towers.gemma4,
    "kimi_k25": towers.kimi_k25,
    "kimi_k3": towers_recent.kimi_k3,
    "llama4": towers.llama4,
    "llava": towers.llava,
    "minimax_m3_vl": towers_recent.minimax_m3,
    "mistral3": towers.mistral3,
    "mllama": towers_crossing.mllama,
    "paligemma": towers.paligemma,
    "qwen2_5_vl": towers.qwen2_5_vl,
    "qwen2_vl": towers.qwen2_vl,
    "qwen3_5": towers.qwen3_vl,
    "qwen3_5_moe": towers.qwen3_vl,
    "qwen3_vl": towers.qwen3_vl,
    "qwen3_vl_moe": towers.qwen3_vl,
    "step3p7": towers_recent.step3p7,
}
"""Model types that wrap a text decoder (``text_config``, or their own keys) and a vision tower: how tower and projector are read."""

_TEXT_TYPES: Final = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
    "llava": "llama",
    "minimax_m3_vl": "minimax_m3",
    "mistral3": "mistral",
    "mllama": "mllama_text_model",
    "paligemma": "gemma",
    "qwen2_5_vl": "qwen2",
    "qwen2_vl": "qwen2",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "step3p7": "step3p5",
}
"""The text decoder's model type where ``text_config`` does not name it."""

_FLAT: Final = ("qwen2_vl", "qwen2_5_vl")
_LLAMA_DEFAULTS: Final = {
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32_000,
}
"""Of configuration_llama.py."""

_HYBRID: Final = "its state-space or linear-attention layers are not read (those of Nemotron-H, Qwen3-Next, Qwen 3.5 and Kimi Linear are)"
_CROSS: Final = "encoders of text, and cross-attention to them, have no equations here"

REASONS: Final = {
    "bamba": _HYBRID,
    "bart": _CROSS,
    "falcon_h1": _HYBRID,
    "falcon_mamba": _HYBRID,
    "gemma3n": "per-layer embeddings and layers that share a KV cache have no equations here",
    "granitemoehybrid": _HYBRID,
    "jamba": _HYBRID,
    "lfm2": _HYBRID,
    "mamba": _HYBRID,
    "mamba2": _HYBRID,
    "minimax": _HYBRID,
    "rwkv": _HYBRID,
    "t5": _CROSS,
    "zamba2": _HYBRID,
}
"""Why well-known model types are refused."""

_REWRITTEN: Final = {
    "step3p7": "without text_config it is not the published configuration, and says nothing of what that has: the query heads of sliding "
    "layers (attention_other_setting), the gate of each head (use_head_wise_attn_gate), the tower; --model Step-3.7-Flash has them",
}
"""Why model types are refused whose configuration was written anew by others, without a ``text_config``."""

_ARCHITECTURES: Final = {
    "CohereForCausalLM": "cohere",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
    "DeepseekV32ForCausalLM": "deepseek_v32",
    "GlmMoeDsaForCausalLM": "glm_moe_dsa",
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
}
"""Model types by class name, for configurations that name only ``architectures``."""

ASSUMED_DTYPES: Final = (
    "the configuration names no dtype; bf16 assumed",
    "the checkpoint is float32; engines cast it to 16 bits, bf16 assumed",
    "the checkpoint is float32; vLLM casts models that pool to fp16",
)
"""Notes of an architecture that hold only where nobody asks for a dtype."""
_DTYPES: Final = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16"}


def architecture_from_config(
    config: Mapping[str, Any],
    name: str,
    quant: Mapping[str, Any] | None = None,
    pooling: Pooling | None = None,
) -> Architecture:
    """Read an architecture from a configuration.

    Args:
        config: content of ``config.json``.
        name: how the user calls the model; it also names the file in messages.
        quant: content of ``hf_quant_config.json``, if there is one beside it.
        pooling: what the files of Sentence Transformers beside it say; None without them.

    Raises:
        UnsupportedError: the configuration describes something that there are no equations for; it names what.
        InputError: a key is missing, of a wrong type or out of range; it names the key.
    """
    outer = ConfigReader(config, f"config of {name}")
    model_type = _model_type(outer)
    if model_type in REASONS:
        raise UnsupportedError(f"{name}: model type {model_type!r} is not covered: {REASONS[model_type]}")
    if outer.flag("is_encoder_decoder", False) and model_type != "whisper":
        raise UnsupportedError(f"{name}: model type {model_type!r} is not covered: {_CROSS}")
    if model_type in _REWRITTEN and not outer.has("text_config"):
        raise UnsupportedError(f"{name}: model type {model_type!r} is not covered so: {_REWRITTEN[model_type]}")
    text = outer
    if model_type in TOWERS:
        text = _text_config(model_type, outer)
        text_type = text.text("model_type", _TEXT_TYPES.get(model_type, ""))
        tied = outer.get("tie_word_embeddings")
        if tied is not None and not text.has("tie_word_embeddings"):
            text = ConfigReader({**text.config, "tie_word_embeddings": tied}, text.where)
        blueprint = _family(name, text_type)(text)
        tower, notes = _tower(model_type, outer, blueprint.hidden)
        blueprint = replace(
            blueprint,
            vision=tower,
            notes=(*blueprint.notes, *notes),
            names=replace(
                blueprint.names,
                prefixes=("model.layers.", "language_model.model.layers.", "model.language_model.layers."),
            ),
        )
        outer.ignore("text_config", "vision_config")
        text.finish()
    else:
        blueprint = pooled(_family(name, model_type)(outer), outer, pooling)
    outer.finish()
    # vLLM takes fp16 for float32 models that pool, but for Gemma, which overflows in it.
    dtype, dtype_notes = _dtype(text, outer, bool(blueprint.pooling) and not model_type.startswith("gemma"))
    merged = dict(config)
    if text is not outer and text.get("quantization_config") is not None and not config.get("quantization_config"):
        merged["quantization_config"] = text.get("quantization_config")
    quantization = with_experts(read_quantization(merged, quant, name, dtype), blueprint.expert_format)
    return _assemble(blueprint, quantization, name, model_type, dtype, dtype_notes)


def _tower(model_type: str, outer: ConfigReader, hidden: int) -> tuple[VisionTower | None, tuple[str, ...]]:
    """Return the vision tower, and a note where the configuration leaves it out, as those of text-only copies do."""
    if model_type == "llama4" and not outer.has("vision_config"):
        return None, ("the configuration has no vision_config: its vision tower is not counted",)
    reader = ConfigReader({**outer.config, "hidden_size": hidden}, outer.where)
    tower = TOWERS[model_type](outer.section("vision_config"), reader)
    outer.adopt(reader)
    return tower, ()


def _text_config(model_type: str, outer: ConfigReader) -> ConfigReader:
    """Return the text decoder's configuration: ``text_config``, or the model's own keys as Qwen2-VL and Qwen2.5-VL are published.

    LLaVA's names only what differs from the defaults of Llama.
    """
    if model_type in _FLAT and not outer.has("text_config"):
        keys = {key: value for key, value in outer.config.items() if key not in ("model_type", "vision_config")}
        outer.ignore(*keys)
        return ConfigReader(keys, outer.where)
    text = outer.section("text_config")
    if model_type == "llava":
        return ConfigReader({**_LLAMA_DEFAULTS, **text.config}, text.where)
    return text


def _model_type(config: ConfigReader) -> str:
    found = config.text("model_type", "")
    if found:
        return found
    for architecture in config.items("architectures"):
        if isinstance(architecture, str) and architecture in _ARCHITECTURES:
            return _ARCHITECTURES[architecture]
    raise config.fail("model_type", "is missing, so the file is no model configuration this program understands")


def _family(name: str, model_type: str) -> Family:
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    known = sorted({*FAMILIES, *TOWERS})
    close = f"; {suggestion(found)}" if (found := nearest(model_type, known)) else ""
    among = f"it is none of the {len(known)} that are, such as llama, qwen3_moe or deepseek_v3{close}"
    reason = REASONS.get(model_type, among)
    raise UnsupportedError(f"{name}: model type {model_type!r} is not covered: {reason}")


def _dtype(text: ConfigReader, outer: ConfigReader, pools: bool) -> tuple[str, tuple[str, ...]]:
    """Return the dtype that is served, and what was assumed of it (vllm/config/model.py, ``_resolve_auto_dtype``)."""
    found = ""
    for config in (text, outer):
        for key in ("torch_dtype", "dtype"):
            found = found or config.text(key, "")
    found = found.removeprefix("torch.")
    if not found:
        return "bf16", (ASSUMED_DTYPES[0],)
    if found in ("float32", "float") and pools:
        return "fp16", (ASSUMED_DTYPES[2],)
    if found in ("float32", "float"):
        return "bf16", (ASSUMED_DTYPES[1],)
    if found not in _DTYPES:
        raise InputError(f"{outer.where}: torch_dtype {found!r} is not one of float32, float16, bfloat16")
    return _DTYPES[found], ()


def _assemble(
    blueprint: Blueprint,
    quantization: Quantization,
    name: str,
    model_type: str,
    dtype: str,
    notes: tuple[str, ...],
) -> Architecture:
    kinds: dict[LayerKind, int] = {}
    pattern: list[int] = []
    seen: dict[int, int] = {}  # identity of a Layer -> its kind: families share one object between equal layers
    for index, layer in enumerate(blueprint.layers):
        if quantization is PLAIN and id(layer) in seen:
            pattern.append(seen[id(layer)])
            continue
        formats = quantization.layer_formats(index, layer, blueprint.names, dtype)
        kind = LayerKind(
            layer.attention,
            layer.feed_forward,
            formats,
            layer.norms,
            layer.norm_bias,
            layer.state,
            layer.scalars,
            layer.cross,
            layer.residuals,
        )
        seen[id(layer)] = kinds.setdefault(kind, len(kinds))
        pattern.append(seen[id(layer)])
    plain = PLAIN_FORMATS[dtype]
    return Architecture(
        name=name,
        model_type=model_type,
        hidden=blueprint.hidden,
        vocabulary=blueprint.vocabulary,
        kinds=tuple(kinds),
        pattern=tuple(pattern),
        dtype=dtype,
        tied_embeddings=blueprint.tied,
        embedding_format=plain,
        lm_head_format=quantization.lm_head or plain,
        lm_head_bias=blueprint.lm_head_bias,
        kv_dtype=quantization.kv_dtype or blueprint.kv_dtype,
        max_positions=blueprint.max_positions,
        vision=blueprint.vision,
        extra_parameters=blueprint.extra_parameters,
        rotary=blueprint.rotary,
        final_norm=blueprint.final_norm,
        residual_block=blueprint.residual_block,
        pooling=blueprint.pooling,
        head=blueprint.head,
        quantization=quantization.method,
        notes=(*notes, *blueprint.notes, *quantization.notes),
    )
