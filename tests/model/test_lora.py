"""LoRA adapters against hand counts: parameters, FLOPs, bytes of steps, buffers in memory; limits and how they grow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import costmodel
from costmodel import InputError, Lora
from costmodel.adapters import RANKS, asked_lora, plain, read_adapter
from costmodel.building import build_parameters, roofline_parameters
from costmodel.deployment import Deployment, deploy
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.step import OperatorTime, step_operators, step_times
from costmodel.equations.work import Chunk, Decodes, make_work
from costmodel.hardware.errors import UnsupportedError
from costmodel.hardware.shipped import shipped_calibration
from costmodel.memory.adapters import adapter_elements
from costmodel.memory.planning import plan_memory
from costmodel.memory.weights import loaded_weight_bytes
from costmodel.prediction import predict
from tests.architecture.vision_configs import LLAMA32_VISION, WHISPER

MODELS = ("Llama-3.1-8B", "Mixtral-8x7B-v0.1", "DeepSeek-V2-Lite", "gpt-oss-20b", "Qwen3-Next-80B-A3B-Instruct")
HIDDEN, WIDTH, KV, VOCABULARY, LAYERS = 4096, 14336, 1024, 128_256, 32
"""Of Llama-3.1-8B."""
A = 3 * HIDDEN + HIDDEN + 2 * HIDDEN + WIDTH
"""Inputs of all matrices of a layer: those of q, k and v, of o, of gate and up, of down."""
B = HIDDEN + 2 * KV + HIDDEN + 2 * WIDTH + HIDDEN
"""Outputs."""
LINEAR = Lora(rank=16, adapters=4, targets="all-linear")


def operators(deployment: Deployment, streams: int, prompts: int = 0) -> dict[str, OperatorTime[float]]:
    parameters = roofline_parameters(deployment)
    chunks, decodes = [Chunk(100)] * prompts, [Decodes(streams, 500)]
    found = step_operators(parameters, make_work(chunks, decodes, parameters.windows))
    return {each.name: each for each in found}


def elements(lora: Lora, model: str = "Llama-3.1-8B", **placed: Any) -> float:
    deployment = deploy(model, "h200", lora=lora, **placed)
    return adapter_elements(deployment, deployment.architecture.pattern, True, True)


def test_an_adapter_has_the_parameters_that_peft_counts() -> None:
    """PEFT prints 41,943,040 trainable parameters for Llama 3 8B, r = 16, all linear layers."""
    assert elements(Lora(rank=16, targets="all-linear")) == 16 * LAYERS * (A + B) == 41_943_040
    assert elements(Lora(rank=16, targets="q,k,v,o")) == 16 * LAYERS * (4 * HIDDEN + 2 * HIDDEN + 2 * KV)
    assert elements(Lora(rank=16)) == 41_943_040 + 16 * 2 * (VOCABULARY + HIDDEN)
    assert elements(Lora(rank=16, adapters=5)) == 5 * elements(Lora(rank=16))


def test_operators_of_a_step_are_the_hand_count() -> None:
    streams, found = 32, operators(deploy(lora=LINEAR), 32)
    shrink, expand = found["lora_shrink"], found["lora_expand"]
    assert shrink.flops == 2 * 16 * A * LAYERS * streams
    assert expand.flops == 2 * 16 * B * LAYERS * streams
    inputs = HIDDEN + HIDDEN + HIDDEN + WIDTH
    products = (3 + 1 + 2 + 1) * 16 * 4
    assert shrink.bytes == 2 * LAYERS * (4 * 16 * A + streams * inputs) + LAYERS * streams * products
    assert expand.bytes == 2 * LAYERS * (4 * 16 * B + 2 * streams * B) + LAYERS * streams * products
    assert "lora_lm_head" not in found


def test_only_adapters_that_a_step_uses_are_read() -> None:
    lora = Lora(rank=16, adapters=8, targets="all-linear")
    few, many = operators(deploy(lora=lora), 3), operators(deploy(lora=lora), 300)
    single = deploy(lora=Lora(rank=16, targets="all-linear"))
    adapter = 2 * 16 * A * LAYERS
    assert few["lora_shrink"].bytes - operators(single, 3)["lora_shrink"].bytes == 2 * adapter
    assert many["lora_shrink"].bytes - operators(single, 300)["lora_shrink"].bytes == 7 * adapter
    beside = operators(deploy(lora=lora), 3, prompts=2)["lora_shrink"].bytes
    assert beside - operators(single, 3, prompts=2)["lora_shrink"].bytes == 4 * adapter


def test_embedding_and_lm_head_have_adapters_where_vllm_wraps_them() -> None:
    found = operators(deploy(lora=Lora(rank=16, adapters=4)), 32)
    head = found["lora_lm_head"]
    assert head.flops == 2 * 16 * (HIDDEN + VOCABULARY) * 32
    assert head.bytes == 2 * (4 * 16 * (HIDDEN + VOCABULARY) + 32 * (HIDDEN + 2 * VOCABULARY)) + 32 * 2 * 4 * 16
    linear = operators(deploy(lora=LINEAR), 32)["lora_expand"]
    assert found["lora_expand"].flops - linear.flops == 2 * 16 * HIDDEN * 32
    assert "lora_lm_head" not in operators(deploy("Mistral-7B-v0.3", lora=Lora()), 32)


def test_tensor_parallelism_divides_half_of_an_adapter_or_all_of_it() -> None:
    """Half: A of o and down, B of the others. All: A and B of every kernel."""
    tp = 4
    half = 16 * LAYERS * (6 * HIDDEN + (HIDDEN + WIDTH) / tp - HIDDEN + (HIDDEN + 2 * KV + 2 * WIDTH) / tp + 2 * HIDDEN)
    assert elements(Lora(rank=16, targets="all-linear"), tp=tp) == half
    assert elements(Lora(rank=16, targets="all-linear", fully_sharded=True), tp=tp) == 41_943_040 / tp
    found = operators(deploy(tp=tp, lora=Lora(rank=16, fully_sharded=True)), 32)
    assert found["lora_gather"].bytes == pytest.approx(LAYERS * 32 * 3 / 4 * 4 * 16 * (3 + 2))
    assert found["lora_reduce"].bytes == pytest.approx(LAYERS * 32 * 2 * 3 / 4 * 4 * 16 * 2)
    assert "lora_gather" not in operators(deploy(tp=tp, lora=Lora(rank=16)), 32)


def test_experts_have_an_adapter_each() -> None:
    """Mixtral: 8 experts of 14336, 2 per token; of 4 adapters with N/4 tokens each some experts are touched."""
    experts = 32 * 8 * 16 * (2 * HIDDEN + WIDTH + 2 * WIDTH + HIDDEN)
    assert elements(Lora(rank=16, targets="experts"), "Mixtral-8x7B-v0.1") == experts
    found = operators(deploy("Mixtral-8x7B-v0.1", "h200", lora=Lora(rank=16, adapters=4, targets="experts")), 8)
    shrink = found["lora_shrink.experts.gate_up_proj"]
    assert shrink.flops == 2 * 16 * 2 * HIDDEN * 2 * 32 * 8
    pairs = 4 * 8 * (1 - (1 - 2 / 8) ** (8 / 4))
    io = 32 * 8 * 2 * (2 * HIDDEN + 4 * 2 * 16)
    assert shrink.bytes == pytest.approx(32 * pairs * 2 * 16 * 2 * HIDDEN + io)


@pytest.mark.parametrize("model", MODELS)
def test_no_adapters_change_nothing(model: str) -> None:
    plain_parameters = roofline_parameters(deploy(model, "h200"))
    assert roofline_parameters(deploy(model, "h200", lora=Lora(adapters=0))) == plain_parameters
    assert predict(model=model, gpu="h200", lora=Lora(adapters=0)) == predict(model=model, gpu="h200")
    assert plan_memory(model, "h200", lora=Lora(adapters=0)) == plan_memory(model, "h200")


@pytest.mark.parametrize("model", MODELS)
def test_a_step_and_memory_never_fall_with_rank_or_adapters(model: str) -> None:
    deployments = [deploy(model, "h200", lora=Lora(rank=rank, adapters=4)) for rank in (1, 7, 8, 9, 64, 512)]
    by_count = [deploy(model, "h200", lora=Lora(rank=16, adapters=count)) for count in (1, 2, 7, 40)]
    for row in ([deploy(model, "h200"), *deployments], [deploy(model, "h200"), *by_count]):
        works = [make_work([Chunk(700)], [Decodes(20, 500)], roofline_parameters(each).windows) for each in row]
        times = [step_times(roofline_parameters(each), work).total for each, work in zip(row, works, strict=True)]
        assert times == sorted(times)
        held = [loaded_weight_bytes(each, 0) for each in row]
        assert held == sorted(held)


@pytest.mark.parametrize("model", MODELS)
def test_no_calibrated_step_is_below_the_floor(model: str) -> None:
    deployment = deploy(model, "h100", lora=Lora(rank=64, adapters=6))
    calibration = shipped_calibration("h100-sxm", "vllm")
    assert calibration is not None
    rates = CalibratedRates(calibration)
    floor, fitted = roofline_parameters(deployment), build_parameters(deployment, rates)
    work = make_work([Chunk(300)], [Decodes(20, 500)], floor.windows)
    pairs = zip(step_operators(floor, work), step_operators(fitted, work), strict=False)
    for least, most in pairs:
        if least.name.startswith("lora"):
            assert least.name == most.name
            assert most.seconds >= least.seconds > 0
    assert any("lora_shrink" in note for note in rates.borrowed)


def test_memory_has_a_buffer_for_every_place_and_twice_the_graphs() -> None:
    without, adapted = plan_memory(), plan_memory(lora=Lora(rank=64, adapters=8))
    buffers = 2 * 8 * 64 * (LAYERS * (A + B) + 2 * (VOCABULARY + HIDDEN))
    assert adapted.memory.weights_bytes - without.memory.weights_bytes == buffers
    assert [row.bytes for row in adapted.weights if row.module == "LoRA adapters"] == [buffers]
    assert adapted.memory.cuda_graph_bytes == 2 * without.memory.cuda_graph_bytes
    assert adapted.memory.kv_blocks < without.memory.kv_blocks
    assert adapted.lora is not None
    assert adapted.lora.bytes_per_adapter * 8 == buffers
    stages = plan_memory(pp=2, lora=Lora(rank=64, adapters=8)).stages
    plain_stages = plan_memory(pp=2).stages
    added = [a.weights_bytes - b.weights_bytes for a, b in zip(stages, plain_stages, strict=True)]
    assert sum(added) == buffers  # the embedding's on the first stage, lm_head's on the last
    assert added[0] == added[1]


def test_advice_is_fewer_adapters_where_these_do_not_fit() -> None:
    plan = plan_memory("Llama-3.1-8B", "l4", max_model_len=8192, lora=Lora(rank=256, adapters=16))
    assert not plan.memory.fits
    assert "--loras" in [each.change for each in plan.advice]


def test_a_rank_takes_the_next_buffer() -> None:
    assert deploy(lora=Lora(rank=12)).lora == deploy(lora=Lora(rank=16)).lora
    assert any("rank 16" in note for note in deploy(lora=Lora(rank=12)).notes)
    lora = deploy(lora=Lora()).lora
    assert lora is not None
    assert lora.rank == 16
    for rank in RANKS:
        made = deploy(lora=Lora(rank=rank)).lora
        assert made is not None
        assert made.rank == rank


def write(folder: Path, **config: Any) -> Path:
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "lora_alpha": 32, **config}))
    return folder


def test_an_adapter_of_peft_gives_its_rank(tmp_path: Path) -> None:
    folder = write(tmp_path, r=8, use_rslora=True, target_modules=["q_proj", "v_proj"], rank_pattern={"v_proj": 24})
    rank, notes = read_adapter(folder)
    assert rank == 24
    assert "--lora-targets q_proj,v_proj" in notes[0]
    assert read_adapter(folder / "adapter_config.json") == (rank, notes)
    for asked in (str(folder), folder, Lora(adapter=str(folder)), {"adapter": str(folder)}):
        deployment = deploy(lora=asked)
        assert deployment.lora is not None
        assert deployment.lora.rank == 32
        assert notes[0] in deployment.notes
    larger, _ = asked_lora(Lora(rank=64, adapter=str(folder), adapters=3))
    assert larger is not None
    assert (larger.rank, larger.adapters) == (64, 3)
    assert asked_lora(plain(larger))[0] == larger


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        (Lora(rank=0), "lora-rank must be at least 1"),
        (Lora(rank=513), "use 512 or less"),
        (Lora(adapters=-1), "loras must be at least 0"),
        (Lora(targets="q_prj"), "did you mean"),
        (Lora(targets=("q_proj", "experts")), "no 'experts'"),
        (Lora(targets=5), "lora-targets must be names"),  # type: ignore[arg-type]
        ({"ranks": 4}, "lora has no 'ranks'"),
        (16, "must be a costmodel.Lora"),
        ("nowhere", "no such file"),
    ],
)
def test_what_cannot_be_is_refused(lora: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        deploy(lora=lora)


def test_full_sharding_is_refused_where_it_cannot_be() -> None:
    with pytest.raises(InputError, match="not divided by tp 16"):
        deploy("Llama-3.1-405B", "h100", tp=16, lora=Lora(rank=8, fully_sharded=True))
    with pytest.raises(InputError, match="expert parallelism"):
        deploy("Mixtral-8x7B-v0.1", "h100", tp=2, ep=2, lora=Lora(fully_sharded=True))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"r": 8, "use_dora": True}, "use_dora"),
        ({"r": 8, "bias": "all"}, "has bias"),
        ({"peft_type": "IA3"}, "no rank 'r'"),
        ({"r": "eight"}, "whole number"),
    ],
)
def test_adapters_that_vllm_does_not_load_are_refused(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    write(tmp_path, **config)
    with pytest.raises(InputError, match=message):
        deploy(lora=tmp_path)


def test_a_rank_below_that_of_the_adapter_is_refused(tmp_path: Path) -> None:
    write(tmp_path, r=32)
    with pytest.raises(InputError, match="less than the 32 of the adapter"):
        deploy(lora=Lora(rank=16, adapter=str(tmp_path)))


@pytest.mark.parametrize("model", ["bge-m3", "Qwen3-Embedding-8B"])
def test_models_that_pool_are_refused(model: str) -> None:
    with pytest.raises(UnsupportedError, match="pools; LoRA adapters of models that pool have no equations here"):
        plan_memory(model, "h100", lora=Lora(adapters=2))


@pytest.mark.parametrize("config", [LLAMA32_VISION, WHISPER])
def test_models_with_cross_attention_are_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(UnsupportedError, match="has cross-attention; LoRA adapters beside it have no equations here"):
        predict(100, "h100", str(tmp_path), lora=Lora(adapters=2))


def test_adapters_beside_images_are_those_of_the_decoder() -> None:
    """vLLM wraps the language model unless it is told otherwise: the encoder takes as long as without adapters."""
    asked: dict[str, Any] = {"model": "gemma-3-4b-it", "images": 2}
    plain_answer, adapted = predict(300, **asked), predict(300, **asked, lora=Lora(adapters=2))
    assert adapted.best.prefill_encoder_s == plain_answer.best.prefill_encoder_s > 0
    assert adapted.best.prefill_s > plain_answer.best.prefill_s
    assert adapted.images == plain_answer.images


def test_all_questions_take_adapters() -> None:
    lora = Lora(rank=64, adapters=8)
    named: dict[str, Any] = {"model": "Llama-3.1-8B", "gpu": "h100"}
    slower, plain_answer = predict(**named, lora=lora), predict(**named)
    assert slower.rungs.roofline.decode_step_s > plain_answer.rungs.roofline.decode_step_s
    assert slower.rungs.textbook == plain_answer.rungs.textbook
    step = costmodel.step_times(**named, decodes=8, lora=lora)
    assert step.total > costmodel.step_times(**named, decodes=8).total
    assert costmodel.closed_loop(**named, lora=lora).tpot_s > costmodel.closed_loop(**named).tpot_s
    limit: dict[str, Any] = {**named, "decode_s": 0.02}
    assert (costmodel.solve("streams", **limit, lora=lora).value or 0) < (
        costmodel.solve("streams", **limit).value or 0
    )
    load: dict[str, Any] = {**named, "clients": 4, "prompt": 100, "output": 20, "requests": 8}
    simulated, without = costmodel.simulate_load(**load, lora=lora), costmodel.simulate_load(**load)
    assert simulated.result is not None
    assert without.result is not None
    assert simulated.result.duration_s > without.result.duration_s


@pytest.mark.parametrize("model", MODELS)
def test_formulas_are_the_same_equations(model: str) -> None:
    lora = Lora(rank=32, adapters=3)
    made = costmodel.formula(deploy(model, "h200", lora=lora), "mixed", "roofline", prompt=300)
    operators_s = predict(300, "h200", model, lora=lora).rungs.roofline.spike_s
    assert made.evaluate() == pytest.approx(operators_s, rel=1e-9)


def test_the_formula_has_the_term_and_gives_the_prediction() -> None:
    deployment = deploy(lora=Lora(rank=32, adapters=3))
    made = costmodel.formula(deployment, "decode", "roofline")
    names = [term.name for term in made.terms]
    assert {"lora_shrink", "lora_expand", "lora_lm_head"} <= set(names)
    assert {"r_A", "n_A"} <= {str(item) for item in made.arguments}
    assert made.evaluate() == pytest.approx(predict(lora=Lora(rank=32, adapters=3)).rungs.roofline.decode_step_s)
    assert made.evaluate(n_A=1.0) < made.evaluate()
