"""Run by a test in a process of its own: what LoRA adapters make of vLLM's memory, FLOPs and steps, with random weights."""

from __future__ import annotations

import functools
import json
import math
import statistics
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from costmodel.validation.backends.asked import Asked
from costmodel.validation.backends.vllm_engine import VllmEngine
from costmodel.validation.measurements.plan import Point

PREFILLS, DECODES = (64, 256), (4, 16)
"""Prompts, and sequences that decode at :data:`CONTEXT`, of the steps."""
CONTEXT, REPEATS = 129, 9
ADAPTERS = 4


class AdaptedEngine(VllmEngine):
    """vLLM whose requests use adapters in turn, as many as ``self.active``; the same prompt, which may be cached, always the same.

    Args:
        model: folder of a ``config.json``.
        flags: of LoRA.
        adapters: folders of adapters.
    """

    def __init__(self, model: Path, flags: dict[str, Any], adapters: list[Path]) -> None:
        self.flags, self.adapters, self.active = flags, adapters, 0
        self.seen: dict[tuple[int, ...], int] = {}
        dtype = "bf16" if "bfloat16" in (model / "config.json").read_text() else "fp32"
        super().__init__(
            Asked(
                str(model),
                random_weights=True,
                dtype=dtype,
                enforce_eager=True,
                max_num_batched_tokens=512,
                max_model_len=512,
            )
        )

    def _start(self) -> Any:
        plain = self._vllm
        self._vllm = SimpleNamespace(
            LLM=functools.partial(plain.LLM, enable_lora=True, **self.flags),
            SamplingParams=plain.SamplingParams,
            __version__=plain.__version__,
        )
        return super()._start()

    @property
    def runner(self) -> Any:
        """What holds the model."""
        return self._core.model_executor.driver_worker.worker.model_runner

    def _add(self, name: str, tokens: list[int], answer: int) -> str:
        from vllm.lora.request import LoRARequest

        parameters = self._vllm.SamplingParams(temperature=0.0, max_tokens=answer, ignore_eos=True, detokenize=False)
        request = None
        if self.active:
            number = self.seen.setdefault(tuple(tokens), len(self.seen)) % self.active
            request = LoRARequest(f"adapter-{number}", number + 1, str(self.adapters[number]))
        added = self._engine.add_request(name, {"prompt_token_ids": tokens}, parameters, lora_request=request)
        return str(added)

    def seconds(self, active: int, points: list[Point]) -> list[float]:
        """Return the median time of each point's step where requests use so many adapters [s]."""
        self.active, found = active, []
        for point in points:
            samples = self.run(point, REPEATS, math.inf)
            found.append(statistics.median(sample.seconds for sample in samples))
        return found

    def flops(self, active: int, points: list[Point]) -> list[int]:
        """Return the FLOPs of each point's step, as PyTorch counts them."""
        from torch.utils.flop_counter import FlopCounterMode

        counted: list[int] = []
        executor = self._core.model_executor
        plain = executor.execute_model

        def counting(*arguments: Any, **named: Any) -> Any:
            with FlopCounterMode(display=False) as counter:
                output = plain(*arguments, **named)
            counted.append(counter.get_total_flops())
            return output

        executor.execute_model = counting
        self.active, found = active, []
        for point in points:
            self.run(point, 1, math.inf)
            found.append(max(counted) if point.chunk else statistics.mode(counted))
            counted.clear()
        executor.execute_model = plain
        return found


def buffers(runner: Any) -> dict[str, int]:
    """Return the bytes of the buffers of adapters, by the name of the module without its place in the model."""
    import torch
    from vllm.lora.layers import BaseLayerWithLoRA

    found: dict[str, int] = {}

    def size(value: Any) -> int:
        return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else sum(map(size, value))

    for name, module in runner.get_model().named_modules():
        if isinstance(module, BaseLayerWithLoRA):
            stacked = [value for key, value in vars(module).items() if key.endswith("_stacked")]
            base = name.rpartition(".")[2]
            found[base] = found.get(base, 0) + size(stacked)
    return found


def write_adapter(folder: Path, config: dict[str, Any], rank: int, seed: int) -> Path:
    """Write a random adapter of all linear layers of a Llama, as PEFT does."""
    import torch
    from safetensors.torch import save_file

    made = torch.Generator().manual_seed(seed)
    hidden, width, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    kv = hidden // heads * config["num_key_value_heads"]
    shapes = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (hidden, kv),
        "self_attn.v_proj": (hidden, kv),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (hidden, width),
        "mlp.up_proj": (hidden, width),
        "mlp.down_proj": (width, hidden),
    }
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, (inputs, outputs) in shapes.items():
            start = f"base_model.model.model.layers.{layer}.{name}"
            tensors[f"{start}.lora_A.weight"] = torch.randn(rank, inputs, generator=made) * 0.01
            tensors[f"{start}.lora_B.weight"] = torch.randn(outputs, rank, generator=made) * 0.01
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    modules = [name.partition(".")[2] for name in shapes]
    (folder / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": modules, "bias": "none"})
    )
    return folder


def main() -> None:
    """Write, as JSON, the buffers of adapters; with ``steps`` FLOPs and times of steps without and with them as well."""
    model, flags, what, out = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
    config = json.loads((model / "config.json").read_text())
    adapters = []
    if what == "steps":
        rank = flags["max_lora_rank"]
        adapters = [write_adapter(out.parent / f"{out.stem}-{each}", config, rank, each) for each in range(ADAPTERS)]
    engine = AdaptedEngine(model, flags, adapters)
    found: dict[str, Any] = {"buffers": buffers(engine.runner)}
    if what == "steps":
        prefills = [Point("prefill", (tokens, 0)) for tokens in PREFILLS]
        decodes = [Point("decode", None, sequences, CONTEXT) for sequences in DECODES]
        engine.active = 1
        engine.warm_up()
        found["flops"] = {str(active): engine.flops(active, prefills + decodes) for active in (0, 1, ADAPTERS)}
        found["seconds"] = {str(active): engine.seconds(active, prefills + decodes) for active in (0, 1, ADAPTERS)}
    engine.close()
    out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
