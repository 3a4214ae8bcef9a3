"""Models that pool: they embed or classify documents and write no text. Which ones they are, as vLLM decides it, and what changes.

A model pools if Sentence Transformers' ``modules.json`` lies beside its configuration, or its class is named as one that does
(vllm/config/model.py, ``_get_default_runner_type`` and ``_SUFFIX_TO_DEFAULTS``). A decoder that pools is its language model without
lm_head (vllm/model_executor/models/adapters.py); a configuration with ``is_causal`` false, or Gemma 3's ``use_bidirectional_attention``,
makes its queries see both ways (``get_attn_type`` there).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from costmodel.architecture.blueprint import Blueprint, Layer
from costmodel.architecture.reader import ConfigReader
from costmodel.architecture.types import Pooling
from costmodel.equations.work import BothWays

MODULES: Final = "modules.json"
"""Sentence Transformers' list of what a document passes, if the model embeds."""
POOLING: Final = "1_Pooling"
"""Folder that its pooling is usually in."""
CLASSIFIER: Final = "ForSequenceClassification"
_POOLING: Final = ("Model", "ForTextEncoding", CLASSIFIER)
_REWARD: Final = ("RewardModel", "ForRewardModeling", "ForTokenClassification")
_MODES: Final[dict[str, Pooling]] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
    "cls": "cls",
    "mean": "mean",
    "lasttoken": "last",
}
"""Keys of a ``1_Pooling/config.json`` that are true, or its ``pooling_mode``."""


def class_name(config: ConfigReader) -> str:
    """Return the first class that a configuration names, "" if it names none."""
    names = config.items("architectures")
    return names[0] if names and isinstance(names[0], str) else ""


def labels(config: ConfigReader) -> int:
    """Return how many labels a classifier has: those of ``id2label``, two if it does not say (configuration_utils.py)."""
    named = config.get("id2label")
    return len(named) if isinstance(named, Mapping) and named else config.integer("num_labels", default=2)


def pooling_mode(content: Any) -> Pooling:
    """Return the pooling that the content of a ``1_Pooling/config.json`` asks for; the first token's where it is not understood."""
    if not isinstance(content, Mapping):
        return "cls"
    chosen = [str(content.get("pooling_mode"))] + [key for key, value in content.items() if value is True]
    return next((_MODES[key] for key in chosen if key in _MODES), "cls")


def pooling_files(mode: Pooling | None) -> dict[str, Any]:
    """Return the contents of the files, by name, that :func:`pooling_path` and :func:`pooling_mode` read ``mode`` from; none for None."""
    if not mode:
        return {}
    key = next(name for name, meant in _MODES.items() if meant == mode)
    module = {"idx": 1, "name": "1", "path": POOLING, "type": "sentence_transformers.models.Pooling"}
    return {MODULES: [module], f"{POOLING}/config.json": {key: True}}


def pooling_path(modules: Any) -> str | None:
    """Return the folder of the pooling module in the content of a ``modules.json``; None if it has none."""
    for module in modules if isinstance(modules, list) else ():
        if isinstance(module, Mapping) and str(module.get("type")).endswith(".Pooling"):
            return str(module.get("path"))
    return None


def pooled(blueprint: Blueprint, config: ConfigReader, given: Pooling | None) -> Blueprint:
    """Return the model as it pools, if it does.

    Args:
        blueprint: of the family; encoders pool already.
        config: names the class, and whether attention is causal.
        given: what the files of Sentence Transformers beside it say; None without them.

    Raises:
        UnsupportedError: a head that is not counted.
    """
    if blueprint.pooling:
        return replace(blueprint, pooling=given) if given and not blueprint.head else blueprint
    name, gemma = class_name(config), config.get("use_bidirectional_attention") is True
    both = gemma or config.get("is_causal") is False
    if name.endswith(_REWARD):
        raise config.unsupported(f"{name} is not covered: its head is not counted")
    if given is None and not both and not name.endswith(_POOLING):
        return blueprint
    blueprint = replace(blueprint, tied=True, lm_head_bias=False, pooling=given or ("mean" if gemma else "last"))
    if name.endswith(CLASSIFIER):
        outputs = labels(config)
        blueprint = replace(
            blueprint,
            head=(outputs,),
            extra_parameters=blueprint.extra_parameters + blueprint.hidden * outputs,
        )
    return replace(blueprint, layers=tuple(_both_ways(blueprint.layers, gemma))) if both else blueprint


def _both_ways(layers: Iterable[Layer], gemma: bool) -> Iterable[Layer]:
    """Yield the layers with queries that see both ways, equal ones sharing an object as before.

    A window w is w − 1 tokens on either side; Gemma's configuration gives that of both sides together (configuration_gemma3.py).
    """
    made: dict[int, Layer] = {}
    for layer in layers:
        if id(layer) not in made:
            window = layer.attention.window
            side = (window // 2 if gemma else window - 1) if isinstance(window, int) else None
            made[id(layer)] = replace(layer, attention=replace(layer.attention, window=BothWays(side)))
        yield made[id(layer)]
