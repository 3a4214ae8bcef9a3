"""Who drafts: another model, a head on the target's hidden states (EAGLE, EAGLE-3, MTP), or the text itself (n-grams).

A head is one decoder layer that takes the target's hidden state h beside the embedding e of the token after it, and drafts one token per
pass, its own hidden state taking the place of the target's from the second pass on:

``eagle``   h and e through one matrix 2·d → d, a dense layer, the target's lm_head (arXiv:2401.15077)
``eagle3``  three hidden states of the target through one matrix 3·d → d in the first pass, a dense layer whose q, k and v take 2·d inputs,
            an lm_head of its own for the 32,000 commonest tokens (arXiv:2503.01840; ``draft_vocab_size`` of the published heads)
``mtp``     as ``eagle``, its layer being one of the target's, in the target's formats (DeepSeek-V3, arXiv:2412.19437, section 2.2)

The layers of EAGLE heads are taken to be shaped like the last one of the target that attends to every token before it (as those of Llama 4,
gpt-oss, Qwen3-Next and Nemotron-H are, whatever other layers those have), in 16 bits; where that routes experts, the head's is dense and as
wide as the experts that a token passes. Heads share the target's embedding, and no head has experts but ``mtp``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from costmodel.architecture.counts import kv_bytes_per_token, parameter_table
from costmodel.architecture.families import architecture_from_config
from costmodel.architecture.formats import PLAIN_FORMATS
from costmodel.architecture.linears import Linear, layer_linears
from costmodel.architecture.source import find_model
from costmodel.architecture.types import Architecture, FeedForward, LayerFormats, LayerKind
from costmodel.building import build_parameters, linear_gemm
from costmodel.checks import text, whole
from costmodel.deployment import Deployment, deploy, divides
from costmodel.equations.parameters import Gemm, Parameters
from costmodel.equations.rate_sources import DatasheetRates, RateSource
from costmodel.hardware.errors import InputError, nearest, suggestion
from costmodel.memory import Beside

HEADS = ("eagle", "eagle3", "mtp")
NGRAM = "ngram"
WORDS = (NGRAM, *HEADS)
"""Words for drafts that are no models of their own."""
SPELLINGS = {
    "n-gram": NGRAM, "[ngram]": NGRAM, "prompt-lookup": NGRAM, "eagle1": "eagle", "eagle2": "eagle", "eagle-3": "eagle3",
    "nextn": "mtp", "deepseek_mtp": "mtp",
}  # fmt: skip
EAGLE3_VOCABULARY = 32_000
"""Tokens that a published EAGLE-3 head can draft."""
EAGLE3_STATES = 3
"""Hidden states of the target that an EAGLE-3 head takes."""


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """What drafts.

    Attributes:
        method: ``ngram``, ``eagle``, ``eagle3``, ``mtp`` or ``model``.
        name: as it is shown.
        deployment: its layers on the target's GPUs; None for n-grams.
        inputs: matrix of a head before its layer, in every pass; None without one.
        joined: matrix of a head in its first pass only; None without one.
        weights_bytes: that one GPU holds beside the target [B].
        kv_bytes_per_token: that one GPU caches beside the target's [B].
        notes: what was assumed.
    """

    method: str
    name: str
    deployment: Deployment | None = None
    inputs: Linear | None = None
    joined: Linear | None = None
    weights_bytes: float = 0.0
    kv_bytes_per_token: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def beside(self) -> Beside:
        """What it holds beside the target."""
        return Beside(self.weights_bytes, self.kv_bytes_per_token)


def method_of(name: str) -> str:
    """Return the word of :data:`WORDS` that a name stands for; the name itself, in small letters, where it stands for none."""
    return SPELLINGS.get(name.casefold(), name.casefold())


def make_draft(name: str, target: Deployment) -> Draft:
    """Return what drafts for a target.

    Args:
        name: one of :data:`WORDS`, or a model or an EAGLE head: preset, ``config.json``, folder or Hugging Face name.
        target: whose tokens are drafted.

    Raises:
        InputError: an unknown model, or one that the GPUs cannot hold as the target's are divided.
    """
    name = text(name, "draft-model")
    method = method_of(name)
    if method == NGRAM:
        return Draft(NGRAM, "n-grams of the text")
    if method in HEADS:
        return _head(method, target)
    return _configured_head(name, target) or _model(name, target)


def _model(name: str, target: Deployment) -> Draft:
    """Return another model as the draft, on the target's tensor-parallel GPUs where they can divide it, else whole on each."""
    try:
        draft = deploy(name, target.gpu, kv_dtype=None)
    except InputError as error:
        close = nearest(name, WORDS, 1)
        or_else = suggestion(close) if close else f"or one of {', '.join(WORDS)}"
        raise InputError(f"draft-model: {error}; {or_else}") from None
    tp, notes = target.tp, []
    if not divides(draft.architecture, tp):
        notes.append(f"{tp} GPUs cannot share the heads of {draft.architecture.name}: each drafts with the whole of it")
        tp = 1
    draft = deploy(name, target.gpu, tp=tp)
    draft = replace(draft, kv_dtype=target.kv_dtype, kv_bytes=target.kv_bytes)  # vLLM: one cache dtype for both
    if draft.architecture.vocabulary != target.architecture.vocabulary:
        notes.append(
            f"the vocabularies differ ({draft.architecture.name} {draft.architecture.vocabulary:,}, {target.architecture.name} "
            f"{target.architecture.vocabulary:,} tokens): engines want one and the same"
        )
    return Draft(
        method="model",
        name=draft.architecture.name,
        deployment=draft,
        weights_bytes=_bytes(draft.architecture, draft, ()),
        kv_bytes_per_token=float(kv_bytes_per_token(draft.architecture, draft.kv_bytes, draft.tp)),
        notes=tuple(notes),
    )


def _head(method: str, target: Deployment, own: Architecture | None = None) -> Draft:
    """Return a head on the target's hidden states.

    Args:
        method: one of :data:`HEADS`.
        target: whose hidden states it takes.
        own: its own layers and vocabulary, where its configuration is known; else its layer is taken to be like one of the target's.
    """
    architecture, hidden = target.architecture, target.architecture.hidden
    plain = PLAIN_FORMATS[target.activation_dtype]
    own_head, notes = method == "eagle3", []
    vocabulary = min(EAGLE3_VOCABULARY, architecture.vocabulary) if own_head else architecture.vocabulary
    plain_inputs = plain
    if own is None:
        kind = _head_kind(architecture)
        ff = kind.feed_forward
        if method == "mtp":
            plain_inputs = kind.formats.attention
        else:
            kind = replace(kind, formats=LayerFormats.uniform(plain))
            if ff.kind == "moe":
                width = ff.intermediate * ff.experts_per_token + ff.shared_intermediate
                kind = replace(kind, feed_forward=FeedForward("dense", width, ff.gated))
                notes.append(
                    f"the head's layer is taken to be dense, {width:,} wide, as the experts that a token passes"
                )
        kinds: tuple[LayerKind, ...] = (kind,)
        pattern: tuple[int, ...] = (0,)
    else:
        kinds = tuple(replace(kind, formats=LayerFormats.uniform(plain)) for kind in own.kinds)
        pattern, vocabulary = own.pattern, own.vocabulary if own_head else vocabulary
    head = replace(
        architecture,
        name=f"{method} head of {architecture.name}" if own is None else own.name,
        kinds=kinds,
        pattern=pattern,
        vocabulary=vocabulary,
        tied_embeddings=architecture.tied_embeddings and not own_head,
        embedding_format=architecture.embedding_format,
        lm_head_format=plain if own_head else architecture.lm_head_format,
        vision=None,
        extra_parameters=0,
        notes=(),
    )
    states = EAGLE3_STATES if own_head else 2
    matrix = Linear("fc", "attention", states * hidden, hidden, plain_inputs)
    stored = {each: each.bytes_per_weight for each in (plain, plain_inputs, head.lm_head_format)}
    deployment = replace(
        target,
        architecture=head,
        pp=1,
        compute_dtype=None if method != "mtp" else target.compute_dtype,
        format_bytes={**target.format_bytes, **stored},
        layer_counts=tuple(pattern.count(index) for index in range(len(kinds))),
        lora=None,  # vLLM wraps the target's layers only
        notes=(),
    )
    shared = ("embedding",) if own_head else ("embedding", "lm_head")
    extra = matrix.weights * matrix.fmt.bytes_per_weight
    if own_head:
        extra += _second_half(kinds[0], hidden, target.tp).weights * plain.bytes_per_weight
    return Draft(
        method=method,
        name=head.name,
        deployment=deployment,
        inputs=None if own_head else matrix,
        joined=matrix if own_head else None,
        weights_bytes=_bytes(head, deployment, shared) + extra,
        kv_bytes_per_token=float(kv_bytes_per_token(head, target.kv_bytes, target.tp)),
        notes=tuple(notes),
    )


def _configured_head(name: str, target: Deployment) -> Draft | None:
    """Return the head that a configuration describes; None where it describes a model, or nothing is found under the name.

    Heads say so in ``architectures``, ``LlamaForCausalLMEagle3`` or ``EagleLlamaForCausalLM``, or keep their layer under ``model``
    (vllm/transformers_utils/configs/eagle.py); ``draft_vocab_size`` is the vocabulary of an EAGLE-3 head.
    """
    try:
        files = find_model(name)
    except InputError:
        return None  # said where it is looked for as a model
    config = dict(files.config)
    known = str((config.get("architectures") or [""])[0]).casefold()
    nested = config.get("model")
    if config.get("model_type") == "eagle" and isinstance(nested, dict):
        config = {**nested, **{key: config[key] for key in ("draft_vocab_size",) if key in config}}
    elif "eagle" not in known:
        return None
    method = "eagle3" if "eagle3" in known or "draft_vocab_size" in config else "eagle"
    drafted = config.get("draft_vocab_size")
    layers = {key: value for key, value in config.items() if key not in OF_HEADS}
    layers |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    own = architecture_from_config(layers, files.name, None)
    if drafted is not None:
        own = replace(own, vocabulary=whole(drafted, "draft_vocab_size", 1))
    if own.hidden != target.architecture.hidden:
        raise InputError(
            f"draft-model: {files.name} drafts from hidden states of {own.hidden:,} numbers; those of {target.architecture.name} have "
            f"{target.architecture.hidden:,}"
        )
    return _head(method, target, own)


OF_HEADS = (
    "draft_vocab_size", "eagle_config", "target_hidden_size", "norm_before_residual", "norm_before_fc", "fc_norm", "parallel_drafting",
    "num_lookahead_tokens", "has_own_embed_tokens", "truncated_vocab_size",
)  # fmt: skip
"""Keys of a head's configuration that those of a model do not have."""


def _head_kind(architecture: Architecture) -> LayerKind:
    """Return the layer of a head: that of the target's last full attention, else of its last attention, with a feed-forward.

    Layers that are one mixer (Nemotron-H) are taken in pairs. A layer whose indexer is another's gets that.
    """
    kinds = [architecture.kinds[index] for index in reversed(architecture.pattern)]
    attending = [kind for kind in kinds if kind.attention.kind != "none"]
    if not attending:
        raise InputError(
            f"no head can draft for {architecture.name}, which has no attention; use ngram or another model"
        )

    def rank(kind: LayerKind) -> tuple[bool, bool]:
        attention = kind.attention
        return attention.window is not None, bool(attention.top_k and not attention.index_heads)

    kind = min(attending, key=rank)
    if kind.feed_forward.kind == "none":
        second = next((each for each in kinds if each.feed_forward.kind != "none"), kind)
        formats = replace(second.formats, attention=kind.formats.attention)
        kind = replace(kind, feed_forward=second.feed_forward, norms=kind.norms + second.norms, formats=formats)
    return replace(kind, state=None)


def _second_half(kind: LayerKind, hidden: int, tp: int) -> Linear:
    """Return the rows of q, k and v of an EAGLE-3 head that take the second d of its 2·d inputs."""
    found = next(linear for linear in layer_linears(kind, hidden, tp) if linear.inputs == hidden)
    return replace(found, name=f"{found.name}.hidden")


def _bytes(architecture: Architecture, deployment: Deployment, shared: tuple[str, ...]) -> float:
    """Return the weights of a draft on one GPU, without the modules that it shares with the target [B]."""
    rows = parameter_table(architecture, deployment.tp, deployment.ep)
    return float(sum(row.bytes for row in rows if row.module not in shared))


@dataclass(frozen=True, slots=True)
class DraftParameters:
    """The parameters of a draft's passes: its first, and those after it."""

    first: Parameters
    later: Parameters


def draft_parameters(draft: Draft, rates: RateSource | None = None) -> DraftParameters | None:
    """Return the parameters of a draft's passes; None where nothing is computed.

    Args:
        draft: who drafts.
        rates: as in :func:`~costmodel.building.build_parameters`.
    """
    deployment = draft.deployment
    if deployment is None:
        return None
    rates = rates or DatasheetRates()
    built = build_parameters(deployment, rates)

    def gemm(linear: Linear) -> Gemm:
        return linear_gemm(deployment, rates, linear, 1)

    if draft.method == "eagle3":
        second = gemm(_second_half(deployment.architecture.kinds[0], deployment.architecture.hidden, deployment.tp))
        built = replace(built, gemms=(second, *built.gemms))
    if draft.inputs is not None:
        built = replace(built, gemms=(gemm(draft.inputs), *built.gemms))
    if built.overheads is not None:  # sequences cost the engine once per step, not again in every pass of the draft
        built = replace(built, overheads=replace(built.overheads, graph_sequence=0, eager_sequence=0))
    if draft.joined is None:
        return DraftParameters(built, built)
    return DraftParameters(replace(built, gemms=(gemm(draft.joined), *built.gemms)), built)
