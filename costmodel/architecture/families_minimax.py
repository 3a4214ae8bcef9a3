"""MiniMax-M3: grouped attention over blocks of keys that an indexer chooses (MiniMax Sparse Attention, arXiv:2606.13392).

Shapes follow ``modeling_minimax_m3_vl.py`` of Hugging Face transformers, whose parameter count the tests hold against what is read here,
and vllm/models/minimax_m3/nvidia/model.py.
"""

from __future__ import annotations

from dataclasses import replace

from costmodel.architecture.blueprint import (
    LLAMA_NAMES,
    MIXTRAL_NAMES,
    Blueprint,
    Layer,
    mlp_names,
    read_gqa,
)
from costmodel.architecture.families_dense import prediction_notes, read_trunk, trunk_blueprint
from costmodel.architecture.families_moe import read_experts
from costmodel.architecture.reader import ConfigReader
from costmodel.architecture.types import Attention, FeedForward

M3_NAMES = replace(
    MIXTRAL_NAMES,
    attention=(
        *LLAMA_NAMES.attention,
        ("indexer.index_q_proj", ("self_attn.index_q_proj",)),
        ("indexer.index_k_proj", ("self_attn.index_k_proj",)),
    ),
    feed_forward=LLAMA_NAMES.feed_forward,
    shared=mlp_names("shared_expert.", "block_sparse_moe.shared_experts."),
)


def minimax_m3(config: ConfigReader) -> Blueprint:
    """MiniMax-M3: norms on the heads of q and k; the first layers dense with full attention, the others with experts and an indexer.

    The tower's model type, ``minimax_m3_vl``, wraps this one.
    """
    trunk = read_trunk(config)
    for key, expected in (("attention_output_gate", False), ("use_qk_norm", True), ("qk_norm_type", "per_head")):
        config.require(key, expected, "MiniMax-M3 has norms on the heads of q and k, and no gate of outputs")
    config.ignore("use_gemma_norm", "first_k_dense_replace")
    attention = read_gqa(config, trunk.hidden, qk_norm="head", head_dim=128)
    chosen = _read_frequency(config, "moe_layer_freq", trunk.layers)
    section = config.section("sparse_attention_config")
    sparse = _read_indexer(section, attention)
    indexed = _read_frequency(section, "sparse_attention_freq", trunk.layers)
    section.require("use_sparse_attention", True, "MiniMax-M3 without its sparse attention is no published model")
    without = section.items("sparse_disable_index_value")
    if len(without) != trunk.layers or not all(off for off, on in zip(without, indexed, strict=True) if on):
        raise section.unsupported(
            "sparse_disable_index_value: indexers that also have values and outputs are not covered"
        )
    section.finish()
    width = config.integer("intermediate_size")
    for key in ("moe_intermediate_size", "shared_intermediate_size"):
        config.require(key, width, f"experts as wide as intermediate_size {width} are read only")
    experts = read_experts(config, width, "num_local_experts", router_bias=config.flag("use_routing_bias", False))
    experts = replace(experts, shared_intermediate=config.integer("n_shared_experts", default=0, least=0) * width)
    dense = FeedForward("dense", config.integer("dense_intermediate_size"))
    made = {
        (index, moe): Layer(sparse if index else attention, experts if moe else dense)
        for index in (False, True)
        for moe in (False, True)
    }
    layers = tuple(made[key] for key in zip(indexed, chosen, strict=True))
    notes = prediction_notes(config)
    if not notes and config.integer("num_mtp_modules", default=0, least=0):
        notes = ("multi-token-prediction layers not counted (loaded for speculation only)",)
    config.ignore("num_mtp_modules")
    return trunk_blueprint(trunk, layers, M3_NAMES, notes)


def _read_frequency(config: ConfigReader, key: str, layers: int) -> list[bool]:
    """Return for each layer whether it is of the kind that ``key`` tells of, by a 1 in its place."""
    found = config.items(key)
    if len(found) != layers:
        raise config.fail(key, f"has {len(found)} entries for {layers} layers")
    if other := [entry for entry in found if entry not in (0, 1)]:
        raise config.fail(key, f"must hold 0 and 1, not {other[0]!r}")
    return [entry == 1 for entry in found]


def _read_indexer(section: ConfigReader, attention: Attention) -> Attention:
    """Add the indexer: for the group of query heads of each KV head it chooses so many blocks of keys, the query's own among them.

    The last block counts whole, as kernels work at blocks; up to ``sparse_block_size`` − 1 keys of it come after the query.

    Raises:
        UnsupportedError: heads that are not one for each KV head, or blocks chosen otherwise than by a score of their keys.
    """
    heads = section.integer("sparse_num_index_heads")
    if heads != attention.kv_heads:
        raise section.unsupported(
            f"sparse_num_index_heads {heads} differs from the {attention.kv_heads} KV heads, for each of which one is read"
        )
    section.ignore("sparse_init_block", "sparse_local_block", "sparse_score_type")
    return replace(
        attention,
        top_k=section.integer("sparse_topk_blocks") * section.integer("sparse_block_size"),
        index_heads=heads,
        index_head_dim=section.integer("sparse_index_dim"),
        index_by_group=True,
    )
