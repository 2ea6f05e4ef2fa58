from __future__ import annotations

from dllmx.runs.playback import first_frame

MASK, EOS = 3, 2


def step(**changes: object) -> dict[str, object]:
    return {"commit": [], "remask": [], "filled": [], "block": [2, 5], **changes}


def test_the_first_frame_is_the_prompt_and_masks() -> None:
    frame = first_frame([7, 8], 3, MASK, EOS)
    assert frame.tokens == (7, 8, MASK, MASK, MASK)
    assert frame.masks == 3
    assert frame.block is None


def test_commits_fills_and_remasks_are_played_with_their_ages() -> None:
    frame = first_frame([7, 8], 3, MASK, EOS)
    frame = frame.after(step(commit=[[2, 10], [3, 11]]))
    frame = frame.after(step(remask=[3], filled=[4]))
    assert frame.tokens == (7, 8, 10, MASK, EOS)
    assert [frame.age(position) for position in range(5)] == [None, None, 1, None, 0]
    assert (frame.number, frame.masks, frame.block) == (2, 1, (2, 5))
