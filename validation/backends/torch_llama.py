"""A decoder shaped like a Llama, in plain torch: every weight its own memory, random numbers in it, no tokenizer, no sampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from costmodel.architecture.types import Architecture
from costmodel.hardware.errors import UnsupportedError

EPSILON = 1e-5
SCALE = 0.02
"""Standard deviation of the weights."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a dense decoder; symbols as in docs/nomenclature.md."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int

    @property
    def weights(self) -> int:
        """Weights that are allocated: of all layers, embedding and lm_head."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate) + 2 * self.vocabulary * self.hidden

    def kv_bytes(self, element: int) -> int:
        """Return what a token takes in the cache [B]."""
        return 2 * self.layers * self.kv_heads * self.head_dim * element


def shape_of(architecture: Architecture) -> Shape:
    """Return the sizes of an architecture.

    Raises:
        UnsupportedError: it is no dense decoder with plain attention.
    """
    kind = architecture.kinds[0]
    attention, feed_forward = kind.attention, kind.feed_forward
    if (
        len(architecture.kinds) > 1
        or attention.kind != "gqa"
        or attention.window is not None
        or feed_forward.kind != "dense"
        or not feed_forward.gated
    ):
        raise UnsupportedError(
            f"--backend torch runs dense models shaped like a Llama; {architecture.name} is none: try --random-weights Llama-3.2-1B"
        )
    return Shape(
        layers=len(architecture.pattern),
        hidden=int(architecture.hidden),
        heads=int(attention.query_heads),
        kv_heads=int(attention.kv_heads),
        head_dim=int(attention.head_dim),
        intermediate=int(feed_forward.intermediate),
        vocabulary=int(architecture.vocabulary),
    )


class Llama:
    """The decoder on one device.

    Args:
        shape: its sizes.
        device: ``cuda`` or ``cpu``.
        dtype: of torch, for weights, activations and cache.
        seed: of the weights.
    """

    def __init__(self, shape: Shape, device: str, dtype: Any, seed: int) -> None:
        import torch

        self.shape, self.device, self.dtype = shape, device, dtype
        source = torch.Generator(device).manual_seed(seed)

        def matrix(rows: int, columns: int) -> Any:
            return torch.empty(rows, columns, device=device, dtype=dtype).normal_(std=SCALE, generator=source)

        d, width = shape.hidden, shape.head_dim * (shape.heads + 2 * shape.kv_heads)
        self.embedding = matrix(shape.vocabulary, d)
        self.lm_head = matrix(shape.vocabulary, d)
        self.layers = [
            (
                matrix(width, d),
                matrix(d, shape.heads * shape.head_dim),
                matrix(2 * shape.intermediate, d),
                matrix(d, shape.intermediate),
                torch.ones(d, device=device, dtype=dtype),
                torch.ones(d, device=device, dtype=dtype),
            )
            for _ in range(shape.layers)
        ]
        self.norm = torch.ones(d, device=device, dtype=dtype)
        half = shape.head_dim // 2
        self._turns = 10000.0 ** (-torch.arange(half, device=device, dtype=torch.float32) / half)

    def cache(self, sequences: int, tokens: int) -> list[tuple[Any, Any]]:
        """Return keys and values of every layer, for sequences of one length."""
        import torch

        size = (sequences, self.shape.kv_heads, tokens, self.shape.head_dim)
        return [
            (
                torch.randn(size, device=self.device, dtype=self.dtype),
                torch.randn(size, device=self.device, dtype=self.dtype),
            )
            for _ in range(self.shape.layers)
        ]

    def step(
        self,
        tokens: Any,
        prompt: Sequence[Any] | None,
        decodes: Sequence[Any] | None,
        chunk: tuple[int, int],
        context: int,
    ) -> Any:
        """Run a step, and return the token that each of its sequences gets.

        Args:
            tokens: of the chunk, then one of every decoding sequence.
            prompt: cache of the chunk's sequence; None without a chunk.
            decodes: cache of the decoding sequences; None without any.
            chunk: new tokens, and tokens cached before.
            context: tokens cached before, of every decoding sequence.
        """
        import torch
        from torch.nn import functional

        shape = self.shape
        new, cached = chunk
        hidden = functional.embedding(tokens, self.embedding)
        count = tokens.shape[0]
        positions = torch.cat(
            (
                torch.arange(cached, cached + new, device=self.device),
                torch.full((count - new,), context, device=self.device),
            )
        )
        turn = self._rotation(positions)
        for layer, (qkv, out, up, down, before, after) in enumerate(self.layers):
            normed = functional.rms_norm(hidden, (shape.hidden,), before, EPSILON)
            heads = functional.linear(normed, qkv).view(count, shape.heads + 2 * shape.kv_heads, shape.head_dim)
            queries, keys, values = heads.split((shape.heads, shape.kv_heads, shape.kv_heads), dim=1)
            queries, keys = _rotated(queries, turn), _rotated(keys, turn)
            parts = []
            if prompt is not None:
                parts.append(_prompt_attention(prompt[layer], queries[:new], keys[:new], values[:new], cached))
            if decodes is not None:
                parts.append(_decode_attention(decodes[layer], queries[new:], keys[new:], values[new:], context))
            attended = torch.cat(parts) if len(parts) > 1 else parts[0]
            hidden = hidden + functional.linear(attended.reshape(count, shape.heads * shape.head_dim), out)
            normed = functional.rms_norm(hidden, (shape.hidden,), after, EPSILON)
            gate, wide = functional.linear(normed, up).chunk(2, dim=-1)
            hidden = hidden + functional.linear(functional.silu(gate) * wide, down)
        rows = hidden[new - 1 :] if new else hidden  # the last token of the prompt, and those of the decoding sequences
        logits = functional.linear(functional.rms_norm(rows, (shape.hidden,), self.norm, EPSILON), self.lm_head)
        return logits.argmax(dim=-1)

    def _rotation(self, positions: Any) -> tuple[Any, Any]:
        import torch

        angles = positions.to(torch.float32)[:, None] * self._turns
        return angles.cos().to(self.dtype)[:, None, :], angles.sin().to(self.dtype)[:, None, :]


def _rotated(vectors: Any, turn: tuple[Any, Any]) -> Any:
    import torch

    cosine, sine = turn
    first, second = vectors.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, first * sine + second * cosine), dim=-1)


def _prompt_attention(cache: tuple[Any, Any], queries: Any, keys: Any, values: Any, cached: int) -> Any:
    """Attend a chunk to the cache and itself; writes its keys and values into the cache."""
    from torch.nn.attention.bias import causal_lower_right

    new = queries.shape[0]
    end = cached + new
    cache[0][0, :, cached:end] = keys.transpose(0, 1)
    cache[1][0, :, cached:end] = values.transpose(0, 1)
    mask = {"attn_mask": causal_lower_right(new, end)} if cached else {"is_causal": True}
    return _attention(queries.transpose(0, 1)[None], [each[:, :, :end] for each in cache], mask)[0].transpose(0, 1)


def _decode_attention(cache: tuple[Any, Any], queries: Any, keys: Any, values: Any, context: int) -> Any:
    """Attend one token of every sequence to its cache; writes its key and value there."""
    cache[0][:, :, context] = keys
    cache[1][:, :, context] = values
    return _attention(queries[:, :, None], [each[:, :, : context + 1] for each in cache], {})[:, :, 0]


def _attention(queries: Any, seen: Sequence[Any], mask: Mapping[str, Any]) -> Any:
    """Attend queries (sequences, heads, tokens, dimension) to keys and values, whose heads serve several heads of the queries each."""
    from torch.nn.functional import scaled_dot_product_attention

    groups = queries.shape[1] // seen[0].shape[1]
    if groups > 1 and not _shares_heads(queries, seen, mask):
        seen, groups = [each.repeat_interleave(groups, dim=1) for each in seen], 1
    return scaled_dot_product_attention(queries, *seen, **mask, **({"enable_gqa": True} if groups > 1 else {}))


def _shares_heads(queries: Any, seen: Sequence[Any], mask: Mapping[str, Any]) -> bool:
    """Tell whether the kernel reads a shared head once; of the other kernels, one multiplies out all pairs, the other knows no groups.

    On a GPU FlashAttention does (bf16 and fp16 from Ampere on), and on a CPU all but the masked one.
    """
    from torch.backends.cuda import SDPAParams, can_use_flash_attention

    if queries.device.type == "cpu":
        return "attn_mask" not in mask
    causal = bool(mask.get("is_causal", False))
    return bool(can_use_flash_attention(SDPAParams(queries, *seen, None, 0.0, causal, True)))
