"""What the package promises to everybody who imports it."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import recap
from recap import _public

NAMES = [
    "Adapter",
    "BPE",
    "CheckpointError",
    "ConfidenceOrder",
    "Description",
    "FixedOrder",
    "Frame",
    "KLVAE",
    "Output",
    "Pipeline",
    "Ramp",
    "RandomOrder",
    "SamplingOptions",
    "Schedule",
    "TextOutput",
    "TextPipeline",
    "VQGAN",
    "cosine",
    "fit",
    "from_counts",
    "grouped_decode",
    "load",
    "preset",
    "verify",
    "wrap",
]
SOURCE = Path(recap.__file__).parent

IMPORT = """
import random, sys
import numpy, torch
torch.manual_seed(3), numpy.random.seed(3), random.seed(3)
before = torch.get_rng_state(), numpy.random.get_state(), random.getstate()
threads, grad, dtype = torch.get_num_threads(), torch.is_grad_enabled(), torch.get_default_dtype()
import recap, recap.cli
assert torch.equal(torch.get_rng_state(), before[0]), "torch's generator moved"
assert str(numpy.random.get_state()) == str(before[1]), "numpy's generator moved"
assert random.getstate() == before[2], "Python's generator moved"
assert (threads, grad, dtype) == (torch.get_num_threads(), torch.is_grad_enabled(), torch.get_default_dtype())
heavy = {"torchvision", "timm", "diffusers", "transformers", "gradio", "matplotlib", "fastapi", "uvicorn"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""


def test_public_names_are_the_written_list() -> None:
    assert sorted(_public.__all__) == NAMES


def test_beside_the_public_names_there_are_packages_alone() -> None:
    others = {name for name in dir(recap) if not name.startswith("_")} - set(NAMES)
    assert others - {path.name for path in SOURCE.iterdir() if path.is_dir()} == set()


def test_the_old_name_of_wrap_warns() -> None:
    with pytest.warns(DeprecationWarning, match=r"recap\.wrap"):
        assert recap.accelerate is recap.wrap


@pytest.mark.parametrize("name", NAMES)
def test_public_names_exist_and_are_explained(name: str) -> None:
    assert (getattr(recap, name).__doc__ or "").strip()


def test_import_has_no_side_effects(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-B", "-W", "error", "-c", IMPORT], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_drawing_needs_no_compiler() -> None:
    """To import torch's takes as long as a picture."""
    code = """
import sys, recap
pipe = recap.load("flowers-mage")
pipe.progress = False
pipe(num_images=1, schedule="1", seed=0)
assert "torch._dynamo" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_command_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "recap", "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout.startswith("usage: recap")
    assert all(command in done.stdout for command in ("sample", "studio", "verify", "plan", "convert", "models"))


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_module_can_be_imported(path: Path) -> None:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    if parts[0] == "server":
        pytest.importorskip("fastapi", reason="this module needs the extra serve or demo")
    if parts[-1] != "__main__":
        importlib.import_module(".".join(["recap", *parts]).removesuffix(".__init__"))
