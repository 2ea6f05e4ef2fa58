from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dllmx.kernels import confidence
from dllmx.kernels.confidence import (
    confidence_torch,
    confidence_triton,
    probability_of_torch,
    probability_of_triton,
)


def logits(rows: int, vocab: int, scale: float, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, vocab, generator=generator) * scale


@settings(deadline=None, max_examples=300)
@given(
    rows=st.integers(1, 5),
    vocab=st.integers(3, 300),
    scale=st.sampled_from([0.1, 1.0, 30.0]),
    seed=st.integers(0, 1000),
)
def test_measures_equal_a_float64_softmax(rows: int, vocab: int, scale: float, seed: int) -> None:
    values = logits(rows, vocab, scale, seed)
    exact = values.double().softmax(-1)
    got = confidence_torch(values.clone(), forbidden=1, with_entropy=True, with_margin=True)
    allowed = exact.clone()
    allowed[:, 1] = -1
    best = allowed.topk(2).values
    assert torch.equal(got.token, values.index_fill(1, torch.tensor([1]), -torch.inf).argmax(-1))
    torch.testing.assert_close(got.probability, best[:, 0], rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(got.margin, best[:, 0] - best[:, 1], rtol=1e-4, atol=1e-6)
    entropy = -(exact * exact.clamp(min=1e-300).log()).sum(-1)
    torch.testing.assert_close(got.entropy, entropy, rtol=1e-4, atol=1e-5)
    chosen = torch.full((rows,), vocab - 1)
    got_chosen = probability_of_torch(values.clone(), chosen)
    torch.testing.assert_close(got_chosen, exact[:, -1], rtol=1e-4, atol=1e-7)


def test_confidences_that_round_to_one_keep_their_order() -> None:
    values = torch.zeros(2, 10)
    values[0, 3], values[1, 3] = 20.0, 21.0
    got = confidence_torch(values.clone(), forbidden=0)
    assert float(got.probability[0].float()) == float(got.probability[1].float()) == 1.0
    assert got.probability[1] > got.probability[0]


def test_the_forbidden_token_keeps_its_mass_and_is_never_chosen() -> None:
    values = torch.tensor([[5.0, 1.0, 0.0]])
    got = confidence_torch(values.clone(), forbidden=0)
    assert got.token.item() == 1
    torch.testing.assert_close(got.probability[0], values.double().softmax(-1)[0, 1])


def test_a_forbidden_token_far_above_all_others_leaves_finite_measures() -> None:
    values = torch.tensor([[500.0, 1.0, 0.0]])
    got = confidence_torch(values, forbidden=0, with_entropy=True, with_margin=True)
    assert got.token.item() == 1
    assert got.probability.item() == pytest.approx(0.0)
    assert got.entropy is not None
    assert got.entropy.item() == pytest.approx(0.0)


def test_impossible_tokens_and_nan_rows() -> None:
    values = torch.tensor([[0.0, -torch.inf, 2.0, -torch.inf], [0.0, 1.0, torch.nan, 2.0]])
    got = confidence_torch(values.clone(), forbidden=0, with_entropy=True, with_margin=True)
    assert bool(torch.isfinite(got.entropy[0]))
    assert bool(got.probability[1].isnan())
    impossible = probability_of_torch(values[:1].clone(), torch.tensor([1]))
    assert impossible.item() == 0.0


def assert_twins_agree(values: torch.Tensor, forbidden: int, **options: Any) -> None:
    asked = {"with_entropy": True, "with_margin": True} | options
    got = confidence_triton(values, forbidden, **asked)
    expected = confidence_torch(values.clone(), forbidden, **asked)
    assert torch.equal(got.token, expected.token)
    for name, rtol in (("probability", 1e-5), ("entropy", 1e-4), ("margin", 1e-4)):
        ours, theirs = getattr(got, name), getattr(expected, name)
        assert ours.dtype == torch.float64
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=1e-6, equal_nan=True, msg=name)


def gumbel(rows: int, vocab: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(rows, vocab, generator=generator, dtype=torch.float64)
    return -(-uniform.clamp(min=1e-300).log()).log()


@settings(max_examples=60)
@given(
    rows=st.integers(1, 3),
    vocab=st.integers(3, 300),
    scale=st.sampled_from([0.1, 1.0, 30.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]),
    impossible=st.sampled_from([0.0, 0.3, 0.95]),
    suppressed=st.sampled_from([(), (2,), (0, 1), (2, 1)]),
    temperature=st.sampled_from([None, 0.3, 1.0]),
    tile=st.sampled_from([32, 4096]),  # many tiles a row, or one
    seed=st.integers(0, 1000),
)
def test_kernel_equals_its_twin(
    rows: int,
    vocab: int,
    scale: float,
    dtype: torch.dtype,
    impossible: float,
    suppressed: tuple[int, ...],
    temperature: float | None,
    tile: int,
    seed: int,
) -> None:
    values = logits(rows, vocab, scale, seed).to(dtype)
    values[
        torch.rand(rows, vocab, generator=torch.Generator().manual_seed(seed)) < impossible
    ] = -torch.inf
    options: dict[str, Any] = {"suppressed": suppressed}
    if temperature is not None:
        options |= {"noise": gumbel(rows, vocab, seed), "temperature": temperature}
    chosen = torch.arange(rows) % vocab
    with mock.patch.object(confidence, "MOST_COLUMNS", tile):
        assert_twins_agree(values, 1, **options)
        torch.testing.assert_close(
            probability_of_triton(values, chosen, suppressed),
            probability_of_torch(values.clone(), chosen, suppressed),
            rtol=1e-5,
            atol=1e-9,
        )


@pytest.mark.parametrize("vocab", [126464, 152064])
def test_kernel_equals_its_twin_at_the_models_vocabularies(vocab: int) -> None:
    values = logits(2, vocab, 3.0, seed=vocab)
    values[0, vocab - 1] = 40.0  # the best is in the last, ragged tile
    noise = gumbel(2, vocab, seed=1)
    assert_twins_agree(values.bfloat16(), vocab - 2, suppressed=(vocab - 5,), noise=noise)
    chosen = torch.tensor([vocab - 1, 17])
    got = probability_of_triton(values, chosen)
    torch.testing.assert_close(got, probability_of_torch(values, chosen), rtol=1e-5, atol=0)


def test_ties_go_to_the_lowest_id_across_tiles() -> None:
    values = torch.zeros(3, 9000)
    values[0, [8500, 4200, 77]] = 5.0
    values[1, [8192, 4096]] = 5.0  # one lane's columns
    values[2, [4103, 8]] = 5.0  # the later tile's lane comes first
    got = confidence_triton(values, forbidden=0, with_margin=True)
    assert got.token.tolist() == [77, 4096, 8]
    assert got.margin is not None
    assert got.margin.tolist() == [0.0, 0.0, 0.0]
    assert_twins_agree(values, 0)


def test_kernel_keeps_the_order_of_confidences_that_round_to_one() -> None:
    values = torch.zeros(4, 10)
    values[:, 3] = torch.tensor([20.0, 21.0, 30.0, 34.0])
    got = confidence_triton(values, forbidden=0, with_entropy=True)
    assert bool((got.probability[:3].float() == 1.0).all())
    assert bool((got.probability.diff() > 0).all())
    expected = confidence_torch(values.clone(), forbidden=0, with_entropy=True)
    exact = 9 * (-values[:, 3].double()).exp()
    torch.testing.assert_close(1 - got.probability, exact, rtol=2e-2, atol=0)
    torch.testing.assert_close(got.entropy, expected.entropy, rtol=1e-5, atol=0)
    assert got.entropy is not None
    assert bool((got.entropy > 0).all())
    assert bool((probability_of_triton(values, got.token).diff() > 0).all())


def test_kernel_with_a_forbidden_token_far_above_all_others() -> None:
    values = torch.tensor([[5000.0, 1.0, 0.0], [5000.0, -torch.inf, -torch.inf]])
    for suppressed in ((), (0,)):
        assert_twins_agree(values, 0, suppressed=suppressed)
        got = confidence_triton(values, 0, suppressed=suppressed)
        assert got.probability.isnan().tolist() == [False, True]  # the second has no token left


@pytest.mark.parametrize("probability", [probability_of_torch, probability_of_triton])
def test_a_suppressed_token_has_probability_zero_and_no_mass(probability: Any) -> None:
    values = torch.tensor([[3.0, 1.0, 2.0], [3.0, 1.0, 2.0], [-torch.inf] * 3])
    got = probability(values, torch.tensor([0, 1, 2]), (0,))
    expected = [0.0, 1 / (1 + torch.tensor(1.0).double().exp().item()), 0.0]
    assert got.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("column", [0, 2, 5])  # the forbidden, the best, any other
def test_kernel_gives_nan_where_a_row_holds_one(column: int) -> None:
    values = torch.tensor([[0.0, 1.0, 4.0, 2.0, 0.0, 3.0]]).repeat(2, 1)
    values[0, column] = torch.nan
    got = confidence_triton(values, 0, with_entropy=True, with_margin=True)
    for measured in (got.probability, got.entropy, got.margin):
        assert measured is not None
        assert measured.isnan().tolist() == [True, False]
    assert probability_of_triton(values, torch.tensor([1, 1])).isnan().tolist() == [True, False]


def test_rows_may_be_apart_and_are_left_as_they_are() -> None:
    wide = logits(6, 50, 2.0, seed=3)
    values, before = wide[::2, 5:45], wide.clone()
    assert_twins_agree(values, 4)
    assert torch.equal(wide, before)
    assert confidence_triton(wide[:0], 0).token.shape == (0,)
    with pytest.raises(ValueError, match="side by side"):
        confidence_triton(wide.T, 0)
    with pytest.raises(ValueError, match="noise"):
        confidence_triton(wide, 0, noise=torch.zeros(6, 49))


@pytest.mark.parametrize("measure", [confidence_torch, confidence_triton])
def test_noise_changes_the_token_but_not_what_is_measured(measure: Any) -> None:
    values = logits(60, 8, 1.0, seed=5)
    exact = values.double().softmax(-1)
    plain = measure(values.clone(), 1, True, True)
    got = measure(values.clone(), 1, True, True, noise=gumbel(60, 8, seed=6), temperature=0.5)
    assert 6 < int((got.token != plain.token).sum()) < 45
    assert not bool((got.token == 1).any())
    torch.testing.assert_close(got.probability, exact.gather(1, got.token[:, None])[:, 0],
                               rtol=1e-5, atol=0)  # fmt: skip
    torch.testing.assert_close(got.entropy, plain.entropy)
    torch.testing.assert_close(got.margin, plain.margin)


def test_noise_of_low_temperature_follows_the_logits_and_of_high_the_noise() -> None:
    values, noise = logits(20, 30, 1.0, seed=7), gumbel(20, 30, seed=8)
    cold = confidence_triton(values, 29, noise=noise, temperature=1e-4).token
    hot = confidence_triton(values, 29, noise=noise, temperature=1e4).token
    assert torch.equal(cold, values[:, :29].argmax(-1))
    assert torch.equal(hot, noise[:, :29].argmax(-1))
