from __future__ import annotations

import pytest
from plain_model import DREAM_KEYS, LLADA_KEYS

from dllmx.errors import ConfigError
from dllmx.models.families import FAMILIES, shape_of

OPTIONAL = {
    *("architectures", "model_type", "torch_dtype", "bos_token_id"),  # read elsewhere or not at all
    "mlp_ratio",  # not used where mlp_hidden_size is set
    *("rope_scaling", "use_sliding_window"),  # absent means off
}
FILES = {"llada": LLADA_KEYS, "dream": DREAM_KEYS}


def test_the_shape_of_llada_is_what_its_keys_say():
    shape = shape_of(LLADA_KEYS, "config.json")
    assert (shape.family, shape.layers, shape.width, shape.heads, shape.kv_heads) == (
        *("llada", 3, 32, 4, 4),
    )
    assert (shape.head_dim, shape.mlp_width, shape.vocab) == (8, 40, 50)
    assert (shape.rope_theta, shape.norm_eps) == (500000.0, 1e-5)
    assert (shape.rope_in_float32, shape.shifted, shape.qkv_bias) == (True, False, False)
    assert (shape.mask_id, shape.eos_id, shape.pad_id, shape.eot_id) == (49, 48, 48, None)


def test_the_shape_of_dream_is_what_its_keys_say():
    shape = shape_of(DREAM_KEYS, "config.json")
    assert (shape.family, shape.layers, shape.width, shape.heads, shape.kv_heads) == (
        *("dream", 3, 48, 6, 2),
    )
    assert (shape.head_dim, shape.mlp_width) == (8, 56)
    assert (shape.rope_in_float32, shape.shifted, shape.qkv_bias) == (False, True, True)


@pytest.mark.parametrize("family", FILES)
def test_a_written_config_is_read_back_as_the_same_shape(family):
    shape = shape_of(FILES[family], "config.json")
    assert shape_of(FAMILIES[family].write(shape), "again") == shape


@pytest.mark.parametrize(
    ("family", "key"),
    [(family, key) for family, keys in FILES.items() for key in keys if key not in OPTIONAL],
)
def test_a_missing_key_is_named_with_its_file(family, key):
    keys = {name: value for name, value in FILES[family].items() if name != key}
    with pytest.raises(ConfigError, match=f"DIR/config.json: the key '{key}' is missing"):
        shape_of(keys, "DIR/config.json")


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("llada", "alibi", True),
        ("llada", "rope", False),
        ("llada", "layer_norm_type", "default"),
        ("llada", "layer_norm_with_affine", False),
        ("llada", "bias_for_layer_norm", True),
        ("llada", "attention_layer_norm", True),
        ("llada", "activation_type", "swiglu"),
        ("llada", "block_type", "sequential"),
        ("llada", "block_group_size", 2),
        ("llada", "include_bias", True),
        ("llada", "input_emb_norm", True),
        ("llada", "scale_logits", True),
        ("llada", "embedding_size", 64),
        ("dream", "hidden_act", "gelu"),
        ("dream", "rope_scaling", {"type": "yarn", "factor": 4.0}),
        ("dream", "use_sliding_window", True),
        ("dream", "head_dim", 16),
    ],
)
def test_what_is_not_supported_is_refused_by_name(family, key, value):
    with pytest.raises(ConfigError, match=f"c.json: {key} is .*; only .* is supported"):
        shape_of({**FILES[family], key: value}, "c.json")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("n_layers", "three", "n_layers is 'three'; a whole number"),
        ("n_layers", True, "n_layers is True; a whole number"),
        ("n_layers", 0, "layers is 0; at least 1"),
        ("n_kv_heads", None, "n_kv_heads is None"),
        ("n_kv_heads", 0, "kv_heads is 0"),
        ("n_kv_heads", 3, "4 query heads cannot share 3"),
        ("n_heads", 5, "n_heads=5 does not divide d_model=32"),
        ("n_heads", 32, "heads of an even size"),
        ("rope_theta", -1.0, "rope_theta is -1.0; a number > 0"),
        ("weight_tying", "no", "weight_tying is 'no'; true or false"),
        ("mask_token_id", 50, "mask_id is 50; ids of this vocabulary are 0 to 49"),
        ("eos_token_id", 126081, "eos_id is 126081"),
    ],
)
def test_values_that_make_no_model_are_refused(key, value, words):
    with pytest.raises(ConfigError, match=words):
        shape_of({**LLADA_KEYS, key: value}, "c.json")


@pytest.mark.parametrize("model_type", ["llama", "dream", None])
def test_another_kind_of_model_is_refused_with_the_supported_ones(model_type):
    with pytest.raises(ConfigError, match=f"model_type is {model_type!r}; .* 'llada', 'Dream'"):
        shape_of({"model_type": model_type}, "c.json")
