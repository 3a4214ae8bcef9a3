"""Memory of one GPU: weights, activations, KV cache, and how an engine divides what there is."""

from costmodel.memory.activations import activation_parts
from costmodel.memory.blocks import BLOCK_TOKENS, kv_blocks, stage_kv_bytes
from costmodel.memory.engines import NOTHING, Beside
from costmodel.memory.rules import UTILISATION
from costmodel.memory.weights import loaded_weight_bytes, stage_patterns, stage_weight_bytes
from costmodel.memory.workload import Memory, memory_of

__all__ = [
    "BLOCK_TOKENS",
    "NOTHING",
    "UTILISATION",
    "Beside",
    "Memory",
    "activation_parts",
    "kv_blocks",
    "loaded_weight_bytes",
    "memory_of",
    "stage_kv_bytes",
    "stage_patterns",
    "stage_weight_bytes",
]
