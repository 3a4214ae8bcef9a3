"""What a vLLM server tells of itself: on ``/metrics``, how many tokens its steps had, what was found in the prefix cache, its flags."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final

from costmodel.validation.interference.client import Client
from costmodel.validation.interference.exchange import RequestError

STEPS: Final = "vllm:iteration_tokens_total"
"""Histogram of the tokens of a step."""
COUNTERS: Final = ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total", "vllm:num_preemptions_total")
CONFIG: Final = "vllm:cache_config_info"
FLAGS: Final = ("enable_prefix_caching", "num_gpu_blocks", "block_size", "cache_dtype", "gpu_memory_utilization")
"""Of its labels."""

_LINE: Final = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def parse_metrics(text: str) -> list[tuple[str, dict[str, str], float]]:
    """Return name, labels and value of every line of a page of metrics; what is none is left out."""
    found = []
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        try:
            found.append((match[1], dict(_LABEL.findall(match[2] or "")), float(match[3])))
        except ValueError:
            continue
    return found


def counts(text: str) -> dict[str, float]:
    """Return what is kept of a page of metrics; engines of one server are summed. Buckets are ``STEPS<=bound``."""
    found: dict[str, float] = {}
    for name, labels, value in parse_metrics(text):
        key = name
        if name == f"{STEPS}_bucket":
            try:
                key = f"{STEPS}<={float(labels.get('le', ''))}"
            except ValueError:
                continue
        if (key in COUNTERS or name == f"{STEPS}_bucket") and math.isfinite(value):
            found[key] = found.get(key, 0.0) + value
    return found


def flags(text: str) -> dict[str, str]:
    """Return the flags that a page of metrics tells."""
    for name, labels, _ in parse_metrics(text):
        if name == CONFIG:
            return {key: labels[key] for key in FLAGS if labels.get(key) not in (None, "None")}
    return {}


def steps_beyond(grown: Mapping[str, float], tokens: int) -> tuple[int, float] | None:
    """Return how many steps had more tokens than the largest bound below ``tokens``, and that bound; None if nobody knows."""
    bounds = {float(key.partition("<=")[2]): value for key, value in grown.items() if key.startswith(f"{STEPS}<=")}
    below = [bound for bound in bounds if bound < tokens]
    if not below or float("inf") not in bounds:
        return None
    bound = max(below)
    return round(bounds[float("inf")] - bounds[bound]), bound


async def page(client: Client, path: str) -> str | None:
    """Return a page of the server; None where there is none."""
    try:
        found = await client.get(path)
    except RequestError:
        return None
    return found.text if found.status == 200 else None


async def document(client: Client, path: str) -> dict[str, Any]:
    """Return a JSON page of the server; empty where there is none."""
    return parsed(await page(client, path) or "")


def parsed(text: str) -> dict[str, Any]:
    """Return the JSON object that a text is; empty if it is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
