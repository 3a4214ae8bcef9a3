"""Speculative sampling keeps the distribution of the target."""

import math

import numpy as np
import pytest
from scipy.stats import chi2

from costmodel.errors import InputError
from costmodel.explaining.sampling import (
    acceptance_chances,
    chi_square_tail,
    example_models,
    goodness_of_fit,
    log_chi_square_tail,
    speculative_sampling,
)
from costmodel.speculation.acceptance import expected_tokens

SEEDS = range(12)


def test_what_comes_out_is_of_the_targets_distribution() -> None:
    target, draft = example_models(likeness=0.5)
    p_values = [goodness_of_fit(speculative_sampling(target, draft, seed=s).transitions, target).p_value for s in SEEDS]
    assert min(p_values) > 1e-3  # of 12 seeds
    assert 0.2 < np.mean(p_values) < 0.8  # uniform where the hypothesis holds


def test_so_does_sampling_from_the_target_alone() -> None:
    target, draft = example_models(likeness=0.5)
    plain = speculative_sampling(target, draft, rule="plain", passes=150)
    assert goodness_of_fit(plain.transitions, target).p_value > 1e-3
    assert plain.accepted_length == 1


def test_trusting_the_draft_does_not_and_the_test_sees_it() -> None:
    target, draft = example_models(likeness=0.9)
    trusted = speculative_sampling(target, draft, rule="trusting")
    assert goodness_of_fit(trusted.transitions, target).p_value < 1e-9
    assert trusted.accepted == trusted.drafted


def test_single_chances_are_those_of_the_target() -> None:
    target, draft = example_models(vocabulary=3, likeness=0.3, seed=4)
    found = speculative_sampling(target, draft, sequences=20_000).transitions
    assert found / found.sum(axis=1, keepdims=True) == pytest.approx(target, abs=0.004)


def test_drafts_are_accepted_as_often_as_the_two_overlap() -> None:
    target = np.tile([0.5, 0.3, 0.2], (3, 1))
    draft = np.tile([0.2, 0.3, 0.5], (3, 1))
    assert acceptance_chances(target, draft) == pytest.approx([0.7] * 3)  # 0.2 + 0.3 + 0.2
    found = speculative_sampling(target, draft, tokens=3, sequences=20_000)
    assert found.accepted_length == pytest.approx(expected_tokens(0.7, 3), rel=0.01)


def test_a_draft_that_is_the_target_is_always_accepted() -> None:
    target, _ = example_models()
    found = speculative_sampling(target, target, tokens=5)
    assert found.accepted == found.drafted
    assert found.accepted_length == 6


def test_greedy_decoding_gives_the_very_same_tokens() -> None:
    """At temperature 0 the target's row is one token: whatever is drafted, no other comes out."""
    greedy = np.eye(6)[[3, 0, 5, 1, 2, 4]]
    _, draft = example_models(vocabulary=6)
    found = speculative_sampling(greedy, draft, seed=1).transitions
    assert (found[greedy == 0] == 0).all()


@pytest.mark.parametrize("degrees", [1, 2, 7, 56, 400])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.9, 1.0, 1.1, 1.5, 3.0])
def test_tail_of_chi_square(share: float, degrees: int) -> None:
    statistic = share * degrees
    assert chi_square_tail(statistic, degrees) == pytest.approx(chi2.sf(statistic, degrees), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("statistic", [0.5, 3.0, 40.0, 719_000.0])
def test_logarithm_of_the_tail_goes_on_where_the_tail_is_no_float(statistic: float) -> None:
    half = statistic / 2
    assert log_chi_square_tail(statistic, 2) == pytest.approx(-half, rel=1e-9)  # P = e^(−x/2)
    assert log_chi_square_tail(statistic, 4) == pytest.approx(math.log1p(half) - half, rel=1e-9)  # (1 + x/2)·e^(−x/2)


def test_a_token_that_cannot_come_is_no_fit() -> None:
    assert goodness_of_fit([[1, 1], [0, 1]], [[1.0, 0.0], [0.0, 1.0]]).p_value == 0


@pytest.mark.parametrize("matrix", [[[0.5, 0.4], [0.5, 0.5]], [0.5, 0.5], [[1.5, -0.5], [0.5, 0.5]]])
def test_what_is_no_chain_is_refused(matrix: object) -> None:
    with pytest.raises(InputError, match="rows are distributions"):
        speculative_sampling(matrix, [[0.5, 0.5], [0.5, 0.5]])


def test_vocabularies_must_be_the_same() -> None:
    with pytest.raises(InputError, match="vocabularies of 2 and 3"):
        speculative_sampling(np.eye(2), np.eye(3))
