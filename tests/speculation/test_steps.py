"""What a pass of speculative decoding takes: verifying by hand, drafts by hand, limits."""

import dataclasses
import json
from pathlib import Path

import pytest

from costmodel.building import build_parameters, roofline_parameters
from costmodel.calibrations import choose_calibration
from costmodel.deployment import deploy
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.step import step_operators
from costmodel.equations.work import Chunk, Decodes, make_work
from costmodel.errors import InputError
from costmodel.rungs import total_seconds
from costmodel.speculation.drafts import draft_parameters, make_draft
from costmodel.speculation.host import VLLM
from costmodel.speculation.steps import Speculator, first_pass, verify_work

LLAMA = deploy("Llama-3.1-8B", "h100")
F, W = 989e12, 3.35e12


def on_roofline(draft: str, target=LLAMA) -> Speculator:
    made = make_draft(draft, target)
    return Speculator(roofline_parameters(target), draft_parameters(made))


def test_rows_of_a_sequence_read_its_keys_once() -> None:
    work = verify_work(8, 500, 4, (None,))
    assert (work.tokens, work.rows, work.decodes) == (40, 40, 8)
    assert work.decode_kv[None] == 8 * 505
    assert work.decode_pairs == {None: 8 * (5 * 500 + 15)}  # row j of five sees 500 + j keys


def test_a_window_holds_what_its_rows_see() -> None:
    work = make_work(decodes=[Decodes(1, 1000, 3)], windows=(128, None))
    assert work.decode_kv == {128: 127 + 3, None: 1003}
    assert work.decode_pairs == {128: 3 * 128, None: 3 * 1000 + 6}
    short = make_work(decodes=[Decodes(1, 4, 3)], windows=(6,))
    assert short.decode_pairs == {6: 5 + 6 + 6}


def test_one_row_is_a_decode_step() -> None:
    assert make_work(decodes=[Decodes(8, 500, 1)]) == make_work(decodes=[Decodes(8, 500)])


def test_on_the_roofline_rows_cost_what_a_chunk_costs() -> None:
    """Verifying k drafts of one stream has the FLOPs and bytes of a chunk of k + 1 tokens, all of them through lm_head."""
    parameters = roofline_parameters(LLAMA)
    verify = step_operators(parameters, verify_work(1, 500, 4, (None,)))
    chunk = step_operators(parameters, dataclasses.replace(make_work([Chunk(5, 500)]), rows=5))
    for mine, theirs in zip(verify, chunk, strict=True):
        assert (mine.flops, mine.bytes) == (theirs.flops, theirs.bytes)
    assert total_seconds(verify) == pytest.approx(total_seconds(chunk))


def test_few_rows_are_nearly_free_and_many_are_not() -> None:
    """Memory-bound: weights are read anyway. Compute-bound: k + 1 rows cost k + 1 times as much."""
    speculator = on_roofline("ngram")
    one = speculator.pass_time(1, 500, 4).verify_s / speculator.plain_s(1, 500)
    assert 1 < one < 1.01
    linear = 2 * 7.5e9 * 5 * 4096 / F
    assert speculator.pass_time(4096, 1, 4).verify_s > linear
    many = speculator.pass_time(4096, 1, 4).verify_s / speculator.plain_s(4096, 1)
    assert 4 < many <= 5


def test_a_mixture_of_experts_pays_for_the_experts_that_drafts_touch() -> None:
    """256 experts, 8 per token: one row reads 8, five rows about 38."""
    target = deploy("DeepSeek-V3", "h200", tp=8)
    speculator = on_roofline("ngram", target)
    experts = [
        sum(each.bytes for each in step_operators(speculator.target, work) if each.group == "experts")
        for work in (make_work(decodes=[Decodes(1, 500)]), verify_work(1, 500, 4, (None,)))
    ]
    assert experts[1] / experts[0] == pytest.approx((1 - (1 - 8 / 256) ** 5) / (8 / 256), rel=0.01)


def test_an_eagle_head_by_hand() -> None:
    """One layer of Llama-3.1-8B (218,112,000 parameters in 2 B), 2·d → d, and the target's lm_head."""
    draft = make_draft("eagle", LLAMA)
    layer, joined, head = 218_103_808 + 8192, 2 * 4096 * 4096, 4096 * 128_256
    assert draft.weights_bytes == 2 * (layer + joined + 4096)  # and a norm at the end; embedding and lm_head are shared
    assert draft.kv_bytes_per_token == 2 * 8 * 128 * 2
    time = on_roofline("eagle").pass_time(1, 0, 1).draft_s
    assert time == pytest.approx(2 * (218_103_808 + joined + head) / W, rel=0.005)


def test_an_eagle3_head_by_hand() -> None:
    """q, k, v take 2·d inputs, three states are joined once, and the lm_head has 32,000 tokens."""
    draft = make_draft("eagle3", LLAMA)
    layer, wider, joined, head = 218_103_808 + 8192, 4096 * 6144, 3 * 4096 * 4096, 4096 * 32_000
    assert draft.weights_bytes == 2 * (layer + wider + joined + head + 4096)
    speculator = on_roofline("eagle3")
    one, two = (speculator.pass_time(1, 0, k).draft_s for k in (1, 2))
    assert two - one == pytest.approx(2 * (218_103_808 + wider + head) / W, rel=0.005)  # nothing is joined again
    assert one == pytest.approx(2 * (218_103_808 + wider + joined + head) / W, rel=0.005)


def test_an_mtp_head_is_a_layer_of_the_target() -> None:
    """DeepSeek-V3: 11.6 B parameters (its card says 14 B with embedding and lm_head), all experts of one layer."""
    draft = make_draft("mtp", deploy("DeepSeek-V3", "h200"))
    assert draft.weights_bytes == pytest.approx(11.6e9, rel=0.01)  # in fp8
    assert draft.kv_bytes_per_token == 576 * 2


def test_a_draft_model_is_its_own_steps() -> None:
    target = deploy("Llama-3.1-70B", "h100", tp=4)
    draft = make_draft("Llama-3.1-8B", target)
    speculator = on_roofline("Llama-3.1-8B", target)
    small = total_seconds(
        step_operators(roofline_parameters(deploy("Llama-3.1-8B", "h100", tp=4)), make_work(decodes=[Decodes(1, 500)]))
    )
    assert draft.kv_bytes_per_token == 131_072 / 4
    assert speculator.pass_time(1, 500, 4).draft_s == pytest.approx(4 * small, rel=0.01)


def test_a_draft_that_the_gpus_cannot_divide_runs_whole_on_each() -> None:
    draft = make_draft("Qwen2.5-7B", deploy("Llama-3.1-70B", "h100", tp=8))
    assert draft.deployment is not None
    assert draft.deployment.tp == 1
    assert any("drafts with the whole of it" in note for note in draft.notes)
    assert any("vocabularies differ" in note for note in draft.notes)


def test_ngrams_cost_no_kernels() -> None:
    draft = make_draft("ngram", LLAMA)
    assert (draft.deployment, draft.weights_bytes, draft.kv_bytes_per_token) == (None, 0, 0)
    assert on_roofline("n-gram").pass_time(4, 500, 4).draft_s == 0


def test_the_first_pass_has_all_rows_but_one_row_per_sequence_through_lm_head() -> None:
    work = first_pass(8, 500, 4, (None,))
    assert (work.tokens, work.rows) == (40, 8)


def test_a_draft_pass_takes_its_kernels_or_the_host_whichever_is_longer() -> None:
    rates = CalibratedRates(choose_calibration(None, LLAMA))
    made = make_draft("eagle3", LLAMA)
    speculator = Speculator(build_parameters(LLAMA, rates), draft_parameters(made, rates), VLLM)
    few, many = speculator.pass_time(1, 500, 4), speculator.pass_time(512, 500, 4)
    assert few.draft_s + few.host_s == pytest.approx(4 * VLLM.pass_s + VLLM.verify_s)
    assert many.host_s == VLLM.verify_s
    assert many.draft_s > 4 * VLLM.pass_s


def test_calibrated_passes_are_never_below_the_floor() -> None:
    rates = CalibratedRates(choose_calibration(None, LLAMA))
    for name in ("eagle", "eagle3", "mtp", "ngram"):
        made = make_draft(name, LLAMA)
        calibrated = Speculator(build_parameters(LLAMA, rates), draft_parameters(made, rates))
        for streams in (1, 8, 64, 512):
            floor, fitted = (each.pass_time(streams, 500, 4) for each in (on_roofline(name), calibrated))
            assert fitted.verify_s >= floor.verify_s
            assert fitted.draft_s >= floor.draft_s


@pytest.mark.parametrize("streams", [1, 16, 256])
def test_time_never_falls_with_streams_context_or_drafts(streams: int) -> None:
    speculator = on_roofline("eagle")
    base = speculator.pass_time(streams, 500, 3).total_s
    assert speculator.pass_time(streams + 1, 500, 3).total_s >= base
    assert speculator.pass_time(streams, 501, 3).total_s >= base
    assert speculator.pass_time(streams, 500, 4).total_s > base


@pytest.mark.parametrize("name", ["eagl", "nothing-like-it"])
def test_an_unknown_draft_is_refused_with_the_words(name: str) -> None:
    with pytest.raises(InputError, match="eagle"):
        make_draft(name, LLAMA)


HEAD: dict[str, object] = {
    # of yuhuili/EAGLE3-LLaMA3.1-Instruct-8B
    "architectures": ["LlamaForCausalLMEagle3"], "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
    "max_position_embeddings": 2048, "model_type": "llama", "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 1,
    "rms_norm_eps": 1e-05, "tie_word_embeddings": False, "torch_dtype": "float16", "vocab_size": 128256, "draft_vocab_size": 32000,
}  # fmt: skip


def written(folder: Path, **changed: object) -> str:
    path = folder / "head.json"
    path.write_text(json.dumps({key: value for key, value in {**HEAD, **changed}.items() if value is not None}))
    return str(path)


def test_a_heads_own_configuration_is_read(tmp_path: Path) -> None:
    target = deploy("Llama-3.1-8B", "h100")
    assumed, read = make_draft("eagle3", target), make_draft(written(tmp_path), target)
    assert (read.method, read.name) == ("eagle3", "head")
    assert read.weights_bytes == assumed.weights_bytes
    assert draft_parameters(read) == draft_parameters(assumed)
    small = make_draft(written(tmp_path, intermediate_size=4096, draft_vocab_size=16_000), target)
    assert assumed.weights_bytes - small.weights_bytes == 2 * 4096 * (3 * (14_336 - 4096) + 16_000)


def test_a_head_of_the_first_kind_has_no_vocabulary_of_its_own(tmp_path: Path) -> None:
    target = deploy("Llama-3.1-8B", "h100")
    inner = {key: value for key, value in HEAD.items() if key not in ("architectures", "draft_vocab_size")}
    for config in (
        {"architectures": ["EagleLlamaForCausalLM"], "draft_vocab_size": None},
        {"architectures": ["EAGLEModel"], "model_type": "eagle", "model": inner, "draft_vocab_size": None},
    ):
        read = make_draft(written(tmp_path, **config), target)
        assert read.method == "eagle"
        assert read.weights_bytes == make_draft("eagle", target).weights_bytes
        assert draft_parameters(read) == draft_parameters(make_draft("eagle", target))


def test_a_head_of_another_width_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"hidden states of 4,096 numbers; those of Llama-3.1-70B have 8,192"):
        make_draft(written(tmp_path), deploy("Llama-3.1-70B", "h100", tp=4))
