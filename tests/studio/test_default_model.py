"""The model that comes with the package, drawn in the studio and by the command line."""

from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="fastapi is not installed; the extra demo brings it")

from recap import weights
from recap.cli import main
from recap.cli.studio import offered
from tests.studio.visits import drawn, pngs, studio


def test_streamed_images_are_the_files_of_recap_sample(tmp_path: Path) -> None:
    name = weights.default()
    assert name is not None
    events = drawn(studio(offered([])), labels=["sunflower"], seed=3, full=3, local=2)
    assert events[0]["labels"] == [{"label": 53, "name": "sunflower"}]
    for pane, steps in (("reused", ["--full", "3", "--local", "2"]), ("plain", ["--full", "5"])):
        argv = ["sample", "--labels", "sunflower", "--num", "1", "--seed", "3", *steps]
        assert main([*argv, "--out", str(tmp_path / pane)]) == 0
        assert pngs(events, pane) == [(tmp_path / pane / "000000.png").read_bytes()]
