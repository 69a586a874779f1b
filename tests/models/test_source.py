"""What MODEL may be, and one clear line for what it may not be."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from ragblend.errors import ModelError, PathNotFoundError, RagblendError
from ragblend.models.source import clear_load_errors, resolve_model


class Hub(BaseHTTPRequestHandler):
    """A Hub that gives the same answer to every question."""

    status = 200
    code = ""

    def do_GET(self) -> None:
        body = b'{"id": "some/model", "siblings": []}' if self.status == 200 else b"{}"
        self.send_response(self.status)
        self.send_header("X-Error-Code", self.code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Hub]]:
    with HTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
        yield Hub
        server.shutdown()


def test_folder_is_taken_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    source = resolve_model(tmp_path)
    assert (source.path_or_id, source.name) == (str(tmp_path), tmp_path.name)
    assert resolve_model(str(tmp_path)) == source


def test_reference_holds_from_any_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    reference = resolve_model("model").reference
    monkeypatch.chdir("/")
    assert resolve_model(reference).name == "model"


def test_folder_without_a_model_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(PathNotFoundError, match=r"no config\.json"):
        resolve_model(tmp_path)


@pytest.mark.parametrize("model", ["./missing", "~/missing", "/missing", "a/b/c", "missing\\model", Path("missing")])
def test_path_that_is_not_there_is_not_asked_of_the_hub(model: str | Path) -> None:
    with pytest.raises(PathNotFoundError, match="no such model"):
        resolve_model(model)


def test_missing_gguf_is_a_usage_error() -> None:
    with pytest.raises(PathNotFoundError, match="no such file"):
        resolve_model("missing.gguf")


def test_malformed_id_is_a_usage_error() -> None:
    with pytest.raises(PathNotFoundError, match="no such model on the Hugging Face Hub"):
        resolve_model("no such/model!")


def test_hub_that_cannot_be_reached_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="cannot be reached") as caught:
        resolve_model("nobody/has-such-a-model")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "code", "error", "message"),
    [
        (404, "RepoNotFound", PathNotFoundError, "no such folder, and no such model"),
        (403, "GatedRepo", ModelError, "hf auth login"),
        (500, "", ModelError, "Server Error"),
    ],
)
def test_what_the_hub_answers(hub: type[Hub], status: int, code: str, error: type[RagblendError], message: str) -> None:
    hub.status, hub.code = status, code
    with pytest.raises(error, match=message) as caught:
        resolve_model("nobody/has-such-a-model")
    assert "\n" not in str(caught.value)


def test_model_on_the_hub_is_taken_by_its_id(hub: type[Hub]) -> None:
    hub.status, hub.code = 200, ""
    assert resolve_model("some/model").path_or_id == "some/model"


def test_damaged_model_is_one_line() -> None:
    with pytest.raises(ModelError, match=r"^broken cannot be loaded: no weights$"), clear_load_errors("broken"):
        raise OSError("no weights\nand a long explanation")
