"""Settings of a training run and its schedule."""

import pytest

from dllmx.errors import ConfigError
from dllmx.training.config import TrainConfig


def test_the_rate_rises_stays_and_falls_to_zero():
    config = TrainConfig(steps=100, warmup=10, decay=0.2, rate=1e-3)
    rates = [config.rate_at(step) for step in range(100)]
    assert rates[0] == pytest.approx(1e-4)
    assert rates[9:80] == pytest.approx([1e-3] * 71)
    assert rates[85] == pytest.approx(0.5e-3)
    assert sorted(rates[80:], reverse=True) == rates[80:]
    assert 0 < rates[99] < 1e-4


def test_without_decay_the_rate_is_held_to_the_end():
    assert TrainConfig(steps=50, warmup=1, decay=0.0).rate_at(49) == TrainConfig().rate


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model", "llada"),
        ("steps", 0),
        ("batch", 0),
        ("rate", 0.0),
        ("rate", float("nan")),
        ("decay", 1.5),
        ("clip", 0.0),
        ("seed", -1),
        ("measure", 0),
    ],
)
def test_bad_settings_are_refused_by_name(key, value):
    with pytest.raises(ConfigError, match=f"{key}="):
        TrainConfig(**{key: value})
