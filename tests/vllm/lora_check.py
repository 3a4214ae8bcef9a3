"""Run by a test in a process of its own: what LoRA adapters make of vLLM's memory, FLOPs and steps, with random weights."""

from __future__ import annotations

import functools
import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from costmodel.validation.backends.asked import Asked
from costmodel.validation.backends.vllm_engine import VllmEngine
from costmodel.validation.measurements.plan import Point

PREFILLS, DECODES = (32, 128), (4, 16)
"""Prompts, and sequences that decode at :data:`CONTEXT`, of the steps."""
CONTEXT, REPEATS = 129, 5
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
        """Return the shortest time of each point's step where requests use so many adapters, without what other processes cost [s]."""
        self.active, found = active, []
        for point in points:
            samples = self.run(point, REPEATS, math.inf)
            found.append(min(sample.seconds for sample in samples))
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
            found.append([each for each in counted if each][-1])
            counted.clear()
        executor.execute_model = plain
        return found


def buffers(runner: Any) -> dict[str, int]:
    """Return the bytes of the buffers of adapters, by the name of the module without its place in the model."""
    from vllm.lora.layers import BaseLayerWithLoRA

    found: dict[str, int] = {}
    for name, module in runner.get_model().named_modules():
        if isinstance(module, BaseLayerWithLoRA):
            base = name.rpartition(".")[2]
            found[base] = found.get(base, 0) + stacked_bytes(module)
    return found


def stacked_bytes(module: Any) -> int:
    """Return the bytes of one module's buffers: every tensor once, whatever views of it there are."""
    import torch

    def tensors(value: Any) -> list[Any]:
        return [value] if isinstance(value, torch.Tensor) else [each for item in value for each in tensors(item)]

    stacked = [value for key, value in vars(module).items() if key.endswith("_stacked")]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors(stacked)}
    return sum(storages.values())


def shards(sizes: dict[str, int], flags: dict[str, Any], tp: int) -> dict[str, int]:
    """Return the bytes of the buffers of layers of these sizes on the first of ``tp`` GPUs, by name; no GPU is needed."""
    import torch
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.config.lora import LoRAConfig
    from vllm.distributed import parallel_state
    from vllm.lora.utils import from_layer
    from vllm.model_executor.layers import linear

    parallel_state._TP = SimpleNamespace(world_size=tp, rank_in_group=0)
    hidden, width, heads, kv_heads, head_dim = (
        sizes[name] for name in ("hidden", "width", "heads", "kv_heads", "head_dim")
    )
    lora = LoRAConfig(lora_dtype=torch.bfloat16, **flags)
    with set_current_vllm_config(VllmConfig()):
        layers = {
            "qkv_proj": (linear.QKVParallelLinear(hidden, head_dim, heads, kv_heads), ["q", "k", "v"]),
            "o_proj": (linear.RowParallelLinear(heads * head_dim, hidden), []),
            "gate_up_proj": (linear.MergedColumnParallelLinear(hidden, [width, width]), ["gate", "up"]),
            "down_proj": (linear.RowParallelLinear(width, hidden), []),
        }
        return {
            name: stacked_bytes(from_layer(layer, lora.max_loras, lora, packed, None))
            for name, (layer, packed) in layers.items()
        }


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


def steps(model: Path, flags: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return FLOPs and times of steps without and with adapters, and the buffers."""
    config = json.loads((model / "config.json").read_text())
    rank = flags["max_lora_rank"]
    adapters = [write_adapter(folder / f"adapter-{each}", config, rank, each) for each in range(ADAPTERS)]
    engine = AdaptedEngine(model, flags, adapters)
    points = [Point("prefill", (tokens, 0)) for tokens in PREFILLS]
    points += [Point("decode", None, sequences, CONTEXT) for sequences in DECODES]
    engine.active = 1
    engine.warm_up()
    found: dict[str, Any] = {"buffers": buffers(engine.runner)}
    for what in ("flops", "seconds"):
        found[what] = {str(active): getattr(engine, what)(active, points) for active in (0, 1, ADAPTERS)}
    engine.close()
    return found


def answer(asked: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return what one question is about: steps, buffers of a model, or those of one GPU of several."""
    if "steps" in asked:
        return steps(Path(asked["steps"]), asked["flags"], folder)
    if "model" in asked:
        engine = AdaptedEngine(Path(asked["model"]), asked["flags"], [])
        found = buffers(engine.runner)
        engine.close()
        return found
    return {
        f"{tp} {sharded}": shards(asked["sizes"], asked["flags"] | {"fully_sharded_loras": sharded}, tp)
        for tp in (1, 2, 4)
        for sharded in (False, True)
    }


def main() -> None:
    """Answer the questions in a file of JSON, one after another: a process takes longer to start than to answer."""
    folder = Path(sys.argv[1])
    found = {}
    for name, asked in json.loads((folder / "asked.json").read_text()).items():
        (folder / name).mkdir()
        found[name] = answer(asked, folder / name)
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
