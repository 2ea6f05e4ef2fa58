from __future__ import annotations

import json
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_model import DREAM_KEYS, LLADA_KEYS, make_tensors, plain_logits, write_folder

from dllmx.errors import ConfigError, RunError
from dllmx.models.checkpoint import load_weights, read_shape, save_checkpoint
from dllmx.models.layout import named_views
from dllmx.models.model import Model

REFERENCE = Path(__file__).parents[1] / "reference"
IDS = [3, 49, 7, 11, 49, 49, 20, 1, 0, 44]
FAMILIES = {"llada": LLADA_KEYS, "dream": DREAM_KEYS}
TYING = {"llada": "weight_tying", "dream": "tie_word_embeddings"}
INDEX = "model.safetensors.index.json"


def load(folder: Path, dtype: torch.dtype = torch.float32, layers: int | None = None) -> Model:
    shape = read_shape(folder)
    shape = shape if layers is None else replace(shape, layers=layers)
    return Model(shape, load_weights(folder, shape, dtype, "cpu"))


def logits_of(model: Model, ids: list[int] = IDS) -> torch.Tensor:
    return model.forward_logits(torch.tensor([ids]))[0]


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def folder(tmp_path: Path, family: str) -> Path:
    keys = FAMILIES[family]
    return write_folder(tmp_path / "checkpoint", keys, make_tensors(keys))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_hub_folder_gives_the_logits_of_a_plain_implementation(tmp_path, family, tied, shards):
    keys = {**FAMILIES[family], TYING[family]: tied}
    tensors = make_tensors(keys)
    model = load(write_folder(tmp_path, keys, tensors, shards))
    expected = plain_logits(keys, tensors, IDS)
    torch.testing.assert_close(logits_of(model), expected, rtol=1e-4, atol=1e-4)
    assert (model.weights.head is model.weights.embed) == tied


def test_grouped_heads_and_biases_of_llada_load_too(tmp_path):
    keys = {**LLADA_KEYS, "n_kv_heads": 2, "include_qkv_bias": True}
    tensors = make_tensors(keys)
    model = load(write_folder(tmp_path, keys, tensors))
    expected = plain_logits(keys, tensors, IDS)
    torch.testing.assert_close(logits_of(model), expected, rtol=1e-4, atol=1e-4)


def test_dream_agrees_with_qwen2_run_without_causality(tmp_path):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tensors = make_tensors(DREAM_KEYS)
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    names += ("num_key_value_heads", "rms_norm_eps", "vocab_size", "tie_word_embeddings")
    config = Qwen2Config(**{name: DREAM_KEYS[name] for name in names}, rope_theta=1e6)
    qwen = Qwen2ForCausalLM(config).eval()
    qwen.load_state_dict(tensors)
    everything = torch.zeros(1, 1, len(IDS), len(IDS))
    with torch.no_grad():
        raw = qwen(torch.tensor([IDS]), attention_mask=everything).logits[0]
    shifted = torch.cat([raw[:1], raw[:-1]])
    model = load(write_folder(tmp_path, DREAM_KEYS, tensors))
    torch.testing.assert_close(logits_of(model), shifted, rtol=1e-4, atol=1e-4)


@settings(max_examples=15, deadline=None)
@given(
    heads=st.sampled_from([(2, 1), (4, 2), (3, 3)]), half=st.integers(1, 5), mlp=st.integers(1, 9)
)
def test_any_shape_survives_saving_and_loading(tmp_path_factory, heads, half, mlp):
    folder = tmp_path_factory.mktemp("any")
    keys = {
        **DREAM_KEYS,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "hidden_size": heads[0] * half * 2,
        "intermediate_size": mlp,
    }
    model = load(write_folder(folder / "a", keys, make_tensors(keys)))
    save_checkpoint(folder / "b", model, torch.float32)
    assert torch.equal(logits_of(load(folder / "b")), logits_of(model))


@pytest.mark.parametrize("limit", [5_000_000_000, 20_000, 1])
def test_a_saved_model_is_read_back_exactly_whole_or_in_shards(tmp_path, folder, limit):
    model = load(folder)
    save_checkpoint(tmp_path / "saved", model, torch.float32, max_shard_bytes=limit)
    again = load(tmp_path / "saved")
    assert again.shape == model.shape
    assert torch.equal(logits_of(again), logits_of(model))


def test_saving_writes_the_hubs_own_names_and_an_index_that_adds_up(tmp_path, folder, family):
    save_checkpoint(tmp_path / "saved", load(folder), torch.bfloat16, max_shard_bytes=10_000)
    index = json.loads((tmp_path / "saved" / INDEX).read_text())
    tensors = make_tensors(FAMILIES[family])
    assert set(index["weight_map"]) == set(tensors)
    assert index["metadata"]["total_size"] == sum(t.numel() * 2 for t in tensors.values())
    for file in set(index["weight_map"].values()):
        assert (tmp_path / "saved" / file).stat().st_size < 10_000 + 2_000


def test_saving_again_leaves_nothing_of_the_earlier_save(tmp_path, folder):
    model = load(folder)
    save_checkpoint(tmp_path / "saved", model, torch.float32, max_shard_bytes=10_000)
    save_checkpoint(tmp_path / "saved", model, torch.float32)
    names = {path.name for path in (tmp_path / "saved").iterdir()}
    assert names == {"config.json", "model.safetensors"}


def test_saved_files_have_the_permissions_of_any_new_file(tmp_path, folder):
    save_checkpoint(tmp_path / "saved", load(folder), torch.float32)
    (tmp_path / "other").touch()
    modes = {path.stat().st_mode for path in (tmp_path / "saved").iterdir()}
    assert modes == {(tmp_path / "other").stat().st_mode}


def test_weights_are_converted_to_the_dtype_that_is_asked_for(folder):
    model = load(folder, torch.bfloat16)
    views = named_views(model.weights, model.shape)
    assert {view.dtype for view in views.values()} == {torch.bfloat16}
    full = named_views(load(folder).weights, model.shape)
    assert all(torch.equal(views[name], full[name].bfloat16()) for name in views)


def test_fewer_layers_are_the_first_ones(folder):
    whole, cut = load(folder), load(folder, layers=2)
    assert len(cut.weights.layers) == 2
    shallow = Model(cut.shape, replace(whole.weights, layers=whole.weights.layers[:2]))
    assert torch.equal(logits_of(cut), logits_of(shallow))


def test_more_layers_than_the_checkpoint_has_are_refused(folder):
    with pytest.raises(ConfigError, match="model.layers=4: .* has 3 layers"):
        load(folder, layers=4)


def test_a_missing_tensor_is_named(tmp_path, family):
    keys = FAMILIES[family]
    tensors = make_tensors(keys)
    name = next(name for name in tensors if "2" in name and "up_proj" in name)
    del tensors[name]
    with pytest.raises(RunError, match=f"lacks {name}"):
        load(write_folder(tmp_path, keys, tensors))


def test_a_missing_layer_beyond_the_cut_is_still_an_error(tmp_path):
    tensors = make_tensors(LLADA_KEYS)
    kept = {name: tensor for name, tensor in tensors.items() if ".blocks.2." not in name}
    with pytest.raises(RunError, match=r"lacks .*blocks\.2\..* and 6 more"):
        load(write_folder(tmp_path, LLADA_KEYS, kept), layers=1)


def test_an_unknown_tensor_is_named(tmp_path, family):
    keys = FAMILIES[family]
    tensors = {**make_tensors(keys), "model.extra.weight": torch.zeros(2)}
    with pytest.raises(RunError, match=r"not account for: model\.extra\.weight"):
        load(write_folder(tmp_path, keys, tensors))


def test_a_head_beside_tied_embeddings_is_an_unknown_tensor(tmp_path):
    keys = {**LLADA_KEYS, "weight_tying": True}
    with pytest.raises(RunError, match=r"model\.transformer\.ff_out\.weight"):
        load(write_folder(tmp_path, keys, make_tensors(LLADA_KEYS)))


def test_a_tensor_of_the_wrong_size_is_named_with_both_sizes(tmp_path):
    tensors = make_tensors(LLADA_KEYS)
    name = "model.transformer.blocks.1.k_proj.weight"
    tensors[name] = torch.zeros(16, 32)
    with pytest.raises(RunError, match=r"blocks\.1\.k_proj.*\[16, 32\].*\[32, 32\]"):
        load(write_folder(tmp_path, LLADA_KEYS, tensors))


def test_whole_numbers_instead_of_weights_are_refused(tmp_path):
    tensors = make_tensors(LLADA_KEYS)
    tensors["model.transformer.ln_f.weight"] = torch.ones(32, dtype=torch.int8)
    with pytest.raises(RunError, match=r"ln_f\.weight is torch\.int8"):
        load(write_folder(tmp_path, LLADA_KEYS, tensors))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite_are_refused(tmp_path, value):
    tensors = make_tensors(LLADA_KEYS)
    tensors["model.transformer.blocks.0.up_proj.weight"][3, 4] = value
    with pytest.raises(RunError, match=r"blocks\.0\.up_proj\.weight holds NaN or infinite"):
        load(write_folder(tmp_path, LLADA_KEYS, tensors))


def test_weights_that_overflow_the_asked_dtype_are_refused(tmp_path):
    tensors = make_tensors(LLADA_KEYS)
    tensors["model.transformer.ln_f.weight"][0] = 1e6
    folder = write_folder(tmp_path, LLADA_KEYS, tensors)
    load(folder, torch.bfloat16)
    with pytest.raises(RunError, match=r"infinite values as torch\.float16"):
        load(folder, torch.float16)


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_a_file_that_was_cut_short_is_reported_with_its_path(folder, kept):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(RunError, match=r"model\.safetensors is damaged or cut short"):
        load(folder)


def test_a_header_that_lies_about_its_length_is_reported(folder):
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 2**40) + path.read_bytes()[8:])
    with pytest.raises(RunError, match="damaged"):
        load(folder)


def test_a_git_lfs_pointer_is_recognised(folder):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    (folder / "model.safetensors").write_text(pointer)
    with pytest.raises(RunError, match="Git LFS pointer.*git lfs pull"):
        load(folder)


def test_a_missing_shard_is_named(tmp_path):
    folder = write_folder(tmp_path, LLADA_KEYS, make_tensors(LLADA_KEYS), shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(RunError, match=r"model-00002-of-00003\.safetensors is missing"):
        load(folder)


def test_a_shard_without_the_tensors_that_the_index_promises_is_reported(tmp_path):
    folder = write_folder(tmp_path, LLADA_KEYS, make_tensors(LLADA_KEYS), shards=2)
    first, second = sorted(folder.glob("model-*.safetensors"))
    first.write_bytes(second.read_bytes())
    with pytest.raises(RunError, match="model-00001-of-00002.*lacks"):
        load(folder)


@pytest.mark.parametrize("file", ["../model.safetensors", "/etc/passwd", 3])
def test_an_index_cannot_point_outside_its_folder(tmp_path, file):
    folder = write_folder(tmp_path, LLADA_KEYS, make_tensors(LLADA_KEYS), shards=2)
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["model.transformer.wte.weight"] = file
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(RunError, match="a file of the same folder is needed"):
        load(folder)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": {}}'])
def test_a_damaged_index_is_reported(tmp_path, text):
    folder = write_folder(tmp_path, LLADA_KEYS, make_tensors(LLADA_KEYS), shards=2)
    (folder / INDEX).write_text(text)
    with pytest.raises(RunError, match="index.json"):
        load(folder)


def test_pickled_weights_are_refused_with_the_way_to_convert_them(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"pytorch_model\.bin.*never read.*save_file"):
        load(folder)


def test_a_folder_without_weights_is_refused(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="holds no weights"):
        load(folder)


def test_a_folder_without_config_is_no_checkpoint(tmp_path):
    with pytest.raises(ConfigError, match=r"no checkpoint folder: it has no config\.json"):
        read_shape(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00"])
def test_a_damaged_config_is_reported_with_its_path(folder, text):
    (folder / "config.json").write_text(text)
    with pytest.raises(RunError, match=r"config\.json"):
        read_shape(folder)


def test_the_end_of_turn_id_comes_from_the_tokenizers_added_tokens(folder, family):
    assert read_shape(folder).eot_id is None
    text = {"llada": "<|eot_id|>", "dream": "<|im_end|>"}[family]
    whole = {"added_tokens": [{"id": 47, "content": text}]}
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    assert read_shape(folder).eot_id == 47
    settings_file = {"added_tokens_decoder": {"46": {"content": text}}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings_file))
    assert read_shape(folder).eot_id == 46


MEMORY_SCRIPT = """
import re, sys
from pathlib import Path
import torch
from dllmx.models.checkpoint import load_weights, read_shape

def kib(field):
    return int(re.search(field + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

folder = Path(sys.argv[1])
shape = read_shape(folder)
import safetensors.torch
before = kib("VmRSS")
weights = load_weights(folder, shape, getattr(torch, sys.argv[2]), "cpu")
print((kib("VmHWM") - before) * 1024)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_loading_needs_the_memory_of_the_model_and_one_shard(tmp_path, dtype):
    keys = {**LLADA_KEYS, "d_model": 512, "mlp_hidden_size": 2048, "n_layers": 10}
    folder = write_folder(tmp_path, keys, make_tensors(keys), shards=8)
    stored = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    model = stored * torch.finfo(getattr(torch, dtype)).bits // 32
    command = [sys.executable, "-c", MEMORY_SCRIPT, str(folder), dtype]
    used = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    shard, slack = stored // 8, 12 * 2**20
    assert 0.8 * model < used < model + shard + slack, (used, model, shard)


# The first commits of the published decoders on these checkpoints: prompt, position, token,
# confidence. LLaDA commits the surest position of the first block of 16 at its first step.
LLADA_FIRST_COMMITS = [
    ([1, 71, 75, 63, 40, 23, 23, 22], 21, 2, 0.999960353),
    ([1, 80, 55, 74, 67, 49, 6, 10], 22, 2, 0.999674996),
    ([1, 80, 55, 74, 44, 7, 4, 77, 44, 5, 13], 14, 81, 0.999915494),
    ([1, 71, 75, 63, 40, 21, 14, 14, 17, 15, 17], 26, 2, 0.999365346),
    ([1, 72, 75, 63, 40, 22, 19, 14, 16, 21], 10, 46, 0.999869527),
]
DREAM_PROMPT = [91, 71, 59, 57, 65, 75, 24, 23, 65, 60, 80, 78]
DREAM_PROMPT += [23, 12, 57, 38, 18, 11, 68, 88, 81, 5, 76]


@pytest.mark.parametrize(("prompt", "position", "token", "confidence"), LLADA_FIRST_COMMITS)
def test_the_reference_llada_commits_first_what_its_authors_code_does(
    prompt, position, token, confidence
):
    model = load(REFERENCE / "tiny-llada")
    canvas = prompt + [model.shape.mask_id] * 48
    best = torch.softmax(logits_of(model, canvas), -1).max(-1)
    block = best.values[len(prompt) : len(prompt) + 16]
    assert len(prompt) + int(block.argmax()) == position
    assert int(best.indices[position]) == token
    assert float(best.values[position]) == pytest.approx(confidence, abs=1e-6)


def test_the_reference_dream_commits_first_what_its_authors_code_does():
    model = load(REFERENCE / "tiny-dream-random")
    canvas = DREAM_PROMPT + [model.shape.mask_id] * 48
    chances = torch.softmax(logits_of(model, canvas), -1)
    surest = torch.special.entr(chances).sum(-1)[len(DREAM_PROMPT) :].argmin()
    assert len(DREAM_PROMPT) + int(surest) == 59
    assert int(chances[59].argmax()) == 30


@pytest.mark.parametrize("name", ["tiny-llada", "tiny-dream-random"])
def test_left_padding_changes_nothing(name):
    model = load(REFERENCE / name)
    mask, pad = model.shape.mask_id, model.shape.pad_id
    canvases = [[5, 9, 11, 30, mask, mask, mask], [7, mask, mask, mask], [8, 9, 12, mask, mask]]
    width = max(map(len, canvases))
    ids = torch.tensor([[pad] * (width - len(row)) + row for row in canvases])
    visible = torch.tensor([[False] * (width - len(row)) + [True] * len(row) for row in canvases])
    batch = model.forward_logits(ids, visible)
    assert torch.isfinite(batch).all()
    for row, canvas in enumerate(canvases):
        alone, padded = logits_of(model, canvas), batch[row, width - len(canvas) :]
        # A shifted model reuses row 0 for its first position, which padding moves: never sampled.
        first = 1 if model.shape.shifted else 0
        torch.testing.assert_close(padded[first:], alone[first:], rtol=1e-4, atol=1e-4)
