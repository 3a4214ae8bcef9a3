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
