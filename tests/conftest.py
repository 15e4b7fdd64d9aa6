"""One thread for each worker, and a package with small models inside."""

import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is imported: workers share the cores

import pytest
import torch

from recap import weights
from recap.checkpoints import save_pretrained
from recap.models.registry import build, randomize
from recap.tokenizers import KLVAEConfig, VQGANConfig
from tests import tiny

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined

KL = KLVAEConfig(channels=8, multipliers=(1, 1), latent_channels=4, encoder_blocks=1, decoder_blocks=1, groups=4)
VQ = VQGANConfig(channels=8, multipliers=(1, 1), blocks=1, latent_channels=4, codes=20, groups=4)
NAMES = ["pink primrose", "Sunflower", "water lily", "lotus", "tiger lily"]
MAR = {"preset": "mar", "guidance": [1.0, 2.0], "temperature": 0.9, "full": 4, "local": 2, "head_steps": [4, 3]}


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Small networks are too small to share, and workers share the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else threads)
    yield
    torch.set_num_threads(threads)


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
        sampling={"preset": "maskgit", "full": 4, "local": 2, "warmup": 0, "choice_temperature": 2.0},
    )
    sampling = {"preset": "mage", "full": 3, "local": 3}
    save_pretrained(nets["mage"], home / "flowers-mage", tokenizer="../flowers-vq", sampling=sampling)
    save_pretrained(randomize(build(KL)), home / "flowers-kl", compact=True)
    save_pretrained(randomize(build(VQ)), home / "flowers-vq", compact=True)
    (home / "__pycache__").mkdir()
    monkeypatch.setattr(weights, "HOME", home)
    monkeypatch.chdir(tmp_path)
    return home
