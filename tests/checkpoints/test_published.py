"""Folders as the hub has them: read strictly, tensor by tensor, and written anew as the library's own."""

import json
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import recap as library
from recap.checkpoints import load_official, load_pretrained, save_pretrained, shards
from recap.checkpoints.folder import read_config
from recap.models.text.official import SIZES, clean, published_config
from recap.pipelines import TextPipeline
from tests.checkpoints.nets import recap, refused
from tests.models.text_weights import CONFIGS, tensors, text

INDEX = "model.safetensors.index.json"
SHARDS = 3


def publish(folder: Path, kind: str, parts: int = SHARDS, dtype: torch.dtype = torch.float32) -> Path:
    """A folder of a kind as its authors would write it, in so many files."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIGS[kind]))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "modeling.py").write_text("raise SystemExit")
    state = {key: tensor.to(dtype) for key, tensor in tensors(kind).items()}
    keys = list(state)
    files = {f"model-{n + 1:05}-of-{parts:05}.safetensors": keys[n::parts] for n in range(parts)}
    if parts == 1:
        files = {"model.safetensors": keys}
    for name, own in files.items():
        save_file({key: state[key].clone() for key in own}, folder / name)
    if parts > 1:
        where = {key: name for name, own in files.items() for key in own}
        (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": where}))
    return folder


def expected(kind: str) -> dict[str, Tensor]:
    return clean(tensors(kind))


def assert_holds(net: nn.Module, kind: str, dtype: torch.dtype = torch.float32) -> None:
    own = net.state_dict()
    assert own.keys() == expected(kind).keys()
    for key, tensor in expected(kind).items():
        assert torch.equal(own[key], tensor.to(dtype)), key


@pytest.mark.parametrize("parts", [1, SHARDS])
@pytest.mark.parametrize("kind", CONFIGS)
def test_a_folder_is_read_as_it_is(kind: str, parts: int, tmp_path: Path) -> None:
    folder = publish(tmp_path / "m", kind, parts)
    for read in (load_pretrained, load_official):
        net: Any = read(folder)
        assert net.config == published_config(CONFIGS[kind])
        assert not net.training
        assert_holds(net, kind)
    (folder / "tokenizer.json").unlink()  # of no kind
    pipe = library.load(folder)
    assert isinstance(pipe, TextPipeline)
    assert pipe.options.preset == ("dream" if kind == "dream" else "llada")
    with torch.no_grad():
        assert torch.equal(pipe.model.module(text("x", 1, 9)), net(text("x", 1, 9)))


@pytest.mark.parametrize("parts", [1, SHARDS])
@pytest.mark.parametrize("kind", CONFIGS)
def test_a_folder_is_converted_file_by_file(kind: str, parts: int, tmp_path: Path) -> None:
    folder = publish(tmp_path / "m", kind, parts)
    assert recap("convert", folder, tmp_path / "out", "--dtype", "bfloat16") == 0
    weights = {"model.safetensors"} if parts == 1 else {p.name for p in folder.glob("model-*")} | {INDEX}
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == weights | {"config.json", "tokenizer.json", "chat_template.jinja"}
    about = json.loads((tmp_path / "out" / "config.json").read_text())
    assert about["format"] == "recap"
    assert about["sampling"] == {"preset": "dream" if kind == "dream" else "llada"}
    net = load_pretrained(tmp_path / "out")
    assert_holds(net, kind, torch.bfloat16)
    assert_holds(load_pretrained(tmp_path / "out", torch_dtype=torch.float64), kind, torch.bfloat16)
    assert "already" in refused(load_official, tmp_path / "out")
    assert recap("convert", folder, tmp_path / "out") == 2  # it is taken


def test_a_folder_may_be_compact(tmp_path: Path) -> None:
    folder = publish(tmp_path / "m", "illada")
    saved = save_pretrained(load_pretrained(folder), tmp_path / "compact", compact=True)
    sizes = [sum(path.stat().st_size for path in where.glob("*.safetensors")) for where in (saved, folder)]
    assert sizes[0] < 0.4 * sizes[1]
    net = load_pretrained(saved, torch_dtype=torch.bfloat16)
    for key, tensor in expected("illada").items():
        given = net.state_dict()[key]
        assert given.dtype == torch.bfloat16
        assert (given.float() - tensor).abs().max() <= tensor.abs().max() / 60


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_single_file_is_of_a_published_size(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file(tensors(kind), tmp_path / "a.safetensors")
    message = refused(load_official, tmp_path / "a.safetensors")
    assert "no published size (llada-8b, illada-8b, dream-7b)" in message
    assert "convert its folder" in message
    monkeypatch.setitem(SIZES, "small", published_config(CONFIGS[kind]))  # as if it had been published
    assert recap("convert", tmp_path / "a.safetensors", tmp_path / "out", "--dtype", "bfloat16") == 0
    assert_holds(load_pretrained(tmp_path / "out"), kind, torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("read", [load_pretrained, load_official])
def test_there_is_never_a_second_tensor_beside_the_model(
    read: Any, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor a second file: what was read is gone, or the model's own, when the next tensor is asked for."""
    folder, opened = publish(tmp_path / "m", "llada", dtype=torch.float64), shards.opened
    alive: list[weakref.ref[Tensor]] = []
    files = most = 0

    class Watched:
        def __init__(self, content: Any) -> None:
            self.content, self.keys, self.get_slice = content, content.keys, content.get_slice

        def get_tensor(self, key: str) -> Tensor:
            nonlocal most
            most = max(most, sum(ref() is not None for ref in alive))
            tensor = self.content.get_tensor(key)
            alive.append(weakref.ref(tensor))
            return tensor

    @contextmanager
    def watched(file: Path) -> Iterator[Any]:
        nonlocal files
        files += 1
        assert files == 1
        with opened(file) as content:
            yield Watched(content)
        files -= 1

    monkeypatch.setattr(shards, "opened", watched)
    net = read(folder, **{"torch_dtype" if read is load_pretrained else "dtype": dtype})
    assert len(alive) == len(expected("llada"))
    assert most == 0
    assert_holds(net, "llada", dtype)


def edit(folder: Path, **entries: Any) -> None:
    about = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**about, **entries}))


def reindex(folder: Path, change: Callable[[dict[str, Any]], object]) -> object:
    index = json.loads((folder / INDEX).read_text())
    change(index["weight_map"])
    return (folder / INDEX).write_text(json.dumps(index))


def reshard(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> object:
    path = folder / "model-00001-of-00003.safetensors"
    state = load_file(path)
    change(state)
    save_file({key: tensor.clone() for key, tensor in state.items()}, path)
    return path


def remove(folder: Path) -> object:
    return [path.rename(folder / f"old-{path.name}") for path in folder.glob("model*")]


def lose(folder: Path, key: str) -> None:
    """Of all files and the index."""
    where = json.loads((folder / INDEX).read_text())["weight_map"][key]
    state = load_file(folder / where)
    save_file({k: t.clone() for k, t in state.items() if k != key}, folder / where)
    reindex(folder, lambda listed: listed.pop(key))


LAST = list(tensors("llada"))[-1]
WTE, ONE = "model.transformer.wte.weight", "model-00001-of-00003.safetensors"
REFUSED: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "a shard is missing": (lambda f: (f / ONE).unlink(), [ONE, "lacks", "download"]),
    "a shard is cut": (lambda f: (f / ONE).write_bytes((f / ONE).read_bytes()[:-9]), [ONE, "truncated"]),
    "a shard that nobody knows": (
        lambda f: (f / "model-00004-of-00004.safetensors").write_bytes((f / ONE).read_bytes()),
        ["model-00004", "does not name"],
    ),
    "a key twice": (lambda f: reshard(f, lambda s: s.update({LAST: torch.zeros(1)})), [LAST, "another file"]),
    "a key in another shard": (
        lambda f: reindex(f, lambda listed: listed.update({WTE: "model-00002-of-00003.safetensors"})),
        [WTE, "model-00002", "but it is in model-00001"],
    ),
    "a key in no shard": (lambda f: reshard(f, lambda s: s.pop(WTE)), [WTE, "but it is in none"]),
    "a key beside the index": (lambda f: reindex(f, lambda listed: listed.pop(WTE)), [WTE, "no file"]),
    "a key that is lost": (lambda f: lose(f, WTE), ["1 missing", "model.embed_tokens.weight"]),
    "a key too many": (
        lambda f: (
            reshard(f, lambda s: s.update(more=torch.zeros(1))),
            reindex(f, lambda listed: listed.update(more=ONE)),
        ),
        ["1 unexpected", "more"],
    ),
    "both kinds": (lambda f: (f / ONE).rename(f / "model.safetensors"), ["both"]),
    "a way out of the folder": (
        lambda f: reindex(f, lambda m: m.update({WTE: f"../m/{ONE}"})),
        ["../m", "same folder"],
    ),
    "no file in the index": (lambda f: reindex(f, lambda m: m.update({WTE: 3})), ["3", "same folder"]),
    "an empty index": (lambda f: reindex(f, lambda m: m.clear()), ["weight_map"]),
    "no index": (lambda f: (f / INDEX).write_text("[]"), ["weight_map"]),
    "a broken index": (lambda f: (f / INDEX).write_text("{"), [INDEX, "JSON"]),
    "no weights": (remove, ["model.safetensors does not exist"]),
    "pickles": (
        lambda f: [p.rename(f / p.name.replace("model", "pytorch_model")) for p in f.glob("model*")],
        ["model.safetensors does not exist"],
    ),
    "more layers": (lambda f: edit(f, n_layers=3), ["9 missing", "model.layers.2.", "does not fit TextModel"]),
    "fewer layers": (lambda f: edit(f, n_layers=1), ["9 unexpected", "model.layers.1."]),
    "fewer key heads": (lambda f: edit(f, n_kv_heads=2), ["k_proj.weight (64, 64) instead of (32, 64)"]),
    "another width": (lambda f: edit(f, d_model=32), ["of another shape"]),
    "tied": (lambda f: edit(f, weight_tying=True), ["1 unexpected", "lm_head.weight"]),
    "biases": (lambda f: edit(f, include_qkv_bias=True), ["6 missing", "q_proj.bias"]),
    "no width": (lambda f: edit(f, d_model=None), ["cannot be read", "'d_model'"]),
    "a text for a width": (lambda f: edit(f, d_model="64"), ["config.json"]),
    "a fraction of a layer": (lambda f: edit(f, n_layers=2.5), ["2.5"]),
    "no number": (lambda f: edit(f, rope_theta="x"), ["config.json"]),
    "another network": (lambda f: edit(f, block_type="sequential"), ["block_type", "'sequential'", "'llama'"]),
    "another position": (lambda f: edit(f, alibi=True), ["alibi"]),
    "a mask that is no id": (lambda f: edit(f, mask_token_id=128), ["mask_id is 128"]),
    "another kind": (lambda f: edit(f, model_type="bert"), ["not written by recap", "'bert'", "recap.wrap"]),
    "a strange kind": (lambda f: edit(f, model_type=["llada"]), ["not written by recap"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_explained(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = publish(tmp_path / "m", "llada")
    change, parts = REFUSED[case]
    change(folder)
    message = refused(load_pretrained, folder)
    assert all(part in message for part in parts), message
    assert str(folder) in message
    if case != "pickles":
        assert recap("convert", folder, tmp_path / "out") == 2
        assert "recap convert: " in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


def test_positions_that_are_scaled_are_refused(tmp_path: Path) -> None:
    folder = publish(tmp_path / "m", "dream")
    edit(folder, rope_scaling={"rope_type": "yarn", "factor": 4.0})
    assert "yarn" in refused(load_pretrained, folder)
    edit(folder, rope_scaling={"rope_type": "default"}, use_sliding_window=True)
    assert "use_sliding_window" in refused(load_pretrained, folder)


def pickled(folder: Path, state: Any, *more: Any) -> Path:
    for path in folder.glob("model*"):
        path.unlink()
    torch.save(state, folder / "pytorch_model.bin")
    return folder


def test_a_pickle_of_weights_alone_is_read_and_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = pickled(publish(tmp_path / "m", "dream"), tensors("dream"))
    assert_holds(load_official(folder, dtype=torch.float64), "dream", torch.float64)
    assert recap("convert", folder, tmp_path / "out") == 0
    assert_holds(load_pretrained(tmp_path / "out"), "dream")
    assert read_config(tmp_path / "out")["sampling"] == {"preset": "dream"}
    assert (tmp_path / "out" / "tokenizer.json").is_file()
    folder = pickled(publish(tmp_path / "evil", "dream"), tensors("dream") | {"x": nn.Linear(1, 1)})
    assert "nothing of it was run" in refused(load_official, folder)
    (folder / "pytorch_model.bin").rename(folder / "pytorch_model-00001-of-00001.bin")
    (folder / "pytorch_model.bin.index.json").write_text("{}")
    assert "safe_serialization=True" in refused(load_official, folder)


def test_another_size_than_expected_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = publish(tmp_path / "m", "llada")
    assert "expected TextConfig(width=4096" in refused(load_official, folder, model="llada-8b")
    assert recap("convert", folder, tmp_path / "out", "--model", "llada-8b") == 2
    assert "expected TextConfig(width=4096" in capsys.readouterr().err
    assert "how many heads" in refused(load_official, folder, heads=4)
    assert "one of several files" in refused(load_official, folder / ONE)


def test_memory_that_ends_is_no_fault_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: shards.Weights) -> Iterator[tuple[str, Tensor]]:
        for number, key in enumerate(self.shapes):
            if number > 3:
                raise MemoryError
            yield key, torch.zeros(1)

    folder = publish(tmp_path / "m", "llada")
    monkeypatch.setattr(shards.Weights, "__iter__", full)
    with pytest.raises(MemoryError):
        load_pretrained(folder)
