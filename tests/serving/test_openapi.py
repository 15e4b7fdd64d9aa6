"""The description of the service: every example works, and nothing that follows or breaks it breaks the server."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="fastapi is not installed; the extra serve brings it")

import httpx

from recap.serving.app import create_app
from recap.serving.schema import Failure
from recap.serving.service import Service
from tests.serving.served import asked, few, process, small

# the form of a request says nothing of classes that there are not, or of pictures that are none
CONFIG = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "401", "406", "422", "429"]
"""


def description(token: str | None = None) -> Any:
    return create_app(Service(few("maskgit"), "tiny", small()), token).openapi()


def test_every_request_and_answer_has_an_example() -> None:
    document = description()
    schemas = document["components"]["schemas"]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert operation["description"], path
            for content in operation.get("requestBody", {}).get("content", {}).values():
                assert schemas[content["schema"]["$ref"].rpartition("/")[2]]["examples"]
            for status, answer in operation["responses"].items():
                assert answer["content"], (path, status)
                for content in answer["content"].values():
                    assert "example" in content, (path, status)
                    if not status.startswith("2"):
                        Failure.model_validate(content["example"])


def test_the_examples_work() -> None:
    document = description()

    async def ask(client: httpx.AsyncClient) -> Any:
        statuses = {}
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                body = operation.get("requestBody")
                if body is None:
                    statuses[path] = [(await client.request(method, path)).status_code]
                    continue
                name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
                examples = document["components"]["schemas"][name]["examples"]
                statuses[path] = [(await client.post(path, json=example)).status_code for example in examples]
        return statuses

    statuses = asked(ask)
    assert len(statuses) == 7
    assert all(status == 200 for each in statuses.values() for status in each), statuses


def test_greatest_values_are_those_of_the_server() -> None:
    fields = description()["components"]["schemas"]["Sample"]["properties"]
    assert fields["num"]["anyOf"][0]["maximum"] == 8
    assert fields["full"]["anyOf"][0]["maximum"] == 16
    assert fields["labels"]["anyOf"][0]["maximum"] == 4


def test_a_token_is_described_where_one_is_asked_for() -> None:
    assert "securitySchemes" not in description()["components"]
    locked = description("s3cret")
    assert "securitySchemes" in locked["components"]
    assert "401" in locked["paths"]["/v1/sample"]["post"]["responses"]
    assert "security" not in locked["paths"]["/healthz"]["get"]
    assert "s3cret" not in str(locked)


@pytest.mark.parametrize("token", [None, "s3cret"])
def test_schemathesis_finds_nothing(tmp_path: Path, token: str | None) -> None:
    if importlib.util.find_spec("schemathesis") is None:
        pytest.skip("schemathesis is not installed")
    few("maskgit").save_pretrained(tmp_path / "model")
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    with process(tmp_path / "model", "--queue", "64", token=token) as (running, address):
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"{address}/openapi.json"]
        command += ["--max-examples", "6", "--seed", "1", "--workers", "1", "--no-color"]
        command += [] if token is None else ["--header", f"Authorization: Bearer {token}"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=280)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
        assert "Tested: 7" in done.stdout
        assert running.poll() is None
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        assert 'outcome="failed"' not in httpx.get(f"{address}/metrics", headers=headers).text
