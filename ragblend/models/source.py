"""What MODEL means: the embedded default, a ``.gguf`` file, a folder, or an id on the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ragblend.errors import ConfigError, ModelError, PathNotFoundError
from ragblend.models.convert import converted_gguf
from ragblend.models.embedded import MODEL_NAME, default_model_path

HUB_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class ModelSource:
    """path_or_id: what transformers' ``from_pretrained`` takes. name: what reports and answers call the model.

    reference: what ``resolve_model`` finds the same model by from any working folder; empty for the default.
    """

    path_or_id: str
    name: str
    reference: str


def resolve_model(model: str | Path | None) -> ModelSource:
    """Find ``model`` without loading it; a ``.gguf`` file or the embedded default is converted on first use.

    Raises PathNotFoundError for a path or id that names no model, ModelError for a GGUF file that
    cannot be converted, for the embedded default where it is not installed, and when the Hub
    cannot be asked.
    """
    if not isinstance(model, str | Path | None):
        raise ConfigError(f"the model must be a path or a name, got {model!r}")
    if model is None or model == "":
        return ModelSource(str(default_model_path()), MODEL_NAME, "")
    path = Path(model).expanduser()
    if path.suffix.lower() == ".gguf":
        return ModelSource(str(converted_gguf(path)), path.stem, str(path.resolve()))
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise PathNotFoundError(f"{path}: no config.json in this folder; give a folder that save_pretrained wrote")
        return ModelSource(str(path), path.resolve().name, str(path.resolve()))
    if isinstance(model, Path) or not _looks_like_id(model):
        raise PathNotFoundError(f"{model}: no such model: give a folder, a .gguf file or an id such as Qwen/Qwen3-0.6B")
    _require_on_hub(model)
    return ModelSource(model, model, model)


@contextmanager
def clear_load_errors(model: str) -> Iterator[None]:
    """Turn what transformers, safetensors and the Hub's client raise while they load ``model`` into one line."""
    from huggingface_hub.errors import GatedRepoError, HFValidationError, LocalEntryNotFoundError
    from huggingface_hub.errors import RepositoryNotFoundError as NoRepositoryError
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        causes = tuple(_causes(error))

        def caused_by(*kinds: type[BaseException]) -> bool:
            return any(isinstance(cause, kinds) for cause in causes)

        if caused_by(GatedRepoError):
            raise ModelError(f"{model}: the Hub asks for an accepted licence: log in with `hf auth login`") from error
        if caused_by(NoRepositoryError, HFValidationError):
            raise PathNotFoundError(
                f"{model}: no such folder, and no such model on the Hugging Face Hub (or it is private)"
            ) from error
        if caused_by(LocalEntryNotFoundError, ConnectionError):
            raise ModelError(
                f"{model}: not in the local cache, and the Hugging Face Hub cannot be reached; check the network, "
                "or give a folder or a .gguf file"
            ) from error
        first_line = str(error).strip().partition("\n")[0]
        raise ModelError(f"{model} cannot be loaded: {first_line}") from error


def _require_on_hub(model: str) -> None:
    """Fail within seconds, not after the minute for which a download retries."""
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    with clear_load_errors(model):
        if isinstance(try_to_load_from_cache(model, "config.json"), str):
            return
        try:
            HfApi().model_info(model, timeout=HUB_TIMEOUT_S)
        except (OSError, HFValidationError):
            raise
        except Exception as error:  # the HTTP library's own, which is another one in each version of the client
            raise ConnectionError(str(error)) from error


def _looks_like_id(model: str) -> bool:
    owner, _, name = model.rpartition("/")
    return bool(name) and "/" not in owner and not model.startswith((".", "~", "/")) and "\\" not in model


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
