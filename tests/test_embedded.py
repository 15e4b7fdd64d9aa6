"""Models that come with the package: found by name, drawn by name, and complete in what is shipped."""

import json
import shutil
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from recap import CheckpointError, Pipeline, load, save_pretrained, weights
from recap.cli import main
from recap.cli.options import described
from recap.core.presets import Sampling
from recap.labels import find_class, find_classes
from recap.models.zoo import SIZES, build, randomize
from recap.timing import timed
from tests import tiny
from tests.test_cli import Capture, failure
from tests.test_pipeline import KL, VQ

NAMES = ["pink primrose", "Sunflower", "water lily", "lotus", "tiger lily"]
ROOT = Path(__file__).parent.parent
MAR = {"preset": "mar", "guidance": [1.0, 2.0], "temperature": 0.9, "full": 4, "local": 2, "head_steps": [4, 3]}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with three small models and the two tokenizers that they share."""
    home = tmp_path / "weights"
    nets = {family: randomize(build(tiny.CONFIGS[family])) for family in tiny.FAMILIES}
    save_pretrained(
        nets["mar"], home / "flowers-mar", compact=True, tokenizer="../flowers-kl", class_names=NAMES, sampling=MAR
    )
    save_pretrained(
        nets["maskgit"],
        home / "flowers-maskgit",
        tokenizer="../flowers-vq",
        class_names=NAMES,
        sampling={"preset": "maskgit", "full": 4, "local": 2, "plain": 0, "choice_temperature": 2.0},
    )
    sampling = {"preset": "mage", "full": 3, "local": 3}
    save_pretrained(nets["mage"], home / "flowers-mage", tokenizer="../flowers-vq", sampling=sampling)
    save_pretrained(randomize(build(KL)), home / "flowers-kl", compact=True)
    save_pretrained(randomize(build(VQ)), home / "flowers-vq", compact=True)
    (home / "__pycache__").mkdir()
    monkeypatch.setattr(weights, "HOME", home)
    monkeypatch.chdir(tmp_path)
    return home


def edit(folder: Path, **entries: Any) -> Path:
    about = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**about, **entries}))
    return folder


def sample(*argv: str) -> dict[str, Any]:
    assert main(["sample", "--overwrite", *argv]) == 0
    out = argv[argv.index("--out") + 1] if "--out" in argv else "samples"
    return json.loads((Path(out) / "run.json").read_text())


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
    for name in weights.embedded():
        shown, config, sampling = described(name)
        assert shown == name
        assert sampling.schedule(config.num_tokens).tokens == config.num_tokens
        assert (weights.HOME / name / "README.md").is_file()
    assert set(weights.embedded()) <= set(weights.folders())


@pytest.mark.parametrize("name", ["flowers-mar", "flowers-maskgit", "flowers-mage"])
def test_pipeline_by_name_is_the_pipeline_of_the_folder(name: str, home: Path) -> None:
    pipe, same = load(name), Pipeline.from_pretrained(home / name)
    pipe.progress = same.progress = False
    request: dict[str, Any] = {"num_images": 2} if name == "flowers-mage" else {"labels": [1, 4]}
    ours, theirs = pipe(**request, seed=3, output_type="pt"), same(**request, seed=3, output_type="pt")
    assert torch.equal(ours.images, theirs.images)
    assert ours.schedule == pipe.sampling.schedule(16) == pipe.default_schedule()
    assert pipe.class_names == (None if name == "flowers-mage" else tuple(NAMES))
    assert pipe.setting == {"flowers-mar": "mar-large"}.get(name, name.removeprefix("flowers-"))


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
    assert again.sampling == pipe.sampling == Sampling.from_dict(MAR)
    pipe.progress = again.progress = False
    assert torch.equal(*(p([2], seed=0, output_type="pt").images for p in (pipe, again)))
    small = pipe.save_pretrained(tmp_path / "small", compact=True)
    assert load(small).sampling == pipe.sampling
    size = "tokenizer/model.safetensors"
    assert (small / size).stat().st_size <= (tmp_path / "again" / size).stat().st_size


@pytest.mark.parametrize("kind", ["absolute", "windows", "above", "link", "parent", "empty", "number", "list"])
def test_tokenizer_stays_beside_the_model(kind: str, home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "flowers-kl", tmp_path / "outside")
    (home / "link").symlink_to(tmp_path / "outside")
    entry: Any = {
        "absolute": str(home / "flowers-kl"),
        "windows": "C:\\flowers-kl",
        "above": "../../outside",
        "link": "../link",
        "parent": "..",
        "empty": "",
        "number": 3,
        "list": ["../flowers-kl"],
    }[kind]
    edit(home / "flowers-mar", tokenizer=entry)
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


@pytest.mark.parametrize("sampling", [[], "mar", {}, {"preset": "rar"}, {"preset": "mar", "full": "9"}])
def test_sampling_must_make_sense(sampling: Any, home: Path) -> None:
    edit(home / "flowers-mar", sampling=sampling)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load("flowers-mar")


LABELS = [
    ("sunflower", 1),
    (" WATER LILY ", 2),
    ("3", 3),
    ("pink", 0),
    ("tiger", 4),
    ("lot", 3),
    ("prim", 0),
    ("0", 0),
]


@pytest.mark.parametrize(("text", "label"), LABELS)
def test_classes_by_name(text: str, label: int) -> None:
    assert find_class(text, NAMES, 5) == label


def test_exact_names_win_and_lists_are_split() -> None:
    assert find_class("lily", ["tiger lily", "lily", "lily of the valley"], 3) == 1
    assert find_class("2", ["a", "2", "b"], 3) == 1
    assert find_classes("lotus, 1,tiger", NAMES, 5) == [3, 1, 4]
    assert find_classes("rose, wild", ["tulip", "Rose, wild"], 2) == [1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lily", "fits 2 classes: water lily, tiger lily"),
        ("sunflwer", "did you mean 'Sunflower'"),
        ("qqq", "did you mean"),
        ("", "did you mean"),
        ("5", "out of range; this model has classes 0 to 4"),
        ("-1", "out of range"),
    ],
)
def test_unclear_classes_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_class(text, NAMES, 5)


def test_sample_by_name_and_label(home: Path, capsys: Capture) -> None:
    run = sample("--model", "flowers-maskgit", "--labels", "sunflower,water lily", "--num", "3", "--seed", "4")
    assert "samples/grid.png" in capsys.readouterr().out
    assert run["labels"] == [1, 2, 1]
    assert run["class_names"] == ["Sunflower", "water lily", "Sunflower"]
    assert (run["full"], run["local"], run["plain"]) == (4, 2, 0)
    assert run["sampling"]["choice_temperature"] == 2.0
    assert len(set(run["seeds"])) == 3
    assert run["evaluations"] == {"full": 3 * 4, "local": 3 * 2}  # on the CPU every image is computed alone
    assert set(run["seconds"]) == {"full", "local", "head", "selection", "tokenizer", "total"}
    parts = [seconds for phase, seconds in run["seconds"].items() if phase != "total"]
    assert all(seconds > 0 for seconds in parts)
    assert sum(parts) <= run["seconds"]["total"]
    pipe = load("flowers-maskgit")
    pipe.progress = False
    for index, image in enumerate(pipe([1, 2, 1], seed=4).images):
        with Image.open(f"samples/{index:06d}.png") as written:
            assert written.tobytes() == image.tobytes()


@pytest.mark.parametrize("name", ["flowers-mage", "flowers-maskgit"])
def test_batches_change_nothing(name: str, home: Path) -> None:
    for batch in ("1", "2", "8"):
        run = sample("--model", name, "--num", "5", "--batch", batch, "--out", batch)
        assert run["evaluations"]["full"] == run["full"] * 5
    assert len(list(Path("8").glob("0*.png"))) == 5
    for path in Path("8").glob("*.png"):
        assert path.read_bytes() == (Path("1") / path.name).read_bytes() == (Path("2") / path.name).read_bytes()


def test_default_model_is_drawn_with_and_can_be_overridden(home: Path) -> None:
    assert sample("--num", "1")["model"] == "flowers-maskgit"
    mar = ("--model", "flowers-mar")
    run = sample(*mar, "--num", "2")
    assert (run["model"], run["full"], run["local"], run["head_steps"]) == ("flowers-mar", 4, 2, [4, 3])
    assert (run["guidance"][-1], run["temperature"]) == (2.0, [0.9, 0.9])
    changed = sample(
        *mar, "--num", "2", "--guidance", "3", "--temperature", "0.8", "--full", "3", "--dtype", "bfloat16"
    )
    assert (changed["full"], changed["local"], changed["dtype"]) == (3, 0, "bfloat16")
    assert changed["guidance"][0] < changed["guidance"][1] == 3.0
    assert changed["temperature"] == [0.8, 0.8]
    ramp = sample(*mar, "--num", "1", "--guidance", "2,4", "--setting", "mar-base")
    assert 2.0 < ramp["guidance"][0] < ramp["guidance"][1] == 4.0
    assert (ramp["sampling"]["preset"], ramp["temperature"], ramp["full"]) == ("mar-base", [1.0, 1.0], 4)
    assert sample(*mar, "--num", "1", "--local", "1")["full"] == 4


def test_sample_without_any_model_says_what_to_do(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "HOME", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert "--model" in failure(capsys, "sample")
    assert weights.embedded() == []
    assert list(tmp_path.iterdir()) == []


def test_bad_requests_are_one_line(home: Path, capsys: Capture) -> None:
    assert "did you mean 'flowers-mar'" in failure(capsys, "sample", "--model", "flower-mar")
    assert "did you mean 'flowers-mar'" in failure(capsys, "verify", "flower-mar")
    assert "fits 2 classes" in failure(capsys, "sample", "--labels", "lily")
    assert "--tiny" in failure(capsys, "sample", "--tiny")
    assert "tokenizer" in failure(capsys, "sample", "--model", "flowers-kl")
    assert not Path("samples").exists()


@pytest.mark.parametrize("name", ["flowers-maskgit", "flowers-mage"])
def test_comparison_is_drawn_and_measured(name: str, home: Path, capsys: Capture) -> None:
    run = sample("--model", name, "--num", "2", "--compare", "--out", "both")
    assert "both/compare.png" in capsys.readouterr().out
    other = run["compare"]
    assert other["evaluations"] == {"full": 2 * (run["full"] + run["local"]), "local": 0}
    assert other["full"] == run["full"] + run["local"]
    assert other["speedup"] == pytest.approx(other["seconds"]["total"] / run["seconds"]["total"])
    with Image.open("both/compare.png") as sheet, Image.open("both/000001.png") as image:
        large = image.resize((256, 256), Image.Resampling.LANCZOS)
        top = sheet.height - 28 - 256 - (0 if name == "flowers-mage" else 36)
        assert sheet.crop((28 + 266, top, 28 + 266 + 256, top + 256)).tobytes() == large.tobytes()
    sample("--model", name, "--num", "2", "--out", "alone")
    assert Path("alone/grid.png").read_bytes() == Path("both/grid.png").read_bytes()


def test_timing_changes_nothing_and_counts_right(home: Path) -> None:
    pipe = load("flowers-mar")
    pipe.progress = False
    model, attributes = pipe.model, dict(vars(pipe.model))
    watched, watch = timed(pipe)
    assert torch.equal(*(p([1, 2], seed=0, output_type="pt").images for p in (pipe, watched)))
    assert watch.calls == {"full": 4, "local": 2, "head": 6, "tokenizer": 1}
    assert pipe.model is model
    assert dict(vars(model)) == attributes
    assert "decode" not in vars(pipe)


def test_models_lists_embedded_ones_first(home: Path, capsys: Capture) -> None:
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:5]] == [*weights.embedded(), "flowers-kl", "flowers-vq"]
    assert "8x8 pixels, 5 classes: pink primrose, Sunflower, water lily, ..." in lines[0]
    assert "8x8 pixels, unconditional" in lines[2]
    assert all(" MB " in line for line in lines[:5])
    assert lines[5].startswith(next(iter(SIZES)))


def test_verify_by_name(home: Path, capsys: Capture) -> None:
    assert main(["verify", "flowers-maskgit"]) == 0
    assert capsys.readouterr().out.startswith("flowers-maskgit on cpu")


def test_described_needs_no_weights(home: Path) -> None:
    (home / "flowers-mar" / "model.safetensors").unlink()
    assert described("flowers-mar") == ("flowers-mar", tiny.CONFIGS["mar"], Sampling.from_dict(MAR))
    assert described("mar-l") == ("mar-large", SIZES["mar-large"], Sampling("mar-large"))
    with pytest.raises(ValueError, match="tokenizer"):
        described("flowers-vq")


def test_wheels_have_the_weights(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    source = tmp_path / "source"
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        source.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    package = source / "src" / "recap"
    (package / "weights" / "flowers-x").mkdir(parents=True)
    (package / "__init__.py").write_text('__version__ = "0.1.0"\n')
    (package / "weights" / "__init__.py").touch()
    for name in ("config.json", "model.safetensors", "README.md", "notes.txt"):
        (package / "weights" / "flowers-x" / name).write_text("{}")
    build_wheel = f"import setuptools.build_meta as b; b.build_wheel({str(tmp_path)!r})"
    done = subprocess.run(
        [sys.executable, "-c", build_wheel], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    inside = {name.removeprefix("recap/weights/flowers-x/") for name in zipfile.ZipFile(wheel).namelist()}
    assert {"config.json", "model.safetensors", "README.md"} <= inside
    assert "notes.txt" not in inside
    assert (
        "weights/**/*.json"
        in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["recap"]
    )


def test_class_names_are_checked_by_the_pipeline_too() -> None:
    with pytest.raises(ValueError, match="2 class names were given for a model of 5 classes"):
        Pipeline(build(tiny.CONFIGS["maskgit"]), build(replace(VQ)), class_names=["a", "b"])
