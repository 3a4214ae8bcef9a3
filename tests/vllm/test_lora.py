"""LoRA adapters on the real engine, with random weights on a CPU: buffers and FLOPs to the last, times of steps from others.

Buffers of every wrapped module and FLOPs of steps are exactly those counted here; of TP 2 and 4 the buffers alone, from vLLM's layers on
their own. Times: vLLM's kernels for CPUs copy A and B for every token, so that time follows FLOPs and not the number of adapters; a launch
and an efficiency fitted to the shorter steps predict the longer ones, at two ranks.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from costmodel.adapters import EMBEDDING, LM_HEAD, Lora, adapted_linears, kernel_name
from costmodel.architecture.formats import PLAIN_FORMATS
from costmodel.architecture.types import Attention, FeedForward, LayerFormats, LayerKind
from costmodel.building import build_parameters
from costmodel.deployment import Deployment, deploy
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.step import step_operators
from costmodel.equations.work import Chunk, Decodes, Work, make_work
from tests.validation.synthetic import calibration, write_profile
from tests.vllm.lora_check import ADAPTERS, CONTEXT, DECODES, PREFILLS
from tests.vllm.processes import run_script
from tests.vllm.test_mixed_layers import COMMON, MODELS

pytestmark = pytest.mark.vllm

NAMES = {"in_proj_qkvz": "in_proj", "gate": "router", "logits_processor": LM_HEAD, "fused_qkv_a_proj": "q_a_proj"}
"""Modules of vLLM → kernels here, where they are called otherwise."""
DEEPSEEK = {
    **{name: value for name, value in COMMON.items() if name != "head_dim"},
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "num_hidden_layers": 2,
    "num_key_value_heads": 4,
    "intermediate_size": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "q_lora_rank": 128,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "v_head_dim": 64,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 128,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "greedy",
    "scoring_func": "softmax",
    "routed_scaling_factor": 1.0,
    "norm_topk_prob": False,
    "aux_loss_alpha": 0.001,
    "seq_aux": True,
}
LIMIT, MEDIAN_LIMIT = 0.4, 0.2
"""Of the error of a step that was not fitted to, and of their median. Without adapters the error would be −40 to −85 %."""
PEAK = 1e12
"""Of a machine whose numbers only scale what is fitted [FLOP/s]."""


RANKS = (8, 32)
SIZES = {"hidden": 256, "width": 512, "heads": 8, "kv_heads": 2, "head_dim": 32}
HYBRIDS = {"qwen3_next": MODELS["qwen3_next"], "deepseek_v2": DEEPSEEK}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the models and the machine are."""
    folder = tmp_path_factory.mktemp("lora")
    for name, config in HYBRIDS.items():
        (folder / f"{name}-model").mkdir()
        (folder / f"{name}-model" / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def found(folder: Path, tiny_model: Path, environment: dict[str, str]) -> dict[str, Any]:
    """What three processes find of all of them."""
    buffers: dict[str, Any] = {
        name: {"model": str(folder / f"{name}-model"), "flags": {"max_loras": 3, "max_lora_rank": 8}}
        for name in HYBRIDS
    }
    buffers["shards"] = {"sizes": SIZES, "flags": {"max_loras": 3, "max_lora_rank": 16}}
    processes: dict[str, dict[str, Any]] = {"buffers": buffers}
    for rank in RANKS:
        flags = {"max_loras": ADAPTERS, "max_lora_rank": rank}
        processes[f"rank-{rank}"] = {f"rank-{rank}": {"steps": str(tiny_model), "flags": flags}}
    answers: dict[str, Any] = {}
    for name, asked in processes.items():
        own = folder / f"{name}-process"
        own.mkdir()
        (own / "asked.json").write_text(json.dumps(asked))
        run_script("tests.vllm.lora_check", environment, own)
        answers |= json.loads((own / "found.json").read_text())
    return answers


def counted(deployment: Deployment) -> dict[str, float]:
    """Return the bytes of the buffers by kernel."""
    lora, architecture = deployment.lora, deployment.architecture
    assert lora is not None
    found: dict[str, float] = {}
    for index, kind in enumerate(architecture.kinds):
        layers = architecture.pattern.count(index)
        for each in adapted_linears(architecture.model_type, kind, architecture.hidden, 1, 1, lora):
            size = layers * each.linear.copies * (each.shrink + each.expand)
            name = kernel_name(each.linear).replace("kv_a_proj", "q_a_proj")
            found[name] = found.get(name, 0) + lora.adapters * size * deployment.activation_bytes
    for name in (EMBEDDING, LM_HEAD):
        if lora.has(name):
            ends = lora.rank * (architecture.vocabulary + architecture.hidden)
            found[name] = lora.adapters * ends * deployment.activation_bytes
    return found


def called(buffers: dict[str, int]) -> dict[str, int]:
    return {NAMES.get(name, name): size for name, size in buffers.items()}


@pytest.mark.parametrize("name", HYBRIDS)
def test_buffers_of_every_wrapped_module_are_those_counted(name: str, found: dict[str, Any], folder: Path) -> None:
    deployment = deploy(str(folder / f"{name}-model"), "h100", lora=Lora(rank=8, adapters=3))
    assert called(found[name]) == counted(deployment)


def test_buffers_of_one_gpu_of_several_are_those_counted(found: dict[str, Any]) -> None:
    formats = LayerFormats.uniform(PLAIN_FORMATS["bf16"])
    kind = LayerKind(Attention("gqa", 8, 2, 32, 32), FeedForward("dense", 512), formats)
    assert len(found["shards"]) == 6
    for name, buffers in found["shards"].items():
        tp, sharded = name.split()
        lora = Lora(16, 3, ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"), sharded == "True")
        adapted = adapted_linears("llama", kind, 256, int(tp), 1, lora)
        assert buffers == {each.linear.name: 2 * 3 * (each.shrink + each.expand) for each in adapted}


class Steps:
    """Steps of the tiny Llama whose requests use adapters of one rank.

    Args:
        found: by the script.
        model: folder of its configuration.
        rank: of the adapters.
        profile: of the machine.
    """

    def __init__(self, found: Any, model: Path, rank: int, profile: Path) -> None:
        self.found, self.rank = found, rank
        self.deployment = deploy(str(model), str(profile), dtype="fp32", lora=Lora(rank=rank, adapters=ADAPTERS))

    @property
    def works(self) -> list[Work]:
        chunks = [make_work([Chunk(tokens)]) for tokens in PREFILLS]
        return chunks + [make_work(decodes=[Decodes(count, CONTEXT)]) for count in DECODES]

    def added(self, fitted: dict[str, float]) -> list[float]:
        """Return the time that adapters add to each step with a launch and a compute efficiency [s]."""
        truth = calibration({"lora_shrink": fitted, "lora_expand": fitted})
        parameters = build_parameters(self.deployment, CalibratedRates(truth))
        return [
            sum(each.seconds for each in step_operators(parameters, work) if each.name.startswith("lora"))
            for work in self.works
        ]

    def measured(self) -> list[float]:
        """Return the time that they add as it was measured [s]."""
        seconds = self.found["seconds"]
        return [used - unused for used, unused in zip(seconds[str(ADAPTERS)], seconds["0"], strict=True)]

    def flops(self) -> list[float]:
        """Return the FLOPs of the adapters of each step."""
        parameters = build_parameters(self.deployment)
        return [
            sum(each.flops for each in step_operators(parameters, work) if each.name.startswith("lora"))
            for work in self.works
        ]


@pytest.fixture(scope="module")
def steps(found: dict[str, Any], folder: Path, tiny_model: Path) -> list[Steps]:
    """Steps at the two ranks."""
    profile = write_profile(folder / "machine.toml", peak=PEAK, bandwidth=1e15)
    return [Steps(found[f"rank-{rank}"], tiny_model, rank, profile) for rank in RANKS]


def test_flops_and_buffers_of_a_llama_are_those_counted(steps: list[Steps]) -> None:
    """Without a request that uses one, the kernels of lm_head run on the CPU all the same."""
    for each in steps:
        assert called(each.found["buffers"]) == counted(each.deployment)
        head = 2 * each.rank * (256 + 8000)
        assert each.found["flops"]["0"] == [head, head, *(head * count for count in DECODES)]
        assert each.found["flops"]["1"] == each.found["flops"][str(ADAPTERS)] == each.flops()


def test_a_fit_to_the_shorter_steps_predicts_the_longer(steps: list[Steps]) -> None:
    """Of each rank, the shorter prompt and the fewer sequences; then the longer and the more."""
    count = len(PREFILLS) + len(DECODES)
    shorter, longer = (0, len(PREFILLS)), (len(PREFILLS) - 1, count - 1)
    along = [each.flops()[number] for each in steps for number in shorter]
    fixed, per_flop = line(along, [each.measured()[number] for each in steps for number in shorter])
    launches = sum(gemm.count for gemm in build_parameters(steps[0].deployment).gemms if gemm.name.startswith("lora"))
    fitted = {"compute_efficiency": 1 / (per_flop * PEAK), "launch_s": max(fixed, 0.0) / launches}
    errors, without = [], []
    for each in steps:
        unused, added, measured = each.found["seconds"]["0"], each.added(fitted), each.measured()
        for number in longer:
            errors.append((unused[number] + added[number]) / (unused[number] + measured[number]) - 1)
            without.append(unused[number] / (unused[number] + measured[number]) - 1)
    print(
        ", ".join(f"{error:+.1%} (without adapters {bare:+.1%})" for error, bare in zip(errors, without, strict=True))
    )
    assert statistics.median(map(abs, errors)) <= MEDIAN_LIMIT
    assert max(map(abs, errors)) <= LIMIT
    assert statistics.median(without) < -0.3


def line(along: list[float], values: list[float]) -> tuple[float, float]:
    """Return a and b of values = a + b·along, by relative least squares."""
    weights = [1 / value**2 for value in values]
    total = sum(weights)
    x = sum(weight * each for weight, each in zip(weights, along, strict=True)) / total
    y = sum(weight * each for weight, each in zip(weights, values, strict=True)) / total
    rows = list(zip(weights, along, values, strict=True))
    slope = sum(w * (a - x) * (v - y) for w, a, v in rows) / sum(w * (a - x) ** 2 for w, a, _ in rows)
    return y - slope * x, slope


def test_more_adapters_take_no_longer_on_a_cpu(steps: list[Steps]) -> None:
    for each in steps:
        one, several = each.found["seconds"]["1"], each.found["seconds"][str(ADAPTERS)]
        ratios = [used / single for used, single in zip(several, one, strict=True)]
        assert statistics.median(ratios) == pytest.approx(1, abs=0.35)
