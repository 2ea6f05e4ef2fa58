"""The peak of a decode is what model, store, parts and logits account for."""

from __future__ import annotations

from dataclasses import fields
from functools import cache

import pytest
import torch

from dllmx.bench.memory import LiveStorage, measure_memory
from dllmx.caches.polestar import Cache
from dllmx.config.compose import compose, validate
from dllmx.config.schema import RunConfig
from dllmx.decode.decoder import Request
from dllmx.decode.session import Session
from dllmx.engine.interface import Sizes
from dllmx.models.model import Model, ModelShape
from dllmx.models.random_weights import random_weights

MEBIBYTE = 2**20
SLACK = 4 * MEBIBYTE
"""Activations of one layer at a full forward (2.5 MiB of 448 rows), what is kept for a moment of
2**18 logits (3 MiB, at another time), and tensors of a value a position. Less than the store, and
than the logits of all 64 response positions: a second one of either would not fit.
"""
PROMPT, RESPONSE, BLOCK = 384, 64, 16


@cache
def model() -> Model:
    shape = ModelShape(
        family="llada",
        layers=12,
        width=128,
        heads=4,
        kv_heads=4,
        head_dim=32,
        mlp_width=256,
        vocab=32768,
        rope_theta=10000.0,
        norm_eps=1e-6,
        qkv_bias=False,
        tied=False,
        rope_in_float32=True,
        shifted=False,
        mask_id=32767,
        eos_id=32766,
        pad_id=32766,
    )
    return Model(shape, random_weights(shape, 0, torch.float32, torch.device("cpu")))


def config_of(policy: str, *overrides: str) -> RunConfig:
    lengths = [f"task.gen_length={RESPONSE}", f"task.block_length={BLOCK}", "logger=none"]
    return validate(compose([f"policy={policy}", *lengths, *overrides]))


def request() -> Request:
    prompt = torch.randint(1, 30000, (PROMPT,), generator=torch.Generator().manual_seed(0))
    return Request("x", prompt.tolist(), seed=0)


@pytest.mark.parametrize(
    ("policy", "overrides", "stored", "rows_read"),
    [
        ("baseline", ("sampler.steps=8",), 0, BLOCK),
        ("fast-dllm", (), 2, BLOCK),
        ("entropycache", ("cache.tau=null",), 2, RESPONSE),
        ("archer", (), 2, RESPONSE),
        ("polestar", (), 3, RESPONSE),
    ],
)
def test_a_decode_holds_no_more_than_it_accounts_for(
    policy: str, overrides: tuple[str, ...], stored: int, rows_read: int
) -> None:
    report = measure_memory(model(), config_of(policy, *overrides), [request()])
    assert report.store == stored * 12 * (PROMPT + RESPONSE) * 128 * 4
    assert report.logits <= rows_read * 32768 * 4
    assert (report.held > 0) == (policy == "polestar")
    assert report.accounted - SLACK < report.peak < report.accounted + SLACK
    assert report.to_dict()["accounted"] == report.accounted


@pytest.mark.parametrize("form", ["none", "nvfp4", "nvfp4-direct", "int8"])
def test_polestar_declares_what_it_keeps(form: str) -> None:
    config = config_of("polestar", f"cache.residual_format={form}")
    session = Session(model(), config, [request()])
    cache = session.parts[0].cache
    assert isinstance(cache, Cache)
    while session.sequences[0].block is None or session.sequences[0].block.index < 1:
        session.step()
    assert cache.block_scores is not None
    kept = sum(tensor.nbytes for tensor in cache.block_scores)
    for clusters in cache.layers:
        tensors = (getattr(clusters, field.name) for field in fields(clusters))
        kept += sum(tensor.nbytes for tensor in tensors if tensor is not None)
    shape = model().shape
    declared = session.needs.held(
        Sizes(
            layers=shape.layers,
            width=shape.width,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            value_bytes=4,
            length=PROMPT + RESPONSE,
            block_length=BLOCK,
        )
    )
    assert kept <= declared <= 1.01 * kept


def test_storages_are_counted_once_and_until_they_are_freed() -> None:
    before = torch.zeros(1000)
    live = LiveStorage([])
    with live:
        first = torch.zeros(1000)
        view = first[10:20]
        assert live.live == 4000
        second = before + first
        assert (live.live, live.peak) == (8000, 8000)
        del first
        assert live.live == 8000, "the view still holds it"
        del view
        second.add_(1)
        before.add_(1)
        assert (live.live, live.peak) == (4000, 8000)
        third = torch.zeros(500)
        assert (live.live, live.peak) == (6000, 8000)
    del second, third
    assert live.live == 0
