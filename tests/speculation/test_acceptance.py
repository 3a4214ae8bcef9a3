"""Tokens per pass, by acceptance."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.errors import InputError
from costmodel.speculation.acceptance import acceptance_of, expected_tokens, rate_of_length


@pytest.mark.parametrize(
    ("rate", "tokens", "length"),
    [
        (0.0, 5, 1.0),  # nothing is accepted: the one token of every pass
        (1.0, 5, 6.0),
        (0.5, 1, 1.5),
        (0.6, 3, 2.176),  # 1 + 0.6 + 0.36 + 0.216
        (0.8, 4, 3.3616),
    ],
)
def test_expected_tokens_by_hand(rate: float, tokens: int, length: float) -> None:
    assert expected_tokens(rate, tokens) == pytest.approx(length, rel=1e-12)


@given(st.floats(0, 0.999), st.integers(1, 32))
def test_it_is_the_closed_form(rate: float, tokens: int) -> None:
    assert expected_tokens(rate, tokens) == pytest.approx((1 - rate ** (tokens + 1)) / (1 - rate), rel=1e-9)


@given(st.floats(0, 1), st.integers(1, 32))
def test_rate_of_length_is_its_inverse(rate: float, tokens: int) -> None:
    length = expected_tokens(rate, tokens)
    assert expected_tokens(rate_of_length(length, tokens), tokens) == pytest.approx(length, rel=1e-9)


def test_more_drafts_never_give_fewer_tokens_but_ever_fewer_more() -> None:
    gains = [expected_tokens(0.7, k + 1) - expected_tokens(0.7, k) for k in range(1, 12)]
    assert all(0 < after < before for before, after in pairwise(gains))


def test_positions_add_up() -> None:
    """vLLM logs shares of passes: 0.77, 0.45, 0.24 are a mean acceptance length of 2.46 (vllm-project/vllm#24344)."""
    acceptance = acceptance_of(positions=[0.77, 0.45, 0.24])
    assert acceptance is not None
    assert acceptance.expected(3) == pytest.approx(2.46)
    assert acceptance.expected(1) == pytest.approx(1.77)
    assert acceptance.chances(3) == pytest.approx((0.77, 0.45 / 0.77, 0.24 / 0.45))
    with pytest.raises(InputError, match="use --speculative-tokens 3 or fewer"):
        acceptance.expected(4)


def test_lengths_are_taken_as_measured() -> None:
    acceptance = acceptance_of(lengths={3: 2.29, 2: 2.1})
    assert acceptance is not None
    assert acceptance.known(16) == [2, 3]
    assert acceptance.expected(3) == 2.29
    assert expected_tokens(acceptance.chances(3)[0], 3) == pytest.approx(2.29)
    with pytest.raises(InputError, match="the nearest is 3"):
        acceptance.expected(5)


@pytest.mark.parametrize(
    ("given_as", "said"),
    [
        ({"rate": 1.2}, "from 0 to 1"),
        ({"rate": True}, "from 0 to 1"),
        ({"rate": 0.5, "lengths": 2.0, "tokens": 3}, "leave one of them out"),
        ({"positions": [0.4, 0.6]}, "none is above"),
        ({"lengths": 2.0}, "of how many speculative tokens"),
        ({"lengths": 4.5, "tokens": 3}, "from 1 to 4 tokens"),
        ({"lengths": 0.9, "tokens": 3}, "from 1 to 4 tokens"),
        ({"lengths": {}}, "names no length"),
        ({"lengths": {0: 1.0}}, "at least 1"),
        ({"lengths": {3: "2"}}, "must be a number"),
    ],
)
def test_what_cannot_be_is_refused(given_as: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        acceptance_of(**given_as)  # type: ignore[arg-type]
