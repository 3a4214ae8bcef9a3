"""Models that pool: which configurations do, what they are made of, and what files beside a configuration say."""

import json

import pytest

from costmodel.architecture.counts import kv_bytes_per_token, total_parameters
from costmodel.architecture.families import architecture_from_config
from costmodel.architecture.pooling import pooling_files, pooling_mode, pooling_path
from costmodel.architecture.source import load_model, model_names, preset_config
from costmodel.equations.work import BothWays
from costmodel.hardware.errors import UnsupportedError

POOLING_PRESETS = {
    "bge-m3": "cls",
    "bge-large-en-v1.5": "cls",
    "bge-reranker-v2-m3": "cls",
    "ModernBERT-large": "cls",
    "Qwen3-Embedding-0.6B": "last",
    "Qwen3-Embedding-8B": "last",
    "e5-mistral-7b-instruct": "last",
}
NOMIC = {
    "activation_function": "swiglu",
    "architectures": ["NomicBertModel"],
    "causal": False,
    "dense_seq_output": True,
    "fused_bias_fc": True,
    "fused_dropout_add_ln": True,
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 2048,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "model_type": "nomic_bert",
    "n_embd": 768,
    "n_head": 12,
    "n_inner": 3072,
    "n_layer": 12,
    "n_positions": 8192,
    "pad_vocab_size_multiple": 64,
    "parallel_block": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "torch_dtype": "float32",
    "type_vocab_size": 2,
    "use_flash_attn": True,
    "use_rms_norm": False,
    "use_xentropy": True,
    "vocab_size": 30_528,
}
"""nomic-ai/nomic-embed-text-v1.5."""
EMBEDDING_GEMMA = {
    "architectures": ["Gemma3TextModel"],
    "model_type": "gemma3_text",
    "hidden_size": 768,
    "intermediate_size": 1152,
    "num_hidden_layers": 24,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "vocab_size": 262_144,
    "max_position_embeddings": 2048,
    "sliding_window": 512,
    "_sliding_window_pattern": 6,
    "use_bidirectional_attention": True,
    "dtype": "float32",
}
"""google/embeddinggemma-300m."""


def windows(arch):
    """Return the windows of the layers, in order."""
    return [arch.kinds[index].attention.window for index in arch.pattern]


def test_only_these_presets_pool():
    pooling = {name: load_model(name)[0].pooling for name in model_names()}
    assert {name: mode for name, mode in pooling.items() if mode} == POOLING_PRESETS


def test_bge_m3_by_hand():
    """24 layers of 12·d² + 13·d with biases and two LayerNorms; tables of 250,002 tokens, 8,194 positions, one type; a LayerNorm."""
    arch, _ = load_model("BAAI/bge-m3")
    d = 1024
    layer = 4 * (d**2 + d) + (4 * d**2 + 4 * d) + (4 * d**2 + d) + 4 * d
    assert total_parameters(arch) == 24 * layer + (250_002 + 8_194 + 1) * d + 2 * d
    assert (arch.max_positions, arch.dtype, kv_bytes_per_token(arch)) == (8192, "fp16", 0)
    assert set(windows(arch)) == {BothWays()}
    assert not arch.splits_prompts
    assert not arch.rotary


def test_a_reranker_has_a_head():
    """Of bge-m3's shapes: a matrix d × d and one of d × 1, with biases; everything is loaded."""
    arch, encoder = load_model("bge-reranker-v2-m3")[0], load_model("bge-m3")[0]
    assert arch.head == (1024, 1)
    assert total_parameters(arch) - total_parameters(encoder) == 1024**2 + 1024 + 1024 + 1


def test_modernbert_sees_64_tokens_on_either_side_in_two_layers_of_three():
    arch, _ = load_model("ModernBERT-large")
    assert windows(arch) == [BothWays() if index % 3 == 0 else BothWays(64) for index in range(28)]
    named = {**preset_config("ModernBERT-large"), "layer_types": ["sliding_attention"] * 27 + ["full_attention"]}
    assert windows(architecture_from_config(named, "named")) == [BothWays(64)] * 27 + [BothWays()]


def test_nomic_bert_is_as_large_as_published():
    """https://huggingface.co/nomic-ai/nomic-embed-text-v1.5: 137M; NomicBertModel of transformers 5.19 has 136,731,648."""
    arch = architecture_from_config(NOMIC, "nomic")
    assert total_parameters(arch) == 136_731_648
    assert (arch.pooling, arch.max_positions) == ("mean", 2048)
    with pytest.raises(UnsupportedError, match="moe_every_n_layers"):
        architecture_from_config({**NOMIC, "moe_every_n_layers": 2}, "nomic-v2")


def test_gemma_that_embeds_sees_both_ways():
    """https://huggingface.co/google/embeddinggemma-300m: 302,863,104 parameters; a window of 512 is 256 tokens on either side."""
    arch = architecture_from_config(EMBEDDING_GEMMA, "embeddinggemma")
    assert total_parameters(arch) == 302_863_104
    assert (arch.pooling, arch.dtype) == ("mean", "bf16")
    assert windows(arch) == [BothWays(256) if (index + 1) % 6 else BothWays() for index in range(24)]
    causal = architecture_from_config({**EMBEDDING_GEMMA, "use_bidirectional_attention": False}, "causal")
    assert causal.pooling == "last"
    assert not causal.bidirectional


def test_decoders_that_embed_are_their_language_models_without_lm_head():
    text, _ = load_model("Qwen3-8B")
    embeds, _ = load_model("Qwen/Qwen3-Embedding-8B")
    assert embeds.kinds == text.kinds
    rows = (2 * text.vocabulary - embeds.vocabulary) * 4096  # lm_head, and a vocabulary that is a little smaller
    assert total_parameters(text) - total_parameters(embeds) == rows
    assert embeds.splits_prompts
    assert kv_bytes_per_token(embeds) == kv_bytes_per_token(text) > 0


@pytest.mark.parametrize(
    ("changes", "pooling", "head"),
    [
        ({}, "", ()),
        ({"architectures": ["Qwen3Model"]}, "last", ()),
        ({"architectures": ["Qwen3ForSequenceClassification"]}, "last", (2,)),
        ({"architectures": ["Qwen3ForSequenceClassification"], "id2label": {"0": "a"}}, "last", (1,)),
        ({"is_causal": False}, "last", ()),
    ],
)
def test_the_class_decides_whether_a_decoder_pools(changes, pooling, head):
    arch = architecture_from_config({**preset_config("Qwen3-0.6B"), **changes}, "changed")
    assert (arch.pooling, arch.head) == (pooling, head)
    assert arch.bidirectional == ("is_causal" in changes)


def test_a_window_of_a_decoder_that_sees_both_ways_is_so_on_either_side():
    config = {**preset_config("e5-mistral-7b-instruct"), "is_causal": False}
    assert set(windows(architecture_from_config(config, "both"))) == {BothWays(4095)}


@pytest.mark.parametrize("name", ["Qwen2ForRewardModel", "Qwen3ForTokenClassification"])
def test_heads_that_are_not_counted_are_refused(name):
    with pytest.raises(UnsupportedError, match=f"{name} is not covered"):
        architecture_from_config({**preset_config("Qwen3-0.6B"), "architectures": [name]}, "head")


def test_encoders_of_other_classes_are_refused():
    with pytest.raises(UnsupportedError, match="XLMRobertaForTokenClassification"):
        architecture_from_config(
            {**preset_config("bge-m3"), "architectures": ["XLMRobertaForTokenClassification"]}, "ner"
        )
    with pytest.raises(UnsupportedError, match="position_embedding_type"):
        architecture_from_config({**preset_config("bge-m3"), "position_embedding_type": "relative_key"}, "relative")


def test_files_beside_a_configuration_decide(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(preset_config("Qwen3-0.6B")), encoding="utf-8")
    assert load_model(str(tmp_path))[0].pooling == ""
    for mode in ("cls", "mean", "last"):
        for name, content in pooling_files(mode).items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
        assert load_model(str(tmp_path))[0].pooling == mode
        assert load_model(str(tmp_path / "config.json"))[0].pooling == mode


@pytest.mark.parametrize(
    ("content", "mode"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"word_embedding_dimension": 1024}, "cls"),
        ([], "cls"),
    ],
)
def test_pooling_of_sentence_transformers(content, mode):
    assert pooling_mode(content) == mode


def test_modules_without_pooling():
    assert pooling_path([{"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"}]) is None
    assert pooling_path({"type": "no list"}) is None
