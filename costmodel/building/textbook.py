"""From a deployment to the numbers of the textbook rung: weights, active parameters, widths of attention."""

from __future__ import annotations

from costmodel.architecture.counts import (
    active_parameters,
    checkpoint_bytes,
    crossing_parameters,
    parameter_table,
    total_parameters,
)
from costmodel.architecture.formats import PLAIN_FORMATS
from costmodel.deployment import Deployment
from costmodel.dtypes import main_format
from costmodel.equations.numerics import Value, is_zero
from costmodel.equations.textbook import Textbook
from costmodel.equations.work import OwnReach


def build_textbook(deployment: Deployment, params: float | None = None) -> Textbook:
    """Build the textbook rung's numbers.

    Args:
        deployment: model and part.
        params: P that replaces the model's total, as in the lesson's 8e9; a mixture of experts keeps its active share. Weights are
            then P·b with the average bytes per weight. Of a model that pools, P is that of its layers: the tables of its embedding
            multiply nothing.
    """
    architecture = deployment.architecture
    total, active = total_parameters(architecture), active_parameters(architecture)
    stored = checkpoint_bytes(architecture)
    if architecture.pooling:  # rows of the embedding and of learned positions are looked up, and no lm_head reads them
        table, extra = architecture.vocabulary * architecture.hidden, architecture.extra_parameters
        active = active - table - extra
        stored = stored - table * architecture.embedding_format.bytes_per_weight
        stored = stored - extra * PLAIN_FORMATS[architecture.dtype].bytes_per_weight
    if is_zero(deployment.encoder_states):
        idle = crossing_parameters(architecture, deployment.layer_counts)
        stored, active = stored - idle * deployment.activation_bytes, active - idle
    if deployment.replicas > 1:
        # Whole experts are dealt to more GPUs than divide the rest: a GPU reads a replica's share of them only.
        routed = sum(row.bytes for row in parameter_table(architecture) if row.module == "experts")
        stored = stored - routed + routed / deployment.replicas
    share = 1 if params is None else params / total
    dtype = deployment.compute_dtype_of(main_format(architecture))
    widths: dict[OwnReach, Value] = {}
    for kind, count in zip(architecture.kinds, deployment.layer_counts, strict=True):
        attention = kind.attention
        if attention.kind == "none":
            continue
        head_dim = attention.head_dim
        if attention.value_head_dim != head_dim:
            head_dim = (head_dim + attention.value_head_dim) / 2
        width = attention.query_heads * head_dim * count
        widths[attention.reach] = widths[attention.reach] + width if attention.reach in widths else width
    tower = architecture.vision
    return Textbook(
        weight_bytes=stored * share,
        active_parameters=active * share,
        attention=tuple(widths.items()),
        peak=deployment.hardware.peaks[dtype],
        attention_peak=deployment.hardware.peaks[deployment.attention_dtype],
        bandwidth=deployment.hardware.bandwidth,
        gpus=deployment.tp,
        encoder_parameters=architecture.vision_parameters,
        encoder_width=0 if tower is None else tower.heads * tower.head_dim * tower.layers,
        encoder_peak=deployment.hardware.peaks[deployment.activation_dtype],
    )
