"""Models that come with the package: found by name, complete in what is shipped, refused where damaged."""

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from recap import Pipeline, load, weights
from recap.checkpoints import CheckpointError
from recap.checkpoints.folder import config_from, read_config, read_model_config
from recap.core.options import SamplingOptions
from recap.models.registry import build
from tests import tiny
from tests.conftest import MAR, NAMES, VQ

ROOT = Path(__file__).parents[2]


def edit(folder: Path, **entries: Any) -> Path:
    about = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**about, **entries}))
    return folder


def test_models_are_found(home: Path) -> None:
    assert weights.embedded() == ["flowers-maskgit", "flowers-mar", "flowers-mage"]
    assert weights.find("flowers-kl") == home / "flowers-kl"
    assert weights.find("Flowers_MAR") == home / "flowers-mar"
    for name in ("flowers", "", ".", "..", "__pycache__", "flowers-mar/", "../weights/flowers-mar"):
        assert weights.find(name) is None
    assert weights.default() == "flowers-maskgit"
    shutil.rmtree(home / "flowers-maskgit")
    assert weights.default() == "flowers-mar"


def test_what_comes_with_this_package_can_be_read() -> None:
    for name in weights.embedded():  # what is said of them needs no weights
        folder = weights.HOME / name
        config = read_config(folder)
        size, options = config_from(config, folder), read_model_config(folder, config).options
        assert options is not None
        assert options.schedule(size.num_tokens).tokens == size.num_tokens
        assert (folder / "README.md").is_file()
    assert set(weights.embedded()) <= set(weights.folders())


@pytest.mark.parametrize("name", ["flowers-mar", "flowers-maskgit", "flowers-mage"])
def test_pipeline_by_name_is_the_pipeline_of_the_folder(name: str, home: Path) -> None:
    pipe, same = load(name), Pipeline.from_pretrained(home / name)
    pipe.progress = same.progress = False
    request: dict[str, Any] = {"num_images": 2} if name == "flowers-mage" else {"labels": [1, 4]}
    ours, theirs = pipe(**request, seed=3, output_type="pt"), same(**request, seed=3, output_type="pt")
    assert torch.equal(ours.images, theirs.images)
    assert ours.schedule == pipe.options.schedule(16) == pipe.schedule()
    assert pipe.class_names == (None if name == "flowers-mage" else tuple(NAMES))
    assert pipe.options.preset == name.removeprefix("flowers-")


def test_folders_of_version_0_1_are_read(home: Path) -> None:
    """They have a "setting" beside "sampling", and call the warm-up "plain"."""
    edit(home / "flowers-mar", sampling={"full": 4, "local": 2, "plain": 1}, setting="mar-base")
    assert load("flowers-mar").options == SamplingOptions("mar-base", 4, 2, 1)


def test_folders_on_disk_come_first(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "flowers-maskgit", tmp_path / "flowers-mar")
    assert weights.locate("flowers-mar") == Path("flowers-mar")
    assert weights.locate("flowers-mage") == home / "flowers-mage"
    assert weights.locate("mar-l") is None
    (tmp_path / "flowers-mage").mkdir()  # pictures may lie there; it is no model
    assert weights.locate("flowers-mage") == home / "flowers-mage"


def test_unknown_names_suggest_near_ones(home: Path) -> None:
    for name, near in (
        ("flower-mar", "flowers-mar"),
        ("flowers_maskgti", "flowers-maskgit"),
        ("mar-larg", "mar-large"),
    ):
        with pytest.raises(CheckpointError, match=f"did you mean '{near}'"):
            load(name)
    with pytest.raises(CheckpointError, match=r"published size .*recap convert.*flowers-mar"):
        load("mar-base")
    with pytest.raises(CheckpointError, match="is a tokenizer"):
        load("flowers-kl")


def test_pipeline_saves_what_it_read(home: Path, tmp_path: Path) -> None:
    pipe = load("flowers-mar")
    again = load(pipe.save_pretrained(tmp_path / "again"))
    assert again.class_names == pipe.class_names
    assert again.options == pipe.options == SamplingOptions.from_json(MAR)
    pipe.progress = again.progress = False
    assert torch.equal(*(p([2], seed=0, output_type="pt").images for p in (pipe, again)))
    small = pipe.save_pretrained(tmp_path / "small", compact=True)
    assert load(small).options == pipe.options
    size = "tokenizer/model.safetensors"
    assert (small / size).stat().st_size <= (tmp_path / "again" / size).stat().st_size


@pytest.mark.parametrize("entry", ["OUTSIDE", "../../outside", "../link", "..", "", 3, ["../flowers-kl"]], ids=str)
def test_tokenizer_stays_beside_the_model(entry: Any, home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "flowers-kl", tmp_path / "outside")
    (home / "link").symlink_to(tmp_path / "outside")
    edit(home / "flowers-mar", tokenizer=str(tmp_path / "outside") if entry == "OUTSIDE" else entry)
    with pytest.raises(CheckpointError, match="has tokenizer"):
        load("flowers-mar")


def test_tokenizer_must_exist_and_fit(home: Path) -> None:
    for entry, message in (("../none", "no folder"), ("../flowers-vq", "VQGAN reads"), (".", "MAR reads")):
        edit(home / "flowers-mar", tokenizer=entry)
        with pytest.raises(CheckpointError, match=message):
            load("flowers-mar")
    assert load("flowers-mar", tokenizer="flowers-kl").tokenizer is not None


@pytest.mark.parametrize(
    "names", [NAMES[:4], [*NAMES, "rose"], [1, 2, 3, 4, 5], "roses", ["a", "b", "c", "d", ""], {}]
)
def test_class_names_must_fit(names: Any, home: Path) -> None:
    edit(home / "flowers-maskgit", class_names=names)
    with pytest.raises(CheckpointError, match="class_names"):
        load("flowers-maskgit")
    edit(home / "flowers-mage", class_names=names)
    with pytest.raises(CheckpointError, match=r"class.names"):
        load("flowers-mage")


@pytest.mark.parametrize("sampling", [[], "mar", {"preset": "rar"}, {"preset": "mar", "full": "9"}])
def test_sampling_must_make_sense(sampling: Any, home: Path) -> None:
    edit(home / "flowers-mar", sampling=sampling)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load("flowers-mar")


def test_wheels_have_the_package_and_the_weights(tmp_path: Path) -> None:
    """The wheel of this very tree: every module, the page of the server, and whole models."""
    pytest.importorskip("setuptools")
    source = tmp_path / "source"
    skip = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=skip)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    (source / "src" / "recap" / "weights" / "flowers-kl" / "notes.txt").write_text("not for others")
    build_wheel = f"import setuptools.build_meta as b; b.build_wheel({str(tmp_path)!r})"
    done = subprocess.run(
        [sys.executable, "-c", build_wheel], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        inside = {name: archive.getinfo(name).file_size for name in archive.namelist() if name.startswith("recap/")}
    files = [
        path for path in (ROOT / "src" / "recap").rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    assert inside == {path.relative_to(ROOT / "src").as_posix(): path.stat().st_size for path in files}


def test_class_names_are_checked_by_the_pipeline_too() -> None:
    with pytest.raises(ValueError, match="2 class names were given for a model of 5 classes"):
        Pipeline(build(tiny.CONFIGS["maskgit"]), build(VQ), class_names=["a", "b"])
