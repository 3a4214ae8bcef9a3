"""Configurations of models that see, as published, without the keys that shape nothing."""

QWEN25_VL = {
    "model_type": "qwen2_5_vl",
    "hidden_size": 3584,
    "intermediate_size": 18_944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152_064,
    "max_position_embeddings": 128_000,
    "max_window_layers": 28,
    "sliding_window": 32_768,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vision_config": {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "in_chans": 3,
        "out_hidden_size": 3584,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "spatial_patch_size": 14,
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
        "tokens_per_second": 2,
        "temporal_patch_size": 2,
    },
}
"""Qwen/Qwen2.5-VL-7B-Instruct: 8,292,166,656 parameters."""

LLAVA = {
    "model_type": "llava",
    "image_token_index": 32_000,
    "image_seq_length": 576,
    "text_config": {
        "model_type": "llama",
        "max_position_embeddings": 4096,
        "vocab_size": 32_064,
        "torch_dtype": "float16",
    },
    "vision_config": {
        "model_type": "clip_vision_model",
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "image_size": 336,
        "patch_size": 14,
        "projection_dim": 768,
        "vocab_size": 32_000,
    },
    "vision_feature_layer": -2,
    "vision_feature_select_strategy": "default",
    "torch_dtype": "float16",
}
"""llava-hf/llava-1.5-7b-hf: 7,063,427,072 parameters."""

LLAMA32_VISION = {
    "model_type": "mllama",
    "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "mllama_text_model",
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 40,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
        "max_position_embeddings": 131_072,
        "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38],
    },
    "vision_config": {
        "hidden_size": 1280,
        "intermediate_size": 5120,
        "num_hidden_layers": 32,
        "num_global_layers": 8,
        "attention_heads": 16,
        "image_size": 560,
        "patch_size": 14,
        "max_num_tiles": 4,
        "vision_output_dim": 7680,
        "intermediate_layers_indices": [3, 7, 15, 23, 30],
        "supported_aspect_ratios": [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]],
    },
}
"""meta-llama/Llama-3.2-11B-Vision-Instruct: 10,670,220,835 parameters."""

WHISPER = {
    "model_type": "whisper",
    "vocab_size": 51_866,
    "num_mel_bins": 128,
    "d_model": 1280,
    "encoder_layers": 32,
    "decoder_layers": 32,
    "encoder_attention_heads": 20,
    "decoder_attention_heads": 20,
    "encoder_ffn_dim": 5120,
    "decoder_ffn_dim": 5120,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "is_encoder_decoder": True,
    "torch_dtype": "float16",
}
"""openai/whisper-large-v3: 1,543,490,560 parameters."""
