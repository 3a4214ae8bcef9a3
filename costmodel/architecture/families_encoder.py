"""Encoders that embed or classify documents: BERT, RoBERTa and XLM-RoBERTa, ModernBERT, Nomic BERT. Every query sees both ways.

Shapes follow the classes of Hugging Face transformers (``modeling_<model_type>.py``) as vLLM loads them to pool: without a language-model
head, and without the pooler of BertModel, which embeddings do not pass (vllm/model_executor/models/bert.py, roberta.py, modernbert.py,
bert_with_rope.py).
"""

from __future__ import annotations

from dataclasses import replace

from costmodel.architecture.blueprint import (
    Blueprint,
    Layer,
    ModuleNames,
    attention_names,
    mlp_names,
    read_gqa,
    read_positions,
)
from costmodel.architecture.pooling import CLASSIFIER, class_name, labels
from costmodel.architecture.reader import ConfigReader
from costmodel.architecture.types import Attention, FeedForward
from costmodel.equations.work import BothWays

_BERT_NAMES = ModuleNames(
    attention=attention_names("attention.", ("self.query", "self.key", "self.value"), "output.dense"),
    feed_forward=mlp_names("", "", ("intermediate.dense",), "output.dense"),
    prefixes=("encoder.layer.", "bert.encoder.layer.", "roberta.encoder.layer."),
)
_MODERNBERT_NAMES = ModuleNames(
    attention=attention_names("attn.", ("Wqkv",), "Wo"),
    feed_forward=(("gate_up_proj", ("mlp.Wi",)), ("down_proj", ("mlp.Wo",))),
    prefixes=("layers.", "model.layers."),
)
_NOMIC_NAMES = ModuleNames(
    attention=attention_names("attn.", ("Wqkv",), "out_proj"),
    feed_forward=mlp_names("", "mlp.", ("fc11", "fc12"), "fc2"),
    prefixes=("encoder.layers.",),
)
_EMBEDDING_CLASSES = ("Model", "ForMaskedLM")


def bert(config: ConfigReader, first_position: int = 0) -> Blueprint:
    """BERT: learned positions, biases everywhere, a LayerNorm after attention and after the feed-forward, one on the embeddings.

    Classifiers add the pooler (d × d) and their labels.
    """
    config.require("position_embedding_type", "absolute", "positions relative to each other have weights of their own")
    hidden = config.integer("hidden_size")
    attention = replace(read_gqa(config, hidden, qkv_bias=True, output_bias=True), window=BothWays())
    feed_forward = FeedForward("dense", config.integer("intermediate_size"), gated=False, bias=True)
    positions = config.integer("max_position_embeddings")
    tables = (positions + config.integer("type_vocab_size", default=2, least=0)) * hidden
    blueprint = Blueprint(
        hidden=hidden,
        vocabulary=config.integer("vocab_size"),
        layers=(Layer(attention, feed_forward, norm_bias=True),) * config.integer("num_hidden_layers"),
        tied=True,
        names=_BERT_NAMES,
        extra_parameters=tables + 2 * hidden,
        max_positions=positions - first_position,
        rotary=False,
        final_norm=False,
    )
    config.ignore("tie_word_embeddings")
    return _with_head(config, blueprint, hidden**2 + hidden)


def roberta(config: ConfigReader) -> Blueprint:
    """RoBERTa and XLM-RoBERTa (bge-m3, multilingual-e5): BERT whose positions begin after the padding token's number.

    So ``max_position_embeddings`` 8,194 and padding token 1 leave 8,192 tokens.
    """
    return bert(config, config.integer("pad_token_id", default=1, least=0) + 1)


def modernbert(config: ConfigReader) -> Blueprint:
    """ModernBERT: rotary positions, GeGLU, norms before the halves; one layer in three sees everything, the others half a window each way.

    ``local_attention`` 128 is 64 tokens before a query and 64 after it (modeling_modernbert.py, ``sliding_window``). The first layer has
    no norm before attention: that of the embeddings serves. Classifiers add a matrix d × d, a norm, and their labels.
    """
    hidden, layers = config.integer("hidden_size", default=768), config.integer("num_hidden_layers", default=22)
    bias, norm_bias = config.flag("attention_bias", False), config.flag("norm_bias", False)
    side = config.integer("local_attention", default=128, least=2) // 2
    period = config.integer("global_attn_every_n_layers", default=3)
    full = [index % period == 0 for index in range(layers)]
    if kinds := config.items("layer_types"):
        if len(kinds) != layers:
            raise config.fail("layer_types", f"has {len(kinds)} entries for {layers} layers")
        full = [kind == "full_attention" for kind in kinds]
    attention = read_gqa(config, hidden, qkv_bias=bias, output_bias=bias, heads=12)
    feed_forward = FeedForward(
        "dense", config.integer("intermediate_size", default=1152), bias=config.flag("mlp_bias", False)
    )
    usual = {
        reach: Layer(replace(attention, window=BothWays(None if reach else side)), feed_forward, norm_bias=norm_bias)
        for reach in (True, False)
    }
    norm = 2 * hidden if norm_bias else hidden
    config.ignore("deterministic_flash_attn", "decoder_bias", "sparse_prediction", "sparse_pred_ignore_index")
    config.ignore("mlp_dropout", "tie_word_embeddings", "sliding_window")
    blueprint = Blueprint(
        hidden=hidden,
        vocabulary=config.integer("vocab_size", default=50_368),
        layers=(replace(usual[full[0]], norms=1), *(usual[reach] for reach in full[1:])),
        tied=True,
        names=_MODERNBERT_NAMES,
        extra_parameters=norm,
        max_positions=read_positions(config) or 8192,
    )
    dense = hidden**2 + (hidden if config.flag("classifier_bias", False) else 0) + norm
    return _with_head(config, blueprint, dense)


def nomic_bert(config: ConfigReader) -> Blueprint:
    """Nomic BERT (nomic-embed-text-v1 and v1.5): BERT with rotary positions, a gated feed-forward and no biases.

    Its configuration has the keys of GPT-2, or those of transformers' own class.
    """
    for key in ("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"):
        config.require(key, False, "only Nomic BERT without biases is")
    config.require("prenorm", False, "only norms after the halves are")
    config.require("moe_every_n_layers", 0, "its experts have one bias for all of them")
    config.require("activation_function", "swiglu", "only the gated feed-forward is")
    hidden = config.first_integer("hidden_size", "n_embd")
    heads = config.first_integer("num_attention_heads", "n_head")
    if hidden % heads:
        raise config.fail("n_embd", f"{hidden} is not divisible by n_head {heads}")
    width = hidden // heads
    attention = Attention("gqa", heads, heads, width, width, BothWays())
    feed_forward = FeedForward("dense", config.first_integer("intermediate_size", "n_inner"))
    config.ignore(
        "head_dim", "mlp_fc1_bias", "use_rms_norm", "fused_bias_fc", "fused_dropout_add_ln", "pad_vocab_size_multiple"
    )
    config.ignore("use_xentropy", "rotary_emb_interleaved", "rotary_emb_scale_base", "rotary_scaling_factor")
    config.ignore("tie_word_embeddings", "reorder_and_upcast_attn", "scale_attn_by_inverse_layer_idx", "moe_top_k")
    config.ignore("num_experts", "num_shared_experts", "moe_impl", "moe_normalize_expert_weights", "moe_resid_pdrop")
    config.ignore("expert_choice_router", "ffn_div", "router_aux_loss_coef")
    trained = config.first_integer("max_trained_positions", "max_position_embeddings", "n_positions", default=2048)
    return Blueprint(
        hidden=hidden,
        vocabulary=config.integer("vocab_size"),
        layers=(Layer(attention, feed_forward, norm_bias=True),) * config.first_integer("num_hidden_layers", "n_layer"),
        tied=True,
        names=_NOMIC_NAMES,
        extra_parameters=(config.integer("type_vocab_size", default=2, least=0) + 2) * hidden,
        max_positions=trained,
        final_norm=False,
        pooling="mean",
    )


def _with_head(config: ConfigReader, blueprint: Blueprint, dense: int) -> Blueprint:
    """Return the model with its classifier, if it is one: ``dense`` parameters of a matrix d × d, and the labels with their biases."""
    name = class_name(config) or "Model"
    if name.endswith(CLASSIFIER):
        outputs = labels(config)
        extra = dense + (blueprint.hidden + 1) * outputs
        return replace(
            blueprint,
            pooling="cls",
            head=(blueprint.hidden, outputs),
            extra_parameters=blueprint.extra_parameters + extra,
        )
    if not name.endswith(_EMBEDDING_CLASSES):
        raise config.unsupported(
            f"{name} is not covered: of encoders only embedding models and classifiers of documents are"
        )
    return replace(blueprint, pooling="cls")
