"""``dllmx train-tiny`` as it is typed."""

import pytest

from dllmx.cli import train_tiny
from dllmx.errors import ConfigError
from dllmx.training import shapes


def test_keys_are_read_with_their_types():
    config = train_tiny.parse_config(["model=tiny-dream", "steps=9", "rate=1e-3", "output=X"])
    assert (config.model, config.steps, config.rate, config.output) == ("tiny-dream", 9, 1e-3, "X")


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("step=9", "Did you mean steps=...?"),
        ("steps=many", "steps=many must be a whole number"),
        ("rate=fast", "rate=fast must be a number"),
        ("model=llada", "model=llada"),
        ("--steps", "Write key=value"),
    ],
)
def test_bad_arguments_are_named(argument, words):
    with pytest.raises(ConfigError) as error:
        train_tiny.parse_config([argument])
    assert words in str(error.value)


def test_help_names_every_key(capsys):
    assert train_tiny.main(["--help"]) == 0
    text = capsys.readouterr().out
    keys = train_tiny.TrainConfig.__dataclass_fields__
    assert all(f"{key}=" in text for key in keys)


def test_a_tiny_run_leaves_a_checkpoint_and_a_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(shapes, "LAYERS", 1)
    monkeypatch.setattr(shapes, "WIDTH", 32)
    monkeypatch.setattr(shapes, "MLP_WIDTH", 32)
    monkeypatch.setattr(train_tiny, "THRESHOLDS", (0.0,))
    arguments = ["steps=2", "batch=2", "threads=1", "evaluate_problems=0", "measure=2"]
    assert train_tiny.main([*arguments, f"output={tmp_path}"]) == 0
    out = capsys.readouterr().out
    assert "tiny-math" in out
    assert "threshold 0" in out
    files = {path.name for path in (tmp_path / "tiny-llada" / "checkpoint").iterdir()}
    assert files == {
        "README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"
    }  # fmt: skip
