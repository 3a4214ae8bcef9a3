"""What the GPUs send one another in a step: all-reduces, tokens of experts, activations between the stages of a pipeline."""

from __future__ import annotations

from costmodel.building.layers import count_layers, layer_kinds
from costmodel.building.residuals import stage_messages
from costmodel.deployment import Deployment
from costmodel.equations.numerics import Value
from costmodel.equations.parameters import Transfer
from costmodel.equations.rate_sources import RateSource


def transfers_between(deployment: Deployment, rates: RateSource) -> tuple[Transfer, ...]:
    """Return what travels between the GPUs in one step, for every token."""
    tp, ep, pp = deployment.tp, deployment.ep, deployment.pp
    hidden_bytes = deployment.architecture.hidden * deployment.activation_bytes
    link = deployment.hardware.link_bandwidth
    transfers = []
    reductions: Value = 0
    latents: dict[Value, Value] = {}
    dispatches: dict[Value, Value] = {}
    for kind, count in layer_kinds(deployment):
        # Within one replica every GPU holds every token, and the experts' outputs are reduced; between replicas tokens travel.
        dispatched = deployment.replicas > 1 and kind.feed_forward.kind == "moe"
        ff = kind.feed_forward
        joined = ff.latent_norm and not dispatched
        reductions = reductions + count * (kind.mixers - int(dispatched or joined))
        if joined:
            latents[ff.latent] = latents[ff.latent] + count if ff.latent in latents else count
        if dispatched:
            sent = kind.feed_forward.experts_per_token * hidden_bytes * (ep - 1) / ep / tp
            dispatches[sent] = dispatches[sent] + count if sent in dispatches else count
    for sent, count in dispatches.items():
        for name in ("expert_dispatch", "expert_combine"):
            transfers.append(rates.transfer("dispatch", name, count, sent, link, ep))
    if tp > 1:
        sent = 2 * (tp - 1) / tp * hidden_bytes  # ring: every GPU sends 2(t − 1)/t of the message
        transfers.insert(0, rates.transfer("all_reduce", "all_reduce", reductions, sent, link, tp))
        # Sums of experts that have a norm in their latent space go in one message with those of the shared expert
        # (vllm/models/kimi_k3/nvidia/latent_moe_runner.py).
        for latent, count in latents.items():
            joint = sent + 2 * (tp - 1) / tp * latent * deployment.activation_bytes
            transfers.append(rates.transfer("all_reduce", "latent_reduce", count, joint, link, tp))
        if normed := count_layers(deployment, lambda kind: kind.attention.qk_norm == "full"):
            # A norm over the whole of q, and one of k, of which each GPU has a part: the mean square of every token, in fp32
            # (vllm/model_executor/layers/mamba/linear_attn.py, MiniMaxText01RMSNormTP).
            transfers.append(
                rates.transfer("all_reduce", "qk_norm_reduce", 2 * normed, 2 * (tp - 1) / tp * 4, link, tp)
            )
    if pp > 1:
        vectors = deployment.architecture.residuals - 1 + stage_messages(deployment)
        transfers.append(rates.transfer("pipeline", "pipeline_send", pp - 1, vectors * hidden_bytes / tp, link, 2))
    return tuple(transfers)
