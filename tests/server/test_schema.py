"""The description of the service is whole, and nothing that follows or breaks it breaks the server."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="fastapi is not installed; the extra serve brings it")

from recap.server.app import create_app
from tests.server.served import few, process, served
from tests.writing import write_model

# the form of a request says nothing of classes that there are not, or of pictures that are none
CONFIG = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "401", "404", "422", "429"]
"""
PATHS = 7  # of the API


def description(token: str | None = None, *, page: bool = False) -> Any:
    return create_app(served("maskgit"), token, page=page).openapi()


def test_every_endpoint_and_answer_is_described() -> None:
    document = description(page=True)
    assert len(document["paths"]) == PATHS + 2
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert operation["description"], path
            for status, answer in operation["responses"].items():
                assert answer["description"], (path, status)
                if status in ("4XX", "5XX") and path.startswith("/v1"):
                    assert answer["content"]["application/json"]["schema"]["$ref"].endswith("/Failure")


def test_a_token_is_described_where_one_is_asked_for() -> None:
    assert "securitySchemes" not in description()["components"]
    locked = description("s3cret")
    assert "securitySchemes" in locked["components"]
    assert "security" in locked["paths"]["/v1/sample"]["post"]
    assert "security" not in locked["paths"]["/healthz"]["get"]
    assert "s3cret" not in str(locked)


def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
    if importlib.util.find_spec("schemathesis") is None:
        pytest.skip("schemathesis is not installed")
    models = [str(few("maskgit").save_pretrained(tmp_path / "model")), str(write_model(tmp_path / "words"))]
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    with process("serve", "--model", models[0], "--model", models[1], token="s3cret") as (running, address):
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"{address}/openapi.json"]
        command += ["--max-examples", "6", "--seed", "1", "--workers", "1", "--no-color"]
        command += ["--header", "Authorization: Bearer s3cret"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=280)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
        assert f"Tested: {PATHS}" in done.stdout
        assert running.poll() is None
        headers = {"Authorization": "Bearer s3cret"}
        assert 'outcome="failed"' not in httpx.get(f"{address}/metrics", headers=headers).text
