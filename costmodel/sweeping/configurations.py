"""One simulation of a sweep: its configuration as plain JSON, so that it can travel and be kept, and the row that comes of it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from costmodel.calibrations import choose_calibration
from costmodel.deployment import deploy
from costmodel.hardware.calibration import Calibration
from costmodel.hardware.errors import CostModelError, InputError, shown
from costmodel.simulation.interfering import run_interference
from costmodel.simulation.results import Percentiles, Result, Simulation
from costmodel.simulation.running import Limits
from costmodel.simulation.simulating import run_load
from costmodel.sweeping.rows import types_of

Configuration = dict[str, Any]
"""``kind``, ``workload``, ``server``, ``limits``, ``files``: all that the row depends on."""

FILED = ("model", "gpu", "calibration")
"""Options that may name files, whose content counts."""


def key_of(configuration: Mapping[str, Any]) -> str:
    """Return what two configurations have in common if, and only if, they are the same."""
    return json.dumps(configuration, sort_keys=True, separators=(",", ":"))


def file_stamps(options: Mapping[str, Any]) -> dict[str, str]:
    """Return a digest of each file that the options name, by option; of the calibration that is taken where they name none."""
    found = {}
    for name in FILED:
        given = options.get(name)
        if isinstance(given, (str, os.PathLike)):
            path = Path(given).expanduser()
            with suppress(OSError, ValueError):
                path = path / "config.json" if path.is_dir() else path
                found[name] = _digest(path.read_bytes())
    if options.get("calibration") is None and (fitted := _chosen(options)) is not None:
        found["calibration"] = _digest(fitted.model_dump_json().encode())
    return found


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _chosen(options: Mapping[str, Any]) -> Calibration | None:
    """Return the shipped calibration of a server; None where there is none, or no such server on this machine."""
    placed = {name: options[name] for name in ("tp", "ep", "dtype", "kv_dtype", "compute_dtype", "lora")}
    try:
        deployment = deploy(options["model"], options["gpu"], **placed)
        return choose_calibration(None, deployment, options["engine"], options["assume_efficiency"])
    except InputError:
        return None


def simulate_configuration(configuration: Configuration) -> dict[str, Any]:
    """Return the columns that a simulation fills, by name; ``problem`` where it cannot be.

    Raises:
        CostModelError: a file of this machine is not that of the one who asks.
        KeyboardInterrupt: in place of half a simulation.
    """
    if (stamps := file_stamps(configuration["server"])) != configuration["files"]:
        changed = sorted(
            name for name in {*stamps, *configuration["files"]} if stamps.get(name) != configuration["files"].get(name)
        )
        named = configuration["server"][changed[0]]
        what = f"the shipped calibration of {configuration['server']['gpu']}" if named is None else shown(named)
        raise CostModelError(f"{what} is not the same file here as where the sweep was asked for")
    workload, server = configuration["workload"], configuration["server"]
    limits = Limits(**configuration["limits"])
    try:
        if configuration["kind"] == "interference":
            document = run_interference(
                **workload, prompts=1, grow=False, injected_output=1, limits=limits, pools=None, options=server
            ).document
        else:
            document = run_load(**workload, think=0.0, ramp=0.0, limits=limits, pools=None, options=server).document
    except InputError as error:
        return {"problem": str(error)}
    if document.interrupted:
        raise KeyboardInterrupt
    return row_of(document, max(server["ep"] // server["tp"], 1), server["chunk"] == "one-step")


def row_of(document: Simulation, replicas: int, one_step: bool) -> dict[str, Any]:
    """Return the columns of a simulation of one of so many attention replicas; only the ``problem`` where its KV cache does not fit."""
    result = document.result or document.injected
    if document.server.kv_tokens is None:  # simulated as if memory had no end
        reason = next((text for text in document.warnings if "leave no room" in text or "does not fit" in text), "")
        return {"problem": reason.partition(":")[0] if reason.startswith("the weights") else reason.partition("; ")[0]}
    assert result is not None  # it was not interrupted
    tokens = result.output_tokens_per_s * replicas
    made = _measured(result) | {
        "gpus": document.server.gpus,
        "chunk_tokens": None if one_step else document.server.token_budget,
        "rung": document.server.rung,
        "kv_tokens": document.server.kv_tokens,
        "output_tokens_per_s": tokens,
        "output_tokens_per_s_per_gpu": tokens / document.server.gpus,
        "warnings": " | ".join(document.warnings) or None,
    }
    known = types_of("load")
    assert made.keys() <= known.keys()
    return made


def _measured(result: Result) -> dict[str, Any]:
    def at(percentiles: Percentiles | None, name: str) -> float | None:
        return None if percentiles is None else getattr(percentiles, name)

    return {
        "problem": None if result.ttft is not None else "no request was answered",
        "tpot_s": at(result.tpot, "mean_s"),
        "ttft_s": at(result.ttft, "mean_s"),
        "itl_p50_s": at(result.itl, "p50_s"),
        "itl_p99_s": at(result.itl, "p99_s"),
        "itl_max_s": at(result.itl, "max_s"),
        "ttft_p50_s": at(result.ttft, "p50_s"),
        "ttft_p99_s": at(result.ttft, "p99_s"),
        "tpot_p50_s": at(result.tpot, "p50_s"),
        "tpot_p99_s": at(result.tpot, "p99_s"),
        "stalls": result.stalls,
        "requests_done": result.requests.done,
        "requests_refused": sum(result.requests.refused.values()),
        "duration_s": result.duration_s,
        "busy_share": result.busy_share,
        "preemptions": result.preemptions,
        "waiting_max": result.waiting_max,
        "goodput_share": result.goodput.share if result.goodput else None,
    }
