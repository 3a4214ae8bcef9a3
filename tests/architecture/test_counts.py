import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from costmodel.architecture.counts import (
    active_parameters,
    checkpoint_bytes,
    kv_bytes_per_token,
    kv_elements_per_token,
    parameter_table,
    total_parameters,
    weight_bytes_per_gpu,
)
from costmodel.architecture.families import architecture_from_config
from costmodel.architecture.formats import PLAIN_FORMATS
from costmodel.architecture.source import load_model, model_names
from costmodel.architecture.types import Architecture, Attention, FeedForward, LayerFormats, LayerKind


@st.composite
def configs(draw):
    kv_heads = draw(st.integers(1, 8))
    return {
        "model_type": "llama",
        "hidden_size": draw(st.integers(1, 512)),
        "intermediate_size": draw(st.integers(1, 2048)),
        "num_attention_heads": kv_heads * draw(st.integers(1, 8)),
        "num_key_value_heads": kv_heads,
        "head_dim": draw(st.integers(1, 256)),
        "num_hidden_layers": draw(st.integers(1, 12)),
        "vocab_size": draw(st.integers(1, 5000)),
        "attention_bias": draw(st.booleans()),
        "mlp_bias": draw(st.booleans()),
        "tie_word_embeddings": draw(st.booleans()),
        "torch_dtype": "bfloat16",
    }


def brute_force(c):
    """Count a Llama tensor by tensor, as modeling_llama.py declares them."""
    hidden, inner = c["hidden_size"], c["intermediate_size"]
    q, kv = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
    shapes = [(c["vocab_size"], hidden), (hidden,)]
    if not c["tie_word_embeddings"]:
        shapes.append((c["vocab_size"], hidden))
    for _ in range(c["num_hidden_layers"]):
        shapes += [(hidden,), (hidden,), (q, hidden), (kv, hidden), (kv, hidden), (hidden, q)]
        shapes += [(inner, hidden), (inner, hidden), (hidden, inner)]
        if c["attention_bias"]:
            shapes += [(q,), (kv,), (kv,), (hidden,)]
        if c["mlp_bias"]:
            shapes += [(inner,), (inner,), (hidden,)]
    return sum(sympy.prod(shape) for shape in shapes)


@given(configs())
def test_total_equals_a_count_tensor_by_tensor(config):
    arch = architecture_from_config(config, "random")
    assert total_parameters(arch) == brute_force(config)
    assert active_parameters(arch) == total_parameters(arch)
    assert checkpoint_bytes(arch) == 2 * total_parameters(arch)


@given(configs(), st.sampled_from([1, 2, 4, 8, 16]))
def test_kv_cache_is_divided_but_never_below_one_head(config, tp):
    arch = architecture_from_config(config, "random")
    heads = max(config["num_key_value_heads"] / tp, 1)
    assert kv_bytes_per_token(arch, 2, tp) == 2 * 2 * heads * config["head_dim"] * config["num_hidden_layers"]


def symbolic(kind, **attention):
    d, d_ff, V = sympy.symbols("d d_ff V", positive=True)
    formats = LayerFormats.uniform(PLAIN_FORMATS["bf16"])
    layer = LayerKind(Attention(kind, **attention), FeedForward("dense", d_ff), formats)
    return Architecture("symbols", "llama", d, V, (layer,), (0, 0, 0), "bf16", tied_embeddings=False)


def test_counts_work_on_symbols():
    d, d_ff, V, h, g, w = sympy.symbols("d d_ff V h g w", positive=True)
    arch = symbolic("gqa", query_heads=h, kv_heads=g, head_dim=w, value_head_dim=w)
    layer = 2 * d * h * w + 2 * d * g * w + 3 * d * d_ff + 2 * d
    assert sympy.expand(total_parameters(arch) - (3 * layer + 2 * V * d + d)) == 0
    assert sympy.expand(checkpoint_bytes(arch) - 2 * total_parameters(arch)) == 0
    assert sympy.expand(kv_bytes_per_token(arch, 2) - 3 * 2 * 2 * g * w) == 0
    assert kv_elements_per_token(arch.kinds[0].attention, 4).subs({g: 2, w: 128}) == 2 * 128


def test_latent_attention_works_on_symbols():
    h, w, v, r, p = sympy.symbols("h w v r p", positive=True)
    arch = symbolic("mla", query_heads=h, kv_heads=h, head_dim=w, value_head_dim=v, kv_lora_rank=r, rope_head_dim=p)
    assert sympy.expand(kv_bytes_per_token(arch, 2, 8) - 3 * 2 * (r + p)) == 0


@pytest.mark.parametrize("name", model_names())
@pytest.mark.parametrize("tp", [1, 2, 8])
def test_gpus_together_hold_at_least_the_checkpoint(name, tp):
    arch, _ = load_model(name)
    whole = checkpoint_bytes(arch)
    assert weight_bytes_per_gpu(arch, tp) * tp >= whole * (1 - 1e-12)
    assert weight_bytes_per_gpu(arch, tp) <= whole


def test_expert_parallelism_deals_whole_experts():
    arch, _ = load_model("Mixtral-8x7B-v0.1")
    rows = {row.module: row for row in parameter_table(arch, tp=4, ep=4)}
    assert rows["experts"].count == 32 * 2 * 3 * 4096 * 14_336
    assert rows["attention"].count == 32 * (4096 * (32 + 2 * 8) * 128 + 4096 * 4096) / 4


def test_table_of_a_mixture_names_its_modules():
    arch, _ = load_model("DeepSeek-V3")
    table = {row.module: row for row in parameter_table(arch)}
    assert list(table) == [
        "embedding",
        "attention",
        "feed-forward",
        "router",
        "experts",
        "shared expert",
        "lm_head",
        "norms, biases, sinks",
    ]
    assert table["experts"].count == 58 * 256 * 3 * 7168 * 2048
    assert table["experts"].format == "fp8"
    assert table["router"].format == "bf16"
    assert table["experts"].bytes == pytest.approx(table["experts"].count * (1 + 4 / 16_384))
