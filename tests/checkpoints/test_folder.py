"""Model folders: what goes in comes out, and what does not fit is refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from torch import nn

from recap.checkpoints import CheckpointError, load_pretrained, save_pretrained
from recap.checkpoints import folder as folders
from recap.models.registry import build, randomize
from tests.checkpoints.nets import CONFIGS, outputs, refused, same, small

# with what no official file tells
ALL = CONFIGS | {"scaled": replace(CONFIGS["kl-vae"], latent_scale=0.5, groups=16)}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_pretrained(small("mar"), tmp_path / "model")


@pytest.mark.parametrize("kind", ALL)
def test_round_trip_is_exact(kind: str, tmp_path: Path) -> None:
    net = randomize(build(ALL[kind]))
    loaded: Any = load_pretrained(save_pretrained(net, tmp_path / "deep" / "model"))
    assert loaded.config == ALL[kind]
    assert not loaded.training
    written = {path.name for path in (tmp_path / "deep" / "model").iterdir()}
    assert written == {"config.json", "model.safetensors"}
    assert all(torch.equal(loaded.state_dict()[key], value) for key, value in net.state_dict().items())
    assert same(loaded, net)


def test_precisions_are_kept_as_saved_and_changed_when_asked(tmp_path: Path) -> None:
    net = small("mage").to(torch.bfloat16)
    net.get_submodule("vqgan").float()
    folder = save_pretrained(net, tmp_path / "mixed")
    kept = load_pretrained(folder)
    assert {key: value.dtype for key, value in kept.state_dict().items()} == {
        key: value.dtype for key, value in net.state_dict().items()
    }
    single = load_pretrained(folder, torch_dtype=torch.float32)
    assert {p.dtype for p in single.parameters()} == {torch.float32}


def test_names_and_settings_are_written_down(tmp_path: Path) -> None:
    folder = save_pretrained(small("mar"), tmp_path / "m", name="mar-base", setting="mar-base")
    about = json.loads((folder / "config.json").read_text())
    assert (about["format"], about["family"], about["name"], about["setting"]) == ("recap", "mar", *["mar-base"] * 2)


def test_saving_replaces_what_was_there(saved: Path) -> None:
    save_pretrained(small("maskgit"), saved)
    assert same(load_pretrained(saved), small("maskgit"))


@pytest.mark.parametrize("error", [OSError("disk full"), SafetensorError("disk full"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("fresh", [True, False])
def test_failed_save_leaves_nothing_half_written(
    error: BaseException, fresh: bool, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(tensors: object, path: Path, **options: object) -> None:
        path.write_bytes(b"half")
        raise error

    folder = saved.parent / "fresh" if fresh else saved
    before = {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}
    monkeypatch.setattr(folders, "save_file", fail)
    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else OSError):
        save_pretrained(small("mar", seed=1), folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_only_own_networks_are_saved(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="Linear is not one of the library's networks"):
        save_pretrained(nn.Linear(2, 2), tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_files_in_the_way_are_kept(tmp_path: Path) -> None:
    (tmp_path / "m").write_text("mine")
    with pytest.raises(CheckpointError, match="is a file"):
        save_pretrained(small("vqgan"), tmp_path / "m")
    assert (tmp_path / "m").read_text() == "mine"


def test_missing_parts_are_named(saved: Path) -> None:
    assert "no folder" in refused(load_pretrained, saved / "none")
    assert "no folder" in refused(load_pretrained, saved / "config.json")
    (saved / "model.safetensors").rename(saved / "weights")
    assert "model.safetensors does not exist" in refused(load_pretrained, saved)
    (saved / "config.json").unlink()
    assert "recap convert" in refused(load_pretrained, saved)


TEXTS = ["", "{", '{"family": "mar", "config": {}', "[1, 2]", '"mar"', "null", "{}", '{"family": "mar"}', "\x00\x01"]


@pytest.mark.parametrize("content", [*map(str.encode, TEXTS), b"\xff\xfe{\x00}\x00"])
def test_broken_configurations_are_refused(content: bytes, saved: Path) -> None:
    (saved / "config.json").write_bytes(content)
    assert "config.json" in refused(load_pretrained, saved)


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    about = json.loads((folder / "config.json").read_text())
    change(about)
    (folder / "config.json").write_text(json.dumps(about))


ODD: dict[str, tuple[str, list[Any]]] = {
    "family": ("famil", ["dit", "", None, 3, ["mar"], {"mar": 1}]),
    "config": ("not written by recap", [None, [], "mar", 3]),
}


@pytest.mark.parametrize(("entry", "value"), [(entry, value) for entry in ODD for value in ODD[entry][1]])
def test_odd_entries_are_refused(entry: str, value: object, saved: Path) -> None:
    edit(saved, lambda about: about.update({entry: value}))
    assert ODD[entry][0] in refused(load_pretrained, saved)


def test_unknown_settings_are_named(saved: Path) -> None:
    edit(saved, lambda about: about["config"].update(rope=True, alibi=1))
    assert "does not know: alibi, rope" in refused(load_pretrained, saved)


IMPOSSIBLE: dict[str, list[Any]] = {
    "width": [0, -64, 63, 64.0, "64", None, True, [64], 4 * 10**12],
    "heads": [0, 5, 4.0],
    "buffer": [0, "8"],
}
IMPOSSIBLE |= {"encoder_depth": ["3", 2.5, None], "num_tokens": [0, 10**30], "classes": [0, True, {}]}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in IMPOSSIBLE.items() for value in values]
)
def test_impossible_sizes_are_refused(name: str, value: object, saved: Path) -> None:
    edit(saved, lambda about: about["config"].update({name: value}))
    assert "impossible model" in refused(load_pretrained, saved)


@pytest.mark.parametrize("value", [5, "x", [1], {"channels": 7}, {"multipliers": 3}, {"multipliers": [1.0, 2]}])
def test_impossible_tokenizers_inside_are_refused(value: object, tmp_path: Path) -> None:
    folder = save_pretrained(small("mage"), tmp_path / "m")
    edit(folder, lambda about: about["config"].update(vqgan=value))
    assert "impossible model" in refused(load_pretrained, folder)


@pytest.mark.parametrize(
    ("kind", "change", "parts"),
    [
        ("mar", {"encoder_depth": 4}, ["missing:\n  encoder_blocks.3."]),
        ("mar", {"decoder_depth": 1}, ["unexpected:\n  decoder_blocks.1."]),
        ("mar", {"width": 128}, ["of another shape:", "(64, 16) instead of (128, 16)"]),
        ("maskgit", {"classes": 10}, ["1 of another shape:", "(1001, 64) instead of (11, 64)"]),
        ("mage", {"vqgan": None}, ["unexpected:\n  vqgan."]),
        ("mage-bare", {"patch": 16}, ["missing:\n  cls_token"]),
        ("kl-vae", {"decoder_blocks": 2}, ["unexpected:\n  decoder.up.0.block.2."]),
        ("vqgan", {"codes": 512}, ["quantize.embedding.weight (1024, 8) instead of (512, 8)"]),
    ],
)
def test_weights_of_another_size_are_refused(
    kind: str, change: dict[str, Any], parts: list[str], tmp_path: Path
) -> None:
    folder = save_pretrained(small(kind), tmp_path / "m")
    edit(folder, lambda about: about["config"].update(change))
    message = refused(load_pretrained, folder)
    assert all(part in message for part in [*parts, "does not fit", "The file looks like a"])


def test_long_lists_are_cut(tmp_path: Path) -> None:
    folder = save_pretrained(small("mar"), tmp_path / "m")
    edit(folder, lambda about: about["config"].update(encoder_depth=9))
    message = refused(load_pretrained, folder)
    assert "72 missing" in message
    assert "... and 64 more" in message
    assert message.count("\n") < 30


def test_damaged_weights_are_refused(saved: Path) -> None:
    path = saved / "model.safetensors"
    whole = path.read_bytes()
    for damaged in (b"", whole[:4], whole[: len(whole) // 2], whole[:-1], b"\xff" * 64, whole + b"more"):
        path.write_bytes(damaged)
        assert "truncated or corrupt" in refused(load_pretrained, saved)
    path.write_bytes(whole)
    assert all(out.isfinite().all() for out in outputs(load_pretrained(saved)))


def test_written_files_follow_the_umask(tmp_path: Path) -> None:
    save_pretrained(small("kl-vae"), tmp_path / "out")
    (tmp_path / "plain").touch()
    expected = (tmp_path / "plain").stat().st_mode & 0o777
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()} == {expected}
