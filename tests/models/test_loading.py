from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from plain_model import DREAM_KEYS, LLADA_KEYS, make_tensors, plain_logits, write_folder

from dllmx.config.schema import HardwareConfig, ModelConfig
from dllmx.errors import ConfigError
from dllmx.models import resolve
from dllmx.models.families import shape_of
from dllmx.models.layout import empty_weights, named_views
from dllmx.models.loading import device_of, load_model, load_shape
from dllmx.models.resolve import find_checkpoint, resolve_checkpoint

CONF = Path(__file__).parents[2] / "conf"
CPU = HardwareConfig("cpu", "cpu", "float32", "torch")
OPTIONS = sorted(path.stem for path in (CONF / "model").glob("*.yaml"))
RELEASED = [name for name in OPTIONS if not name.startswith(("tiny", "random"))]


def option(name: str) -> ModelConfig:
    return ModelConfig(**OmegaConf.to_container(OmegaConf.load(CONF / "model" / f"{name}.yaml")))


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hub cache, and an error on any attempt to reach the network."""
    import socket

    from huggingface_hub import constants

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return tmp_path / "hub"


def put_in_cache(cache: Path, repository: str, keys: dict) -> Path:
    entry = cache / f"models--{repository.replace('/', '--')}"
    (entry / "refs").mkdir(parents=True)
    (entry / "refs" / "main").write_text("0" * 40)
    return write_folder(entry / "snapshots" / ("0" * 40), keys, make_tensors(keys))


def test_a_folder_given_as_path_wins_over_the_checkpoint(tmp_path):
    folder = write_folder(tmp_path, LLADA_KEYS, make_tensors(LLADA_KEYS))
    config = replace(option("llada"), path=str(folder))
    assert resolve_checkpoint(config) == folder
    logits = load_model(config, CPU).forward_logits(torch.tensor([[1, 2, 49]]))[0]
    expected = plain_logits(LLADA_KEYS, make_tensors(LLADA_KEYS), [1, 2, 49])
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_a_checkpoint_in_the_hub_cache_is_found_without_network(hub_cache):
    folder = put_in_cache(hub_cache, "Dream-org/Dream-v0-Instruct-7B", DREAM_KEYS)
    assert resolve_checkpoint(option("dream")) == folder
    assert load_model(option("dream"), CPU).shape.width == 48


@pytest.mark.parametrize("name", RELEASED)
def test_an_absent_checkpoint_says_how_to_get_it(name, hub_cache):
    config = option(name)
    with pytest.raises(ConfigError) as caught:
        load_model(config, CPU)
    assert f"hf download {config.checkpoint}\n" in str(caught.value)
    assert "model.path=DIR" in str(caught.value)


def test_a_bundled_model_is_found_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr(resolve, "BUNDLED", tmp_path)
    folder = write_folder(tmp_path / "tiny-llada", LLADA_KEYS, make_tensors(LLADA_KEYS))
    assert resolve_checkpoint(option("tiny-llada")) == folder
    with pytest.raises(ConfigError, match="no bundled model 'tiny-dream'; bundled are: tiny-llada"):
        resolve_checkpoint(option("tiny-dream"))


@pytest.mark.parametrize("name", ["nothing here", "a/b/c", "../etc"])
def test_a_checkpoint_that_is_no_hub_id_is_refused(name, hub_cache):
    with pytest.raises(ConfigError, match="neither a Hub id"):
        find_checkpoint(replace(option("llada"), checkpoint=name))


def test_a_path_that_is_no_folder_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="model.path=.*gone does not exist"):
        resolve_checkpoint(replace(option("llada"), path=str(tmp_path / "gone")))
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file is a file, not a folder"):
        resolve_checkpoint(replace(option("llada"), path=str(tmp_path / "file")))


def test_a_checkpoint_of_the_other_family_is_refused(tmp_path):
    write_folder(tmp_path, DREAM_KEYS, make_tensors(DREAM_KEYS))
    with pytest.raises(ConfigError, match="model=llada is of the family llada, .* model=dream"):
        load_shape(replace(option("llada"), path=str(tmp_path)))


def test_given_ids_replace_those_of_the_checkpoint(tmp_path):
    write_folder(tmp_path, LLADA_KEYS, make_tensors(LLADA_KEYS))
    config = replace(option("llada"), path=str(tmp_path), mask_id=0, eos_id=1, eot_id=2, pad_id=3)
    shape = load_shape(config)
    assert (shape.mask_id, shape.eos_id, shape.eot_id, shape.pad_id) == (0, 1, 2, 3)
    with pytest.raises(ConfigError, match="mask_id is 50; .* 0 to 49"):
        load_shape(replace(config, mask_id=50))


@pytest.mark.parametrize("weights", ["pretrained", "random"])
def test_layers_cut_the_model_and_cannot_lengthen_it(tmp_path, weights):
    write_folder(tmp_path, LLADA_KEYS, make_tensors(LLADA_KEYS))
    config = replace(option("llada"), path=str(tmp_path), weights=weights)
    assert len(load_model(replace(config, layers=1), CPU).weights.layers) == 1
    with pytest.raises(ConfigError, match="model.layers=9: .* has 3 layers"):
        load_model(replace(config, layers=9), CPU)


def test_random_weights_of_a_given_path_have_its_shape(tmp_path):
    write_folder(tmp_path, LLADA_KEYS, make_tensors(LLADA_KEYS))
    model = load_model(replace(option("llada"), path=str(tmp_path), weights="random"), CPU)
    assert model.shape.width == 32
    stored = make_tensors(LLADA_KEYS)["model.transformer.wte.weight"]
    assert not torch.equal(model.weights.embed, stored)


def test_random_weights_without_a_path_have_the_shape_of_the_option(hub_cache):
    keys = {"d_model": 64, "n_heads": 4, "n_kv_heads": 4, "mlp_hidden_size": 96}
    config = option("llada")
    assert config.shape is not None
    config = replace(config, weights="random", layers=2, shape={**config.shape, **keys})
    put_in_cache(hub_cache, config.checkpoint, LLADA_KEYS)
    model = load_model(config, replace(CPU, dtype="bfloat16"))
    assert (model.shape.width, model.shape.layers, model.shape.vocab) == (64, 2, 126464)
    assert model.shape.eot_id == 126348
    assert torch.isfinite(model.forward_logits(torch.tensor([[1, 126336]]))).all()


def test_a_shape_without_a_needed_key_names_the_option(hub_cache):
    shape = {**(option("dream").shape or {})}
    del shape["rope_theta"]
    with pytest.raises(ConfigError, match="model.shape of model=dream: the key 'rope_theta'"):
        load_shape(replace(option("dream"), weights="random", shape=shape))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_an_absent_cuda_device_is_an_error_that_names_the_cpu_profile():
    with pytest.raises(ConfigError, match="hardware=cuda needs a CUDA device.*hardware=cpu"):
        device_of(HardwareConfig("cuda", "cuda", "bfloat16", "torch"))


@pytest.mark.parametrize("name", OPTIONS)
def test_every_model_option_is_complete_and_describes_itself(name):
    config = option(name)
    assert config.name == name
    lines = (CONF / "model" / f"{name}.yaml").read_text().splitlines()
    assert lines[0].startswith("# ")
    assert lines[1].startswith("# Source: ")
    assert not lines[2].startswith("#")
    if name in RELEASED:
        assert shape_of(config.shape or {}, name).family == config.family


@pytest.mark.parametrize(
    ("name", "parameters"), [("llada", 8_015_581_184), ("dream", 7_615_616_512)]
)
def test_the_shapes_in_the_options_have_the_released_number_of_parameters(name, parameters):
    shape = shape_of(option(name).shape or {}, name)
    views = named_views(empty_weights(shape, torch.bfloat16, "meta"), shape)
    assert sum(view.numel() for view in views.values()) == parameters


@pytest.mark.parametrize("path", sorted((CONF / "hardware").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_hardware_option_is_complete_and_describes_itself(path):
    config = HardwareConfig(**OmegaConf.to_container(OmegaConf.load(path)))
    assert config.name == path.stem
    assert path.read_text().splitlines()[1].startswith("# Source: ")


def test_a_checkpoint_saved_by_a_newer_writer_with_extra_keys_still_loads(tmp_path):
    write_folder(tmp_path, LLADA_KEYS, make_tensors(LLADA_KEYS))
    keys = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**keys, "init_device": "meta", "new": 1}))
    assert load_model(replace(option("llada"), path=str(tmp_path)), CPU).shape.layers == 3
