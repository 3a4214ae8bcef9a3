"""Images in a prediction: what they add to a prompt and to its steps, and that without them nothing changes."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel import predict
from costmodel.deployment import deploy
from costmodel.encoder import make_images, read_size
from costmodel.equations.work import Chunk
from costmodel.hardware.errors import InputError, UnsupportedError
from costmodel.symbolic.formulas import formula
from tests.architecture.vision_configs import LLAMA32_VISION, QWEN25_VL, WHISPER

GEMMA = "gemma-3-4b-it"


@pytest.fixture
def saved(tmp_path):
    def save(config):
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return str(tmp_path)

    return save


def seconds(operators):
    return sum(operator.time_s for operator in operators)


def test_without_images_nothing_changes():
    plain, none = predict(300, model=GEMMA), predict(300, model=GEMMA, images=0)
    assert plain == none
    assert "images" not in plain.model_dump(by_alias=True)
    assert plain.best.prefill_encoder_s == 0
    assert not any(operator.name.startswith("encoder") for operator in plain.best.operators)


@pytest.mark.parametrize("rung", ["textbook", "roofline", "calibrated"])
def test_a_prefill_is_that_of_the_longer_prompt_and_the_encoding(rung):
    """Two images of Gemma 3 are 2·260 tokens."""
    with_images = predict(300, model=GEMMA, images=2)
    plain = predict(820, model=GEMMA).rungs.get(rung)
    found = with_images.rungs.get(rung)
    assert with_images.workload.prompt_tokens == 820
    assert with_images.images.tokens == 520
    assert found.prefill_encoder_s > 0
    assert found.prefill_s == pytest.approx(plain.prefill_s + found.prefill_encoder_s, rel=1e-12)
    assert found.spike_s == pytest.approx(plain.spike_s + found.prefill_encoder_s, rel=1e-12)
    assert found.decode_step_s == plain.decode_step_s
    assert seconds(found.operators) == pytest.approx(found.spike_s, rel=1e-12)


def test_the_floor_is_respected():
    found = predict(300, model=GEMMA, images=3)
    assert found.rungs.calibrated.prefill_encoder_s > found.rungs.roofline.prefill_encoder_s
    for name in ("decode_step_s", "prefill_s", "spike_s"):
        low, high = getattr(found.intervals, name)
        assert getattr(found.rungs.roofline, name) <= low <= getattr(found.rungs.calibrated, name) <= high


def test_a_step_encodes_the_images_that_begin_in_it():
    """Images of 260 tokens begin at 0, 260 and 520: steps of 256 tokens encode 1, 1, 1 and none."""
    images = make_images(deploy(GEMMA, "h100"), 3)
    steps = [Chunk(256, cached) for cached in range(0, 1024, 256)]
    assert [images.begun([chunk]) for chunk in steps] == [1, 1, 1, 0]
    assert images.begun([Chunk(1024), Chunk(256)]) == 4
    assert images.begun([Chunk(0, 260)]) == 0


@settings(max_examples=25, deadline=None)
@given(count=st.integers(1, 30), room=st.integers(1, 5000))
def test_every_image_is_encoded_once(count, room):
    images = make_images(deploy(GEMMA, "h100"), count)
    prompt = images.tokens + 100
    chunks = [Chunk(min(room, prompt - cached), cached) for cached in range(0, prompt, room)]
    assert sum(images.begun([chunk]) for chunk in chunks) == count


def test_images_of_a_cached_prefix_are_not_encoded_again():
    """Of three images of 260 tokens the first ends within 300 cached tokens, the second does not."""
    images = make_images(deploy(GEMMA, "h100"), 3)
    assert images.begun([Chunk(700, 300)], known=300) == 2
    assert images.begun([Chunk(100, 300), Chunk(600, 400)], known=300) == 2
    assert images.begun([Chunk(100, 780)], known=780) == 0
    whole, cached = predict(100, model=GEMMA, images=3), predict(100, model=GEMMA, images=3, cached_prefix=780)
    assert whole.best.prefill_encoder_s > cached.best.prefill_encoder_s == 0
    known = predict(880, model=GEMMA, cached_prefix=780)
    assert cached.best.prefill_s == known.best.prefill_s


def test_the_prefix_cache_saves_the_encoding_too():
    found = predict(100, model=GEMMA, images=3, cached_prefix=780)
    assert found.prefix_cache.prefill_without_cache_s == pytest.approx(
        predict(100, model=GEMMA, images=3).best.prefill_s
    )


def test_the_spike_under_a_budget_is_the_step_with_the_images():
    whole = predict(3000, model=GEMMA, images=2, streams=8)
    chunked = predict(3000, model=GEMMA, images=2, streams=8, chunk=528)
    plain = predict(3520, model=GEMMA, streams=8, chunk=528)
    assert chunked.spike.chunks == plain.spike.chunks == 7
    assert chunked.spike.height_s < whole.spike.height_s
    assert chunked.spike.height_s > plain.spike.height_s
    more = chunked.spike.duration_s - plain.spike.duration_s
    assert more == pytest.approx(chunked.best.prefill_encoder_s, rel=0.05)


def test_more_pixels_take_longer(saved):
    model = saved(QWEN25_VL)
    found = [predict(100, model=model, images=1, image_size=(side, side)) for side in (224, 448, 896, 1792)]
    times = [item.best.prefill_s for item in found]
    assert times == sorted(times)
    assert [item.images.tokens for item in found] == [66, 258, 1026, 4098]


def test_states_of_cross_attention_are_kept_by_every_sequence(saved):
    """Llama 3.2 Vision, four tiles: 8 layers of 2·8·128 in 16 bits for 6,404 states, ⌈6404/16⌉ blocks of a group of its own."""
    model = saved(LLAMA32_VISION)
    plain, seen = predict(500, model=model), predict(500, model=model, images=1, image_size="1120x1120")
    assert plain.model.state_bytes_per_sequence == 0
    assert seen.model.state_bytes_per_sequence == 8 * 2 * 8 * 128 * 2 * 6404
    assert seen.model.kv_bytes_per_token == plain.model.kv_bytes_per_token == 131_072
    assert seen.memory.kv_blocks_needed - 4 * plain.memory.kv_blocks_needed == pytest.approx(33 * 401, abs=8)
    assert seen.best.decode_step_s > plain.best.decode_step_s
    assert seen.workload.prompt_tokens == 501


def test_whisper_encodes_audio_for_every_request(saved):
    found = predict(4, model=saved(WHISPER), context=100)
    assert found.images.kind == "audio"
    assert found.workload.prompt_tokens == 4
    assert found.model.state_bytes_per_sequence == 32 * 2 * 1280 * 2 * 1500
    assert found.best.prefill_encoder_s > 0
    with pytest.raises(InputError, match="takes audio, not images"):
        predict(4, model=saved(WHISPER), images=1)
    with pytest.raises(UnsupportedError, match="only `costmodel predict`"):
        deploy(saved(WHISPER), "h100")


@pytest.mark.parametrize("rung", ["textbook", "roofline", "calibrated"])
@pytest.mark.parametrize("tp", [1, 4])
def test_the_formula_says_the_same(saved, rung, tp):
    model = saved(QWEN25_VL)
    asked = {"images": 2, "image_size": (900, 600)}
    made = formula(deploy(model, "h100", tp=tp), "prefill", rung, prompt=200, **asked)
    assert any(term.name.startswith("encoder") for term in made.terms)
    expected = predict(200, model=model, tp=tp, **asked).rungs.get(rung).prefill_s
    assert made.evaluate() == pytest.approx(expected, rel=1e-9)


def test_the_formula_of_cross_attention_says_the_same(saved):
    model = saved(LLAMA32_VISION)
    made = formula(deploy(model, "h100"), "decode", "calibrated", images=1)
    assert made.evaluate() == pytest.approx(predict(100, model=model, images=1).best.decode_step_s, rel=1e-9)


@pytest.mark.parametrize("name", ["mixed", "spike"])
def test_a_formula_of_chunks_has_no_images(name):
    with pytest.raises(InputError, match="leave out --chunk"):
        formula(deploy(GEMMA, "h100"), name, images=1, chunk=512)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"images": 1}, "Llama-3.1-8B takes no images here: it has no vision tower"),
        ({"images": 1, "model": "Llama-4-Scout-17B-16E-Instruct"}, "has no vision_config"),
        ({"images": -1}, "images must be at least 0"),
        ({"images": 1.5}, "images must be a whole number"),
        ({"images": 0, "image_size": "10x10"}, "image-size needs images"),
        ({"images": 1, "model": GEMMA, "image_size": "10"}, "image-size must be WIDTHxHEIGHT"),
        ({"images": 1, "model": GEMMA, "image_size": "0x10"}, "image-size must be at least 1"),
        ({"images": 1, "model": GEMMA, "image_size": (10, 10, 10)}, "image-size must be WIDTHxHEIGHT"),
        ({"images": 1, "model": "Qwen3.5-27B", "image_size": "10x4000"}, "more than 200 times"),
    ],
)
def test_what_cannot_be_is_told(options, said):
    with pytest.raises(InputError, match=said):
        predict(100, **options)


@pytest.mark.parametrize("size", ["640x480", "640X480", " 640 × 480 ", (640, 480), [640, 480]])
def test_sizes(size):
    assert read_size(size) == (640, 480)
