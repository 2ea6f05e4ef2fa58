"""The finished folder: what other programs read is what was trained."""

import pytest
import torch

from dllmx.models import checkpoint
from dllmx.models.model import Model
from dllmx.training import export, loop
from dllmx.training.config import TrainConfig
from dllmx.training.evaluate import Result


@pytest.mark.parametrize("name", ["tiny-llada", "tiny-dream"])
def test_an_exported_model_is_read_back_with_the_same_logits(name, tmp_path):
    run = loop.open_run(TrainConfig(model=name, output=str(tmp_path)))
    export.export_model(run, tmp_path, [])
    shape = checkpoint.read_shape(tmp_path)
    assert shape == run.shape
    weights = checkpoint.load_weights(tmp_path, shape, torch.float32, "cpu")
    ids = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.equal(Model(shape, weights).forward_logits(ids), run.model.forward_logits(ids))


def test_the_card_says_recipe_and_measurements(tmp_path):
    run = loop.open_run(TrainConfig(model="tiny-dream", steps=77, seed=5, output=str(tmp_path)))
    results = [Result("tiny-math", None, 200, 180, 6400, 4000)]
    export.export_model(run, tmp_path, results)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "dllmx train-tiny model=tiny-dream steps=77 seed=5" in card
    assert "| tiny-math | one a forward | 90.0% | 0.62 |" in card
    assert "license: apache-2.0" in card
