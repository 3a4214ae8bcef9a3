"""What is read from a configuration, and what is refused rather than guessed."""

import copy

import pytest

from costmodel.architecture.families import REASONS, architecture_from_config
from costmodel.architecture.source import load_model, preset_config
from costmodel.hardware.errors import InputError, UnsupportedError


def windows(config):
    arch = architecture_from_config(config, "test")
    return [arch.kinds[i].attention.window for i in arch.pattern]


def changed(name, **changes):
    config = {**preset_config(name), **changes}
    return {key: value for key, value in config.items() if value is not ...}


def test_mistral_windows():
    assert set(windows(changed("Mistral-7B-v0.1"))) == {4096}
    assert set(windows(changed("Mistral-7B-v0.3"))) == {None}
    assert set(windows(changed("Mistral-7B-v0.3", sliding_window=...))) == {4096}  # the class default


def test_qwen_windows_need_the_switch():
    assert set(windows(changed("Qwen2.5-7B"))) == {None}
    assert set(windows(changed("Qwen2.5-7B", sliding_window=4096))) == {None}
    on = windows(changed("Qwen2.5-7B", sliding_window=4096, use_sliding_window=True, max_window_layers=21))
    assert on == [None] * 21 + [4096] * 7


def test_gemma_windows():
    assert windows(changed("gemma-2-9b-it")) == [4096, None] * 21
    assert windows(changed("gemma-3-12b-it")) == [1024, 1024, 1024, 1024, 1024, None] * 8
    four = load_model("gemma-3-4b-it")[0]
    assert four.pattern == ((0,) * 5 + (1,)) * 5 + (0,) * 4
    assert four.max_positions == 131_072


def test_phi_and_gpt_oss_windows():
    assert set(windows(changed("Phi-3-mini-4k-instruct"))) == {2047}
    assert set(windows(changed("phi-4"))) == {None}
    assert windows(changed("gpt-oss-20b")) == [128, None] * 12
    assert windows(changed("gpt-oss-20b", layer_types=...)) == [128, None] * 12


def test_a_window_as_long_as_the_context_is_none():
    assert set(windows(changed("Mistral-7B-v0.1", sliding_window=32_768))) == {None}


def test_layer_types_come_first():
    kinds = ["full_attention"] * 31 + ["sliding_attention"]
    assert windows(changed("Mistral-7B-v0.1", layer_types=kinds)) == [None] * 31 + [4096]


def test_defaults_of_the_gemma_3_class():
    attention = load_model("gemma-3-4b-it")[0].kinds[0].attention
    assert (attention.query_heads, attention.kv_heads, attention.head_dim) == (8, 4, 256)
    assert load_model("gemma-3-4b-it")[0].vocabulary == 262_208


def test_deepseek_layers():
    arch, _ = load_model("DeepSeek-V3")
    assert arch.pattern == (0,) * 3 + (1,) * 58
    assert [kind.feed_forward.kind for kind in arch.kinds] == ["dense", "moe"]
    experts = arch.kinds[1].feed_forward
    assert (experts.experts, experts.experts_per_token, experts.intermediate, experts.shared_intermediate) == (
        256,
        8,
        2048,
        2048,
    )
    assert load_model("DeepSeek-V2-Lite")[0].kinds[1].feed_forward.shared_intermediate == 2 * 1408


@pytest.mark.parametrize(
    ("changes", "dtype", "note"),
    [
        ({"torch_dtype": "float16"}, "fp16", ""),
        ({"torch_dtype": ..., "dtype": "bfloat16"}, "bf16", ""),
        ({"torch_dtype": "torch.bfloat16"}, "bf16", ""),
        ({"torch_dtype": "float32"}, "bf16", "cast"),
        ({"torch_dtype": ...}, "bf16", "names no dtype"),
    ],
)
def test_dtypes(changes, dtype, note):
    arch = architecture_from_config(changed("Llama-3.1-8B", **changes), "test")
    assert arch.dtype == arch.embedding_format.name == dtype
    assert note in " ".join(arch.notes)
    assert bool(note) == bool(arch.notes)


def test_architectures_stand_in_for_a_missing_model_type():
    arch = architecture_from_config(changed("Llama-3.1-8B", model_type=...), "test")
    assert arch.model_type == "llama"


@pytest.mark.parametrize("model_type", REASONS)
def test_known_but_uncovered_types_are_refused_with_their_reason(model_type):
    with pytest.raises(
        UnsupportedError, match=model_type.replace("-", "."), check=lambda e: REASONS[model_type] in str(e)
    ):
        architecture_from_config({"model_type": model_type}, "test")


@pytest.mark.parametrize(
    ("model_type", "differs"),
    [
        ("falcon_h1", "those of Nemotron-H, Qwen3-Next, Qwen 3.5 and Kimi Linear are"),
    ],
)
def test_reasons_say_what_differs_from_layers_that_are_read(model_type, differs):
    """A recurrent layer is not the reason: some of them are read."""
    assert differs in REASONS[model_type]
    assert "have no equations" not in REASONS[model_type]
    assert "has no equations" not in REASONS[model_type]


def test_unknown_types_are_refused_with_the_known_ones():
    with pytest.raises(UnsupportedError, match=r"'my_model' is not covered: it is none of the .*llama"):
        architecture_from_config({"model_type": "my_model"}, "test")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_global_heads", 4),
        ("linear_key_head_dim", 128),
        ("mamba_d_state", 16),
        ("index_topk", 2048),
        ("num_mtp_layers", 1),
        ("conv_kernel_size", 4),
        ("n_routed_experts", 8),
        ("attention_chunk_size", 8192),
        ("block_configs", [{"attention": None}]),
        ("attention_bias_o", True),
    ],
)
def test_unknown_keys_that_may_change_shapes_are_refused(key, value):
    with pytest.raises(UnsupportedError, match=f"key {key} = .* may change shapes"):
        architecture_from_config(changed("Llama-3.1-8B", **{key: value}), "test")


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}])
def test_unknown_keys_that_are_off_are_accepted(value):
    config = changed("Llama-3.1-8B", linear_key_head_dim=value, unknown_flag=True, rope_scaling={"layers": 3})
    assert architecture_from_config(config, "test").layer_count == 32


@pytest.mark.parametrize("part", ["text_config", "vision_config"])
def test_unknown_keys_inside_wrapped_configurations_are_refused(part):
    config = copy.deepcopy(preset_config("gemma-3-4b-it"))
    config[part]["num_extra_layers"] = 2
    with pytest.raises(UnsupportedError, match=f"{part}: key num_extra_layers = 2"):
        architecture_from_config(config, "test")


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("Llama-3.1-8B", {"is_encoder_decoder": True}, "cross-attention"),
        ("Mistral-7B-v0.1", {"layer_types": ["chunked_attention"] * 32}, "chunked_attention"),
        ("Mistral-7B-v0.1", {"attention_bias": True}, "attention_bias True is not covered"),
        ("Qwen3-30B-A3B", {"use_sliding_window": True}, "sliding windows of Qwen mixtures"),
        ("Qwen3-30B-A3B", {"shared_expert_intermediate_size": 512}, "no shared expert"),
        ("DeepSeek-V3", {"attention_bias": True}, "biases on latent attention"),
        ("DeepSeek-V3", {"moe_layer_freq": [1] * 61}, "moe_layer_freq as a list"),
        ("MiniMax-M2", {"attn_type_list": [0] * 62}, "linear attention"),
        ("MiniMax-M2", {"qk_norm_type": "per_head"}, "qk_norm_type"),
    ],
)
def test_variants_without_equations_are_refused(name, changes, reason):
    with pytest.raises(UnsupportedError, match=reason) as caught:
        architecture_from_config(changed(name, **changes), "test")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("Llama-3.1-8B", {"hidden_size": ...}, "hidden_size is missing"),
        ("Llama-3.1-8B", {"num_hidden_layers": 0}, "num_hidden_layers must lie between 1 and"),
        ("Llama-3.1-8B", {"hidden_size": -4096}, "hidden_size must lie between"),
        ("Llama-3.1-8B", {"hidden_size": 10**12}, "hidden_size must lie between"),
        ("Llama-3.1-8B", {"vocab_size": "128256"}, "vocab_size must be a whole number, not '128256'"),
        ("Llama-3.1-8B", {"vocab_size": float("nan")}, "vocab_size must be a whole number"),
        ("Llama-3.1-8B", {"vocab_size": float("inf")}, "vocab_size must be a whole number"),
        ("Llama-3.1-8B", {"vocab_size": 128_256.5}, "vocab_size must be a whole number"),
        ("Llama-3.1-8B", {"vocab_size": True}, "vocab_size must be a whole number"),
        ("Llama-3.1-8B", {"intermediate_size": [14_336]}, "intermediate_size must be a whole number"),
        ("Llama-3.1-8B", {"num_key_value_heads": 5}, "32 is not divisible by num_key_value_heads 5"),
        ("Llama-3.1-8B", {"hidden_size": 4100}, "hidden_size 4100 is not divisible by num_attention_heads 32"),
        ("Llama-3.1-8B", {"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ("Llama-3.1-8B", {"model_type": 3}, "model_type must be a string"),
        ("Llama-3.1-8B", {"model_type": ..., "architectures": ...}, "model_type is missing"),
        ("Llama-3.1-8B", {"torch_dtype": "float8"}, "torch_dtype 'float8' is not one of"),
        ("Llama-3.1-8B", {"max_position_embeddings": "long"}, "max_position_embeddings must be"),
        ("Mistral-7B-v0.1", {"layer_types": ["full_attention"]}, "layer_types has 1 entries for 32 layers"),
        ("Mistral-7B-v0.3", {"layer_types": ["sliding_attention"] * 32}, "sliding_window is missing"),
        ("Mistral-7B-v0.3", {"layer_types": 32}, "layer_types must be a list"),
        ("Mixtral-8x7B-v0.1", {"num_experts_per_tok": 9}, "9 is more than the 8 experts"),
        ("Mixtral-8x7B-v0.1", {"num_local_experts": ...}, "num_local_experts is missing"),
        ("DeepSeek-V3", {"kv_lora_rank": ...}, "kv_lora_rank is missing"),
        ("DeepSeek-V3", {"num_key_value_heads": 64}, "latent attention has no KV groups"),
        ("gemma-3-4b-it", {"text_config": None}, "text_config is missing"),
        ("gemma-3-4b-it", {"vision_config": 3}, "vision_config must be an object"),
    ],
)
def test_malformed_configurations_name_file_key_and_reason(name, changes, reason):
    with pytest.raises(InputError, match=reason) as caught:
        architecture_from_config(changed(name, **changes), "my-model")
    assert not isinstance(caught.value, UnsupportedError)
    assert str(caught.value).startswith("config of my-model")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", [*preset_config("Llama-3.1-8B"), "head_dim"])
@pytest.mark.parametrize("value", [None, "x", [], {}, -1, 0, 1.5, float("nan"), True, 10**30, {"a": 1}])
def test_no_single_bad_value_raises_anything_but_an_input_error(key, value):
    config = {**preset_config("Llama-3.1-8B"), key: value}
    message = ""
    try:
        assert architecture_from_config(config, "fuzzed").layer_count >= 1
    except InputError as error:
        message = str(error)
    assert "\n" not in message
