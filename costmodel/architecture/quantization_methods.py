"""The quantisation methods one by one: what their configurations say about formats, exclusions and the KV cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from costmodel.architecture.formats import PLAIN_FORMATS, WeightFormat
from costmodel.architecture.module_names import NamePatterns
from costmodel.architecture.quantization import Quantization, Rule
from costmodel.architecture.reader import ConfigReader

_KV_DTYPES: Final = {"FP8": "fp8", "INT8": "int8"}


def fp8(config: ConfigReader) -> Quantization:
    """``fp8`` as DeepSeek and Qwen publish it: E4M3 weights with one fp32 scale per block of 128 × 128, or per tensor.

    ``moe_quant_algo`` NVFP4 is of routed experts (DeepSeek-V4; vllm/models/deepseek_v4/quant_config.py).
    """
    block = config.items("weight_block_size")
    fmt = PLAIN_FORMATS["fp8"]
    if block:
        if len(block) != 2 or not all(isinstance(side, int) and side > 0 for side in block):
            raise config.fail("weight_block_size", f"must be two whole numbers, not {block}")
        fmt = WeightFormat("fp8", group_size=block[0] * block[1], scale_bits=32)
    excluded = _names(config, "modules_to_not_convert", "ignored_layers")
    if algorithm := config.text("moe_quant_algo", "").upper():
        experts = Rule(_modelopt_format(config, algorithm), NamePatterns(("experts",)))
        return Quantization(f"fp8 {algorithm}", (experts, Rule(fmt)), excluded)
    return Quantization("fp8", (Rule(fmt),), excluded)


def fbgemm_fp8(config: ConfigReader) -> Quantization:
    """``fbgemm_fp8``, Meta's: E4M3 weights with one scale per output channel, activations quantised per token."""
    return Quantization("fbgemm_fp8", (Rule(PLAIN_FORMATS["fp8"]),), _names(config, "modules_to_not_convert"))


def gptq(config: ConfigReader) -> Quantization:
    """GPTQ: integers with an fp16 scale and a packed zero point per group of a column."""
    bits = config.integer("bits")
    group = _group(config, "group_size", 128)
    fmt = WeightFormat(_integer_name(config, bits), group, 16 + bits if group else 0, weight_only=True)
    excluded = []
    overrides = config.get("dynamic") or {}
    if not isinstance(overrides, Mapping):
        raise config.fail("dynamic", "must be an object")
    for pattern in overrides:
        if not pattern.startswith("-:"):
            raise config.unsupported(f"GPTQ with different settings per module (dynamic {pattern!r}) is not covered")
        excluded.append("re:" + pattern[2:])
    inside = [name for block in config.items("modules_in_block_to_quantize") for name in block]
    targets = NamePatterns(inside) if inside else None
    head = fmt if config.flag("lm_head", False) else None
    return Quantization("gptq", (Rule(fmt, targets),), NamePatterns(excluded), lm_head=head)


def awq(config: ConfigReader) -> Quantization:
    """AWQ: 4-bit integers with an fp16 scale, and a packed zero point if ``zero_point``, per group of a column."""
    bits = config.first_integer("bits", "w_bit")
    group = _group(config, "group_size" if config.has("group_size") else "q_group_size", 128)
    scale = 16 + (bits if config.flag("zero_point", True) else 0)
    fmt = WeightFormat(_integer_name(config, bits), group, scale if group else 0, weight_only=True)
    return Quantization("awq", (Rule(fmt),), _names(config, "modules_to_not_convert"))


def mxfp4(config: ConfigReader) -> Quantization:
    """``mxfp4``, gpt-oss: routed experts only, 4-bit floats with one 8-bit scale per 32."""
    excluded = _names(config, "modules_to_not_convert")
    return Quantization("mxfp4", (Rule(PLAIN_FORMATS["mxfp4"]),), excluded, experts_only=True)


def bitsandbytes(config: ConfigReader) -> Quantization:
    """bitsandbytes: 4 bits with one fp32 scale per 64 weights (8 bits + 32/256 if the scales are quantised too), or int8 by row."""
    skipped = _names(config, "llm_int8_skip_modules")
    if config.flag("load_in_4bit", False) or config.flag("_load_in_4bit", False):
        double = config.flag("bnb_4bit_use_double_quant", False)
        # Scales per 256 blocks of 64, the second level spread over them: (256 × 8 + 32) bits per 16,384 weights.
        fmt = WeightFormat("int4", 64 * 256, 256 * 8 + 32, True) if double else WeightFormat("int4", 64, 32, True)
        return Quantization("bitsandbytes 4-bit", (Rule(fmt),), skipped)
    if config.flag("load_in_8bit", False) or config.flag("_load_in_8bit", False):
        return Quantization("bitsandbytes 8-bit", (Rule(PLAIN_FORMATS["int8"]),), skipped)
    raise config.fail("load_in_4bit", "and load_in_8bit are both false, so nothing says how weights are stored")


def compressed_tensors(config: ConfigReader) -> Quantization:
    """compressed-tensors (llm-compressor): groups of modules, each with a number format for weights and activations."""
    groups = config.section("config_groups")
    sparsity = config.get("sparsity_config") or {}
    if isinstance(sparsity, Mapping) and sparsity.get("format", "dense") != "dense":
        raise config.unsupported(f"sparse weights ({sparsity.get('format')}) are not covered")
    rules = []
    head = None
    for key in groups.config:
        group = groups.section(key)
        fmt = _compressed_format(group)
        targets = [str(target) for target in group.items("targets")] or ["Linear"]
        named = [target for target in targets if target != "Linear"]
        classes = [
            target for target in named if not target.startswith("re:") and target.isalpha() and target[0].isupper()
        ]
        if classes:
            raise group.unsupported(f"modules of class {classes[0]} are not covered")
        if any(NamePatterns([target]).match("lm_head") and "lm_head" in target for target in named):
            head = fmt
        rules.append(Rule(fmt, None if "Linear" in targets else NamePatterns(named)))
    rules.sort(key=lambda rule: rule.targets is None)  # named modules before "every linear module"
    excluded = _names(config, "ignore")
    kv = _compressed_kv(config)
    return Quantization("compressed-tensors", tuple(rules), excluded, lm_head=head, kv_dtype=kv)


def _compressed_format(group: ConfigReader) -> WeightFormat:
    weights = group.section("weights")
    bits, kind = weights.integer("num_bits"), weights.text("type", "int")
    strategy = weights.text("strategy", "tensor")
    size = _group(weights, "group_size", 0) if strategy in ("group", "tensor_group") else 0
    activations = group.section("input_activations") if group.get("input_activations") else None
    weight_only = activations is None
    if activations is not None and activations.integer("num_bits") != bits:
        raise group.unsupported(
            f"{bits}-bit weights with {activations.integer('num_bits')}-bit activations are not covered"
        )
    if strategy == "block":
        block = weights.items("block_structure")
        area = block[0] * block[1] if len(block) == 2 else 128 * 128
        return WeightFormat(_float_or_int(weights, bits, kind, 0), area, 32, weight_only)
    name = _float_or_int(weights, bits, kind, size)
    if name in ("nvfp4", "mxfp4"):
        return WeightFormat(name, size, 8, weight_only)
    scale = (16 if weights.flag("symmetric", True) else 16 + bits) if size else 0
    return WeightFormat(name, size, scale, weight_only)


def _float_or_int(config: ConfigReader, bits: int, kind: str, group: int) -> str:
    if kind == "int":
        return _integer_name(config, bits)
    names = {(8, 0): "fp8", (4, 16): "nvfp4", (4, 32): "mxfp4"}
    key = (bits, group if bits == 4 else 0)
    if kind != "float" or key not in names:
        raise config.unsupported(f"weights of type {kind}, {bits} bits, group {group} are not covered")
    return names[key]


def _compressed_kv(config: ConfigReader) -> str | None:
    scheme = config.get("kv_cache_scheme")
    if not scheme:
        return None
    if isinstance(scheme, str):
        return _kv_dtype(config, "kv_cache_scheme", scheme)
    section = config.section("kv_cache_scheme")
    kind = {"float": "FP", "int": "INT"}.get(section.text("type", "float"), "")
    return _kv_dtype(config, "kv_cache_scheme", f"{kind}{section.integer('num_bits')}")


def _kv_dtype(config: ConfigReader, key: str, value: str) -> str | None:
    name = value.upper()
    if name in ("", "NONE", "NULL", "AUTO"):
        return None
    if name not in _KV_DTYPES:
        raise config.unsupported(f"{key} {value!r} is not covered (known: {', '.join(_KV_DTYPES)})")
    return _KV_DTYPES[name]


def modelopt(config: ConfigReader) -> Quantization:
    """NVIDIA Model Optimizer, from ``hf_quant_config.json`` or the configuration's own section.

    ``MIXED_PRECISION`` names every quantised module with its own algorithm; all other algorithms hold for every
    linear module that is not excluded.
    """
    algorithm = config.text("quant_algo", "").upper()
    if not algorithm:
        raise config.fail("quant_algo", "is missing")
    kv = _compressed_kv(config)
    if config.has("kv_cache_quant_algo"):
        kv = _kv_dtype(config, "kv_cache_quant_algo", config.text("kv_cache_quant_algo", ""))
    excluded = _names(config, "exclude_modules", "ignore")
    if algorithm != "MIXED_PRECISION":
        fmt = _modelopt_format(config, algorithm)
        return Quantization(f"modelopt {algorithm}", (Rule(fmt),), excluded, kv_dtype=kv)
    by_format: dict[WeightFormat, list[str]] = {}
    layers = config.section("quantized_layers")
    for name in layers.config:
        layer = layers.section(name)
        fmt = _modelopt_format(layer, layer.text("quant_algo", "").upper())
        by_format.setdefault(fmt, []).append(name)
    rules = tuple(Rule(fmt, NamePatterns(names)) for fmt, names in by_format.items())
    head = next((rule.fmt for rule in rules if rule.targets is not None and rule.targets.match("lm_head")), None)
    return Quantization("modelopt mixed", rules, excluded, lm_head=head, kv_dtype=kv)


def _modelopt_format(config: ConfigReader, algorithm: str) -> WeightFormat:
    plain = {
        "FP8": PLAIN_FORMATS["fp8"],
        "FP8_PER_CHANNEL_PER_TOKEN": PLAIN_FORMATS["fp8"],
        "FP8_PB_WO": WeightFormat("fp8", 128 * 128, 32, weight_only=True),
        "FP8_PB_REAL": WeightFormat("fp8", 128 * 128, 32),
        "FP8_BLOCK_SCALES": WeightFormat("fp8", 128 * 128, 32),
        "MXFP8": WeightFormat("fp8", 32, 8),
        "MXFP4": PLAIN_FORMATS["mxfp4"],
        "W8A16": WeightFormat("int8", weight_only=True),
        "W8A8_SQ_PER_CHANNEL": PLAIN_FORMATS["int8"],
    }
    if algorithm in plain:
        return plain[algorithm]
    if algorithm in ("NVFP4", "NVFP4_AWQ", "W4A16_NVFP4"):
        group = _group(config, "group_size", 16)
        return WeightFormat("nvfp4", group, 8, weight_only=algorithm.startswith("W4A16"))
    if algorithm in ("W4A16", "W4A16_AWQ", "INT4_AWQ"):
        return WeightFormat("int4", _group(config, "group_size", 128), 16, weight_only=True)
    raise config.unsupported(f"quantisation algorithm {algorithm!r} is not covered")


def _names(config: ConfigReader, *keys: str) -> NamePatterns:
    found = []
    for key in keys:
        for name in config.items(key):
            if not isinstance(name, str):
                raise config.fail(key, f"must be a list of names, not {name!r}")
            found.append(name)
    return NamePatterns(found)


def _group(config: ConfigReader, key: str, default: int) -> int:
    """Return a group size; 0 for −1, which stands for one scale per output channel."""
    value: Any = config.get(key)
    return 0 if value == -1 else config.integer(key, default=default, least=0)


def _integer_name(config: ConfigReader, bits: int) -> str:
    if bits not in (4, 8):
        raise config.unsupported(f"{bits}-bit integers are not covered (4 and 8 bits are)")
    return f"int{bits}"


METHODS: Final[dict[str, Callable[[ConfigReader], Quantization]]] = {
    "awq": awq,
    "bitsandbytes": bitsandbytes,
    "compressed-tensors": compressed_tensors,
    "fbgemm-fp8": fbgemm_fp8,
    "fp8": fp8,
    "gptq": gptq,
    "mxfp4": mxfp4,
}
"""Methods by ``quant_method``, with hyphens; ``modelopt`` comes with its own file."""
