"""What the package promises to everybody who imports it."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import recap

NAMES = [
    "Adapter",
    "AntiBERTy",
    "Canvas",
    "CategoricalHead",
    "TokenState",
    "CentreOut",
    "CheckpointError",
    "ConfidenceOrder",
    "ContextCache",
    "DescribedAdapter",
    "Description",
    "Edited",
    "FixedOrder",
    "Frame",
    "Group",
    "KLVAE",
    "KLVAEConfig",
    "Known",
    "Check",
    "MAGE",
    "MAGEAdapter",
    "MAGEConfig",
    "MAR",
    "MARAdapter",
    "MARConfig",
    "MaskGIT",
    "MaskGITAdapter",
    "MaskGITConfig",
    "MaskedLMAdapter",
    "Noise",
    "Output",
    "Pipeline",
    "Ramp",
    "RandomOrder",
    "RasterOrder",
    "Report",
    "Rotary",
    "Rows",
    "Schedule",
    "Sizes",
    "Step",
    "VQGAN",
    "VQGANConfig",
    "accelerate",
    "cosine",
    "fill",
    "fit",
    "from_counts",
    "from_ratios",
    "grouped_decode",
    "image_generators",
    "linear",
    "load",
    "load_official",
    "load_pretrained",
    "plan",
    "power",
    "published",
    "save_pretrained",
    "verify",
]
SOURCE = Path(recap.__file__).parent
CORE = sorted((SOURCE / "core").rglob("*.py"))

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
    assert sorted(recap.__all__) == sorted(NAMES)
    assert len(set(recap.__all__)) == len(recap.__all__)


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
pipe(num_images=1, schedule=pipe.schedule(1, 0), seed=0)
assert "torch._dynamo" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_command_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "recap", "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout.startswith("usage: recap")
    assert all(command in done.stdout for command in ("sample", "studio", "verify", "plan", "convert", "models"))


def imported(path: Path) -> set[str]:
    """Absolute names of the modules that a file imports, also inside functions."""
    package = ["recap", *path.relative_to(SOURCE).parent.parts]
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            names |= {f"{stem}.{alias.name}" for alias in node.names} if stem == "recap" else {stem}
    return names


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.stem)
def test_core_knows_nothing_else_of_the_package(path: Path) -> None:
    own = {name for name in imported(path) if name.split(".")[0] == "recap"}
    assert {name for name in own if not (name + ".").startswith("recap.core.")} == set()


def test_imports_are_seen() -> None:
    assert "recap.core.schedule" in imported(SOURCE / "core" / "presets.py")
    assert "recap.core.schedule" in imported(SOURCE / "pipeline.py")
    assert len(CORE) > 5


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_module_can_be_imported(path: Path) -> None:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    serving = parts[0] == "serving" and imported(path) & {"fastapi", "uvicorn", "pydantic", "starlette"}
    if serving or parts[0] == "studio":
        pytest.importorskip("fastapi", reason="this module needs the extra serve or demo")
    if parts[-1] != "__main__":
        importlib.import_module(".".join(["recap", *parts]).removesuffix(".__init__"))
