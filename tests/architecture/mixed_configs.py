"""Configurations of models whose layers differ, as published, without the keys that shape nothing."""

from collections import Counter

from costmodel.architecture.source import preset_config

QWEN_NEXT = {
    "model_type": "qwen3_next",
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "vocab_size": 151_936,
    "max_position_embeddings": 262_144,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
"""Qwen/Qwen3-Next-80B-A3B-Instruct"""

QWEN35 = {
    "model_type": "qwen3_5",
    "tie_word_embeddings": False,
    "text_config": {
        "model_type": "qwen3_5_text",
        "hidden_size": 5120,
        "intermediate_size": 17_408,
        "num_hidden_layers": 64,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 248_320,
        "max_position_embeddings": 262_144,
        "attn_output_gate": True,
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "dtype": "bfloat16",
    },
    "vision_config": {
        "depth": 27,
        "hidden_size": 1152,
        "in_channels": 3,
        "intermediate_size": 4304,
        "num_heads": 16,
        "num_position_embeddings": 2304,
        "out_hidden_size": 5120,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "deepstack_visual_indexes": [],
    },
}
"""Qwen/Qwen3.5-27B"""

NEMOTRON3 = {
    "model_type": "nemotron_h",
    "hidden_size": 4096,
    "num_hidden_layers": 88,
    "hybrid_override_pattern": "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME",
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "ssm_state_size": 128,
    "conv_kernel": 4,
    "chunk_size": 128,
    "use_conv_bias": True,
    "use_bias": False,
    "mamba_ssm_cache_dtype": "float32",
    "intermediate_size": 2688,
    "moe_intermediate_size": 2688,
    "moe_latent_size": 1024,
    "moe_shared_expert_intermediate_size": 5376,
    "n_routed_experts": 512,
    "n_shared_experts": 1,
    "num_experts_per_tok": 22,
    "num_nextn_predict_layers": 1,
    "vocab_size": 131_072,
    "max_position_embeddings": 262_144,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
"""nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16"""

GLM52 = {
    "model_type": "glm_moe_dsa",
    "hidden_size": 6144,
    "intermediate_size": 12_288,
    "num_hidden_layers": 78,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "q_lora_rank": 2048,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "index_topk": 2048,
    "index_n_heads": 32,
    "index_head_dim": 128,
    "indexer_types": ["full"] * 3 + [("shared", "shared", "shared", "full")[i % 4] for i in range(75)],
    "first_k_dense_replace": 3,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "topk_method": "noaux_tc",
    "vocab_size": 154_880,
    "max_position_embeddings": 1_048_576,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
"""zai-org/GLM-5.2"""

LLAMA4 = {
    "model_type": "llama4",
    "text_config": {
        "model_type": "llama4_text",
        "hidden_size": 5120,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16_384,
        "num_hidden_layers": 48,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "attention_chunk_size": 8192,
        "interleave_moe_layer_step": 2,
        "num_local_experts": 128,
        "num_experts_per_tok": 1,
        "vocab_size": 202_048,
        "max_position_embeddings": 1_048_576,
        "use_qk_norm": False,
        "torch_dtype": "bfloat16",
    },
}
"""meta-llama/Llama-4-Maverick-17B-128E-Instruct"""

GEMMA4 = {
    "model_type": "gemma4",
    "tie_word_embeddings": True,
    "text_config": {
        "model_type": "gemma4_text",
        "hidden_size": 2816,
        "intermediate_size": 2112,
        "num_hidden_layers": 30,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 2,
        "head_dim": 256,
        "global_head_dim": 512,
        "attention_k_eq_v": True,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5,
        "sliding_window": 1024,
        "enable_moe_block": True,
        "num_experts": 128,
        "top_k_experts": 8,
        "moe_intermediate_size": 704,
        "vocab_size": 262_144,
        "max_position_embeddings": 262_144,
        "dtype": "bfloat16",
    },
    "vision_config": {
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": 72,
        "patch_size": 16,
        "position_embedding_size": 10_240,
        "standardize": True,
    },
}
"""google/gemma-4-26B-A4B"""

_NO_WINDOW = {"replace_with_linear": False, "sparsify": None, "window_length": None, "num_sink_tokens": None}

NAS = {
    "model_type": "nemotron-nas",
    "hidden_size": 8192,
    "num_hidden_layers": 3,
    "num_attention_heads": 64,
    "vocab_size": 128_256,
    "max_position_embeddings": 131_072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "block_configs": [
        {
            "attention": {"no_op": False, "n_heads_in_group": 64, **_NO_WINDOW},
            "ffn": {"ffn_mult": 2.625, "no_op": False},
        },
        {"attention": {"no_op": True, "n_heads_in_group": None}, "ffn": {"ffn_mult": 5.25, "no_op": False}},
        {"attention": {"no_op": False, "n_heads_in_group": 8, **_NO_WINDOW}, "ffn": {"ffn_mult": None, "no_op": True}},
    ],
}
"""Blocks of nvidia/Llama-3_3-Nemotron-Super-49B-v1, and one of each that is left out."""

DEEPSEEK_V4 = preset_config("DeepSeek-V4-Flash")

MIXED = {
    "qwen3-next": QWEN_NEXT,
    "qwen3.5": QWEN35,
    "nemotron-3": NEMOTRON3,
    "glm-5.2": GLM52,
    "llama-4": LLAMA4,
    "gemma-4": GEMMA4,
    "deepseek-v4": DEEPSEEK_V4,
}
"""Those that are real models."""


def layers_of(arch):
    """Count the layers by what mixes their tokens."""
    kinds = [arch.kinds[index] for index in arch.pattern]
    return Counter(kind.state.kind if kind.state is not None else kind.attention.kind for kind in kinds)
