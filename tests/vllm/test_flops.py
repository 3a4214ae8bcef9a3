"""FLOPs and bytes of the operators are those of vLLM's own count (vllm/v1/metrics/perf.py), and where they differ, this says why.

Compared operator by operator, on random configurations of the families that vLLM's count covers and random steps.

Equal: FLOPs of all matrices and of lm_head, their weights, what they read and write; FLOPs of decode attention; KV bytes.

Not equal, each by an amount that is checked:

- *Pairs.* vLLM counts q·(c + q) pairs of a chunk, the whole rectangle. Causal attention computes q·c + q(q + 1)/2 of them, as here.
- *Queries.* vLLM counts that attention reads its queries. Here attention moves keys and values only (docs/equations.md); queries, like what
  activations and norms move, are elementwise traffic, which the calibrated rung fits.
- *KV writes.* vLLM counts that keys and values are written into the cache; here they are the output of qkv_proj.
- *Activation.* vLLM counts what SiLU reads and writes between the matrices of a feed-forward; here that is elementwise traffic as well.
- *Experts touched.* vLLM says min(N·k, E), perfect balance. Here it is the mean of even choice, E·(1 − (1 − k/E)^N), which is less.
- *Router.* vLLM leaves the router's matrix out.
- *Latent attention.* vLLM decodes with the expanded heads; engines decode on the latent itself, which is what is counted here. In
  prefill both count the same, but for the pairs; vLLM reads expanded keys and values there, here it is the cache.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from costmodel.architecture.families import architecture_from_config
from costmodel.building import roofline_parameters
from costmodel.deployment import Deployment, deploy_architecture
from costmodel.equations.step import step_operators
from costmodel.equations.work import Chunk, Decodes, attended_pairs, make_work

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]

DRAWS = 12
BYTES = 2
"""Of a weight, an activation and a KV element: bf16."""


def llama(draw: random.Random) -> dict[str, Any]:
    kv, group, head_dim = draw.choice([1, 2, 4, 8]), draw.choice([1, 2, 4]), draw.choice([64, 128])
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64 * draw.randint(4, 40),
        "intermediate_size": 64 * draw.randint(4, 80),
        "num_hidden_layers": draw.randint(1, 12),
        "num_attention_heads": kv * group,
        "num_key_value_heads": kv,
        "head_dim": head_dim,
        "vocab_size": 128 * draw.randint(10, 400),
        "max_position_embeddings": 1 << 17,
        "rms_norm_eps": 1e-5,
        "torch_dtype": "bfloat16",
    }


def qwen2(draw: random.Random) -> dict[str, Any]:
    found = llama(draw) | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "use_sliding_window": False}
    del found["head_dim"]
    return found | {"hidden_size": found["num_attention_heads"] * 64}


def mistral(draw: random.Random) -> dict[str, Any]:
    window = draw.choice([256, 1024, 4096])
    return llama(draw) | {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": window}


def mixtral(draw: random.Random) -> dict[str, Any]:
    experts = draw.choice([4, 8, 16])
    return llama(draw) | {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "sliding_window": None,
        "num_local_experts": experts,
        "num_experts_per_tok": draw.choice([1, 2, 4]),
    }


def qwen3_moe(draw: random.Random) -> dict[str, Any]:
    return llama(draw) | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_experts": draw.choice([16, 64]),
        "num_experts_per_tok": draw.choice([2, 8]),
        "moe_intermediate_size": 64 * draw.randint(2, 20),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
    }


def deepseek(draw: random.Random) -> dict[str, Any]:
    heads = draw.choice([4, 8, 16])
    return llama(draw) | {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "num_hidden_layers": draw.randint(2, 12),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": None,
        "q_lora_rank": draw.choice([None, 256]),
        "kv_lora_rank": draw.choice([128, 512]),
        "qk_nope_head_dim": draw.choice([64, 128]),
        "qk_rope_head_dim": 64,
        "v_head_dim": draw.choice([64, 128]),
        "n_routed_experts": draw.choice([16, 64]),
        "num_experts_per_tok": draw.choice([2, 6]),
        "n_shared_experts": draw.choice([1, 2]),
        "moe_intermediate_size": 64 * draw.randint(2, 20),
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "greedy",
        "scoring_func": "softmax",
        "routed_scaling_factor": 1.0,
        "norm_topk_prob": False,
        "aux_loss_alpha": 0.001,
        "seq_aux": True,
    }


FAMILIES = {
    "llama": llama,
    "qwen2": qwen2,
    "mistral": mistral,
    "mixtral": mixtral,
    "qwen3_moe": qwen3_moe,
    "deepseek_v2": deepseek,
}


class Compared:
    """A configuration and a step, counted by both.

    Args:
        config: of the model.
        folder: to put it into.
        draw: of the step and of the tensor-parallel size.
    """

    def __init__(self, config: dict[str, Any], folder: Path, draw: random.Random) -> None:
        from vllm.config import CacheConfig, ModelConfig
        from vllm.v1.metrics.perf import ExecutionContext, ModelMetrics

        config = {
            key: value for key, value in config.items() if value is not None or key in ("sliding_window", "q_lora_rank")
        }
        (folder / "config.json").write_text(json.dumps(config))
        heads, experts = config["num_key_value_heads"], config.get("num_local_experts", 0)
        self.tp = draw.choice([size for size in (1, 2, 4) if heads % size == 0 and not experts % size])
        model = ModelConfig(model=str(folder), skip_tokenizer_init=True, dtype="bfloat16", max_model_len=1 << 16)
        parallel = SimpleNamespace(
            data_parallel_size=1, tensor_parallel_size=self.tp, pipeline_parallel_size=1, enable_expert_parallel=False
        )
        theirs = ModelMetrics(
            SimpleNamespace(model_config=model, cache_config=CacheConfig(), parallel_config=parallel, quant_config=None)
        )
        self.chunks = [
            (draw.randint(2, 3000), draw.choice([0, draw.randint(1, 5000)])) for _ in range(draw.randint(0, 3))
        ]
        self.decodes = [draw.randint(1, 8000) for _ in range(draw.randint(0 if self.chunks else 1, 20))]
        context = ExecutionContext()
        for new, cached in self.chunks:
            context.add(new, cached + new, is_prefill=True)
        for cached in self.decodes:
            context.add(1, cached + 1, is_prefill=False)
        self.flops: Mapping[str, int] = theirs.get_num_flops_breakdown(context)
        self.read: Mapping[str, int] = theirs.get_read_bytes_breakdown(context)
        self.written: Mapping[str, int] = theirs.get_write_bytes_breakdown(context)
        self.deployment: Deployment = deploy_architecture(
            architecture_from_config(config, "drawn"), "h100", tp=self.tp, dtype="bf16"
        )
        self.parameters = roofline_parameters(self.deployment)
        windows = self.parameters.windows
        work = make_work(
            [Chunk(float(new), float(cached)) for new, cached in self.chunks],
            [Decodes(1.0, float(cached)) for cached in self.decodes],
            windows,
        )
        self.work = work
        self.ours = {operator.name: operator for operator in step_operators(self.parameters, work)}
        self.tokens = sum(new for new, _ in self.chunks) + len(self.decodes)
        self.config = config

    def our(self, what: str, *names: str) -> float:
        """Return the sum of FLOPs or bytes of operators, by the beginnings of their names."""
        return sum(float(getattr(each, what)) for name, each in self.ours.items() if name.startswith(names))

    def their(self, counted: Mapping[str, int], *names: str) -> int:
        """Return the sum of vLLM's counts of these names."""
        return sum(counted.get(name, 0) for name in names)

    def moved(self, *names: str) -> int:
        """Return what vLLM counts as read or written under these names."""
        return self.their(self.read, *names) + self.their(self.written, *names)

    @property
    def window(self) -> int | None:
        """Of the sliding window of all layers."""
        return self.parameters.windows[0]

    @property
    def head_dim(self) -> int:
        """Of a head."""
        return int(self.deployment.architecture.kinds[0].attention.head_dim)

    @property
    def layers(self) -> int:
        """Of the model."""
        return int(self.config["num_hidden_layers"])


def drawn(family: str, folder: Path) -> Iterator[Compared]:
    for seed in range(DRAWS):
        draw = random.Random(f"{family} {seed}")
        own = folder / str(seed)
        own.mkdir()
        yield Compared(FAMILIES[family](draw), own, draw)


@pytest.fixture(scope="module", params=FAMILIES)
def cases(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Compared]:
    return list(drawn(request.param, tmp_path_factory.mktemp(request.param)))


def exactly(value: float) -> Any:
    """Compare as whole numbers are in floats."""
    return pytest.approx(value, rel=1e-12)


def test_matrices_and_lm_head_multiply_the_same(cases: list[Compared]) -> None:
    projections = ("qkv_proj", "q_proj", "q_a_proj", "q_b_proj", "kv_a_proj", "kv_b_proj")
    for case in cases:
        theirs = [f"{part}.{name}" for part in ("attn", "mla_attn") for name in projections]
        assert case.our("flops", *projections) == exactly(case.their(case.flops, *theirs))
        assert case.our("flops", "o_proj") == exactly(case.their(case.flops, "attn.out_proj", "mla_attn.out_proj"))
        dense = case.our("flops", "gate_up_proj", "down_proj")
        assert dense == exactly(case.flops.get("ffn.dense_ffn", 0))
        assert case.our("flops", "experts.") == exactly(case.flops.get("ffn.routed_ffn", 0))
        assert case.our("flops", "shared_expert.") == exactly(case.flops.get("ffn.shared_ffn", 0))
        assert case.our("flops", "lm_head") == exactly(case.flops["unembed.unembed"])


def test_the_router_is_what_vllm_leaves_out(cases: list[Compared]) -> None:
    for case in cases:
        sparse = "num_experts_per_tok" in case.config
        assert (case.our("flops", "router") > 0) == sparse
        assert not any("router" in name or "gate." in name for name in case.flops)


def test_lm_head_and_dense_matrices_move_the_same(cases: list[Compared]) -> None:
    for case in cases:
        assert case.our("bytes", "lm_head") == exactly(case.moved("unembed.input", "unembed.weight", "unembed.output"))
        if "kv_lora_rank" not in case.config:
            assert case.our("bytes", "qkv_proj") == exactly(
                case.moved("attn.qkv_input", "attn.qkv_weight", "attn.qkv_output")
            )
            assert case.our("bytes", "o_proj") == exactly(
                case.moved("attn.out_input", "attn.out_weight", "attn.out_output")
            )
        else:
            parts = ("q_a", "q_b", "q", "kv_a", "kv_b")
            names = [f"mla_attn.{part}_{what}" for part in parts for what in ("input", "weight", "output")]
            assert case.our("bytes", "q_a_proj", "q_b_proj", "q_proj", "kv_a_proj", "kv_b_proj") == exactly(
                case.moved(*names)
            )
        names = [
            "ffn.dense_up_gate_input", "ffn.dense_up_gate_weights", "ffn.dense_up_gate_output",
            "ffn.dense_down_input", "ffn.dense_down_weights", "ffn.dense_down_output",
        ]  # fmt: skip
        assert case.our("bytes", "gate_up_proj", "down_proj") == exactly(case.moved(*names))


def test_the_activation_is_elementwise_here(cases: list[Compared]) -> None:
    """Per token and layer SiLU reads 2·d_ff and writes d_ff elements: 3·d_ff that no matrix moves."""
    for case in cases:
        dense = case.our("flops", "gate_up_proj") > 0
        width = case.config["intermediate_size"] // case.tp
        layers = 1 if "first_k_dense_replace" in case.config else case.layers
        wanted = 3 * width * case.tokens * layers * BYTES if dense else 0
        assert case.moved("ffn.dense_silu_input", "ffn.dense_silu_output") == wanted


def test_experts_move_the_same_but_for_those_touched(cases: list[Compared]) -> None:
    for case in cases:
        chosen, experts = (
            case.config.get("num_experts_per_tok"),
            case.deployment.architecture.kinds[-1].feed_forward.experts,
        )
        if chosen is None:
            continue
        weights = case.their(case.read, "ffn.routed_up_gate_weights", "ffn.routed_down_weights")
        balanced = min(case.tokens * chosen, experts)
        even = experts * (1 - (1 - chosen / experts) ** case.tokens)
        assert even <= balanced * (1 + 1e-12)
        names = [
            "ffn.routed_up_gate_input",
            "ffn.routed_up_gate_output",
            "ffn.routed_down_input",
            "ffn.routed_down_output",
        ]
        wanted = weights * even / balanced + case.moved(*names)
        assert case.our("bytes", "experts.") == exactly(wanted)


def test_decode_attention_is_the_same(cases: list[Compared]) -> None:
    for case in cases:
        if "kv_lora_rank" in case.config or not case.decodes:
            continue
        heads = case.config["num_attention_heads"] // case.tp
        seen = sum(min(cached + 1, case.window or cached + 1) for cached in case.decodes)
        assert case.our("flops", "decode_attention") == exactly(4 * heads * case.head_dim * seen * case.layers)
        pairs = sum(new * min(cached + new, case.window or cached + new) for new, cached in case.chunks)
        theirs = case.their(case.flops, "attn.attn_qk", "attn.attn_av")
        rectangle = 4 * heads * case.head_dim * pairs * case.layers
        assert theirs - rectangle == exactly(case.our("flops", "decode_attention"))


def test_prefill_attention_is_the_causal_part_of_their_rectangle(cases: list[Compared]) -> None:
    for case in cases:
        theirs = case.their(case.flops, "attn.attn_qk", "attn.attn_av", "mla_attn.attn_qk", "mla_attn.attn_av")
        if not case.chunks or ("kv_lora_rank" in case.config and case.decodes):
            continue
        rectangle = sum(new * min(cached + new, case.window or cached + new) for new, cached in case.chunks)
        causal = sum(attended_pairs(new, cached, case.window) for new, cached in case.chunks)
        alone = theirs - case.our("flops", "decode_attention")
        assert case.our("flops", "prefill_attention") == exactly(alone * causal / rectangle)
        if case.window is None:
            wasted = sum(new * (new - 1) / 2 for new, _ in case.chunks)
            assert rectangle - causal == exactly(wasted)


def test_attention_moves_keys_and_values_and_theirs_queries_too(cases: list[Compared]) -> None:
    for case in cases:
        if "kv_lora_rank" in case.config:
            continue
        heads = case.config["num_attention_heads"] // case.tp
        queries = case.tokens * heads * case.head_dim * BYTES * case.layers
        theirs = case.read["attn.attn_input"] - queries
        window = case.window
        # In a window a chunk needs the w − 1 keys before it beside its own; vLLM counts w in all.
        more = sum(
            (min(cached, window - 1) + new) - min(cached + new, window) for new, cached in case.chunks
        ) if window else 0  # fmt: skip
        kv = max(case.config["num_key_value_heads"] // case.tp, 1)
        more *= 2 * kv * case.head_dim * BYTES * case.layers
        assert case.our("bytes", "prefill_attention", "decode_attention") == exactly(theirs + more)


def test_keys_and_values_are_written_twice_in_their_count(cases: list[Compared]) -> None:
    for case in cases:
        if "kv_lora_rank" in case.config:
            continue
        kv = max(case.config["num_key_value_heads"] // case.tp, 1)
        assert case.written["attn.kv_cache"] == 2 * case.tokens * kv * case.head_dim * BYTES * case.layers


def test_latent_attention_decodes_on_the_latent(cases: list[Compared]) -> None:
    for case in cases:
        if "kv_lora_rank" not in case.config or not case.decodes or case.chunks:
            continue
        heads, rank, rope = case.config["num_attention_heads"] // case.tp, case.config["kv_lora_rank"], 64
        seen = sum(cached + 1 for cached in case.decodes)
        assert case.our("flops", "decode_attention") == exactly(2 * heads * (2 * rank + rope) * seen * case.layers)
        expanded = 2 * heads * (case.config["qk_nope_head_dim"] + rope + case.config["v_head_dim"]) * seen * case.layers
        assert case.their(case.flops, "mla_attn.attn_qk", "mla_attn.attn_av") == expanded
        assert case.our("bytes", "decode_attention") == exactly(seen * (rank + rope) * BYTES * case.layers)


def test_latent_attention_moves_the_cache_and_theirs_expanded_keys_and_values(cases: list[Compared]) -> None:
    """Decodes read the cache in both counts; prompts read it here, and in vLLM's what ``kv_b_proj`` makes of it."""
    for case in cases:
        if "kv_lora_rank" not in case.config:
            continue
        heads, query = case.config["num_attention_heads"] // case.tp, case.config["qk_nope_head_dim"] + 64
        cache = (case.config["kv_lora_rank"] + 64) * BYTES * case.layers
        expanded = heads * (query + case.config["v_head_dim"]) * BYTES * case.layers
        prompts, decodes = sum(cached + new for new, cached in case.chunks), sum(cached + 1 for cached in case.decodes)
        assert case.our("bytes", "prefill_attention", "decode_attention") == exactly((prompts + decodes) * cache)
        queries = case.tokens * heads * query * BYTES * case.layers
        assert case.read["mla_attn.attn_input"] == queries + prompts * expanded + decodes * cache
