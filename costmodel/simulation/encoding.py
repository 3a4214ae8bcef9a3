"""Images as the simulated engine needs them: how many it encodes at once, how long that takes, and whose features it keeps.

Every request with images has as many of the same size, and they are its own: none is found again from another request. As in vLLM 0.32
(vllm/v1/core/encoder_cache_manager.py), features are kept until all of an image's tokens are computed, and after that, or after a
preemption, until others take their place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from costmodel.deployment import deploy
from costmodel.encoder import ImageLoad, make_images
from costmodel.equations.parameters import Parameters
from costmodel.hardware.errors import InputError
from costmodel.image_documents import image_limits, image_warnings
from costmodel.rungs import encoding_operators, total_seconds
from costmodel.simulation.settings import Settings

Image = tuple[int, int]
"""Serial number of a request, and which of its images."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """The encoder of a simulated engine.

    Attributes:
        images: of a prompt.
        most: images that a step encodes at most, and whose features are kept at once.
        seconds: how long a step takes longer that encodes so many [s].
    """

    images: ImageLoad
    most: int
    seconds: Callable[[int], float] = field(compare=False)


class EncoderTimes:
    """The times of encoding, by the equations of ``costmodel predict``, each number of images once.

    Args:
        parameters: of a step, those of its encoder among them.
        images: of a prompt.
    """

    def __init__(self, parameters: Parameters, images: ImageLoad) -> None:
        self._parameters, self._images = parameters, images
        self._known: dict[int, float] = {}

    def __call__(self, images: int) -> float:
        """Return how long a step takes longer that encodes so many ≥ 1 images [s]."""
        found = self._known.get(images)
        if found is None:
            operators = encoding_operators(self._parameters, self._images.work(images))
            found = self._known[images] = total_seconds(operators)
        return found


class EncoderCache:
    """Whose features are there: those that a request needs, and those that nobody does, the longest left first to go.

    ``can_allocate``, ``check_and_update_cache``, ``allocate`` and ``free_encoder_input`` of vLLM's ``EncoderCacheManager``, counted in
    images, which are all of one size.

    Args:
        size: images at most.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.needed: set[Image] = set()
        self.left: dict[Image, None] = {}

    def find(self, image: Image) -> bool:
        """Tell whether an image's features are there; they are then needed."""
        if image in self.needed:
            return True
        if image not in self.left:
            return False
        del self.left[image]
        self.needed.add(image)
        return True

    def makes_room(self, images: int) -> bool:
        """Tell whether there is room for so many more; what nobody needs makes way."""
        if len(self.needed) + images > self.size:
            return False
        while len(self.needed) + len(self.left) + images > self.size:
            del self.left[next(iter(self.left))]
        return True

    def take(self, image: Image) -> None:
        """Keep the features of an image that is encoded for a request."""
        self.needed.add(image)

    def let_go(self, image: Image) -> None:
        """Leave features to whoever needs the room."""
        if image in self.needed:
            self.needed.remove(image)
            self.left[image] = None

    def forget(self, image: Image) -> None:
        """Forget features that are not made after all."""
        self.needed.discard(image)


def encoding_of(parameters: Parameters, images: ImageLoad, settings: Settings) -> Encoding:
    """Return the encoder of a server.

    Args:
        parameters: of a step, those of its encoder among them.
        images: of a prompt.
        settings: of the server.
    """
    budget = encoder_budget(settings)
    return Encoding(images, UNLIMITED if budget is None else images.at_once(budget), EncoderTimes(parameters, images))


def encoder_budget(settings: Settings) -> int | None:
    """Return the token budget that the encoder's is made of; None for schedulers of whole prompts, which encode all of their images."""
    return settings.token_budget if settings.scheduler in ("vllm", "sarathi") else None


def said_of_images(settings: Settings) -> tuple[list[str], list[str]]:
    """Return notes and warnings of what a server's token budget does to images."""
    images = settings.encoding.images if settings.encoding else None
    budget = encoder_budget(settings)
    return image_limits(images, budget), image_warnings(images, budget)


UNLIMITED = 1 << 40
"""Images."""


def images_of(options: Mapping[str, Any], images: Any, size: Any, pools: object = None) -> ImageLoad | None:
    """Return the images of a prompt; None for none.

    Args:
        options: what the user set of the server.
        images, size: how many a prompt has, and of how many pixels, as in :func:`costmodel.encoder.make_images`.
        pools: GPUs for prefill and decode apart; None for none.

    Raises:
        InputError: the model takes no images, there is none since step times are fixed, or what its images leave would have to travel.
    """
    if images == 0 and size is None:
        return None
    if options.get("decode_s") is not None or options.get("prefill_s") is not None:
        raise InputError(
            "fixed step times say nothing of images: leave out --images and --image-size, or --decode-ms and --prefill-ms"
        )
    names = ("tp", "ep", "dtype", "kv_dtype", "compute_dtype", "lora")
    given: dict[str, Any] = {name: options[name] for name in names if name in options}
    deployment = deploy(options.get("model", "Llama-3.1-8B"), options.get("gpu", "h100"), **given)
    found = make_images(deployment, images, size)
    if found is not None and found.crosses and pools is not None:
        raise InputError(
            f"{deployment.architecture.name} has cross-attention, whose keys and values are not sent between pools here; leave out --images"
        )
    return found


def image_numbers(images: ImageLoad | None) -> dict[str, int]:
    """Return what a document's workload says of the images of a prompt; nothing without any."""
    if images is None:
        return {}
    return {
        "images": images.count, "image_width": images.width, "image_height": images.height, "image_tokens": images.tokens
    }  # fmt: skip
