"""`recap train`: everything from photos to a model that is loaded again, small enough to repeat."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from recap import load
from recap.checkpoints import load_pretrained
from recap.cli import main
from recap.tokenizers import KLVAE
from recap.training.loop import Trainer
from tests.tokenizers.test_bpe import content
from tests.training.test_training import pictures


def test_the_command_trains_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(pictures(tmp_path / "photos", side=32))
    common = ["--data", data, "--size", "tiny", "--steps", "4", "--batch", "2", "--save-every", "2", "--warmup", "1"]

    def train(*args: str) -> int:
        return main(["train", *args, *common])

    for name in ("a", "b"):  # the seed alone decides, the critic's weights included
        assert train("tokenizer", "--perceptual", "none", "--critic", "0.1", "--out", str(tmp_path / name)) == 0
    first, second = (load_pretrained(tmp_path / name).state_dict() for name in ("a", "b"))
    assert all(torch.equal(first[key], second[key]) for key in first)
    for kind in ("kl", "vq"):
        out = tmp_path / kind
        assert train("tokenizer", "--kind", kind, "--perceptual", "none", "--out", str(out)) == 0
        assert json.loads((out / "training.json").read_text())["log"][-1]["step"] == 4
    assert isinstance(load_pretrained(tmp_path / "kl"), KLVAE)
    for family, kind in (("maskgit", "vq"), ("mage", "vq"), ("mar", "kl")):
        assert train(family, "--tokenizer", str(tmp_path / kind), "--out", str(tmp_path / family)) == 0
        net: Any = load_pretrained(tmp_path / family)
        assert net.config.num_tokens == 64
    (tmp_path / "names.json").write_text('["rose", "tulip"]')
    named = ["--init", str(tmp_path / "mar"), "--class-names", str(tmp_path / "names.json")]
    assert train("mar", "--tokenizer", str(tmp_path / "kl"), *named, "--out", str(tmp_path / "more")) == 0
    assert load(tmp_path / "more").class_names == ("rose", "tulip")
    named[1] = str(tmp_path / "maskgit")  # another family, and names that do not exist: both before any work
    assert train("mar", "--tokenizer", str(tmp_path / "kl"), *named, "--out", str(tmp_path / "no")) != 0
    named[3] = str(tmp_path / "none.json")
    assert train("mar", "--tokenizer", str(tmp_path / "kl"), *named, "--out", str(tmp_path / "no")) != 0
    assert "none.json" in capsys.readouterr().err
    capsys.readouterr()
    assert train("mar", "--tokenizer", str(tmp_path / "vq"), "--out", str(tmp_path / "wrong")) == 2
    assert "KLVAE" in capsys.readouterr().err
    assert train("mar", "--out", str(tmp_path / "wrong")) == 2
    assert "--tokenizer" in capsys.readouterr().err


def test_text_is_trained_and_loaded_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "books.txt").write_text("It was the best of times, it was the worst of times.\n" * 60)
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(json.dumps(content()))
    common = ["--data", str(tmp_path / "books.txt"), "--size", "tiny", "--batch", "128", "--save-every", "2"]

    def train(*more: str) -> int:
        return main(["train", "text", *common, "--warmup", "1", *more])

    for name in ("whole", "parts"):
        if name == "parts":  # stops half way, and goes on
            halfway = pytest.MonkeyPatch()
            halfway.setattr(Trainer, "save", stopping(Trainer.save))
            assert train("--steps", "4", "--tokenizer", str(tokenizer), "--out", str(tmp_path / name)) != 0
            halfway.undo()
        assert train("--steps", "4", "--tokenizer", str(tokenizer), "--out", str(tmp_path / name)) == 0
    first, second = (load_pretrained(tmp_path / name).state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(first[key], second[key]) for key in first)
    pipe = load(tmp_path / "whole")
    assert len(pipe("It was", gen_length=20, schedule="4+6", seed=0).texts[0]) > 0
    assert train("--steps", "4", "--out", str(tmp_path / "no")) == 2
    assert "--tokenizer" in capsys.readouterr().err


def stopping(save: Any) -> Any:
    """Saves, and then is stopped."""

    def saved(trainer: Trainer, path: Path) -> None:
        save(trainer, path)
        raise KeyboardInterrupt

    return saved
