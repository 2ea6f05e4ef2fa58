"""Muon and AdamW on named tensors."""

import torch

from dllmx.training.optimizer import Optimizer, orthogonal


def test_singular_values_are_pulled_to_about_one():
    torch.manual_seed(0)
    for size in ((32, 32), (16, 48), (48, 16)):
        values = torch.linalg.svdvals(orthogonal(torch.randn(size)))
        assert values.min() > 0.4
        assert values.max() < 1.4


def test_the_singular_vectors_stay():
    torch.manual_seed(0)
    u, _, v = torch.linalg.svd(torch.randn(8, 8))
    matrix = u @ torch.diag(torch.linspace(1, 2, 8)) @ v
    assert torch.cosine_similarity(orthogonal(matrix).flatten(), (u @ v).flatten(), 0) > 0.95


def test_parts_of_a_fused_matrix_are_orthogonalised_apart():
    optimizer = Optimizer({"w": (8, 4)}, weight_decay=0.0)
    weights = {"w": torch.zeros(12, 8, requires_grad=True)}
    weights["w"].grad = torch.cat([torch.randn(8, 8), 1000 * torch.randn(4, 8)])
    optimizer.update(weights, 0, 1.0)
    first, second = weights["w"].detach().split([8, 4])
    assert 0.5 < first.square().mean() / second.square().mean() < 2


def test_adam_agrees_with_torch():
    torch.manual_seed(0)
    mine = torch.randn(5, requires_grad=True)
    theirs = mine.detach().clone().requires_grad_()
    reference = torch.optim.Adam([theirs], lr=0.1, betas=(0.9, 0.98))
    optimizer = Optimizer({}, weight_decay=0.1)
    for step in range(4):
        gradient = torch.randn(5)
        mine.grad, theirs.grad = gradient.clone(), gradient.clone()
        optimizer.update({"v": mine}, step, 0.1)
        reference.step()
    assert torch.allclose(mine, theirs, atol=1e-6)


def test_gradients_are_cleared_and_what_has_none_is_left_alone():
    optimizer = Optimizer({}, weight_decay=0.0)
    used, idle = (torch.ones(2, requires_grad=True) for _ in range(2))
    used.grad = torch.ones(2)
    optimizer.update({"used": used, "idle": idle}, 0, 0.5)
    assert used.grad is None
    assert torch.equal(idle, torch.ones(2))
