"""What LoRA adapters take of a GPU's memory: buffers for as many as there are places, allocated while the model is loaded.

Per layer that is wrapped, ``max_loras`` times A and B at ``max_lora_rank``, whatever is in them (``create_lora_weights`` in
vllm/lora/layers/base_linear.py), in the dtype of the activations::

    max_loras·b_a·(s·r·k + r·m)   a kernel of k inputs and m outputs on this GPU that s matrices are fused in; experts each have one
    max_loras·b_a·r·(V + d)       embedding and lm_head, each whole on every GPU

They are part of what "Model loading took" in vLLM's log. In a step the product of the two kernels, 4·s·r bytes per token, comes on top of
the activations; CUDA graphs are captured twice, with adapters and without (``_get_lora_cases`` in vllm/v1/cudagraph_dispatcher.py).
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

from costmodel.adapters import EMBEDDING, EXPERTS, LM_HEAD, adapted_linears
from costmodel.architecture.types import LayerKind
from costmodel.building.adapters import BUFFER_BYTES
from costmodel.deployment import Deployment
from costmodel.equations.numerics import Value


@lru_cache(maxsize=1024)
def adapter_elements(deployment: Deployment, pattern: tuple[int, ...], first: bool, last: bool) -> float:
    """Return the numbers that the buffers of one pipeline stage hold on one GPU; 0 without adapters.

    Args:
        deployment: model and GPUs.
        pattern: the kinds of the stage's layers.
        first, last: whether it is the stage with the embedding, or with lm_head.
    """
    lora, architecture = deployment.lora, deployment.architecture
    if lora is None:
        return 0.0
    one: Value = 0
    for index, layers in Counter(pattern).items():
        for each in adapted_linears(
            architecture.model_type,
            architecture.kinds[index],
            architecture.hidden,
            deployment.tp,
            deployment.ep,
            lora,
        ):
            one = one + layers * each.linear.copies * (each.shrink + each.expand)
    ends = int(first and lora.has(EMBEDDING)) + int(last and lora.has(LM_HEAD))
    return float(lora.adapters * (one + ends * lora.rank * (architecture.vocabulary + architecture.hidden)))


def adapter_peak_bytes(deployment: Deployment, tokens: Value, kinds: tuple[LayerKind, ...] = ()) -> Value:
    """Return what the largest product between the two kernels of an adapter takes in a step of ``tokens`` [B]; 0 without adapters."""
    lora, architecture = deployment.lora, deployment.architecture
    if lora is None:
        return 0.0
    widths = [
        each.slices * lora.rank * (kind.feed_forward.experts_per_token if each.linear.group == EXPERTS else 1)
        for kind in kinds or architecture.kinds
        for each in adapted_linears(
            architecture.model_type, kind, architecture.hidden, deployment.tp, deployment.ep, lora
        )
    ]
    return tokens * BUFFER_BYTES * float(max(widths, default=0))
