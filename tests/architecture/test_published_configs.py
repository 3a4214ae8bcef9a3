"""A walk over the real Hugging Face configurations that ``aiconfigurator-core`` carries: each is read or refused by name and reason."""

import importlib.util
from pathlib import Path

import pytest

from costmodel.architecture.counts import active_parameters, checkpoint_bytes, kv_bytes_per_token, total_parameters
from costmodel.architecture.families import architecture_from_config
from costmodel.hardware.errors import UnsupportedError

SCRIPT = Path(__file__).parents[2] / "docs" / "make_models_table.py"

if not SCRIPT.is_file():
    pytest.skip("docs/ is not beside these tests", allow_module_level=True)

spec = importlib.util.spec_from_file_location("make_models_table", SCRIPT)
tables = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tables)
FOLDER = tables.configurations()
CONFIGS = {name: (config, quant) for name, config, quant in tables.published(FOLDER)} if FOLDER else {}

needs_configs = pytest.mark.skipif(FOLDER is None, reason="aiconfigurator-core is not installed (extra: silicon)")


@needs_configs
def test_there_are_as_many_as_expected():
    assert len(CONFIGS) == 89
    assert sum(quant is not None for _, quant in CONFIGS.values()) == 28


@needs_configs
@pytest.mark.parametrize("name", CONFIGS)
def test_each_is_read_or_refused(name):
    config, quant = CONFIGS[name]
    try:
        arch, refusal = architecture_from_config(config, name, quant), ""
    except UnsupportedError as error:
        arch, refusal = None, str(error)
    if arch is None:
        assert name in refusal
        assert "\n" not in refusal
        assert len(refusal) > len(name) + 30
        return
    assert 0 < active_parameters(arch) <= total_parameters(arch)
    assert kv_bytes_per_token(arch) > 0
    assert 0.5 * total_parameters(arch) <= checkpoint_bytes(arch) <= 2 * total_parameters(arch)


# Counted by the Hugging Face transformers classes (4.57.1) on the meta device, from the same files.
EXACT = {
    "Qwen/Qwen3-VL-2B-Instruct": 2_127_532_032,
    "Qwen/Qwen3-VL-4B-Instruct": 4_437_815_808,
    "Qwen/Qwen3-VL-8B-Instruct": 8_767_123_696,
    "Qwen/Qwen3-VL-32B-Instruct": 33_357_390_064,
    "Qwen/Qwen3-VL-30B-A3B-Instruct": 31_070_754_032,
    "Qwen/Qwen3-VL-235B-A22B-Instruct": 235_670_022_896,
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": 480_154_875_392,
}


# The same with transformers 5.19.0, and what is a buffer of those classes but a parameter of the checkpoint: correction biases of
# routers (experts × layers), scalars of Gemma 4's layers, mean and scale of its tower.
WITH_BUFFERS = {
    "Qwen/Qwen3.5-27B": (27_356_728_560, 0),
    "Qwen/Qwen3.5-35B-A3B": (35_107_181_936, 0),
    "Qwen/Qwen3.5-122B-A10B": (122_562_817_776, 0),
    "Qwen/Qwen3.5-397B-A17B": (396_802_360_816, 0),
    "nvidia/Nemotron-H-56B-Base-8K": (56_324_350_464, 0),
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": (31_577_937_344, 128 * 23),
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8": (120_668_687_360, 512 * 40),
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": (549_308_968_960, 512 * 48),
    "deepseek-ai/DeepSeek-V3.2": (671_877_929_216, 256 * 58),
    # And tables that say which experts tokens go to in the first three layers.
    "deepseek-ai/DeepSeek-V4-Flash": (284_332_230_231, 256 * 40 + 3 * 129_280 * 6),
    "nvidia/DeepSeek-V4-Flash-NVFP4": (284_332_230_231, 256 * 40 + 3 * 129_280 * 6),
    "sgl-project/DeepSeek-V4-Flash-FP8": (284_332_230_231, 256 * 40 + 3 * 129_280 * 6),
    "deepseek-ai/DeepSeek-V4-Pro": (1_572_997_179_491, 384 * 58 + 3 * 129_280 * 6),
    "nvidia/DeepSeek-V4-Pro-NVFP4": (1_572_997_179_491, 384 * 58 + 3 * 129_280 * 6),
    "sgl-project/DeepSeek-V4-Pro-FP8": (1_572_997_179_491, 384 * 58 + 3 * 129_280 * 6),
    "zai-org/GLM-5": (743_911_199_232, 256 * 75),
    "zai-org/GLM-5.2": (743_377_000_704, 256 * 75),
    "google/gemma-4-26B-A4B": (25_805_933_872, 30 + 2 * 1152),
    "nvidia/Gemma-4-31B-IT-NVFP4": (31_273_086_512, 60 + 2 * 1152),
    "XiaomiMiMo/MiMo-V2-Flash": (308_778_768_832, 256 * 47),
    # The second without the tower and the projectors.
    "nvidia/MiniMax-M3-NVFP4": (427_040_132_864, 128 * 57),
    "MiniMaxAI/MiniMax-M3": (427_040_132_864 - 631_185_920 - 234_381_312, 128 * 57),
    # Without the tower of 455,178,240 that the class makes up where vision_config is absent.
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": (108_225_039_360 - 455_178_240, 0),
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": (401_167_027_200 - 455_178_240, 0),
    # https://huggingface.co/nvidia/Llama-3_3-Nemotron-Super-49B-v1, safetensors total
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1": (49_867_145_216, 0),
}


@needs_configs
@pytest.mark.parametrize("name", WITH_BUFFERS)
def test_counts_equal_the_classes_and_their_buffers(name):
    config, quant = CONFIGS[name]
    counted, buffers = WITH_BUFFERS[name]
    assert total_parameters(architecture_from_config(config, name, quant)) == counted + buffers


@needs_configs
@pytest.mark.parametrize("name", EXACT)
def test_counts_equal_the_transformers_classes(name):
    config, quant = CONFIGS[name]
    assert total_parameters(architecture_from_config(config, name, quant)) == EXACT[name]


@needs_configs
@pytest.mark.parametrize(
    ("name", "kv_dtype", "attention", "experts"),
    [
        ("nvidia/Llama-3.1-70B-Instruct-FP8", "fp8", "fp8", "fp8"),
        ("nvidia/DeepSeek-V3.1-NVFP4", "fp8", "bf16", "nvfp4"),
        ("nvidia/MiniMax-M2.5-NVFP4", "fp8", "bf16", "nvfp4"),
        ("nvidia/Qwen3-235B-A22B-NVFP4", "fp8", "nvfp4", "nvfp4"),
        ("nvidia/Kimi-K2.6-NVFP4", "fp8", "bf16", "nvfp4"),
        ("moonshotai/Kimi-K2.5", None, "bf16", "int4"),
        ("Qwen/Qwen3-32B-FP8-Static-PerTensor", "fp8", "fp8", "fp8"),
        ("Qwen/Qwen3-32B-FP8", None, "fp8", "fp8"),
        ("deepseek-ai/DeepSeek-V4-Flash", "fp8", "fp8", "mxfp4"),
        ("nvidia/DeepSeek-V4-Pro-NVFP4", "fp8", "fp8", "nvfp4"),
        ("sgl-project/DeepSeek-V4-Pro-FP8", "fp8", "fp8", "fp8"),
        ("nvidia/MiniMax-M3-NVFP4", None, "fp8", "nvfp4"),
    ],
)
def test_quantisation_files_are_used_with_their_configurations(name, kv_dtype, attention, experts):
    config, quant = CONFIGS[name]
    arch = architecture_from_config(config, name, quant)
    formats = arch.kinds[-1].formats
    assert (arch.kv_dtype, formats.attention.name, formats.experts.name) == (kv_dtype, attention, experts)


@needs_configs
def test_single_projections_may_be_quantised_while_the_rest_of_attention_is_not():
    config, quant = CONFIGS["nvidia/DeepSeek-V3.1-NVFP4"]
    formats = architecture_from_config(config, "DeepSeek", quant).kinds[-1].formats
    assert formats.of("o_proj", formats.attention).name == "nvfp4"
    assert formats.of("kv_b_proj", formats.attention).name == "bf16"


@needs_configs
def test_the_page_is_up_to_date():
    assert tables.PAGE.read_text(encoding="utf-8") == tables.render(FOLDER)
