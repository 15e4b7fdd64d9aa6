"""`recap serve`, `recap studio` and `curl` without a network: requests go straight to the application."""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import re
import zipfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

Ask = Callable[[Any], Awaitable[Any]]  # of a client
ENCODED = re.compile(r"\$\(base64 -w0 ([\w./-]+)\)")


class Web:
    """The server that a page has started, and requests to it."""

    def __init__(self) -> None:
        self.answered: Callable[[Ask], Any] | None = None

    @contextlib.contextmanager
    def started(self) -> Iterator[None]:
        """While a server's command runs, it says where it would listen, and hands over what it would serve."""
        from recap.server import process
        from recap.server.worker import Worker
        from tests.server import served

        def serve(app: object, worker: Worker, listener: object) -> None:
            # each lives in an event loop of its own
            self.answered = lambda ask: served.asked(ask, Worker(worker.models))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(process, "serve", serve)
            yield

    @staticmethod
    def as_printed(text: str, args: argparse.Namespace) -> str:
        """What was printed, with the port that was asked for: the test takes any that is free."""
        return re.sub(r"(?<=:)\d+$", str(args.port), text, flags=re.M)

    @staticmethod
    def filled(text: str) -> str:
        """A command line with the files that the shell would have encoded in it."""
        return ENCODED.sub(lambda found: base64.b64encode(Path(found[1]).read_bytes()).decode(), text)

    def curl(self, words: list[str]) -> str | None:
        """The answer to a request, which must be a good one."""
        asked = curl_parser().parse_args(words[1:])
        if self.answered is None:
            pytest.importorskip("fastapi", reason="fastapi is not installed; the extra serve brings it")
            raise AssertionError("no `recap serve` or `recap studio` comes before it on this page")
        address = re.sub(r"^(https?://)?(localhost|127\.0\.0\.1):(8000|7860)", "", asked.url)
        headers = dict(re.split(r":\s*", header, maxsplit=1) for header in asked.header)
        method = asked.request or ("GET" if asked.data is None else "POST")

        async def ask(client: Any) -> Any:
            return await client.request(method, address, headers=headers, content=asked.data)

        answer = self.answered(ask)
        assert answer.status_code == 200, f"the answer is {answer.status_code}: {answer.text[:500]}"
        if asked.output is None:
            return str(answer.text)
        Path(asked.output).write_bytes(answer.content)
        if asked.output.endswith(".png"):
            Image.open(io.BytesIO(answer.content)).verify()
        elif asked.output.endswith(".zip"):
            assert zipfile.ZipFile(io.BytesIO(answer.content)).testzip() is None
        return ""


def curl_parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="curl", exit_on_error=False)
    options.add_argument("url")
    options.add_argument("-H", "--header", action="append", default=[])
    for short, long in (("-d", "--data"), ("-o", "--output"), ("-X", "--request")):
        options.add_argument(short, long)
    for short, long in (("-s", "--silent"), ("-N", "--no-buffer")):
        options.add_argument(short, long, action="store_true")
    return options
