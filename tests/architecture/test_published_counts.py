"""Parameter counts against published figures.

"Total" figures are ``safetensors.total`` of https://huggingface.co/api/models/<repository>?expand[]=safetensors, which the model
pages show; where that total holds more than the model serves (buffers, scales, prediction layers), the test adds those up.
"""

import pytest

from costmodel.architecture.counts import active_parameters, layer_parameters, text_parameters, total_parameters
from costmodel.architecture.families import architecture_from_config
from costmodel.architecture.linears import layer_linears
from costmodel.architecture.source import load_model, model_names, preset_config

EXACT = {
    "Llama-3-8B": 8_030_261_248,
    "Llama-3-70B": 70_553_706_496,
    "Llama-3.1-8B": 8_030_261_248,
    "Llama-3.1-70B": 70_553_706_496,
    "Llama-3.1-405B": 405_853_388_800,
    "Llama-3.2-1B": 1_235_814_400,
    "Llama-3.2-3B": 3_212_749_824,
    "Llama-3.3-70B-Instruct": 70_553_706_496,
    "Mistral-7B-v0.1": 7_241_732_096,
    "Mistral-7B-v0.3": 7_248_023_552,
    "Mistral-Small-24B-2501": 23_572_403_200,
    "Mistral-Small-3.1-24B-2503": 24_011_361_280,
    "Mixtral-8x7B-v0.1": 46_702_792_704,
    "Mixtral-8x22B-v0.1": 140_620_634_112,
    "Qwen2.5-7B": 7_615_616_512,
    "Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen2.5-32B": 32_763_876_352,
    "Qwen2.5-32B-Instruct": 32_763_876_352,
    "Qwen2.5-72B": 72_706_203_648,
    "Qwen2.5-72B-Instruct": 72_706_203_648,
    "Qwen3-4B": 4_022_468_096,
    "Qwen3-8B": 8_190_735_360,
    "Qwen3-14B": 14_768_307_200,
    "Qwen3-32B": 32_762_123_264,
    "Qwen3-30B-A3B": 30_532_122_624,
    "Qwen3-235B-A22B": 235_093_634_560,
    "phi-4": 14_659_507_200,
    "Phi-3-mini-4k-instruct": 3_821_079_552,
    "gemma-2-9b-it": 9_241_705_984,
    "gemma-2-27b-it": 27_227_128_320,
    "gemma-3-4b-it": 4_300_079_472,
    "gemma-3-12b-it": 12_187_325_040,
    "gemma-3-27b-it": 27_432_406_640,
    # Unpacked: https://github.com/keras-team/keras-hub, gpt_oss_presets.py.
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "DeepSeek-V2-Lite": 15_706_484_224,
    "Yi-34B": 34_388_917_248,
    "Yi-34B-200K": 34_388_917_248,
    "CodeLlama-34b": 33_743_970_304,
    "bge-reranker-v2-m3": 567_755_777,
    "Qwen3-Embedding-0.6B": 595_776_512,
    "Qwen3-Embedding-8B": 7_567_295_488,
    "e5-mistral-7b-instruct": 7_110_660_096,
}

# Models that pool, with what they do not load: the pooler of BertModel, d² + d.
# https://github.com/embeddings-benchmark/mteb, n_parameters; https://huggingface.co/BAAI/bge-large-en-v1.5: that of bert-large.
POOLERS = {
    "bge-m3": (567_754_752, 1024**2 + 1024),
    "bge-large-en-v1.5": (335_141_888, 1024**2 + 1024),
}

# Parameters of the Hugging Face classes (transformers 5.19.0) on the meta device, and what of the checkpoints is a buffer there:
# correction biases of routers, scalars of Gemma 4's layers and its tower's mean and scale; no prediction layers. The configurations of
# Llama 4 are without a tower. Llama-Nemotron: its published total.
CLASSES = {
    "Qwen3-Next-80B-A3B-Instruct": 79_674_391_296,
    "Qwen3-VL-8B-Instruct": 8_767_123_696,
    "Qwen3.5-27B": 27_356_728_560,
    "Qwen3.5-35B-A3B": 35_107_181_936,
    "Qwen3.5-122B-A10B": 122_562_817_776,
    "Qwen3.5-397B-A17B": 396_802_360_816,
    "DeepSeek-V3.2": 671_877_929_216 + 256 * 58,
    "DeepSeek-V4-Flash": 284_332_230_231 + 256 * 40 + 3 * 129_280 * 6,  # and its tables of experts by token
    "DeepSeek-V4-Pro": 1_572_997_179_491 + 384 * 58 + 3 * 129_280 * 6,
    "GLM-5": 743_911_199_232 + 256 * 75,
    "GLM-5.2": 743_377_000_704 + 256 * 75,
    "Llama-4-Scout-17B-16E-Instruct": 107_769_861_120,
    "Llama-4-Maverick-17B-128E-Instruct": 400_711_848_960,
    "gemma-4-26B-A4B": 25_805_933_872 + 30 + 2 * 1152,
    "MiMo-V2-Flash": 308_778_768_832 + 256 * 47,
    "MiniMax-M3": 427_040_132_864 + 128 * 57,
    "Step-3.7-Flash": 198_937_133_056 + 288 * 42,
    "Nemotron-H-56B-Base-8K": 56_324_350_464,
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": 31_577_937_344 + 128 * 23,
    "NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": 549_308_968_960 + 512 * 48,
    "Llama-3_3-Nemotron-Super-49B-v1": 49_867_145_216,
    "ModernBERT-large": 394_781_696,  # ModernBertModel; the checkpoint also has the head of its language model
}

# Safetensors totals that count something besides: what, and how much.
WITH_BUFFERS = {
    # rotary_emb.inv_freq, head_dim / 2 = 64 numbers a layer, was stored in the Llama 2 checkpoints.
    "Llama-2-7B": (6_738_417_664, 32 * 64),
    "Llama-2-13B": (13_015_866_880, 40 * 64),
    "Llama-2-70B": (68_976_653_312, 80 * 64),
    # The checkpoints store the tied lm_head a second time.
    "Qwen3-0.6B": (751_632_384, 151_936 * 1024),
    "Qwen3-1.7B": (2_031_739_904, 151_936 * 2048),
    # The same of Falcon, which engines tie (vLLM falcon.py: "only Falcon-11B doesn't share").
    "falcon-180B": (179_522_565_120, 65_024 * 14_848),
}

# (total, active) in billions as the model cards and reports say, with the tolerance that their rounding needs.
CARDS = {
    # https://mistral.ai/news/mixtral-of-experts and mixtral-8x22b
    "Mixtral-8x7B-v0.1": (46.7, 12.9, 0.005),
    "Mixtral-8x22B-v0.1": (141, 39, 0.01),
    # https://huggingface.co/Qwen/Qwen3-30B-A3B, Qwen3-235B-A22B
    "Qwen3-30B-A3B": (30.5, 3.3, 0.02),
    "Qwen3-235B-A22B": (235, 22, 0.01),
    # https://huggingface.co/deepseek-ai/DeepSeek-V3 (671B main model; the report counts no input embedding as active: 36.6)
    "DeepSeek-V3": (671, 37, 0.02),
    "DeepSeek-R1": (671, 37, 0.02),
    # https://huggingface.co/deepseek-ai/DeepSeek-V2-Lite: 15.7B and 2.4B, of which the input embedding (0.21B) is not counted.
    "DeepSeek-V2-Lite": (15.7, 2.4 + 0.21, 0.02),
    # https://huggingface.co/deepseek-ai/DeepSeek-V4-Flash: 284B and 13B, DeepSeek-V4-Pro: 1.6T and 49B, without the input embedding.
    "DeepSeek-V4-Flash": (284, 13 + 0.53, 0.025),
    "DeepSeek-V4-Pro": (1573, 49 + 0.93, 0.005),
    # https://huggingface.co/moonshotai/Kimi-K2-Instruct: 1T and 32B; the input embedding (1.17B) is left out there too.
    "Kimi-K2-Instruct": (1026, 32 + 1.17, 0.02),
    # https://huggingface.co/zai-org/GLM-4.5: 355B and 32B, GLM-4.5-Air: 106B and 12B; active again without the input embedding.
    "GLM-4.5": (355, 32 + 0.78, 0.03),
    "GLM-4.5-Air": (106, 12 + 0.62, 0.07),
    # https://huggingface.co/MiniMaxAI/MiniMax-M2: 230B and 10B; active without the input embedding (0.61B).
    "MiniMax-M2": (230, 10 + 0.61, 0.05),
    # https://huggingface.co/MiniMaxAI/MiniMax-M3: ~428B and ~23B; active without embedding and lm_head (1.23B each).
    "MiniMax-M3": (428, 23 + 2 * 1.23, 0.03),
    # https://github.com/stepfun-ai/Step-3.7-Flash: 198B and about 11B; active without embedding and lm_head (0.53B each).
    "Step-3.7-Flash": (198, 11 + 2 * 0.53, 0.02),
    # https://huggingface.co/moonshotai/Kimi-K3 and its report: 2.78T and 104B; active without the input embedding (1.17B).
    "Kimi-K3": (2780, 104 + 1.17, 0.005),
    # https://arxiv.org/abs/2508.10925, table 1: 20.91B and 116.83B; active 3.61B and 5.13B without the input embedding (0.579B).
    "gpt-oss-20b": (20.91, 3.61 + 0.579, 0.002),
    "gpt-oss-120b": (116.83, 5.13 + 0.579, 0.002),
    # https://huggingface.co/EleutherAI/gpt-j-6b: 6,053,381,344 in the original sharded model.
    "gpt-j-6b": (6.053381344, 6.053381344, 0.0005),
}


@pytest.mark.parametrize("name", EXACT)
def test_total_equals_the_published_safetensors_total(name):
    assert total_parameters(load_model(name)[0]) == EXACT[name]


@pytest.mark.parametrize("name", CLASSES)
def test_total_equals_the_class_and_its_buffers(name):
    assert total_parameters(load_model(name)[0]) == CLASSES[name]


def test_the_tower_of_llama_4_is_what_the_published_total_has_beside_the_text_model():
    """https://huggingface.co/meta-llama/Llama-4-Scout-17B-16E-Instruct: 108,641,793,536 parameters; its vision_config."""
    vision = {
        "hidden_size": 1408,
        "image_size": 336,
        "intermediate_size": 5632,
        "num_hidden_layers": 34,
        "patch_size": 14,
        "projector_input_dim": 4096,
        "projector_output_dim": 4096,
        "vision_output_dim": 4096,
    }
    config = {**preset_config("Llama-4-Scout-17B-16E-Instruct"), "vision_config": vision}
    assert total_parameters(architecture_from_config(config, "scout")) == 108_641_793_536


@pytest.mark.parametrize("name", WITH_BUFFERS)
def test_total_equals_the_published_total_without_what_is_no_parameter(name):
    published, beside = WITH_BUFFERS[name]
    assert total_parameters(load_model(name)[0]) == published - beside


@pytest.mark.parametrize("name", POOLERS)
def test_total_equals_the_published_total_without_the_pooler(name):
    published, pooler = POOLERS[name]
    assert total_parameters(load_model(name)[0]) == published - pooler


@pytest.mark.parametrize("name", CARDS)
def test_total_and_active_agree_with_the_cards(name):
    total, active, tolerance = CARDS[name]
    arch, _ = load_model(name)
    assert total_parameters(arch) / 1e9 == pytest.approx(total, rel=0.01)
    assert active_parameters(arch) / 1e9 == pytest.approx(active, rel=tolerance)


def prediction_layer(arch):
    """Parameters of a multi-token-prediction layer of DeepSeek-V3 and GLM-4.5 as published.

    One more layer, a projection of 2·d to d, three norms, and copies of the embedding and lm_head.
    """
    return (
        layer_parameters(arch.kinds[-1], arch.hidden)
        + 2 * arch.hidden**2
        + 3 * arch.hidden
        + 2 * arch.vocabulary * arch.hidden
    )


def block_scales(arch):
    """Count the fp32 scales of 128 × 128 blocks, one matrix at a time."""
    kinds = [arch.kinds[index] for index in arch.pattern]
    return sum(scales_of(kind, arch.hidden) for kind in kinds)


def scales_of(kind, hidden):
    count = 0
    for linear in layer_linears(kind, hidden):
        if linear.fmt.name == "fp8":
            matrices = linear.copies * (2 if "gate_up" in linear.name else 1)
            outputs = linear.outputs // 2 if "gate_up" in linear.name else linear.outputs
            count += matrices * -(-linear.inputs // 128) * -(-outputs // 128)
    return count


@pytest.mark.parametrize(("name", "published"), [("GLM-4.5", 358_337_791_296), ("GLM-4.5-Air", 110_468_824_832)])
def test_glm_45_plus_its_prediction_layer_is_the_published_total(name, published):
    arch, _ = load_model(name)
    assert total_parameters(arch) + prediction_layer(arch) == published
    assert any("multi-token-prediction" in note for note in arch.notes)


def test_deepseek_v3_plus_prediction_layer_and_scales_is_the_published_total():
    arch, _ = load_model("DeepSeek-V3")
    assert total_parameters(arch) == 671_026_419_200
    scales = block_scales(arch) + scales_of(arch.kinds[-1], arch.hidden)
    assert total_parameters(arch) + prediction_layer(arch) + scales == 684_531_386_000
    assert arch.notes


def test_minimax_m2_plus_its_scales_is_the_published_total():
    arch, _ = load_model("MiniMax-M2")
    assert total_parameters(arch) + block_scales(arch) == 228_703_644_928


def test_kimi_k2_is_within_a_millionth_of_the_published_total():
    assert total_parameters(load_model("Kimi-K2-Instruct")[0]) == pytest.approx(1_026_408_235_864, rel=1e-6)


def test_every_preset_has_a_published_count():
    covered = {*EXACT, *WITH_BUFFERS, *CARDS, *CLASSES, *POOLERS}
    assert set(model_names()) == covered


def dense(model_type, hidden, inner, heads, kv_heads, layers, vocabulary, **more):
    return {
        "model_type": model_type,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "num_hidden_layers": layers,
        "vocab_size": vocabulary,
        "torch_dtype": "bfloat16",
        **more,
    }


OTHERS = {
    # safetensors totals of the repositories named
    "microsoft/Phi-4-mini-instruct": (
        dense("phi3", 3072, 8192, 24, 8, 32, 200_064, tie_word_embeddings=True, sliding_window=262_144),
        3_836_021_760,
    ),
    "mistralai/Mistral-Nemo-Instruct-2407": (
        dense("mistral", 5120, 14_336, 32, 8, 40, 131_072, head_dim=128, sliding_window=None),
        12_247_782_400,
    ),
    "microsoft/phi-2": (dense("phi", 2560, 10_240, 32, 32, 32, 51_200), 2_779_683_840),
    "allenai/OLMo-2-1124-7B": (dense("olmo2", 4096, 11_008, 32, 32, 32, 100_352), 7_298_617_344),
    "allenai/OLMo-2-1124-13B": (dense("olmo2", 5120, 13_824, 40, 40, 40, 100_352), 13_716_198_400),
    "HuggingFaceTB/SmolLM3-3B-Base": (dense("smollm3", 2048, 11_008, 16, 4, 36, 128_256), 3_075_098_624),
    "google/gemma-2b": (dense("gemma", 2048, 16_384, 8, 1, 18, 256_000, head_dim=256), 2_506_172_416),
    "google/gemma-3-1b-it": (
        dense("gemma3_text", 1152, 6912, 4, 1, 26, 262_144, head_dim=256, sliding_window=512, sliding_window_pattern=6),
        999_885_952,
    ),
    "bigcode/starcoder2-3b": (
        dense("starcoder2", 3072, 12_288, 24, 2, 30, 49_152, sliding_window=4096, use_bias=True),
        3_030_371_328,
    ),
    "CohereForAI/c4ai-command-r-v01": (dense("cohere", 8192, 22_528, 64, 64, 40, 256_000), 34_980_831_232),
    "deepseek-ai/deepseek-coder-6.7b-instruct": (dense("llama", 4096, 11_008, 32, 32, 32, 32_256), 6_740_512_768),
    "codellama/CodeLlama-7b-hf": (dense("llama", 4096, 11_008, 32, 32, 32, 32_016), 6_738_546_688),
    "ibm-granite/granite-3.1-8b-instruct": (
        dense("granite", 4096, 12_800, 32, 8, 40, 49_155, tie_word_embeddings=True),
        8_170_848_256,
    ),
    # The prediction layer (a Qwen 2 layer, a projection of 2·d to d, three norms) is not served.
    "XiaomiMiMo/MiMo-7B-Base": (
        dense("mimo", 4096, 11_008, 32, 8, 36, 151_680, head_dim=128, attention_bias=True, num_nextn_predict_layers=1),
        7_833_409_536 - (2 * 4096**2 + 3 * 4096) - (2 * 4096 * 5120 + 6144 + 3 * 4096 * 11_008 + 2 * 4096),
    ),
    "Qwen/Qwen1.5-MoE-A2.7B": (
        dense(
            "qwen2_moe",
            2048,
            5632,
            16,
            16,
            24,
            151_936,
            num_experts=60,
            num_experts_per_tok=4,
            moe_intermediate_size=1408,
            shared_expert_intermediate_size=5632,
        ),
        14_315_784_192,
    ),
    "microsoft/Phi-3.5-MoE-instruct": (
        dense(
            "phimoe",
            4096,
            6400,
            32,
            8,
            32,
            32_064,
            num_local_experts=16,
            num_experts_per_tok=2,
            attention_bias=True,
            lm_head_bias=True,
        ),
        41_873_153_344,
    ),
    "zai-org/GLM-4-9B-0414": (
        dense("glm4", 4096, 13_696, 32, 2, 40, 151_552, head_dim=128, attention_bias=True),
        9_400_279_040,
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_models_of_each_family_equal_their_published_totals(name):
    config, published = OTHERS[name]
    assert total_parameters(architecture_from_config(config, name)) == published


def test_vision_towers_are_no_part_of_the_text_model():
    arch, _ = load_model("gemma-3-12b-it")
    # https://arxiv.org/abs/2503.19786, table 1: vision encoder 417M, embedding 1,012M, the rest 10,759M
    assert arch.vision_parameters == pytest.approx(417e6, rel=0.012)
    assert text_parameters(arch) == pytest.approx(1_012e6 + 10_759e6, rel=0.001)
    assert active_parameters(arch) == text_parameters(arch)
