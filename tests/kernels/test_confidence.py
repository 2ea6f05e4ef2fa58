from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dllmx.kernels.confidence import confidence_torch, probability_of


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
    got_chosen = probability_of(values.clone(), chosen)
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
    impossible = probability_of(values[:1].clone(), torch.tensor([1]))
    assert impossible.item() == 0.0
