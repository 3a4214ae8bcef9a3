"""A deployment whose dimensions and hardware numbers are symbols: what goes through the same equations to give the formula itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from costmodel.architecture.formats import WeightFormat
from costmodel.architecture.types import Architecture, Attention, FeedForward, StateMixer
from costmodel.architecture.vision import VisionTower
from costmodel.deployment import Deployment, Hardware
from costmodel.dtypes import main_format
from costmodel.symbolic.nomenclature import symbol


@dataclass(slots=True)
class Symbols:
    """Hands out one symbol per (name, value): equal dimensions share a symbol, a second value gets the next index."""

    values: dict[Any, float] = field(default_factory=dict)
    """Symbol → the number it stands for."""
    _given: dict[tuple[str, Any], Any] = field(default_factory=dict)

    def make(self, name: str, value: Any) -> Any:
        """Return the symbol for ``value`` in the role ``name``. Zero stays a number: it switches a term off."""
        if value == 0:
            return value
        if (name, value) not in self._given:
            index = sum(1 for role, _ in self._given if role == name)
            made = symbol(name if index == 0 else f"{name}_{index + 1}")
            self._given[name, value] = made
            self.values[made] = value
        return self._given[name, value]


def symbolic_deployment(deployment: Deployment) -> tuple[Deployment, dict[Any, float]]:
    """Return the deployment with symbols for every dimension and datasheet number, and the value of each symbol.

    Structure stays plain: layer kinds, windows, number formats' names, parallel sizes.
    """
    symbols = Symbols()
    architecture = deployment.architecture
    symbolic = _symbolic_architecture(architecture, symbols)
    counts = deployment.layer_counts
    if len(counts) == 1:
        layer_counts: tuple[Any, ...] = (symbols.make("L", counts[0]),)
    else:
        layer_counts = tuple(symbol(f"L_{index}") for index in range(1, len(counts) + 1))
        symbols.values.update(zip(layer_counts, counts, strict=True))
    main = deployment.compute_dtype_of(main_format(architecture))
    peaks: dict[str, Any] = {}
    for dtype, value in deployment.hardware.peaks.items():
        peaks[dtype] = symbol("F" if dtype == main else f"F_{dtype}")
        symbols.values[peaks[dtype]] = value
    bandwidth, link, units = symbol("W"), symbol("B_link"), symbol("SM")
    hardware = deployment.hardware
    symbols.values |= {bandwidth: hardware.bandwidth, link: hardware.link_bandwidth, units: hardware.units}
    activation, cache = symbol("b_a"), symbol("b_kv")
    symbols.values |= {activation: deployment.activation_bytes, cache: deployment.kv_bytes}
    lora = deployment.lora
    if lora is not None:
        rank, adapters = symbols.make("r_A", lora.rank), symbols.make("n_A", lora.adapters)
        lora = replace(lora, rank=rank, adapters=adapters)
    format_bytes: dict[WeightFormat, Any] = {}
    for fmt, value in deployment.format_bytes.items():
        name = "b_w" if fmt == main_format(architecture) else f"b_w_{fmt.name}"
        same = sum(1 for made in format_bytes.values() if str(made).startswith(name))
        format_bytes[fmt] = symbol(name if not same or name == "b_w" else f"{name}_{same + 1}")
        symbols.values[format_bytes[fmt]] = value
    return (
        replace(
            deployment,
            architecture=symbolic,
            hardware=Hardware(peaks, bandwidth, link, units),
            activation_bytes=activation,
            kv_bytes=cache,
            format_bytes=format_bytes,
            layer_counts=layer_counts,
            lora=lora,
            encoder_states=symbols.make("E_x", deployment.encoder_states),
        ),
        symbols.values,
    )


def _symbolic_architecture(architecture: Architecture, symbols: Symbols) -> Architecture:
    make = symbols.make
    kinds = tuple(
        replace(
            kind,
            attention=_symbolic_attention(kind.attention, make),
            feed_forward=_symbolic_feed_forward(kind.feed_forward, make),
            state=None if kind.state is None else _symbolic_state(kind.state, make),
            cross=None if kind.cross is None else _symbolic_attention(kind.cross, make),
        )
        for kind in architecture.kinds
    )
    hidden, vocabulary = make("d", architecture.hidden), make("V", architecture.vocabulary)
    vision = None if architecture.vision is None else _symbolic_tower(architecture.vision, make)
    return replace(architecture, kinds=kinds, hidden=hidden, vocabulary=vocabulary, vision=vision)


def _symbolic_tower(tower: VisionTower, make: Callable[[str, Any], Any]) -> VisionTower:
    return replace(
        tower,
        patch_inputs=make("c_i", tower.patch_inputs),
        hidden=make("d_i", tower.hidden),
        intermediate=make("d_fi", tower.intermediate),
        layers=make("L_i", tower.layers),
        heads=make("h_i", tower.heads),
        kv_heads=make("h_i" if tower.kv_heads == tower.heads else "h_kvi", tower.kv_heads),
        head_dim=make("d_hi", tower.head_dim),
        windowed_layers=make("L_i", tower.windowed_layers),
        projector=tuple(
            replace(item, inputs=make("k_i", item.inputs), outputs=make("m_i", item.outputs))
            for item in tower.projector
        ),
        fitted_head_dim=tower.head_dim,
    )


def _symbolic_attention(attention: Attention, make: Callable[[str, Any], Any]) -> Attention:
    head_dim = make("d_h", attention.head_dim)
    same = attention.value_head_dim == attention.head_dim
    return replace(
        attention,
        query_heads=make("h", attention.query_heads),
        kv_heads=make("h_kv", attention.kv_heads),
        head_dim=head_dim,
        value_head_dim=head_dim if same else make("d_v", attention.value_head_dim),
        q_lora_rank=make("r_q", attention.q_lora_rank),
        kv_lora_rank=make("r_kv", attention.kv_lora_rank),
        rope_head_dim=make("d_r", attention.rope_head_dim),
        gate_dim=make("d_v", attention.gate_dim)
        if not same and attention.gate_dim == attention.value_head_dim
        else attention.gate_dim,
        index_heads=make("H_I", attention.index_heads),
        index_head_dim=make("d_I", attention.index_head_dim),
        output_groups=make("g_o", attention.output_groups),
        output_rank=make("r_o", attention.output_rank),
        fitted_head_dim=attention.head_dim,
    )


def _symbolic_state(state: StateMixer, make: Callable[[str, Any], Any]) -> StateMixer:
    return replace(
        state,
        heads=make("H_s", state.heads),
        key_heads=make("G_s", state.key_heads),
        key_dim=make("N_s", state.key_dim),
        value_dim=make("P_s", state.value_dim),
    )


def _symbolic_feed_forward(ff: FeedForward, make: Callable[[str, Any], Any]) -> FeedForward:
    return replace(
        ff,
        intermediate=make("d_ff" if ff.kind == "dense" else "d_e", ff.intermediate),
        experts=make("E", ff.experts),
        experts_per_token=make("k", ff.experts_per_token),
        shared_intermediate=make("d_s", ff.shared_intermediate),
        latent=make("d_l", ff.latent),
    )
