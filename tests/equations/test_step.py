"""Every operator of one step, counted by hand.

The step: a chunk of 10 tokens after 5 cached ones, and 3 streams at context 300 (or as said). Then N = 13 tokens, R = 4 rows,
A = 10·5 + 10·11/2 = 105 pairs, C_p = 15 and C = 3·301 = 903 KV tokens.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from costmodel.architecture.formats import PLAIN_FORMATS
from costmodel.architecture.types import Architecture, Attention, FeedForward, LayerFormats, LayerKind
from costmodel.building import build_parameters
from costmodel.deployment import Deployment, deploy
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.step import OperatorTime, step_operators, step_times
from costmodel.equations.work import Chunk, Decodes, make_work
from tests.strategies import calibration_of, deployment_of

N, R = 13, 4
Counted = dict[str, tuple[float, float]]
"""Operator → (FLOPs, bytes)."""


def operators_of(
    deployment: Deployment, chunks: tuple[Chunk, ...] = (Chunk(10, 5),), streams: int = 3, context: int = 300
) -> dict[str, OperatorTime[float]]:
    """Return the operators of the step at datasheet rates, by name."""
    parameters = build_parameters(deployment)
    work = make_work(chunks, [Decodes(streams, context)] if streams else [], parameters.windows)
    found = step_operators(parameters, work)
    named = {operator.name: operator for operator in found}
    assert len(named) == len(found), "operators are told apart by name"
    return named


def check(found: dict[str, OperatorTime[float]], expected: Counted) -> None:
    """Compare names, FLOPs and bytes, exactly but for rounding."""
    assert set(found) == set(expected)
    for name, (flops, moved) in expected.items():
        assert found[name].flops == pytest.approx(flops, rel=1e-13), name
        assert found[name].bytes == pytest.approx(moved, rel=1e-13), name


def test_llama_3_1_8b_by_hand() -> None:
    # 32 layers, d = 4096, 32 query and 8 KV heads of 128, d_ff = 14336, V = 128256, bf16.
    # GEMM k → m: 2·k·m·N FLOPs; (k·m + (k + m)·N)·2 bytes; 32 of each.
    found = operators_of(deploy("Llama-3.1-8B", "h100-sxm"))
    check(
        found,
        {
            "qkv_proj": (2 * 4096 * 6144 * N * 32, 2 * (4096 * 6144 + 10240 * N) * 32),  # m = (32 + 2·8)·128
            "o_proj": (2 * 4096 * 4096 * N * 32, 2 * (4096 * 4096 + 8192 * N) * 32),
            "gate_up_proj": (2 * 4096 * 28672 * N * 32, 2 * (4096 * 28672 + 32768 * N) * 32),  # m = 2·14336
            "down_proj": (2 * 14336 * 4096 * N * 32, 2 * (14336 * 4096 + 18432 * N) * 32),
            "lm_head": (2 * 4096 * 128256 * R, 2 * (4096 * 128256 + 132352 * R)),
            # 4·h·d_h·L·A = 4·32·128·32·105; K and V: 2·8·128·2 B·32 layers = 131,072 B per KV token
            "prefill_attention": (4 * 32 * 128 * 32 * 105, 131_072 * 15),
            "decode_attention": (4 * 32 * 128 * 32 * 903, 131_072 * 903),
        },
    )
    for operator in found.values():  # max(FLOPs/F, bytes/W), H100 SXM: 989 TFLOP/s and 3.35 TB/s
        expected = max(operator.flops / 989e12, operator.bytes / 3.35e12)
        assert operator.seconds == pytest.approx(expected, rel=1e-14)
        assert operator.bound == "memory"


def test_lm_head_serves_one_row_per_sequence_even_for_partial_chunks() -> None:
    # vLLM computes logits for every scheduled sequence: chunks and streams alike, never for every token.
    deployment = deploy("Llama-3.1-8B", "h100-sxm")
    head = operators_of(deployment, (Chunk(4000, 0), Chunk(96, 7000)), streams=30)["lm_head"]
    assert head.flops == 2 * 4096 * 128256 * 32


def test_tied_embeddings_still_cost_an_lm_head() -> None:
    # Llama-3.2-1B ties them: 2·V·d FLOPs per row and V·d·b bytes per step all the same (torchtitan pull request 3225).
    head = operators_of(deploy("Llama-3.2-1B", "h100-sxm"))["lm_head"]
    assert (head.flops, head.bytes) == (2 * 2048 * 128256 * R, 2 * (2048 * 128256 + (2048 + 128256) * R))


def test_mixtral_by_hand() -> None:
    # 32 layers, d = 4096, 8 experts of 14336, 2 per token, V = 32000.
    touched = 8 * (1 - (1 - 2 / 8) ** N)  # E(1 − (1 − k/E)^N) = 7.81 experts
    found = operators_of(deploy("Mixtral-8x7B-v0.1", "h100-sxm"))
    check(
        found,
        {
            "qkv_proj": (2 * 4096 * 6144 * N * 32, 2 * (4096 * 6144 + 10240 * N) * 32),
            "o_proj": (2 * 4096 * 4096 * N * 32, 2 * (4096 * 4096 + 8192 * N) * 32),
            "router": (2 * 4096 * 8 * N * 32, 2 * (4096 * 8 + 4104 * N) * 32),
            "experts.gate_up_proj": (
                2 * 4096 * 28672 * 2 * N * 32,
                2 * (4096 * 28672 * touched + 32768 * 2 * N) * 32,
            ),
            "experts.down_proj": (2 * 14336 * 4096 * 2 * N * 32, 2 * (14336 * 4096 * touched + 18432 * 2 * N) * 32),
            "lm_head": (2 * 4096 * 32000 * R, 2 * (4096 * 32000 + 36096 * R)),
            "prefill_attention": (4 * 32 * 128 * 32 * 105, 131_072 * 15),
            "decode_attention": (4 * 32 * 128 * 32 * 903, 131_072 * 903),
        },
    )


def test_gpt_oss_20b_by_hand() -> None:
    # 12 layers of window 128 and 12 full; d = 2880, 64 query and 8 KV heads of 64; 32 experts of 2880, 4 per token, V = 201088.
    # Experts in mxfp4: 4 bits and one 8-bit scale per 32 = 0.53125 B; the H100 has no fp4 units and computes in bf16.
    touched = 32 * (1 - (1 - 4 / 32) ** N)
    found = operators_of(deploy("gpt-oss-20b", "h100-sxm"))
    per_token = 2 * 8 * 64 * 2 * 12  # K and V, 2 B, 12 layers: 24,576 B
    check(
        found,
        {
            "qkv_proj": (2 * 2880 * 5120 * N * 24, 2 * (2880 * 5120 + 8000 * N) * 24),
            "o_proj": (2 * 4096 * 2880 * N * 24, 2 * (4096 * 2880 + 6976 * N) * 24),
            "router": (2 * 2880 * 32 * N * 24, 2 * (2880 * 32 + 2912 * N) * 24),
            "experts.gate_up_proj": (
                2 * 2880 * 5760 * 4 * N * 24,
                (2880 * 5760 * 0.53125 * touched + 2 * 8640 * 4 * N) * 24,
            ),
            "experts.down_proj": (
                2 * 2880 * 2880 * 4 * N * 24,
                (2880 * 2880 * 0.53125 * touched + 2 * 5760 * 4 * N) * 24,
            ),
            "lm_head": (2 * 2880 * 201088 * R, 2 * (2880 * 201088 + 203968 * R)),
            "prefill_attention.window_128": (4 * 64 * 64 * 12 * 105, per_token * 15),
            "prefill_attention.full": (4 * 64 * 64 * 12 * 105, per_token * 15),
            "decode_attention.window_128": (4 * 64 * 64 * 12 * 3 * 128, per_token * 3 * 128),  # min(301, 128)
            "decode_attention.full": (4 * 64 * 64 * 12 * 903, per_token * 903),
        },
    )


def test_deepseek_v3_by_hand_on_eight_gpus() -> None:
    # 61 layers (3 dense), d = 7168, 128 heads: 16 per GPU; latent 512 + rotary 64; d_qk = 192, d_v = 128; query rank 1536.
    # fp8 with one fp32 scale per 128×128 block: 1 + 4/16384 B; inputs quantised to 1 B, outputs in bf16. V = 129280 in bf16.
    w = 1 + 4 / 16384
    touched = 256 * (1 - (1 - 8 / 256) ** N)

    def gemm(k: int, m: int, layers: int) -> tuple[float, float]:
        return 2 * k * m * N * layers, (k * m * w + (k + 2 * m) * N) * layers

    found = operators_of(deploy("DeepSeek-V3", "h200", tp=8))
    check(
        found,
        {
            "q_a_proj": gemm(7168, 1536, 61),  # the compressions are not divided by TP
            "q_b_proj": gemm(1536, 16 * 192, 61),
            "kv_a_proj": gemm(7168, 576, 61),
            "kv_b_proj": gemm(512, 16 * (128 + 128), 61),
            "o_proj": gemm(16 * 128, 7168, 61),
            "gate_up_proj": gemm(7168, 2 * 18432 // 8, 3),
            "down_proj": gemm(18432 // 8, 7168, 3),
            "router": (2 * 7168 * 256 * N * 58, 2 * (7168 * 256 + 7424 * N) * 58),
            "shared_expert.gate_up_proj": gemm(7168, 512, 58),
            "shared_expert.down_proj": gemm(256, 7168, 58),
            "experts.gate_up_proj": (
                2 * 7168 * 512 * 8 * N * 58,
                (7168 * 512 * w * touched + (7168 + 2 * 512) * 8 * N) * 58,
            ),
            "experts.down_proj": (
                2 * 256 * 7168 * 8 * N * 58,
                (256 * 7168 * w * touched + (256 + 2 * 7168) * 8 * N) * 58,
            ),
            "lm_head": (2 * 7168 * 16160 * R, 2 * (7168 * 16160 + 23328 * R)),
            # Prefill on expanded heads: 2·h·(d_qk + d_v) per pair.
            "prefill_attention": (2 * 16 * (192 + 128) * 61 * 105, 576 * 2 * 61 * 15),
            # Decode on the latent: scores over 512 + 64, values over 512; the cache once, on every GPU.
            "decode_attention": (2 * 16 * (576 + 512) * 61 * 903, 576 * 2 * 61 * 903),
            # 122 messages, a ring sends 2(t − 1)/t of each.
            "all_reduce": (0, 122 * 2 * 7 / 8 * 7168 * 2 * N),
        },
    )


def test_mla_caches_576_elements_per_token_and_layer() -> None:
    # kv_lora_rank 512 + rope 64, no factor 2, replicated over TP (LMCache pull request 694): 61·576·2 = 70,272 B.
    for tp in (1, 8):
        (kernel,) = build_parameters(deploy("DeepSeek-V3", "h200", tp=tp)).attention
        assert kernel.kv_bytes_per_token == 70_272


@pytest.mark.parametrize(
    ("model", "tokens", "share"),
    [
        ("Mixtral-8x7B-v0.1", 1, 0.25),  # k/E
        ("Mixtral-8x7B-v0.1", 16, 0.98998),  # 1 − 0.75^16: nearly all
        ("DeepSeek-V3", 16, 0.39829),  # 1 − (31/32)^16: 40 %
        ("DeepSeek-V3", 4096, 1.0),
    ],
)
def test_touched_experts(model: str, tokens: int, share: float) -> None:
    # E(1 − (1 − k/E)^N): neither all nor k (vllm-fit issue 27).
    parameters = build_parameters(deploy(model, "h200"))
    expert = parameters.experts[0]
    found = operators_of(deploy(model, "h200"), (), streams=tokens)[expert.name]
    read = found.bytes - expert.io_bytes_per_token * tokens
    assert read / expert.weight_bytes == pytest.approx(share, rel=1e-5)


# --- parallelism ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_tensor_parallelism_divides_work_and_cache(tp: int) -> None:
    alone = operators_of(deploy("Llama-3.1-8B", "h100-sxm"))
    divided = operators_of(deploy("Llama-3.1-8B", "h100-sxm", tp=tp))
    for name, operator in alone.items():
        assert divided[name].flops == pytest.approx(operator.flops / tp)
    assert divided["decode_attention"].bytes == pytest.approx(alone["decode_attention"].bytes / tp)
    assert "all_reduce" not in alone
    # Two all-reduces per layer; every GPU sends 2(t − 1)/t of N·d·b_a bytes over 450 GB/s.
    reduce = divided["all_reduce"]
    assert reduce.bytes == pytest.approx(64 * 2 * (tp - 1) / tp * N * 4096 * 2)
    assert reduce.seconds == pytest.approx(reduce.bytes / 450e9)
    assert (reduce.bound, reduce.group) == ("link", "communication")


def test_kv_heads_are_replicated_beyond_their_number() -> None:
    # Qwen3-30B-A3B: 4 KV heads of 128, 48 layers. At TP 8 every GPU holds one head, as at TP 4.
    by_tp = {tp: operators_of(deploy("Qwen3-30B-A3B", "h100-sxm", tp=tp)) for tp in (1, 2, 4, 8)}
    per_token = {tp: found["decode_attention"].bytes / 903 for tp, found in by_tp.items()}
    assert per_token == {1: 98_304, 2: 49_152, 4: 24_576, 8: 24_576}  # 2·4·128·2·48 = 98,304 B
    # qkv at TP 8: 4 query heads and the replicated K and V head, 6·128 columns.
    assert by_tp[8]["qkv_proj"].flops == 2 * 2048 * 768 * N * 48
    # FLOPs of attention still divide by query heads.
    assert by_tp[8]["decode_attention"].flops == by_tp[1]["decode_attention"].flops / 8


def test_gqa_reduces_bytes_and_not_flops() -> None:
    # Llama-3.1-8B (8 KV heads) against Llama-2-7B (32), both 32 query heads of 128 in 32 layers.
    grouped, full = (operators_of(deploy(model, "h100-sxm")) for model in ("Llama-3.1-8B", "Llama-2-7B"))
    assert grouped["decode_attention"].flops == full["decode_attention"].flops
    assert grouped["decode_attention"].bytes == full["decode_attention"].bytes / 4


def test_expert_parallelism_by_hand() -> None:
    # DeepSeek-V3 on 8 GPUs, attention replicated (tp 1): each GPU has 32 whole experts; the 8 replicas of N tokens each send
    # N·k/8·8 = N·k visits to every GPU; an expert stays idle with (1 − 8/256)^(8·N).
    found = operators_of(deploy("DeepSeek-V3", "h200", ep=8))
    w, touched = 1 + 4 / 16384, 32 * (1 - (1 - 8 / 256) ** (8 * N))
    experts = found["experts.gate_up_proj"]
    assert experts.flops == pytest.approx(2 * 7168 * 4096 * 8 * N * 58)
    assert experts.bytes == pytest.approx((7168 * 4096 * w * touched + (7168 + 2 * 4096) * 8 * N) * 58)
    # Dispatch and combine: N·k·d·b_a·(e − 1)/e bytes each, in 58 layers; no all-reduce at tp 1.
    for name in ("expert_dispatch", "expert_combine"):
        assert found[name].bytes == pytest.approx(58 * N * 8 * 7168 * 2 * 7 / 8)
        assert found[name].seconds == pytest.approx(found[name].bytes / 450e9)
    assert "all_reduce" not in found


def test_expert_parallelism_over_tensor_parallel_attention() -> None:
    # Qwen3-30B-A3B, tp 2, ep 4: two replicas of attention; 32 of 128 experts per GPU; one all-reduce per layer (attention)
    # because dispatch and combine replace the second.
    found = operators_of(deploy("Qwen3-30B-A3B", "h100-sxm", tp=2, ep=4))
    assert found["all_reduce"].bytes == pytest.approx(48 * 2 * 1 / 2 * N * 2048 * 2)
    # A GPU sends its half of the tokens: N/2·k·d·2·3/4.
    assert found["expert_dispatch"].bytes == pytest.approx(48 * N / 2 * 8 * 2048 * 2 * 3 / 4)
    # r·N·k/e = 2·N·8/4 visits arrive.
    assert found["experts.down_proj"].flops == pytest.approx(2 * 768 * 2048 * (2 * N * 8 / 4) * 48)
    touched = 1 - (1 - 8 / 128) ** (2 * N)
    weights = 768 * 2048 * 2 * 32 * 48
    assert found["experts.down_proj"].bytes == pytest.approx(weights * touched + 2 * 2816 * 4 * N * 48)


def test_a_pipeline_adds_sends_and_nothing_else() -> None:
    whole = operators_of(deploy("Llama-3.1-8B", "h100-sxm", tp=2))
    staged = operators_of(deploy("Llama-3.1-8B", "h100-sxm", tp=2, pp=4))
    sends = staged.pop("pipeline_send")
    # A token passes all stages: Σ stages + 3 transfers of d·b_a, shared by the 2 GPUs of a stage.
    assert sends.bytes == 3 * N * 4096 * 2 / 2
    assert staged == whole


# --- terms of the calibrated rung -------------------------------------------------------------------------------------


def calibrated_operators(operators: dict[str, Any], streams: int, chunk: Chunk | None = None, tp: int = 1) -> Any:
    """Return the calibrated operators of a step of Llama-3.1-8B, by name."""
    rates = CalibratedRates(calibration_of(operators))
    parameters = build_parameters(deploy("Llama-3.1-8B", "h100-sxm", tp=tp), rates)
    work = make_work([chunk] if chunk else [], [Decodes(streams, 300)], parameters.windows)
    return {operator.name: operator for operator in step_operators(parameters, work)}


def form(name: str, **values: float) -> dict[str, Any]:
    """Return an operator of a calibration."""
    return {"form": name, "parameters": {key: {"value": value} for key, value in values.items()}}


def test_smooth_roofline_by_hand() -> None:
    fitted = form("smooth_roofline", compute_efficiency=0.8, bandwidth_efficiency=0.5, launch_s=4e-6, sharpness=2.0)
    found = calibrated_operators({"gemm": fitted}, 13)["o_proj"]
    compute, memory = found.flops / (0.8 * 989e12), found.bytes / (0.5 * 3.35e12)
    # t0 per kernel, 32 kernels, and a 2-norm.
    assert found.seconds == pytest.approx(32 * 4e-6 + math.hypot(compute, memory), rel=1e-14)
    assert found.calibrated_by == "gemm"


def test_an_entry_for_the_dtype_goes_first_and_gemm_stands_for_lm_head() -> None:
    fitted = {
        "gemm": form("smooth_roofline", bandwidth_efficiency=0.5),
        "gemm.bf16": form("smooth_roofline", bandwidth_efficiency=0.8),
        "gemm.fp8": form("smooth_roofline", bandwidth_efficiency=0.1),
    }
    found = calibrated_operators(fitted, 3)
    for name in ("o_proj", "lm_head"):
        assert found[name].seconds == pytest.approx(found[name].bytes / (0.8 * 3.35e12))
        assert found[name].calibrated_by == "gemm.bf16"
    assert found["decode_attention"].calibrated_by == ""


def test_elementwise_by_hand() -> None:
    # launch per layer + κ·L·N·d·b_a/(e_b·W)
    fitted = form("elementwise", passes=10.0, bandwidth_efficiency=0.5, launch_s=1e-6)
    found = calibrated_operators({"elementwise": fitted}, 13)["elementwise"]
    assert found.bytes == 10 * 32 * 13 * 4096 * 2
    assert found.seconds == pytest.approx(32e-6 + found.bytes / (0.5 * 3.35e12))
    assert found.flops == 0


def test_all_reduce_by_hand() -> None:
    # Per message: α0 + α1·log2(t) + bytes/(e·B_link), the bytes × imbalance.
    fitted = form("link", latency_s=4e-6, latency_per_log2_s=1e-6, bandwidth_efficiency=0.6, imbalance=1.5)
    found = calibrated_operators({"all_reduce": fitted}, 13, tp=4)["all_reduce"]
    assert found.bytes == 64 * 2 * 3 / 4 * 13 * 4096 * 2
    assert found.seconds == pytest.approx(64 * (4e-6 + 2e-6) + 1.5 * found.bytes / (0.6 * 450e9))


def test_overheads_differ_between_graph_and_eager_steps() -> None:
    fitted = {
        "overhead.graph": form("overhead", per_layer_s=1e-6, per_step_s=1e-4, graph_multiple=8.0),
        "overhead.eager": form("overhead", per_layer_s=20e-6, per_step_s=1e-3),
    }
    decode, mixed = calibrated_operators(fitted, 13), calibrated_operators(fitted, 13, Chunk(10, 0))
    assert decode["overhead"].seconds == pytest.approx(32e-6 + 1e-4)
    assert mixed["overhead"].seconds == pytest.approx(640e-6 + 1e-3)
    # A decode step of 13 runs in the graph of 16; a mixed step of 23 is not padded. lm_head sees the 13 rows.
    assert decode["o_proj"].flops == 2 * 4096 * 4096 * 16 * 32
    assert mixed["o_proj"].flops == 2 * 4096 * 4096 * 23 * 32
    assert decode["lm_head"].flops == 2 * 4096 * 128256 * 13


@pytest.mark.parametrize(("streams", "seconds"), [(13, 1e-3), (100, 1e-3), (101, 1.01e-3), (1000, 10e-3)])
def test_a_chunk_beside_many_streams_takes_no_overhead_away(streams: int, seconds: float) -> None:
    # Eager 1 ms, graph 10 µs per stream: the larger of the two, from 100 streams on what a decode step of them has too.
    fitted = {
        "overhead.graph": form("overhead", per_sequence_s=1e-5),
        "overhead.eager": form("overhead", per_step_s=1e-3),
    }
    parameters = build_parameters(deploy("Llama-3.1-8B", "h100-sxm"), CalibratedRates(calibration_of(fitted)))
    chunked, alone = (
        step_times(parameters, make_work(chunks, [Decodes(streams, 300)], parameters.windows))
        for chunks in ([Chunk(1)], [])
    )
    assert chunked.other == pytest.approx(seconds)
    assert alone.other == pytest.approx(streams * 1e-5)


def test_one_overhead_stands_for_both() -> None:
    fitted = {"overhead.graph": form("overhead", per_step_s=1e-4)}
    assert calibrated_operators(fitted, 13, Chunk(10, 0))["overhead"].seconds == pytest.approx(1e-4)


@pytest.mark.parametrize("model", ["Llama-3.1-8B", "gpt-oss-20b", "DeepSeek-V3"])
def test_groups_add_up_to_the_step(model: str) -> None:
    parameters = build_parameters(deploy(model, "h200", tp=4))
    work = make_work([Chunk(500, 100)], [Decodes(32, 4000)], parameters.windows)
    operators, times = step_operators(parameters, work), step_times(parameters, work)
    by_group = {
        group: sum(item.seconds for item in operators if item.group in groups)
        for group, groups in {
            "linear": ("linear", "experts"),
            "attention": ("attention",),
            "lm_head": ("lm_head",),
            "communication": ("communication",),
        }.items()
    }
    for group, seconds in by_group.items():
        assert getattr(times, group) == pytest.approx(seconds)
    assert times.other == 0
    assert times.total == pytest.approx(sum(by_group.values()))


def kind_of(heads: int) -> LayerKind:
    """Return a layer of full attention with this many heads of 64."""
    formats = LayerFormats.uniform(PLAIN_FORMATS["bf16"])
    return LayerKind(Attention("gqa", heads, 4, 64, 64), FeedForward("dense", 4096), formats)


def test_kinds_of_attention_are_told_apart_by_name() -> None:
    # Full attention with 16 heads in some layers and 8 in others (variable heads, as in models found by architecture search).
    kinds = kind_of(16), kind_of(8)
    architecture = Architecture("synthetic", "synthetic", 1024, 32_000, kinds, (0, 1), "bf16", False)
    operators_of(deployment_of(architecture))
