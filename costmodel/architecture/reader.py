"""Reading a ``config.json`` without ever guessing: every key that shapes the model is read, checked, or refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from costmodel.hardware.errors import InputError, UnsupportedError, shown

_LARGEST: Final = 20_000_000
"""No dimension of a published model is larger (vocabularies end near 300,000, contexts at Llama 4 Scout's 10,485,760)."""

_SHAPE_WORDS: Final = re.compile(
    r"layer|head|dim|size|expert|rank|window|attn|attention|mlp|ffn|linear|mamba|ssm|conv|index|state|latent|block|moe"
    r"|norm|bias|embd|embed|inner|width|depth|chunk|sparse|router|gate|mtp|tower|lora|group",
)

_HARMLESS: Final = frozenset(
    """
    attention_dropout attention_probs_dropout_prob attn_pdrop attn_logit_softcapping use_flash_attn use_flash_attention
    _flash_attn_2_enabled attn_implementation
    _attn_implementation _attn_implementation_autoset attention_softmax_in_fp32 attention_multiplier
    scale_attention_softmax_in_fp32 scale_attn_weights chunk_size_feed_forward decoder_start_token_id embd_pdrop
    embd_layer_dropout embed_dropout embedding_dropout embedding_multiplier expert_dropout final_logit_softcapping
    hidden_act hidden_activation hidden_dropout hidden_dropout_prob initializer_range layer_norm_eps
    layer_norm_epsilon layernorm_epsilon rms_norm_eps norm_eps norm_epsilon norm_topk_prob normalize_router_prob
    norm_type normalization_function output_attentions output_hidden_states output_router_logits pruned_heads
    query_pre_attn_scalar residual_multiplier resid_pdrop residual_dropout router_aux_loss_coef router_jitter_noise
    router_z_loss_coef routed_scaling_factor moe_router_scaling_factor router_scaling_factor input_jitter_noise
    rotary_dim rotary_emb_base rotary_pct rope_interleave rope_theta rope_scaling rope_parameters rope_local_base_freq
    partial_rotary_factor swiglu_limit initial_context_length use_bfloat16 max_position_embeddings n_group topk_group
    topk_method scoring_func moe_aux_loss_coeff aux_loss_alpha seq_aux ep_size activation_function
    cross_attention_hidden_size encoder_no_repeat_ngram_size no_repeat_ngram_size bos_token_id eos_token_id
    pad_token_id begin_suppress_tokens num_return_sequences num_beam_groups diversity_penalty is_decoder
    add_cross_attention task_specific_params tie_encoder_decoder id2label label2id gradient_checkpointing use_cache
    pretraining_tp summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj
    use_parallel_residual ignore_index image_token_index image_token_id video_token_id vision_start_token_id vision_end_token_id
    vision_feature_layer projector_hidden_act media_placeholder_token_id use_unified_vision_chunk video_placeholder
    mm_tokens_per_image boi_token_index eoi_token_index tokenizer_class transformers_version model_type architectures
    auto_map torch_dtype dtype quantization_config name_or_path _name_or_path position_embedding_type max_length
    min_length bias_dropout_fusion apply_residual_connection_post_layernorm original_max_position_embeddings
    rotary_emb_fraction rope_type attn_output_dropout qk_layernorm_eps
    """.split()  # noqa: SIM905  # one word a line would take a page
)
"""Keys whose names sound like shapes but which change no count of weights, FLOPs or cached bytes."""


class ConfigReader:
    """One JSON object of a configuration: remembers which keys were read, so that :meth:`finish` can refuse the rest.

    Args:
        config: the object.
        where: what to call it in messages, e.g. ``config of Llama-3.1-8B``.
    """

    def __init__(self, config: Mapping[str, Any], where: str):
        self.config = config
        self.where = where
        self._read: set[str] = set()

    def get(self, key: str) -> Any:
        """Return the value as it stands, or None if the key is absent."""
        self._read.add(key)
        return self.config.get(key)

    def has(self, key: str) -> bool:
        """Return True if the key is there and not null."""
        return self.get(key) is not None

    def fail(self, key: str, reason: str) -> InputError:
        """Build the error about one key."""
        return InputError(f"{self.where}: {key} {reason}")

    def unsupported(self, reason: str) -> UnsupportedError:
        """Build the refusal of this configuration."""
        return UnsupportedError(f"{self.where}: {reason}")

    def integer(self, key: str, default: int | None = None, least: int = 1) -> int:
        """Return an integer dimension ≥ ``least``.

        Raises:
            InputError: absent without a default, of another type, out of range.
        """
        value = self.get(key)
        if value is None:
            if default is None:
                raise self.fail(key, "is missing")
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fail(key, f"must be a whole number, not {shown(value)}")
        if not least <= value <= _LARGEST:
            raise self.fail(key, f"must lie between {least} and {_LARGEST:,}, not {value}")
        return value

    def first_integer(self, *keys: str, default: int | None = None, least: int = 1) -> int:
        """Return the first of several spellings that is present."""
        for key in keys:
            if self.has(key):
                return self.integer(key, least=least)
        return self.integer(keys[0], default=default, least=least)

    def flag(self, key: str, default: bool) -> bool:
        """Return a boolean."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fail(key, f"must be true or false, not {shown(value)}")
        return value

    def text(self, key: str, default: str) -> str:
        """Return a string."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.fail(key, f"must be a string, not {shown(value)}")
        return value

    def items(self, key: str) -> list[Any]:
        """Return a list; empty if absent."""
        value = self.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.fail(key, f"must be a list, not {shown(value)}")
        return value

    def section(self, key: str) -> ConfigReader:
        """Return a reader of a nested object.

        Raises:
            InputError: it is absent or not an object.
        """
        value = self.get(key)
        if not isinstance(value, Mapping):
            raise self.fail(key, "is missing" if value is None else f"must be an object, not {shown(value)}")
        return ConfigReader(value, f"{self.where}, {key}")

    def require(self, key: str, value: Any, reason: str) -> None:
        """Refuse a key that is present with any value but ``value`` (null and absence are accepted).

        Raises:
            UnsupportedError: with the reason.
        """
        found = self.get(key)
        if found is not None and found != value:
            raise self.unsupported(f"{key} {shown(found)} is not covered: {reason}")

    def adopt(self, other: ConfigReader) -> None:
        """Take the keys that another reader of the same object has read as read."""
        self._read |= other._read

    def ignore(self, *keys: str) -> None:
        """Mark keys as understood to have no influence."""
        self._read.update(keys)

    def finish(self) -> None:
        """Refuse keys that nobody read and whose names suggest that they change shapes.

        Raises:
            UnsupportedError: naming the first such key.
        """
        for key, value in self.config.items():
            if key in self._read or key in _HARMLESS or key.endswith(("_token_id", "_token_index")):
                continue
            if _SHAPE_WORDS.search(key.casefold()) and not _is_nothing(value):
                raise self.unsupported(f"key {key} = {shown(value)} is unknown and may change shapes")


def _is_nothing(value: Any) -> bool:
    return value is None or value is False or value in (0, "", [], {})
