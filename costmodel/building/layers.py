"""Which layers a deployment runs, and how many of each kind."""

from __future__ import annotations

from collections.abc import Callable

from costmodel.architecture.types import LayerKind
from costmodel.deployment import Deployment
from costmodel.equations.numerics import Value, is_zero, total


def layer_kinds(deployment: Deployment) -> list[tuple[LayerKind, Value]]:
    """Return the kinds of layer with their counts, without those that there are none of: a stage of a pipeline may lack some.

    Nor with those that are left out because nothing was encoded.
    """
    pairs = zip(deployment.architecture.kinds, deployment.layer_counts, strict=True)
    encoded = not is_zero(deployment.encoder_states)
    return [(kind, count) for kind, count in pairs if not is_zero(count) and (encoded or not kind.needs_encoder)]


def blocks(deployment: Deployment) -> Value:
    """Return L: layers of two mixers, attention and feed-forward; a layer that is one mixer counts half."""
    kinds = layer_kinds(deployment)
    if all(kind.mixers == 2 for kind, _ in kinds):
        return sum((count for _, count in kinds[1:]), kinds[0][1])
    return total(count * kind.mixers / 2 for kind, count in kinds)


def count_layers(deployment: Deployment, chosen: Callable[[LayerKind], bool]) -> Value:
    """Return how many layers are of the chosen kinds."""
    return total(count for kind, count in layer_kinds(deployment) if chosen(kind))
