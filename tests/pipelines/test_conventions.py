"""What people expect of a pipeline and of the files it leaves."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from recap import CheckpointError, Pipeline, load
from recap.checkpoints import hub
from recap.checkpoints.int8 import restore
from recap.models.registry import build
from tests.pipelines.test_pipeline import FAMILIES, draw, pipeline, shared


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_callback_returns_is_applied(family: str) -> None:
    """Tokens that it returns stand from then on; those still masked are drawn after all."""
    other = draw(shared(family), family, seed=9, output_type="latent").tokens
    at = 3
    decoded_then: dict[int, Tensor] = {}

    def swap(pipe: Pipeline, step: int, decoded: int, values: dict[str, Any]) -> dict[str, Any] | None:
        if step != at:
            return None
        images = values["images"]
        decoded_then.update(zip(images, ~values["canvas"].masked, strict=True))
        return {**values, "tokens": other[images]}

    result = draw(shared(family), family, output_type="latent", callback_on_step_end=swap)
    for image, there in decoded_then.items():
        assert torch.equal(result.tokens[image, there], other[image, there])
    assert len(decoded_then) == 2
    plain = draw(shared(family), family, output_type="latent").tokens
    assert not torch.equal(result.tokens, plain)
    heard = draw(shared(family), family, output_type="latent", callback_on_step_end=lambda *args: args[3]).tokens
    assert torch.equal(heard, plain)


@pytest.mark.parametrize("answer", [{"latents": None}, {"canvas": None}])
def test_what_a_callback_returns_must_mean_something(answer: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match='it may return "tokens"'):
        draw(shared("maskgit"), "maskgit", callback_on_step_end=lambda *_: answer)
    with pytest.raises(ValueError, match="give all of them"):
        draw(shared("maskgit"), "maskgit", callback_on_step_end=lambda *_: {"tokens": torch.zeros(1, 2)})


@pytest.mark.parametrize("family", FAMILIES)
def test_files_load_with_safetensors_alone(family: str, tmp_path: Path) -> None:
    pipe = pipeline(family)
    folder = pipe.save_pretrained(tmp_path / "m")
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    inside = set() if family == "mage" else {"tokenizer/config.json", "tokenizer/model.safetensors"}
    assert names == {"config.json", "model.safetensors"} | inside
    net = build(pipe.model.config)
    net.load_state_dict(load_file(folder / "model.safetensors"), strict=True)
    ours = pipe.model.module.state_dict()
    assert all(torch.equal(value, ours[key]) for key, value in net.state_dict().items())
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    assert json.loads((folder / "config.json").read_text())["family"] == family


def test_compact_files_say_how_they_are_read(tmp_path: Path) -> None:
    folder = pipeline("maskgit").save_pretrained(tmp_path / "m", compact=True)
    tensors = load_file(folder / "model.safetensors")
    assert any(key.endswith("::scale") for key in tensors)
    with safe_open(folder / "model.safetensors", "pt") as file:
        metadata = file.metadata()
    assert metadata["format"] == "pt"
    assert "::scale" in metadata["compact"]
    # what the text says, done by hand
    for key, value in restore(tensors, folder).items():
        if key + "::scale" in tensors:
            scale = tensors[key + "::scale"]
            rows = next(dim for dim, size in enumerate(value.shape) if size > 1)
            shape = [-1 if dim == rows else 1 for dim in range(value.ndim)]
            assert torch.equal(tensors[key].float() * scale.view(shape), value)


class FakeHub(ModuleType):
    """Stands for huggingface_hub: one repository, a cache, and a wire that may be cut."""

    def __init__(self, folder: Path) -> None:
        super().__init__("huggingface_hub")
        self.folder, self.cached, self.wire = folder, False, True
        self.calls: list[dict[str, Any]] = []

    def snapshot_download(self, repo_id: str, **options: Any) -> str:
        self.calls.append({"repo_id": repo_id, **options})
        if repo_id != "someone/flowers":
            raise OSError(f"404 Client Error\nRepository {repo_id} not found")
        if not self.cached and (options["local_files_only"] or not self.wire):
            raise FileNotFoundError("Cannot find an appropriate cached snapshot folder")
        self.cached = True
        return str(self.folder)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    module = FakeHub(pipeline("maskgit").save_pretrained(tmp_path / "snapshot"))
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    monkeypatch.chdir(tmp_path)
    return module


def test_models_come_from_the_hub(fake: FakeHub) -> None:
    for loaded in (
        Pipeline.from_pretrained("someone/flowers", revision="v1"),
        load("someone/flowers", torch_dtype=torch.bfloat16, device="cpu", local_files_only=True),
    ):
        loaded.progress = False
        assert draw(loaded, "maskgit", output_type="pt").images.shape == (2, 3, 8, 8)
    first, second = fake.calls
    assert (first["revision"], first["local_files_only"]) == ("v1", False)
    assert second["local_files_only"] is True
    assert loaded.model.dtype == torch.bfloat16
    # nothing is asked for that could be run
    asked = sorted(first["allow_patterns"])
    assert all(pattern.endswith((".json", ".safetensors", ".txt", ".jinja")) for pattern in asked)
    assert {"config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json"} <= set(asked)
    assert {"tokenizer/config.json", "tokenizer/model.safetensors"} <= set(asked)


def test_files_of_before_may_be_all_that_is_used(fake: FakeHub) -> None:
    with pytest.raises(CheckpointError, match="downloaded before may be used; leave out local_files_only"):
        load("someone/flowers", local_files_only=True)
    fake.cached = True
    assert load("someone/flowers", local_files_only=True).model.num_tokens == 16


def test_the_hub_answers_for_what_it_does_not_have(fake: FakeHub) -> None:
    with pytest.raises(
        CheckpointError, match=r"no folder nobody/nothing exists.*\(404 Client Error\); check the name"
    ):
        load("nobody/nothing")
    fake.wire = False
    with pytest.raises(CheckpointError, match="check the name and the connection"):
        load("someone/flowers")


def test_folders_come_before_the_hub(fake: FakeHub, tmp_path: Path) -> None:
    pipeline("mage").save_pretrained(tmp_path / "someone" / "flowers")
    assert load("someone/flowers").model.classes == 0
    assert load(Path("someone/flowers")).model.classes == 0
    with pytest.raises(CheckpointError):
        load(Path("someone/else"))
    for name in ("a/b/c", "/tmp/x", "./x", "../x", "x", "a/", "/b", "a b/c", "flowers-mag"):
        assert not hub.is_name(name)
        with pytest.raises(CheckpointError):
            load(name)
    assert fake.calls == []


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r'no folder someone/flowers exists.*pip install "recap-mgm\[hub\]"'):
        load("someone/flowers")
