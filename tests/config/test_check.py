from __future__ import annotations

import pytest

from dllmx.config.compose import compose, validate
from dllmx.errors import ConfigError

DRIFT = ["policy=baseline", "commit=drift"]


def test_a_signal_that_nobody_publishes_is_refused_with_both_names() -> None:
    message = "commit=drift needs the signal 'drift'; cache=none .* Try cache=polestar"
    with pytest.raises(ConfigError, match=message):
        validate(compose(DRIFT))


def test_a_rule_whose_settings_need_no_signal_goes_with_any_cache() -> None:
    alone = ["commit.rule=static", "commit.suffix_threshold=null"]
    assert validate(compose([*DRIFT, *alone])).cache.name == "none"


def test_guidance_is_refused_where_the_cache_works_inside_the_forward() -> None:
    with pytest.raises(ConfigError, match=r"sampler\.guidance=1\.0 .*cache=polestar"):
        validate(compose(["policy=polestar", "sampler.guidance=1"]))
    validate(compose(["policy=fast-dllm", "sampler.guidance=1"]))
