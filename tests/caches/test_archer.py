from __future__ import annotations

from typing import Any

import pytest
from building import decode_config, random_model
from hypothesis import given, settings
from hypothesis import strategies as st

from dllmx.decode.decoder import Decoded, Decoder, Request
from dllmx.decode.session import Session

FAMILIES = ("llada", "dream")
PROMPT = [3, 14, 15, 9, 26, 5]
FULL = {"name": "full", "gen_length": 24}


def decode(family: str, cache: dict[str, Any], commit: dict[str, Any]) -> Decoded:
    decoder = Decoder(random_model(family), decode_config(FULL, cache, commit))
    return decoder.decode([Request("x", PROMPT, seed=0)])[0]


@settings(max_examples=10, deadline=None)
@given(
    family=st.sampled_from(FAMILIES),
    commit=st.sampled_from(
        [
            {"name": "saber"},
            {"name": "saber", "n": 3, "compat": "llada"},
            {"name": "saber", "compat": "dream"},
            {"name": "threshold", "threshold": 0.5},
        ]
    ),
)
def test_a_radius_of_one_equals_no_cache(family: str, commit: dict[str, Any]) -> None:
    cached = decode(family, {"name": "archer", "radius": 1}, commit)
    plain = decode(family, {"name": "none"}, commit)
    assert [s.commit for s in cached.steps] == [s.commit for s in plain.steps]
    assert [s.remask for s in cached.steps] == [s.remask for s in plain.steps]
    assert cached.counters.partial == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_without_a_radius_the_prompt_is_computed_once(family: str) -> None:
    decoded = decode(family, {"name": "archer", "radius": None}, {"name": "threshold"})
    assert decoded.counters.full == 1
    shifted = family == "dream"
    assert {step.rows for step in decoded.steps[1:]} <= {24, 25 if shifted else 24}


@pytest.mark.parametrize("family", FAMILIES)
def test_refreshes_happen_at_the_radius_and_never_later(family: str) -> None:
    decoded = decode(family, {"name": "archer", "radius": 4}, {"name": "saber"})
    assert decoded.counters.full > 1
    for step in decoded.steps[1:]:
        assert (step.note["distance"] >= 4) == step.full
        assert step.reason == ("radius" if step.full else "response")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("radius", [2, 5, None])
def test_right_after_a_rebuild_a_cached_forward_equals_a_full_one(
    family: str, radius: int | None
) -> None:
    """The same state decoded by a full forward and, from the cache just built, by the response."""
    config = decode_config(FULL, {"name": "archer", "radius": radius}, {"name": "saber"})
    session = Session(random_model(family), config, [Request("x", PROMPT, seed=0)])
    before = session.clone()
    while session.step():
        after = session.sequences[0].records[-1]
        if not after.full:
            before = session.clone()
            continue
        # The store of ``session`` was built from the tokens that ``before`` still has.
        before.engine.store.tensors = {
            name: tensor.clone() for name, tensor in session.engine.store.tensors.items()
        }
        cache = before.parts[0].cache
        cache.anchor = before.sequences[0].tokens[len(PROMPT) :].clone()  # type: ignore[attr-defined]
        before.step()
        again = before.sequences[0].records[-1]
        assert not again.full
        assert (again.commit, again.remask) == (after.commit, after.remask)
        assert again.confidence == pytest.approx(after.confidence, abs=1e-5)
        before = session.clone()
