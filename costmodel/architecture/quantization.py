"""How the weights of each module are stored: ``quantization_config`` of a ``config.json``, or ``hf_quant_config.json``.

What a method does not convert keeps 16 bits: embeddings, routers and norms always, lm_head unless it is named.
Quantised weights say nothing about the KV cache: its dtype is set only where the checkpoint carries KV scales.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from costmodel.architecture.blueprint import Layer, ModuleNames
from costmodel.architecture.formats import PLAIN_FORMATS, WeightFormat
from costmodel.architecture.module_names import NamePatterns
from costmodel.architecture.reader import ConfigReader
from costmodel.architecture.types import LayerFormats
from costmodel.hardware.errors import UnsupportedError

_NOTHING: Final = NamePatterns(())
LATENT_KERNELS: Final = ("latent_in_proj", "latent_out_proj")
"""Around experts in a latent space; in 16 bits where a family does not name their modules."""
INDEX_COLUMNS: Final = ("indexer.index_q_proj", "indexer.index_k_proj")
"""What an indexer adds to the kernel of q, k and v where its heads choose by group."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Modules that match are stored in ``fmt``."""

    fmt: WeightFormat
    targets: NamePatterns | None = None
    """None: every linear module."""


@dataclass(frozen=True, slots=True, eq=False)
class Quantization:
    """Which modules are stored in which format.

    Attributes:
        method: name for display, e.g. ``fp8``; "" for none.
        rules: tried in order; the first that matches decides.
        excluded: modules that keep 16 bits.
        experts_only: True if nothing but routed experts is converted (mxfp4).
        lm_head: format of lm_head, if it is converted.
        kv_dtype: dtype of the KV cache that the checkpoint carries scales for, if any.
        notes: what the reader should know.
    """

    method: str = ""
    rules: tuple[Rule, ...] = ()
    excluded: NamePatterns = field(default_factory=lambda: _NOTHING)
    experts_only: bool = False
    lm_head: WeightFormat | None = None
    kv_dtype: str | None = None
    notes: tuple[str, ...] = ()

    def module_format(self, names: tuple[str, ...]) -> WeightFormat | None:
        """Return the format of a module, known under each of ``names``; None if it keeps 16 bits."""
        if any(self.excluded.match(name) for name in names):
            return None
        for rule in self.rules:
            if rule.targets is None or any(rule.targets.match(name) for name in names):
                return rule.fmt
        return None

    def layer_formats(self, index: int, layer: Layer, names: ModuleNames, dtype: str) -> LayerFormats:
        """Return the formats of one layer.

        Raises:
            UnsupportedError: modules that are computed by one kernel are stored in different formats.
        """
        plain = PLAIN_FORMATS[dtype]
        if not self.rules:
            return LayerFormats.uniform(plain)
        moe = layer.feed_forward.kind == "moe"
        overrides: list[tuple[str, WeightFormat]] = []

        def group(kernels: tuple[tuple[str, tuple[str, ...]], ...], experts: int = 0) -> WeightFormat:
            found = {}
            for kernel, modules in kernels:
                found[kernel] = self._kernel_format(index, kernel, modules, names.prefixes, experts, plain)
            common = Counter(found.values()).most_common(1)[0][0]
            overrides.extend((kernel, fmt) for kernel, fmt in found.items() if fmt != common)
            return common

        routed = group(names.experts, layer.feed_forward.experts) if moe else None
        if self.experts_only:
            return LayerFormats(plain, plain, routed or plain, plain, tuple(overrides))
        present = [entry for entry in names.attention if self._has_kernel(entry[0], layer)]
        attention = group(tuple(present)) if present else plain
        dense = names.shared if moe else names.feed_forward
        wanted = layer.feed_forward.kind != "none" and bool(dense)
        wanted = wanted and (not moe or layer.feed_forward.shared_intermediate != 0)
        feed_forward = group(dense) if wanted else routed or plain
        if moe and layer.feed_forward.latent:
            of_latent = group(names.latent) if names.latent else plain
            overrides += [(kernel, of_latent) for kernel in LATENT_KERNELS if of_latent != feed_forward]
        formats = LayerFormats(attention, feed_forward, routed or feed_forward, plain, tuple(overrides))
        fused = {formats.of(kernel, attention) for kernel in ("qkv_proj", *INDEX_COLUMNS)}
        if layer.attention.index_by_group and len(fused) > 1:
            kinds = " and ".join(sorted({fmt.name for fmt in fused}))
            raise UnsupportedError(f"layer {index}: qkv_proj and the indexer are one kernel, but are stored in {kinds}")
        return formats

    @staticmethod
    def _has_kernel(kernel: str, layer: Layer) -> bool:
        if kernel in ("in_proj", "in_proj_ba", "f_b_proj", "g_b_proj", "out_proj"):
            return layer.state is not None and {
                "in_proj_ba": layer.state.kind == "gdn",
                "f_b_proj": layer.state.kind == "kda",
                "g_b_proj": layer.state.gate_rank != 0,
            }.get(kernel, True)
        if layer.attention.kind == "none":
            return False
        if kernel == "g_proj":
            return bool(layer.attention.gate_dim != 0)
        if kernel.startswith("indexer."):
            return bool(layer.attention.index_heads != 0)
        compressed = layer.attention.q_lora_rank != 0
        return not ((kernel in ("q_a_proj", "q_b_proj") and not compressed) or (kernel == "q_proj" and compressed))

    def _kernel_format(
        self,
        index: int,
        kernel: str,
        modules: tuple[str, ...],
        prefixes: tuple[str, ...],
        experts: int,
        plain: WeightFormat,
    ) -> WeightFormat:
        numbers = range(experts) if self._treats_experts_singly() else (0,)
        found = set()
        for module in modules:
            for number in numbers if "{e}" in module else (0,):
                relative = module.replace("{e}", str(number))
                full = tuple(f"{prefix}{index}.{relative}" for prefix in prefixes)
                found.add(self.module_format(full) or plain)
        if len(found) > 1:
            kinds = " and ".join(sorted({fmt.name for fmt in found}))
            raise UnsupportedError(f"layer {index}: {kernel} is one kernel, but its modules are stored in {kinds}")
        return found.pop()

    def _treats_experts_singly(self) -> bool:
        lists = [self.excluded, *(rule.targets for rule in self.rules if rule.targets is not None)]
        return any(names.mentions_single_experts() for names in lists)


def with_experts(quantization: Quantization, name: str) -> Quantization:
    """Return the same with routed experts in a format of their own, unless it names one; the scales of fp8 are then 8 bits too, E8M0.

    So DeepSeek-V4 is published: ``expert_dtype`` fp4 (vllm/models/deepseek_v4/quant_config.py, ``DeepseekV4FP8Config``).
    """
    if not name or quantization.method not in ("fp8", "fp8 NVFP4"):
        return quantization
    rules = [
        Rule(
            replace(rule.fmt, scale_bits=8) if rule.fmt.name == "fp8" and rule.fmt.group_size else rule.fmt,
            rule.targets,
        )
        for rule in quantization.rules
    ]
    method = quantization.method
    if all(rule.targets is None for rule in rules):
        rules.insert(0, Rule(PLAIN_FORMATS[name], NamePatterns(("experts",))))
        method += f" {name.upper()}"
    return replace(quantization, method=method, rules=tuple(rules))


PLAIN: Final = Quantization()
"""Nothing is quantised."""


def read_quantization(
    config: Mapping[str, Any], quant: Mapping[str, Any] | None, name: str, dtype: str
) -> Quantization:
    """Read how weights are stored.

    Args:
        config: content of ``config.json``.
        quant: content of ``hf_quant_config.json``, if there is one; it counts where the configuration names no other
            method.
        name: the model, for messages.
        dtype: 16-bit dtype of what is not quantised.

    Raises:
        UnsupportedError: an unknown method or a format that there is no arithmetic for.
        InputError: a key is missing or of a wrong type.
    """
    # Only where needed: plain checkpoints start faster.
    from costmodel.architecture import quantization_methods as methods

    found = config.get("quantization_config") or config.get("compression_config")
    if config.get("quantization"):
        raise UnsupportedError(
            f"config of {name}: key quantization is another runtime's way to say how weights are stored"
        )
    if not found and not quant:
        return PLAIN
    reader = ConfigReader(config, f"config of {name}")
    key = "quantization_config" if config.get("quantization_config") else "compression_config"
    section = reader.section(key) if found else ConfigReader({}, f"config of {name}")
    method = section.text("quant_method", "").casefold().replace("_", "-")
    if method in ("", "modelopt", "modelopt-fp4"):
        if quant:
            inner = ConfigReader(quant, f"hf_quant_config of {name}")
            section = inner.section("quantization") if inner.has("quantization") else inner
        return methods.modelopt(section)
    if method not in methods.METHODS:
        known = ", ".join(sorted({*methods.METHODS, "modelopt"}))
        raise UnsupportedError(f"config of {name}: quantisation method {method!r} is not covered; known are {known}")
    return methods.METHODS[method](section)
