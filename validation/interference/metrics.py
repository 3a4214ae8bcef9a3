"""What a vLLM server tells of itself on ``/metrics``: what was found in the prefix cache, preemptions, some flags.

How many tokens its steps had it does not tell: ``vllm:iteration_tokens_total`` counts a whole prompt in the step that finishes it.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

from costmodel.validation.interference.client import Client
from costmodel.validation.interference.exchange import RequestError

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
    """Return what is kept of a page of metrics; engines of one server are summed."""
    found: dict[str, float] = {}
    for name, _, value in parse_metrics(text):
        if name in COUNTERS and math.isfinite(value):
            found[name] = found.get(name, 0.0) + value
    return found


def flags(text: str) -> dict[str, str]:
    """Return the flags that a page of metrics tells."""
    for name, labels, _ in parse_metrics(text):
        if name == CONFIG:
            return {key: labels[key] for key in FLAGS if labels.get(key) not in (None, "None")}
    return {}


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
