"""Times prompts and images of a tiny PaliGemma with random weights in vLLM's engine, and prints them as JSON; see test_vision.py.

Run as a program with a folder to work in. Times are processor time of one thread, of the decoder's and of the encoder's forward pass.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VOCABULARY = 4000
SIDE = 224
CONFIG: dict[str, Any] = {
    "architectures": ["PaliGemmaForConditionalGeneration"],
    "model_type": "paligemma",
    "image_token_index": 1,
    "hidden_size": 384,
    "projection_dim": 384,
    "vocab_size": VOCABULARY,
    "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "gemma",
        "hidden_size": 384,
        "intermediate_size": 1024,
        "num_hidden_layers": 6,
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
        "head_dim": 64,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 8192,
        "hidden_activation": "gelu_pytorch_tanh",
        "torch_dtype": "bfloat16",
    },
    "vision_config": {
        "model_type": "siglip_vision_model",
        "hidden_size": 384,
        "intermediate_size": 1536,
        "num_hidden_layers": 6,
        "num_attention_heads": 6,
        "image_size": SIDE,
        "patch_size": 14,
        "vision_use_head": False,
    },
}
PATCHES = (SIDE // 14) ** 2
WORDS = ("<unk>", "<image>", "<s>", "</s>", "\n")
PROMPTS = (256, 512, 1024, 2048, 3072)
IMAGES = (1, 2, 4, 8)
REPEATS = 4


def write_model(folder: Path) -> None:
    """Write a configuration, a tokenizer of words and what the processor needs; no weights."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    words = [*WORDS, *(f"w{number}" for number in range(len(WORDS), VOCABULARY))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="</s>",
        additional_special_tokens=["<image>"],
    ).save_pretrained(folder)
    mean = [0.5] * 3
    processor = {"image_processor_type": "SiglipImageProcessor", "processor_class": "PaliGemmaProcessor"}
    processor |= {
        "size": {"height": SIDE, "width": SIDE},
        "image_seq_length": PATCHES,
        "image_mean": mean,
        "image_std": mean,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(processor), encoding="utf-8")


def main(folder: Path) -> dict[str, Any]:
    """Return the times [s] of prompts by tokens and of images by count, and the image tokens in a prompt."""
    # vLLM's helper for towers imports Pixtral's processor, which needs torchvision; the one without it has the same functions.
    import transformers.models.pixtral.image_processing_pil_pixtral as without_torchvision

    sys.modules["transformers.models.pixtral.image_processing_pixtral"] = without_torchvision
    import numpy as np
    from PIL import Image
    from vllm import LLM, SamplingParams

    write_model(folder)
    llm = LLM(
        str(folder),
        load_format="dummy",
        enforce_eager=True,
        dtype="bfloat16",
        max_model_len=4096,
        max_num_batched_tokens=4096,
        enable_prefix_caching=False,
        limit_mm_per_prompt={"image": 1},
        mm_processor_cache_gb=0,
        disable_log_stats=True,
    )
    worker: Any = llm.llm_engine.model_executor.driver_worker  # type: ignore[attr-defined]
    model = getattr(worker, "worker", worker).model_runner.model
    seen: dict[str, list[tuple[float, int]]] = {"embed_multimodal": [], "forward": []}

    def timed(name: str, size: Callable[[Any], int]) -> None:
        plain = getattr(model, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            began = time.process_time()
            made = plain(*args, **kwargs)
            seen[name].append((time.process_time() - began, size(made)))
            return made

        setattr(model, name, wrapped)

    timed("embed_multimodal", lambda made: sum(len(each) for each in made))
    timed("forward", len)
    once = SamplingParams(max_tokens=1, ignore_eos=True, detokenize=False)
    source = np.random.default_rng(7)
    tokens = {}
    for _ in range(REPEATS + 1):
        for length in PROMPTS:
            prompt = source.integers(len(WORDS), VOCABULARY, length).tolist()
            llm.generate({"prompt_token_ids": prompt}, once, use_tqdm=False)
        for number in IMAGES:
            pixels = source.integers(0, 255, (number, SIDE, SIDE, 3), dtype=np.uint8)
            prompts = [{"prompt": "w10 w11", "multi_modal_data": {"image": Image.fromarray(each)}} for each in pixels]
            done = llm.generate(prompts, once, use_tqdm=False)
            tokens = {"image": done[0].prompt_token_ids.count(1)}

    def medians(name: str, sizes: dict[int, int]) -> dict[str, float]:
        return {
            str(key): statistics.median([s for s, of in seen[name] if of == size][1:]) for key, size in sizes.items()
        }

    return {
        "prompts": medians("forward", {length: length for length in PROMPTS}),
        "images": medians("embed_multimodal", {number: number * PATCHES for number in IMAGES}),
        "tokens": tokens["image"],
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
