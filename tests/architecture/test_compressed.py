"""DeepSeek-V4: parameters of each kind of layer by hand, formats, cached bytes, and what is refused."""

import pytest

from costmodel.architecture.counts import (
    attention_extras,
    cached_key_bytes,
    index_bytes_per_token,
    kv_bytes_per_token,
    layer_kv_bytes,
    layer_parameters,
    parameter_table,
)
from costmodel.architecture.families import architecture_from_config
from costmodel.architecture.linears import layer_linears
from costmodel.architecture.source import load_model
from costmodel.equations.compressed import Compressed
from costmodel.hardware.errors import InputError, UnsupportedError
from tests.architecture.mixed_configs import DEEPSEEK_V4

FLASH = load_model("DeepSeek-V4-Flash")[0]
PRO = load_model("DeepSeek-V4-Pro")[0]
D, H, HEAD, RANK, GROUPS, OUT = 4096, 64, 512, 1024, 8, 1024


def kinds_of(arch):
    """Return the first layer of each compression, its router's bias aside."""
    found = {}
    for index in arch.pattern:
        found[arch.kinds[index].attention.compression] = arch.kinds[index]
    return found


def test_what_the_layers_see():
    reaches = [FLASH.kinds[index].attention.reach for index in FLASH.pattern]
    selective, heavy = Compressed(4, 128, 512), Compressed(128, 128)
    assert reaches == [128, 128, *[selective, heavy] * 20, selective]
    pro = [PRO.kinds[index].attention.reach for index in PRO.pattern]
    assert pro == [heavy, heavy, *[Compressed(4, 128, 1024), heavy] * 29, Compressed(4, 128, 1024)]


def test_a_layer_of_each_kind_by_hand():
    """Two low-rank queries, one key that is a value, outputs in 8 groups; compressors make a value and a weight of each element."""
    common = D * (RANK + HEAD) + RANK * H * HEAD + GROUPS * (H * HEAD // GROUPS) * OUT + GROUPS * OUT * D
    common += RANK + HEAD + H  # norms of latent and key, a sink for every head
    experts = 256 * 3 * D * 2048 + 3 * D * 2048 + 256 * D + 256
    streams = 2 * (4 * D * 24 + 24 + 3)
    rest = experts + streams + 2 * D
    heavy = D * 2 * HEAD + 128 * HEAD + HEAD
    selective = D * 4 * HEAD + 4 * 2 * HEAD + HEAD
    indexer = RANK * 64 * 128 + D * 64 + D * 4 * 128 + 4 * 2 * 128 + 128
    found = kinds_of(FLASH)
    assert layer_parameters(found[0], D) == common + rest - 256  # the first layers' experts are in a table by token
    assert layer_parameters(found[128], D) == common + heavy + rest
    assert layer_parameters(found[4], D) == common + selective + indexer + rest


def test_formats():
    """4-bit experts with a scale per 32, 8 bits with one per 128 × 128, compressors in 16 bits, hyper-connections in 32."""
    kind = kinds_of(FLASH)[4]
    stored = {linear.name: (linear.fmt.name, linear.fmt.scale_bits) for linear in layer_linears(kind, D)}
    assert stored["experts.gate_up_proj"] == ("mxfp4", 8)
    assert {stored[name] for name in ("qkv_a_proj", "q_b_proj", "o_a_proj", "o_proj", "indexer.wq_b")} == {("fp8", 8)}
    assert {stored[name][0] for name in ("compressor", "indexer.compressor", "indexer.weights_proj", "router")} == {
        "bf16"
    }
    assert stored["hyper_connections"] == ("fp32", 0)
    plain = architecture_from_config({**DEEPSEEK_V4, "expert_dtype": "fp8"}, "base")
    assert {
        (linear.fmt.name, linear.fmt.scale_bits)
        for linear in layer_linears(plain.kinds[0], D)
        if linear.group == "experts"
    } == {("fp8", 32)}


def test_tensor_parallelism_divides_heads_and_groups():
    """Of 4 GPUs each has 16 heads and 2 groups, and the latent, the key, compressors and hyper-connections whole."""
    kind = kinds_of(FLASH)[4]
    whole, part = ({linear.name: linear for linear in layer_linears(kind, D, tp)} for tp in (1, 4))
    for name, linear in whole.items():
        divided = name in ("q_b_proj", "o_a_proj", "o_proj") or name.startswith(("experts", "shared_expert"))
        assert part[name].weights == linear.weights / (4 if divided else 1), name
    assert (part["o_a_proj"].inputs, part["o_a_proj"].copies) == (H * HEAD // GROUPS, 2)
    assert attention_extras(kind.attention, 4) == attention_extras(kind.attention) - 48
    rows = {(row.module, row.format): row.count for row in parameter_table(FLASH, 4)}
    assert rows["hyper-connections", "fp32"] == 43 * 2 * 4 * D * 24 + 4 * D * 4


def test_cached_bytes():
    """One vector of 512: 1,024 B, or 448 + 2·64 + 8 B in 8 bits; the entries' share of them; the indexer's 132 B for every 4 tokens."""
    window, selective, heavy = (kinds_of(FLASH)[key].attention for key in (0, 4, 128))
    assert (cached_key_bytes(window, 2.0), cached_key_bytes(window, 1.0)) == (1024, 584)
    assert cached_key_bytes(window, 1.0, 8) == 584  # whole on every GPU
    assert layer_kv_bytes(window, 1.0) == 584
    assert layer_kv_bytes(heavy, 1.0) == 584 + 584 / 128
    assert index_bytes_per_token(selective) == 33
    assert layer_kv_bytes(selective, 1.0) == 584 + 584 / 4 + 33
    assert kv_bytes_per_token(FLASH) == 43 * 1024 + 21 * (256 + 33) + 20 * 8
    assert FLASH.kv_dtype == "fp8"  # vLLM's kernels take no other on Hopper


def test_the_published_cache_of_a_million_tokens():
    """DeepSeek-V4-Pro, 2²⁰ tokens in bf16, the indexer's keys too: 9.62 GiB (vLLM's post of its release)."""
    entries = kv_bytes_per_token(PRO) - 61 * 1024 - 30 * 33
    assert (entries + 30 * 2 * 128 / 4) * 2**20 / 2**30 == pytest.approx(9.62, abs=0.005)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"compress_ratios": [4, 128]}, InputError, "2 entries for 43 layers"),
        ({"compress_ratios": [2] * 44}, UnsupportedError, "keys compressed by 2"),
        ({"expert_dtype": "int4"}, UnsupportedError, "expert_dtype 'int4'"),
        ({"expert_dtype": None}, InputError, "expert_dtype is missing"),
        ({"num_key_value_heads": 2}, UnsupportedError, "num_key_value_heads 2"),
        ({"o_groups": 7}, InputError, "o_groups 7 does not divide"),
        ({"vision_n_layers": 24}, UnsupportedError, "vision_n_layers = 24 is unknown"),
    ],
)
def test_what_is_not_known_is_refused(change, error, said):
    with pytest.raises(error, match=said):
        architecture_from_config({**DEEPSEEK_V4, **change}, "model")
