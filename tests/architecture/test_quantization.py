"""Weight formats from quantisation configurations; byte counts worked out by hand in the tests."""

import pytest

from costmodel.architecture.counts import checkpoint_bytes, parameter_table, total_parameters, weight_bytes_per_gpu
from costmodel.architecture.families import architecture_from_config
from costmodel.architecture.formats import PLAIN_FORMATS, WeightFormat
from costmodel.architecture.module_names import NamePatterns
from costmodel.architecture.source import load_model, preset_config
from costmodel.hardware.errors import InputError, UnsupportedError

GIB = 2**30
LINEARS_8B = 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14_336)
HEADS_8B = 2 * 128_256 * 4096
NORMS_8B = (2 * 32 + 1) * 4096


def quantized(name, section, quant=None, **changes):
    config = {**preset_config(name), **changes}
    if section is not None:
        config["quantization_config"] = section
    return architecture_from_config(config, name, quant)


def formats(arch):
    return {row.module: row.format for row in parameter_table(arch)}


def test_awq_by_hand():
    arch = quantized("Llama-3.1-8B", {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True})
    # 4 bits a weight, and per 128 of them an fp16 scale and a 4-bit zero point
    assert checkpoint_bytes(arch) == LINEARS_8B * (4 + 20 / 128) / 8 + 2 * (HEADS_8B + NORMS_8B)
    # https://huggingface.co/hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4: 5.73 GB in two shards
    assert checkpoint_bytes(arch) / 1e9 == pytest.approx(5.73, rel=0.005)
    assert arch.kinds[0].formats.attention.weight_only
    assert arch.kv_dtype is None


def test_gptq_by_hand_with_and_without_groups():
    arch = quantized("Llama-3.1-8B", {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True})
    assert checkpoint_bytes(arch) == LINEARS_8B * (4 + 20 / 128) / 8 + 2 * (HEADS_8B + NORMS_8B)
    arch = quantized("Llama-3.1-8B", {"quant_method": "gptq", "bits": 8, "group_size": -1})
    assert checkpoint_bytes(arch) == LINEARS_8B + 2 * (HEADS_8B + NORMS_8B)
    assert formats(arch)["lm_head"] == "bf16"


def test_gptq_lm_head_and_chosen_modules():
    section = {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 128,
        "lm_head": True,
        "modules_in_block_to_quantize": [["mlp.gate_proj", "mlp.up_proj"], ["mlp.down_proj"]],
    }
    found = formats(quantized("Llama-3.1-8B", section))
    assert found["lm_head"] == "int4"
    assert (found["attention"], found["feed-forward"]) == ("bf16", "int4")


def test_gptq_dynamic_exclusions_are_read_and_other_settings_refused():
    section = {"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {r"-:.*self_attn.*": {}}}
    assert formats(quantized("Llama-3.1-8B", section))["attention"] == "bf16"
    section["dynamic"] = {r"+:.*down.*": {"bits": 8}}
    with pytest.raises(UnsupportedError, match="different settings"):
        quantized("Llama-3.1-8B", section)


def test_mxfp4_by_hand():
    arch, _ = load_model("gpt-oss-20b")
    experts = 24 * 32 * 3 * 2880 * 2880
    rest = 20_914_757_184 - experts
    # 4 bits a weight and an 8-bit scale per 32; everything else in bf16
    assert checkpoint_bytes(arch) == experts * (4 + 8 / 32) / 8 + 2 * rest
    # https://huggingface.co/openai/gpt-oss-20b: three shards of together 13.76 GB; arXiv:2508.10925, table 1: 12.8 GiB
    assert checkpoint_bytes(arch) / 1e9 == pytest.approx(13.76, rel=0.001)
    assert checkpoint_bytes(arch) / GIB == pytest.approx(12.8, rel=0.002)
    big, _ = load_model("gpt-oss-120b")
    assert checkpoint_bytes(big) / GIB == pytest.approx(60.8, rel=0.002)  # the same table


def test_mxfp4_in_memory_once_the_engine_has_padded_the_experts():
    """13.47 GiB measured (llm-d planner, H100, vLLM 0.11) = 12.82 GiB stored + one side of each expert padded from 2880 to 3072."""
    arch, _ = load_model("gpt-oss-20b")
    experts = next(row.bytes for row in parameter_table(arch) if row.module == "experts")
    padded = checkpoint_bytes(arch) + experts * (3072 / 2880 - 1)
    assert padded / GIB == pytest.approx(13.47, rel=0.005)


MEASURED = [
    # weights in GiB per GPU that vLLM 0.11 reported on H100s:
    # https://github.com/llm-d-incubation/llm-d-planner/blob/main/docs/empirical-vllm-memory-results.md
    ("Llama-3.1-8B", None, 1, 14.99),
    ("Qwen3-32B", None, 1, 61.03),
    (
        "Llama-3.3-70B-Instruct",
        {
            "quant_method": "compressed-tensors",
            "format": "float-quantized",
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {
                        "num_bits": 8,
                        "type": "float",
                        "strategy": "channel",
                        "symmetric": True,
                        "dynamic": False,
                    },
                    "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True},
                }
            },
            "ignore": ["lm_head"],
            "kv_cache_scheme": None,
        },
        2,
        33.88,
    ),
]


@pytest.mark.parametrize(("name", "section", "tp", "measured"), MEASURED)
def test_weights_per_gpu_against_measured_memory(name, section, tp, measured):
    arch = quantized(name, section)
    assert weight_bytes_per_gpu(arch, tp) / GIB == pytest.approx(measured, rel=0.005)
    assert arch.kv_dtype is None


def test_deepseek_blocks():
    arch, _ = load_model("DeepSeek-V3")
    assert arch.quantization == "fp8"
    fmt = WeightFormat("fp8", group_size=128 * 128, scale_bits=32)
    assert {kind.formats.attention for kind in arch.kinds} == {fmt}
    assert not fmt.weight_only
    assert formats(arch)["router"] == "bf16"
    assert arch.kv_dtype is None


def compressed(weights, activations=None, **more):
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"], **more}


INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}
FP8 = {"num_bits": 8, "type": "float", "strategy": "tensor"}


@pytest.mark.parametrize(
    ("weights", "activations", "expected"),
    [
        (INT4, None, WeightFormat("int4", 128, 16, True)),
        ({**INT4, "symmetric": False}, None, WeightFormat("int4", 128, 20, True)),
        ({"num_bits": 8, "type": "int", "strategy": "channel"}, None, WeightFormat("int8", 0, 0, True)),
        ({"num_bits": 8, "type": "int", "strategy": "channel"}, {"num_bits": 8, "type": "int"}, PLAIN_FORMATS["int8"]),
        (FP8, FP8, PLAIN_FORMATS["fp8"]),
        (
            {**FP8, "strategy": "block", "block_structure": [128, 128]},
            {**FP8, "strategy": "group", "group_size": 128},
            WeightFormat("fp8", 16_384, 32),
        ),
        (
            {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
            {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
            PLAIN_FORMATS["nvfp4"],
        ),
        (
            {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32},
            None,
            WeightFormat("mxfp4", 32, 8, True),
        ),
    ],
)
def test_compressed_tensors_formats(weights, activations, expected):
    arch = quantized("Qwen3-8B", compressed(weights, activations))
    assert arch.kinds[0].formats.attention == expected
    assert arch.kinds[0].formats.feed_forward == expected
    assert arch.lm_head_format == PLAIN_FORMATS["bf16"]


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        (compressed({**INT4, "num_bits": 3}), "3-bit integers"),
        (compressed(INT4, {"num_bits": 8, "type": "float"}), "4-bit weights with 8-bit activations"),
        (compressed({"num_bits": 4, "type": "float", "strategy": "channel"}), "4 bits, group 0"),
        (compressed(FP8, FP8, sparsity_config={"format": "sparse-24-bitmask"}), "sparse weights"),
        (compressed(FP8, FP8, kv_cache_scheme={"num_bits": 4, "type": "float"}), "kv_cache_scheme"),
        ({"quant_method": "aqlm"}, "'aqlm' is not covered; known are awq"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "'W4A8_AWQ' is not covered"),
        ({"quant_method": "gptq", "bits": 3, "group_size": 128}, "3-bit integers"),
    ],
)
def test_what_has_no_arithmetic_is_refused(section, reason):
    with pytest.raises(UnsupportedError, match=reason):
        quantized("Llama-3.1-8B", section)


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        ({"quant_method": "gptq"}, "bits is missing"),
        ({"quant_method": "gptq", "bits": "4"}, "bits must be a whole number"),
        ({"quant_method": 8}, "quant_method must be a string"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size must be two"),
        ({"quant_method": "fp8", "modules_to_not_convert": [1]}, "must be a list of names"),
        ({"quant_method": "fp8", "modules_to_not_convert": "lm_head"}, "must be a list"),
        ({"quant_method": "compressed-tensors"}, "config_groups is missing"),
        ({"quant_method": "bitsandbytes"}, "both false"),
        ({"quant_method": "modelopt"}, "quant_algo is missing"),
        ([1], "quantization_config must be an object"),
    ],
)
def test_malformed_sections_name_the_key(section, reason):
    with pytest.raises(InputError, match=reason) as caught:
        quantized("Llama-3.1-8B", section)
    assert "\n" not in str(caught.value)


def test_the_older_key_of_compressed_tensors_and_another_runtimes_key():
    config = {**preset_config("Llama-3.1-8B"), "compression_config": compressed(FP8, FP8)}
    assert architecture_from_config(config, "older").quantization == "compressed-tensors"
    config = {**preset_config("Llama-3.1-8B"), "quantization": {"group_size": 64, "bits": 4}}
    with pytest.raises(UnsupportedError, match="key quantization is another runtime's"):
        architecture_from_config(config, "other")


def test_regular_expressions_and_exact_names_make_distinct_layer_kinds():
    section = compressed(INT4)
    section["ignore"] = ["lm_head", r"re:.*layers\.(0|31)\..*", "model.layers.5.self_attn"]
    arch = quantized("Llama-3.1-8B", section)
    kinds = [arch.kinds[i].formats for i in arch.pattern]
    assert len(arch.kinds) == 3
    assert {kinds[0].attention.name, kinds[31].feed_forward.name, kinds[5].attention.name} == {"bf16"}
    assert kinds[5].feed_forward.name == kinds[1].attention.name == "int4"


def test_named_targets_come_before_every_linear_module():
    section = compressed(INT4)
    section["config_groups"]["group_1"] = {
        "targets": [r"re:.*mlp\.down_proj"],
        "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
        "input_activations": {"num_bits": 8, "type": "float"},
    }
    arch = quantized("Llama-3.1-8B", section)
    layer = arch.kinds[0].formats
    assert layer.of("down_proj", layer.feed_forward).name == "fp8"
    assert layer.of("gate_up_proj", layer.feed_forward).name == "int4"
    by_format = {row.format: row.count for row in parameter_table(arch) if row.module == "feed-forward"}
    assert by_format == {"fp8": 32 * 4096 * 14_336, "int4": 32 * 2 * 4096 * 14_336}


def test_parts_of_one_kernel_in_two_formats_are_refused():
    section = compressed(INT4)
    section["ignore"] = ["lm_head", r"re:.*mlp\.gate_proj"]
    with pytest.raises(UnsupportedError, match="layer 0: gate_up_proj is one kernel"):
        quantized("Llama-3.1-8B", section)


def test_kv_scales_in_the_checkpoint_set_the_kv_dtype_and_nothing_else_does():
    assert quantized("Llama-3.1-8B", compressed(FP8, FP8, kv_cache_scheme=FP8)).kv_dtype == "fp8"
    assert quantized("Llama-3.1-8B", compressed(FP8, FP8, kv_cache_scheme=None)).kv_dtype is None
    quant = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    assert quantized("Llama-3.1-8B", None, quant).kv_dtype == "fp8"
    quant["quantization"]["kv_cache_quant_algo"] = None
    assert quantized("Llama-3.1-8B", None, quant).kv_dtype is None


def test_nvfp4_with_wildcards_keeps_attention_in_16_bits():
    exclude = ["lm_head", "model.layers.0*", *(f"model.layers.{i}.self_attn*" for i in range(1, 32))]
    quant = {"quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": exclude}}
    arch = quantized("Llama-3.1-8B", None, quant)
    assert [arch.kinds[i].formats.feed_forward.name for i in arch.pattern] == ["bf16"] + ["nvfp4"] * 31
    mlp = 3 * 4096 * 14_336
    expected = 31 * mlp * (4 + 8 / 16) / 8 + 2 * (total_parameters(arch) - 31 * mlp)
    assert checkpoint_bytes(arch) == expected


def test_mixed_precision_names_every_module():
    layers = {
        f"model.layers.{i}.mlp.{p}_proj": {"quant_algo": "W4A16_NVFP4", "group_size": 16}
        for i in range(32)
        for p in ("gate", "up")
    }
    layers |= {f"model.layers.{i}.self_attn": {"quant_algo": "FP8"} for i in range(32)}
    layers["lm_head"] = {"quant_algo": "FP8"}
    quant = {
        "quantization": {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": "FP8", "quantized_layers": layers}
    }
    arch = quantized("Llama-3.1-8B", None, quant)
    layer = arch.kinds[0].formats
    assert layer.attention == PLAIN_FORMATS["fp8"]
    assert layer.of("gate_up_proj", layer.feed_forward) == WeightFormat("nvfp4", 16, 8, weight_only=True)
    assert layer.of("down_proj", layer.feed_forward) == PLAIN_FORMATS["bf16"]
    assert arch.lm_head_format.name == "fp8"


def test_experts_that_differ_are_refused():
    exclude = ["lm_head", "model.layers.3.mlp.experts.7.down_proj"]
    quant = {"quantization": {"quant_algo": "FP8", "exclude_modules": exclude}}
    with pytest.raises(UnsupportedError, match=r"layer 3: experts\.down_proj is one kernel"):
        quantized("Qwen3-30B-A3B", None, quant)


def test_bitsandbytes():
    four = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": False}
    arch = quantized("Llama-3.1-8B", four)
    assert checkpoint_bytes(arch) == LINEARS_8B * (4 + 32 / 64) / 8 + 2 * (HEADS_8B + NORMS_8B)
    double = quantized("Llama-3.1-8B", {**four, "bnb_4bit_use_double_quant": True})
    assert double.kinds[0].formats.attention.bytes_per_weight == pytest.approx((4 + 8 / 64 + 32 / (64 * 256)) / 8)
    eight = quantized("Llama-3.1-8B", {"quant_method": "bitsandbytes", "load_in_8bit": True})
    assert eight.kinds[0].formats.attention == PLAIN_FORMATS["int8"]


def test_a_text_section_may_carry_the_quantisation_of_a_vision_model():
    config = preset_config("gemma-3-4b-it")
    config["text_config"]["quantization_config"] = compressed(
        FP8, FP8, ignore=["re:.*lm_head", "re:language_model.model.layers.3.*"]
    )
    arch = architecture_from_config(config, "gemma")
    found = [arch.kinds[i].formats.attention.name for i in arch.pattern]
    assert found == ["bf16" if i in {3, *range(30, 40)} else "fp8" for i in range(34)]


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("lm_head", "lm_head", True),
        ("gate", "model.layers.0.mlp.gate", True),
        ("gate", "model.layers.0.mlp.gate_proj", False),
        ("model.layers.0.self_attn", "model.layers.0.self_attn.q_proj", True),
        ("model.layers.1", "model.layers.10.mlp.up_proj", False),
        ("model.layers.*.self_attn", "model.layers.10.self_attn.q_proj", True),
        ("model.layers.*.self_attn", "model.layers.10.mlp.up_proj", False),
        ("model.layers.1*", "model.layers.10.mlp.up_proj", True),
        ("model.layers.1.*", "model.layers.10.mlp.up_proj", False),
        (r"re:.*mlp\.(gate|up)_proj.*", "model.layers.0.mlp.up_proj", True),
        (r"re:mlp", "model.layers.0.mlp.up_proj", False),
    ],
)
def test_name_patterns(pattern, name, expected):
    assert NamePatterns([pattern]).match(name) is expected
    assert bool(NamePatterns([pattern]))
    assert not NamePatterns([])
