"""The error of the formats of kept states, measured at the refreshes of real decodes."""

from dataclasses import replace

import pytest

from dllmx.bench.formats import measure_formats
from dllmx.decode.batch import Request
from dllmx.errors import ConfigError
from tests.building import decode_config, random_model

SAMPLER = {"name": "blocks", "gen_length": 16, "block_length": 8, "steps": 8}
REQUESTS = [Request("a", list(range(3, 15)), 0), Request("b", list(range(5, 12)), 0)]


def polestar(**settings):
    cache = {"name": "polestar", "centroids": 3, "top_k": 2, "tau_upd": 1.0, **settings}
    return decode_config(SAMPLER, cache, {"name": "quota"})


@pytest.fixture
def model():
    return random_model("llada")


def test_unencoded_states_have_no_error_and_coarser_formats_have_more(model):
    forms = ("none", "fp16", "nvfp4", "int2")
    reports = {r.form: r for r in measure_formats(model, polestar(), REQUESTS, forms)}
    assert reports["none"].refreshes > 2
    assert reports["none"].key_error == reports["none"].value_error == 0.0
    errors = [reports[form].key_error for form in forms]
    assert errors == sorted(errors)
    assert errors[1] > 0
    sizes = [reports[form].window_bytes for form in forms]
    assert sizes == sorted(sizes, reverse=True)


def test_the_measured_decode_does_not_depend_on_the_format_it_was_asked_for(model):
    plain = measure_formats(model, polestar(), REQUESTS, ("int8",))
    other = replace(polestar(), cache=replace(polestar().cache, residual_format="int2"))
    assert measure_formats(model, other, REQUESTS, ("int8",)) == plain


def test_another_cache_policy_is_refused(model):
    config = decode_config(SAMPLER, {"name": "dual"}, {"name": "quota"})
    with pytest.raises(ConfigError, match="cache=dual"):
        measure_formats(model, config, REQUESTS)


def test_a_decode_without_refreshes_is_refused(model):
    with pytest.raises(ConfigError, match="tau_upd"):
        measure_formats(model, polestar(tau_upd=float("inf")), REQUESTS)
