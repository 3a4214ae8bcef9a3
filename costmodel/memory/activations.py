"""Activation peak: what vLLM's profile run allocates beside the weights, from the shapes of its tensors.

At start-up vLLM runs one step of ``max_num_batched_tokens`` (M) tokens, then samples for ``max_num_seqs`` (R) sequences, and keeps the
larger of the two peaks free (``profile_run`` and ``_dummy_sampler_run`` in vllm/v1/worker/gpu_model_runner.py). With d = hidden, V =
vocabulary, b_a bytes per activation::

    layers   M·b_a·(3·d_ff/t + 3·d)              gate and up (2·d_ff), their product (d_ff), input, residual and output; blocks of residuals
             or M·b_a·(3·d_ff/t + (2·n + 1)·d)   with n residual streams, which are read and written anew
    shared   M·b_a·2·max(h/t, 64)·d_h            instead of 3·d_ff/t where that is less and a key is its value: queries, outputs
    states   M·b_a·(2·(2·G·N + H·P) + 2·H·P)/t   instead of 3·d_ff/t where that is less, in recurrent layers
    experts  M·k·b_a·(max(d_e/t, d) + max(2·d_e/t, d))   the two workspaces of vLLM's Triton experts, instead of 3·d_ff/t
    sampler  V·R·(b_a + 12)                      logits, their float32 copy, probabilities, exponential noise
             + 4·V·min(SMs, R)                   buffer of the top-k/top-p kernel (since 0.17)
             or V·R·(b_a + 36)                   where the vocabulary is sorted (before): values, indices of 8 B, sort buffers
             + b_a·d·(M + 2·R)                   hidden states of the step, and the sampled rows twice
    both     + cuBLAS workspace, + embeddings of images for M tokens where there is a vision tower

Fitted is one constant only, :data:`COMPILED_BYTES`. docs/planning.md holds all of it against measured start-ups.

Tokens and sequences may be float64 arrays, for sweeps.
"""

from __future__ import annotations

from costmodel.architecture.types import LayerKind
from costmodel.building.residuals import residual_blocks
from costmodel.deployment import Deployment
from costmodel.engine import GIB, default_max_num_seqs
from costmodel.equations.numerics import Value, maximum, minimum
from costmodel.memory.adapters import adapter_peak_bytes
from costmodel.memory.rules import MIB, VllmRules, vllm_rules

COMPILED_BYTES = 0.05 * GIB
"""What compiled layers hold beside the tensors above [B]: fitted to CodeLlama-7B (0.77 GiB) and Granite-3.1-8B (0.85), vLLM 0.19 on an
H100, whose layers need more than their sampler (llm-d planner, docs/accuracy/vllm-v0.19.0-accuracy-report.md)."""
SORTED_BYTES, UNSORTED_BYTES = 36, 12
"""Sampler's bytes per (sequence, vocabulary entry) beside the logits. 12: float32 logits, probabilities and noise (vllm/v1/sample).
With the sort 36: fits all of 4.76 GiB at V = 128k, 5.64 at 152k and 7.38 at 201k to 0.01 GiB (llm-d planner, 1,024 sequences)."""
CUBLAS_BYTES = {"hopper": 32 * MIB, "blackwell": 32 * MIB, "cpu": 0}
"""Workspace that PyTorch gives to cuBLAS, by architecture (aten/src/ATen/cuda/CublasHandlePool.cpp)."""
CUBLAS_DEFAULT = 4096 * 2 * 1024 + 16 * 8 * 1024


def layer_bytes(deployment: Deployment, tokens: Value, rules: VllmRules, kinds: tuple[LayerKind, ...] = ()) -> Value:
    """Return the peak of the layers for ``tokens`` in a step, cuBLAS and images not counted [B]."""
    hidden = deployment.architecture.hidden
    widest = max(_inner_elements(deployment, kind, rules) for kind in kinds or deployment.architecture.kinds)
    extra = COMPILED_BYTES if rules.compiled and deployment.profile.architecture != "cpu" else 0.0
    product = adapter_peak_bytes(deployment, tokens, kinds)
    kept = (2 * deployment.architecture.residuals + 1 + residual_blocks(deployment.architecture)) * hidden
    return tokens * deployment.activation_bytes * (widest + kept) + extra + product


def _inner_elements(deployment: Deployment, kind: LayerKind, rules: VllmRules) -> float:
    """Return the elements per token inside a feed-forward layer."""
    ff, hidden = kind.feed_forward, deployment.architecture.hidden
    inwards = 2 if ff.gated else 1
    dense = (ff.shared_intermediate if ff.kind == "moe" else ff.intermediate) * (inwards + 1) / deployment.tp
    if kind.state is not None:  # what the convolution reads and writes, the gate and the outputs
        dense = max(dense, (2 * kind.state.conv_width + 2 * kind.state.inner) / deployment.tp)
    if (
        kind.attention.shared_kv
    ):  # kernels take 64 heads or 128 (``get_padded_num_q_heads`` of vllm/models/deepseek_v4/nvidia/flashmla.py)
        padded = max(kind.attention.query_heads / deployment.tp, 64)
        dense = max(dense, 2 * padded * kind.attention.head_dim)
    if ff.kind != "moe":
        return float(dense)
    routed = _workspace_elements(deployment, kind)
    if not rules.kept_workspace:  # until 0.16 the smaller of the two buffers has no room for the output
        width = ff.intermediate / (1 if deployment.ep > 1 else deployment.tp)
        routed = ff.experts_per_token * (width + max(inwards * width, hidden))
    return float(max(dense, routed))


def _workspace_elements(deployment: Deployment, kind: LayerKind) -> float:
    """Return the elements per token of the two workspaces of Triton's experts (triton_moe.py, ``workspace_shapes``)."""
    ff, hidden = kind.feed_forward, deployment.architecture.hidden
    width = ff.intermediate / (1 if deployment.ep > 1 else deployment.tp)
    inwards = 2 if ff.gated else 1
    return float(ff.experts_per_token * (max(width, hidden) + max(inwards * width, hidden)))


def kept_bytes(deployment: Deployment, tokens: Value, rules: VllmRules, kinds: tuple[LayerKind, ...] = ()) -> Value:
    """Return the workspace of the experts that is still held when tokens are sampled [B].

    Triton's experts (16 and 8 bits) share a workspace that stays; those of 4 bits bring their own, which does not (gpt-oss in vLLM 0.19).
    """
    if not rules.kept_workspace:
        return 0.0
    sizes = [
        _workspace_elements(deployment, kind)
        for kind in kinds or deployment.architecture.kinds
        if kind.feed_forward.kind == "moe" and kind.formats.experts.bytes_per_weight >= 1
    ]
    return tokens * deployment.activation_bytes * max(sizes, default=0.0)


def sampler_bytes(deployment: Deployment, tokens: Value, sequences: Value, rules: VllmRules) -> Value:
    """Return the peak of the sampler for ``sequences`` rows after a step of ``tokens``, cuBLAS and images not counted [B]."""
    architecture, b_a = deployment.architecture, float(deployment.activation_bytes)
    each = b_a + (SORTED_BYTES if rules.sorted_sampler else UNSORTED_BYTES)
    units = deployment.profile.compute_units
    buffers = 0.0 if rules.sorted_sampler or units is None else minimum(sequences, units.value)
    rows = architecture.vocabulary * (sequences * each + 4 * buffers)
    return rows + b_a * architecture.hidden * (tokens + 2 * sequences)


def common_bytes(deployment: Deployment, tokens: Value) -> Value:
    """Return what is held in both peaks: the workspace of cuBLAS, and the embeddings of images that fill a step [B]."""
    images = tokens * deployment.activation_bytes * deployment.architecture.hidden
    workspace = CUBLAS_BYTES.get(deployment.profile.architecture, CUBLAS_DEFAULT)
    return workspace + (images if deployment.architecture.vision_parameters else 0.0)


def activation_parts(
    deployment: Deployment, token_budget: int, sequences: int, rules: VllmRules | None = None
) -> tuple[float, float]:
    """Return the activation peaks of the layers and of the sampler, which are not held at the same time [B].

    Args:
        deployment: model and part.
        token_budget: M, ``max_num_batched_tokens``.
        sequences: R, at least the ``max_num_seqs`` that the engine takes by default, never more than M.
        rules: of the release; that of :data:`costmodel.engine.VLLM_VERSION` by default.
    """
    rules = rules or vllm_rules()
    rows = min(max(default_max_num_seqs(deployment), sequences), max(token_budget, sequences))
    common = common_bytes(deployment, token_budget)
    sampler = sampler_bytes(deployment, token_budget, rows, rules) + kept_bytes(deployment, token_budget, rules)
    if deployment.architecture.pooling:
        return layer_bytes(deployment, token_budget, rules) + common, 0.0
    return layer_bytes(deployment, token_budget, rules) + common, sampler + common


def stage_activation_bytes(
    deployment: Deployment,
    stage_kinds: tuple[LayerKind, ...],
    token_budget: Value,
    sequences: Value,
    rules: VllmRules,
    last: bool = True,
) -> Value:
    """Return the activation peak on one GPU of a pipeline stage [B].

    Only the last stage samples, and none of a model that pools: its pooler takes d elements of every token, fewer than a layer. Stages of a
    pipeline hold hidden state and residual for each other, 2·M·d·b_a more, or their n residual streams.
    """
    peak = layer_bytes(deployment, token_budget, rules, stage_kinds)
    if last and not deployment.architecture.pooling:
        kept = kept_bytes(deployment, token_budget, rules, stage_kinds)
        peak = maximum(peak, sampler_bytes(deployment, token_budget, sequences, rules) + kept)
    if deployment.pp > 1:
        streams = max(deployment.architecture.residuals, 2)
        peak += streams * token_budget * deployment.activation_bytes * deployment.architecture.hidden
    return peak + common_bytes(deployment, token_budget)
