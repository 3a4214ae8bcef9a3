"""MiniMax-M3, Step-3.7-Flash and Kimi K3 through predictions, formulas, vectorised steps and explanations."""

from typing import Any

import pytest

import costmodel
from costmodel.deployment import deploy
from costmodel.prediction import predict
from costmodel.symbolic.formulas import formula

PLACED: dict[str, tuple[str, int]] = {"MiniMax-M3": ("b200", 8), "Step-3.7-Flash": ("h200", 8), "Kimi-K3": ("b300", 8)}


@pytest.mark.parametrize(
    ("model", "rung"),
    [*((model, "roofline") for model in PLACED), ("MiniMax-M3", "textbook"), ("MiniMax-M3", "calibrated")],
)
def test_the_formula_of_the_spike_is_the_prediction(model: str, rung: Any) -> None:
    gpu, tp = PLACED[model]
    expected = predict(9000, model=model, gpu=gpu, tp=tp, context=9000, streams=4).rungs.get(rung).spike_s
    made = formula(deploy(model, gpu, tp=tp), "spike", rung, prompt=9000, context=9000, streams=4)
    assert made.evaluate() == pytest.approx(expected, rel=1e-12)
    assert made.expression.free_symbols == set(made.arguments)


@pytest.mark.parametrize("model", PLACED)
def test_borrowed_rates_are_told(model: str) -> None:
    gpu, tp = PLACED[model]
    warnings = " ".join(predict(4096, model=model, gpu=gpu, tp=tp).warnings)
    said = {
        "MiniMax-M3": ["decode_attention over chosen keys at the rates of", "indexer at the efficiencies of attention"],
        "Step-3.7-Flash": [],
        "Kimi-K3": [f"{name} at the efficiencies of attention" for name in ("attn_res", "prefill_kda", "decode_kda")],
    }
    assert all(part in warnings for part in said[model])


@pytest.mark.parametrize("model", PLACED)
def test_all_nine_topics_are_explained(model: str) -> None:
    gpu, tp = PLACED[model]
    found = costmodel.explain(model=model, gpu=gpu, tp=tp, streams=4)
    assert [topic.number for topic in found.topics] == list(range(1, 10))


def test_what_lies_in_the_caches() -> None:
    """M3: K, V and a key of the indexer; Step: the last 512 of most layers; K3: latents, and states of Kimi delta attention."""
    said = {}
    for model, (gpu, tp) in PLACED.items():
        [topic] = costmodel.explain("kv-cache", model=model, gpu=gpu, tp=tp).topics
        said[model] = f"{topic.verdict} {topic.model_dump_json()}"
    assert "K, V and the indexer's key" in said["MiniMax-M3"]
    assert "the last 512" in said["Step-3.7-Flash"]
    assert "Kimi delta attention: 96 states of 128 × 128" in said["Kimi-K3"]
