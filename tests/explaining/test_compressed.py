"""Explanations of a model that compresses keys: what its layers look at, what it keeps, and what its formulas are."""

import pytest

import costmodel
from costmodel.equations.work import attended_pairs, chunk_kv
from costmodel.explaining.caching import cache_rows
from costmodel.explaining.flash import tiled_bytes
from costmodel.explaining.layers import dense, looking, pairs_formula, sights
from costmodel.explaining.scene import Scene, make_scene
from costmodel.memory.blocks import stage_kv_bytes

PLACED = {"model": "DeepSeek-V4-Flash", "gpu": "h200", "tp": 4}


@pytest.fixture(scope="module")
def scene() -> Scene:
    return make_scene("DeepSeek-V4-Flash", "h200", tp=4)


def test_what_a_token_looks_at(scene: Scene) -> None:
    assert sights(scene) == [(20, "all", 128), (2, "window", 128), (21, "chosen", 512)]
    assert not dense(scene)
    said = looking(scene)
    assert "in 20 at the last ones and all keys that stand for 128 tokens each" in said
    assert "of keys that stand for 4 tokens each, the 512 that an indexer chooses" in said
    assert "Σ min(⌊t/m⌋, k)" in pairs_formula(scene)


def test_what_is_kept_and_for_how_long(scene: Scene) -> None:
    """43 vectors of 584 B leave with their window; 1/4 and 1/128 of one stay, and 33 B of an indexer's key."""
    rows = cache_rows(scene)
    by_span = {
        span: sum(float(row["bytes_per_token"]) for row in rows if row["window"] == span)  # type: ignore[arg-type]
        for span in {str(row["window"]) for row in rows}
    }
    assert by_span == {"the last 128": 43 * 584, "all tokens": 21 * (146 + 33) + 20 * 584 / 128}
    assert sum(by_span.values()) == stage_kv_bytes(scene.deployment, 0)


def test_tiles_read_one_vector_for_key_and_value(scene: Scene) -> None:
    """Queries and outputs of 16 heads, and 512 elements a token, in 43 layers; again by every tile what it sees."""
    tokens = 1000
    per_token = 16 * 2 * 512 + 512
    assert tiled_bytes(scene, tokens) == 43 * tokens * per_token * 2
    again = 0.0
    for kind, layers in zip(scene.architecture.kinds, scene.deployment.layer_counts, strict=True):
        starts = range(0, tokens, 128)
        seen = sum(chunk_kv(min(128, tokens - start), start, kind.attention.reach) for start in starts)
        again += float(layers) * (tokens * 16 * 2 * 512 + seen * 512) * 2
    assert tiled_bytes(scene, tokens, again=True) == again


def test_heads_of_their_own_make_the_cache_larger_and_no_flops() -> None:
    found = costmodel.explain("gqa", **PLACED).topics[0]
    assert found.numbers["attention_flops_ratio"] == 1
    whole = costmodel.explain("gqa", **{**PLACED, "tp": 1, "gpu": "b300"}).topics[0].numbers
    entries = 43 * 584 + 21 * 146 + 20 * 584 / 128
    assert whole["kv_bytes_ratio"] == pytest.approx((64 * entries + 21 * 33) / (entries + 21 * 33))
    assert any(formula.startswith("this model: one vector is K and V") for formula in found.formulas)


@pytest.mark.parametrize(("model", "gpu", "tp"), [("DeepSeek-V4-Flash", "h200", 4), ("DeepSeek-V4-Pro", "b300", 8)])
def test_every_topic_and_a_request_are_explained(model: str, gpu: str, tp: int) -> None:
    topics = costmodel.explain(model=model, gpu=gpu, tp=tp, context=20_000).topics
    assert [topic.number for topic in topics] == list(range(1, 10))
    flash = next(topic for topic in topics if topic.name == "flash-attention")
    pairs = attended_pairs(20_000, 0, make_scene(model, gpu, tp=tp).architecture.kinds[0].attention.reach)
    assert f"{pairs:,.0f}" in " ".join(flash.reason)
    assert len(costmodel.explain_request(model=model, gpu=gpu, tp=tp).stages) == 6
