"""Steps of a Llama-shaped decoder in torch alone, as an engine that a plan can be run on: for parts and machines without vLLM.

On a GPU every step is replayed from a CUDA graph of its own, as its shapes stay the same; launched one by one from Python, the kernels of
short prompts would wait for their launches. Contexts stay as they are from one repeat to the next. There is no scheduler, so the overheads
are those of torch and not of a server. Attention on a GPU is FlashAttention in every step where the device has it: cuDNN's, which torch
may prefer, knows no chunk on a context and plans every new shape.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, cast

from costmodel.architecture.families import architecture_from_config
from costmodel.dtypes import TORCH_NAMES
from costmodel.hardware.errors import InputError
from costmodel.validation.backends.asked import Asked, find_files, now, short_dtype
from costmodel.validation.backends.devices import Nvml, available_bytes, device_name, profile_of, versions
from costmodel.validation.backends.torch_llama import Llama, shape_of
from costmodel.validation.measurements.files import Sample
from costmodel.validation.measurements.measuring import WATCH_SECONDS, Missed, Seen, TimeIsUp
from costmodel.validation.measurements.plan import ROOM, Limits, Point
from costmodel.validation.measurements.types import Clock, Engine, Header, Machine, Model

BLOCK: Final = 16
"""Contexts are whole multiples of it, as those of vLLM on a GPU."""
KV_SHARE: Final = 0.5
"""Share of the free memory for the KV cache; the rest is for activations, and for copies of a cache where kernels cannot share heads."""
CPU_KV_BYTES: Final = 2**30
SET_UP_COST: Final = 0.05
"""A cached token is made of random numbers, not computed."""
ATTENTION: Final = ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH")
"""torch's names of the kernels that attention may run on, on a GPU."""
BUSY_SECONDS: Final = 0.02
"""For so long the device computes while clocks are looked at [s]."""
WARM_UPS: Final = 2
"""Steps that are not counted: the first of a shape chooses kernels."""


def import_torch() -> Any:
    """Import torch.

    Raises:
        InputError: it is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise InputError(f"PyTorch is not installed ({error}): pip install torch") from None
    return torch


def device_kind(asked: str | None) -> str:
    """Return the kind of device to compute on: the one asked for, else a GPU if there is one.

    Raises:
        InputError: a GPU is asked for, and torch finds none.
    """
    there = bool(import_torch().cuda.is_available())
    if asked == "cuda" and not there:
        raise InputError("torch finds no GPU here; --device cpu measures the CPU")
    return asked or ("cuda" if there else "cpu")


class TorchEngine:
    """A Llama-shaped decoder that runs the steps of a plan.

    Args:
        asked: configuration and limits; ``random_weights`` is implied.
        device: ``cuda``, ``cpu``, or None for a GPU if there is one.

    Raises:
        InputError: torch is missing, no such device or model, or it does not fit.
    """

    def __init__(self, asked: Asked, device: str | None = None) -> None:
        self._files = find_files(asked)
        architecture = architecture_from_config(self._files.config, self._files.name, self._files.quant)
        self._shape = shape_of(architecture)
        self._asked = asked
        self._torch = torch = import_torch()
        self._kind = device_kind(device)
        self._dtype = short_dtype(asked.dtype) or architecture.dtype
        if self._dtype not in TORCH_NAMES:
            raise InputError(
                f"--backend torch computes in {', '.join(TORCH_NAMES)}, not in {self._dtype}; name one with --dtype"
            )
        if asked.kv_dtype not in (None, "auto", self._dtype, TORCH_NAMES[self._dtype]):
            raise InputError(
                f"--backend torch keeps the KV cache in the activations' {self._dtype}, not in {asked.kv_dtype}"
            )
        self._profile = profile_of("" if asked.gpu else device_name(self._kind), asked.gpu)
        self._nvml = Nvml([torch.cuda.current_device()]) if self._kind == "cuda" else None
        self._looked = -math.inf
        self._seen: Seen | None = None
        self._stream = torch.cuda.Stream() if self._kind == "cuda" else None
        self._threads = torch.get_num_threads() if self._kind == "cpu" else None
        self.clock: Clock = self._choose_clock()
        kind = getattr(torch, TORCH_NAMES[self._dtype])
        element = torch.empty((), dtype=kind).element_size()
        needed, free = self._shape.weights * element, self._free_bytes()
        if needed > 0.9 * free:
            raise InputError(
                f"{self._files.name} in {self._dtype} has {needed / 2**30:.1f} GiB of weights, and {free / 2**30:.1f} GiB are free; "
                "take a smaller model or --dtype"
            )
        self._model = Llama(self._shape, self._kind, kind, asked.seed)
        self._graphs = self._kind == "cuda" and not asked.enforce_eager
        self._graphs = self._graphs and self._captures()
        self.limits = self._limits(element)

    def _choose_clock(self) -> Clock:
        if self._asked.clock == "cpu" and self._threads != 1:
            raise InputError("--clock cpu counts the time of one thread of a CPU; set OMP_NUM_THREADS=1 on a CPU")
        return "cpu" if self._threads == 1 and self._asked.clock != "wall" else "wall"

    def _free_bytes(self) -> float:
        if self._kind == "cuda":
            return float(self._torch.cuda.mem_get_info()[0])
        return available_bytes()

    def _limits(self, element: int) -> Limits:
        asked, on_gpu = self._asked, self._kind == "cuda"
        longest = int(self._files.config.get("max_position_embeddings") or 32768)
        room = KV_SHARE * self._free_bytes() if on_gpu else CPU_KV_BYTES
        return Limits(
            token_budget=asked.max_num_batched_tokens or (16384 if on_gpu else 2048),
            sequences=asked.max_num_seqs or 256,
            model_tokens=asked.max_model_len or min(longest, 32768 if on_gpu else 4096),
            kv_tokens=int(room / self._shape.kv_bytes(element)),
            block_tokens=BLOCK,
            set_up_cost=SET_UP_COST,
        )

    def header(self) -> Header:
        """Return what is the same for all steps."""
        return Header(
            source="probe",
            engine=Engine(
                name="torch",
                version=str(self._torch.__version__),
                versions=versions(self._nvml),
                flags={
                    "device": self._kind,
                    "dtype": TORCH_NAMES[self._dtype],
                    "cuda_graphs": self._graphs,
                    **({"sdpa_backends": ", ".join(ATTENTION)} if self._kind == "cuda" else {}),
                    "max_num_batched_tokens": self.limits.token_budget,
                    "max_num_seqs": self.limits.sequences,
                    "max_model_len": self.limits.model_tokens,
                    "seed": self._asked.seed,
                },
            ),
            machine=Machine(profile=self._profile, device=device_name(self._kind), threads=self._threads),
            model=Model(name=self._files.name, config=self._files.config, dtype=self._dtype, random_weights=True),
            clock=self.clock,
            date=now(),
            command=self._asked.command,
            notes=("steps of a Llama-shaped decoder in torch: kernels of torch, and no scheduler",),
        )

    def warm_up(self) -> float:
        """Run a prompt until the first surprises are over, and return the tokens that it computes per second."""
        length = min(512, self.limits.token_budget, self.limits.model_tokens - ROOM)
        if length < 1:
            raise InputError(
                f"--max-model-len {self.limits.model_tokens} is too short to measure; allow at least {2 * ROOM}"
            )
        [sample] = self.run(Point("prefill", (length, 0)), 1, float("inf"))
        return length / (sample.wall_seconds or sample.seconds)

    def run(self, point: Point, repeats: int, deadline: float) -> list[Sample]:
        """Run the point's step so many times after some that are not counted."""
        reason = "the memory of the device is too small"
        try:
            with self._torch.inference_mode(), self._kernels():
                return self._repeated(point, repeats, deadline)
        except self._torch.OutOfMemoryError:
            pass  # the caches go with the error, so only behind it is memory free again
        except RuntimeError as error:
            if self._kind != "cuda":
                raise
            reason = _first_line(error)
        self._wait()  # raises where the device itself has failed, after which nothing works any more
        self._torch.cuda.empty_cache()
        raise Missed(reason)

    def _captures(self) -> bool:
        """Tell whether a step with all kinds of attention in it can be captured on this device."""
        try:
            with self._torch.inference_mode(), self._kernels():
                self._prepared(Point("mixed", (BLOCK, BLOCK), 1, BLOCK, held_out=True))
        except RuntimeError:
            self._wait()
            return False
        return True

    def _repeated(self, point: Point, repeats: int, deadline: float) -> list[Sample]:
        step = self._prepared(point)
        found = []
        for _ in range(repeats):
            if time.monotonic() >= deadline:
                raise TimeIsUp
            wall, cpu = time.perf_counter(), time.process_time()
            step().cpu()  # waits for the device, as a server does for the tokens
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            found.append(self._sample(point, wall, cpu))
        self._look(step, found)
        return found

    def _prepared(self, point: Point) -> Callable[[], Any]:
        """Return the step, warm, with its caches in place and nothing left to do on the device."""
        torch, model = self._torch, self._model
        chunk = point.chunk or (0, 0)
        prompt = model.cache(1, sum(chunk)) if point.chunk else None
        decodes = model.cache(point.decodes, point.context + 1) if point.decodes else None
        tokens = torch.randint(self._shape.vocabulary, (point.tokens,), device=self._kind)

        def run() -> Any:
            return model.step(tokens, prompt, decodes, chunk, point.context)

        if not self._graphs:
            for _ in range(WARM_UPS):
                run()
            self._wait()
            return run
        self._wait()
        # Warm on the stream of the capture, which must not be the first to need a library's memory there.
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                run()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):  # waits for the device first
            result = run()

        def replay() -> Any:
            graph.replay()
            return result

        replay()
        self._wait()
        return replay

    def _wait(self) -> None:
        if self._kind == "cuda":
            self._torch.cuda.synchronize()

    def _kernels(self) -> AbstractContextManager[Any]:
        """Return within what steps run: on a GPU without cuDNN's attention."""
        if self._kind != "cuda":
            return nullcontext()
        from torch.nn.attention import SDPBackend, sdpa_kernel

        return cast("AbstractContextManager[Any]", sdpa_kernel([getattr(SDPBackend, name) for name in ATTENTION]))

    def _look(self, step: Callable[[], Any], samples: Sequence[Sample]) -> None:
        """Ask for clocks and throttling while the device computes: an idle one tells nothing."""
        if self._nvml is None or time.monotonic() < self._looked + WATCH_SECONDS:
            return
        self._looked = time.monotonic()
        for _ in range(math.ceil(BUSY_SECONDS / max(samples[-1].seconds, 1e-6))):
            step()
        self._seen = self._nvml.seen()
        self._wait()

    def _sample(self, point: Point, wall: float, cpu: float) -> Sample:
        on_cpu = self.clock == "cpu"
        return Sample(
            (point.chunk,) if point.chunk else (),
            (point.context,) * point.decodes,
            cpu if on_cpu else wall,
            point.purpose,
            point.held_out,
            point.label,
            wall if on_cpu else None,
        )

    def seen(self) -> Seen | None:
        """Return clocks and throttling as they were when they were last looked at."""
        return self._seen

    def close(self) -> None:
        """Free the memory."""
        self._wait()
        del self._model
        if self._kind == "cuda":
            self._torch.cuda.empty_cache()


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
