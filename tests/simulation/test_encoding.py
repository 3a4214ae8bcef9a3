"""Images in the simulated engine: which step encodes which, what of a prompt waits for it, and that jumping changes nothing."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from costmodel.architecture.images import EncodedImage
from costmodel.encoder import ImageLoad
from costmodel.simulation.encoding import EncoderCache, Encoding
from costmodel.simulation.requests import Listed, Request
from costmodel.simulation.settings import Settings
from costmodel.simulation.states import Batch
from costmodel.simulation.stepping import Engine
from costmodel.simulation.tally import Tally
from tests.simulation.pairs import Workload, clock_of, compare, crowded_workload, random_workload


def encoding(tokens: int, most: int, undivided: bool = False, crosses: bool = False, count: int = 9) -> Encoding:
    each = EncodedImage(1, 1, (4,), tokens, tokens)
    load = ImageLoad(count, 1, 1, each, undivided=undivided, crosses=crosses)
    return Encoding(load, most, lambda images: 0.01 * images)


def steps(settings: Settings, *requests: Request) -> list[tuple[list[int], int]]:
    """Return the tokens of every step's requests, and the images that it encodes."""
    found: list[tuple[list[int], int]] = []

    def watch(batch: Batch) -> None:
        if batch.entries:
            found.append(([tokens for _, tokens, _ in batch.entries], batch.images))

    Engine(settings, clock_of(None), Listed(requests), Tally(), watch=watch).run()
    return found


def engine(budget: int, made: Encoding, **flags: object) -> Settings:
    return Settings(budget, 8, encoding=made, asynchronous=False, **flags)  # type: ignore[arg-type]


def test_an_image_is_encoded_in_the_step_of_its_first_token() -> None:
    """Images of 10 tokens begin at 0, 10 and 20; steps have 16, so that the second one's features are there for the second step."""
    assert steps(engine(16, encoding(10, 9)), Request(0.0, 40, 1, images=3)) == [([16], 2), ([16], 1), ([8], 0)]


def test_a_chunk_ends_before_an_image_that_is_too_many() -> None:
    """Two images at most in a step; the third begins at 20, and so on."""
    request = Request(0.0, 60, 1, images=5)
    assert steps(engine(100, encoding(10, 2)), request) == [([20], 2), ([20], 2), ([20], 1)]
    assert steps(engine(100, encoding(10, 9)), request) == [([60], 5)]


def test_the_limit_is_that_of_all_requests_of_a_step() -> None:
    """The second request has no image to itself left, and waits; features of the first are let go after its step."""
    two = [Request(0.0, 30, 1, images=2), Request(0.0, 30, 1, images=2)]
    assert steps(engine(100, encoding(10, 2)), *two) == [([30], 2), ([30], 2)]
    assert steps(engine(100, encoding(10, 3)), *two) == [([30, 10], 3), ([20], 1)]


def test_who_is_overtaken_at_an_image_goes_first_again() -> None:
    found = steps(engine(100, encoding(10, 2)), Request(0.0, 60, 1, images=4), Request(0.0, 5, 3))
    assert found == [([20, 5], 2), ([40, 1], 2), ([1], 0)]


def test_features_stay_until_all_tokens_of_the_image_are_computed() -> None:
    """An image of 100 tokens in steps of 30 keeps another request's out until its fourth step is over."""
    found = steps(engine(30, encoding(100, 1)), Request(0.0, 101, 1, images=1), Request(0.0, 101, 1, images=1))
    assert found == [([30], 1), ([30], 0), ([30], 0), ([11], 0)] * 2


def test_images_that_the_model_sees_whole_are_not_divided() -> None:
    """The second of 10 tokens would end in the next step; one at the beginning of a step is divided if it must be."""
    request = Request(0.0, 25, 1, images=2)
    assert steps(engine(16, encoding(10, 9, undivided=True)), request) == [([10], 1), ([15], 1)]
    assert steps(engine(8, encoding(10, 9, undivided=True)), request) == [([8], 1), ([2], 0), ([8], 1), ([7], 0)]


def test_a_cached_prefix_saves_the_encoding() -> None:
    """Of images that end at 10, 20 and 30 the first two are in 20 cached tokens, and of 15 the second is needed again."""
    request = Request(0.0, 40, 1, images=3)
    made = engine(100, encoding(10, 9))
    assert steps(made, replace(request, cached=20)) == [([20], 1)]
    assert steps(made, replace(request, cached=15)) == [([25], 2)]
    assert steps(made, replace(request, cached=30)) == [([10], 0)]


def test_cross_attention_has_all_images_encoded_first() -> None:
    """A token each; nothing of it is in a prefix cache."""
    made = engine(8, encoding(1, 9, crosses=True))
    assert steps(made, Request(0.0, 20, 1, images=3)) == [([8], 3), ([8], 0), ([4], 0)]
    assert steps(made, Request(0.0, 20, 1, images=3, cached=12)) == [([8], 3)]


def test_encoding_makes_a_step_longer() -> None:
    def last(images: int) -> float:
        tally = Tally()
        request = Request(0.0, 40, 2, images=images)
        Engine(engine(100, encoding(10, 9)), clock_of(None), Listed([request]), tally).run()
        return tally.served[0].last

    assert last(3) == pytest.approx(last(0) + 0.03)


def test_features_that_nobody_needs_make_way_the_oldest_first() -> None:
    cache = EncoderCache(2)
    assert cache.makes_room(2)
    cache.take((0, 0))
    cache.take((0, 1))
    assert not cache.makes_room(1)
    cache.let_go((0, 1))
    cache.let_go((0, 0))
    assert cache.makes_room(1)
    assert not cache.find((0, 1))
    assert cache.find((0, 0))
    assert cache.needed == {(0, 0)}
    assert not cache.makes_room(2)


def test_a_preempted_request_finds_its_features_again_or_encodes_once_more() -> None:
    """One block of 4 tokens for each of two answers that grow: the second prompt is preempted, and has no K and V of its own left."""
    found: Counter[str] = Counter()
    for seed in range(40):
        workload = with_images(crowded_workload(seed), seed)
        encoded = []

        def watch(batch: Batch, encoded: list[int] = encoded) -> None:
            encoded.append(batch.images)

        tally = Tally()
        Engine(workload.settings, workload.clock, workload.source(), tally, until=workload.until, watch=watch).run()
        asked = sum(item.request.images for item in tally.served if not item.refused)
        found["more"] += sum(encoded) > asked
        found["preempted"] += tally.preemptions > 0
    assert found["preempted"] > 10, found
    assert found["more"] > 3, found


def with_images(workload: Workload, seed: int) -> Workload:
    """Return a workload, some of whose prompts begin with images of their own."""
    draw = random.Random(seed)
    tokens, crosses = draw.choice([1, 2, 5, 16, 40]), draw.random() < 0.1
    made = encoding(1 if crosses else tokens, draw.choice([1, 2, 3, 50]), draw.random() < 0.4, crosses)
    each = made.images.each.tokens

    def pictured(request: Request) -> Request:
        if request.standing or draw.random() < 0.3:
            return request
        images = draw.randint(0, min((request.prompt - 1) // each, 6))
        cached = draw.randint(0, request.prompt - 1) if draw.random() < 0.1 else 0
        return replace(request, images=images, prefix=(), cached=cached)

    requests = [pictured(request) for request in workload.requests]
    return replace(workload, requests=requests, settings=replace(workload.settings, encoding=made))


@pytest.mark.parametrize("group", range(2))
def test_jumping_changes_nothing(group: int) -> None:
    happened: Counter[str] = Counter()
    for seed in range(group, 300, 2):
        made = random_workload if seed % 3 else crowded_workload
        plain, jumped = compare(with_images(made(seed), seed))
        happened += Counter(
            preemptions=plain.preemptions,
            images=sum(item.request.images for item in plain.served if item.done),
            jumped=jumped.steps - jumped.events,
            steps=plain.steps,
        )
    assert happened["images"] > 1000, happened
    assert happened["preemptions"] > 100, happened
    assert happened["jumped"] > 0.2 * happened["steps"], happened


def test_features_are_let_go_the_first_image_first() -> None:
    """As vLLM does, in whatever order they were found or encoded: the first ones let go are the first to make way."""
    made = Engine(engine(100, encoding(10, 9)), clock_of(None), Listed([Request(0.0, 60, 1, images=3)]), Tally())
    made.receive()
    state = made.waiting.first()
    for index in (1, 2, 0):
        made.features.take((state.serial, index))
        state.images.append(index)
    made._let_go(state, 2)
    assert list(made.features.left) == [(state.serial, 0), (state.serial, 1)]
    assert state.images == [2]
