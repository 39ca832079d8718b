"""Folders of a configuration and safetensors: local ones, and snapshots of hub repositories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from foredraft.errors import ModelError, ModelNotFoundError, UnsupportedModelError
from foredraft.models.reporting import check_loading_report, one_line
from foredraft.models.resolve import not_found

_DESCRIPTIONS = ["*.json", "*.model", "*.txt", "*.jinja", "*.tiktoken"]
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def snapshot(name: str, *, weights: bool, trust_remote_code: bool) -> Path:
    """Local folder of a hub repository, fetched if it is not there; pickled weights are never fetched.

    Raises:
        ModelNotFoundError: if there is none of that name, or the hub cannot be reached and the
            repository was not fetched before.
    """
    wanted = [
        *_DESCRIPTIONS,
        *(["*.safetensors"] if weights else []),
        *(["*.py"] if trust_remote_code else []),
    ]
    try:
        folder = snapshot_download(
            name, allow_patterns=wanted, ignore_patterns=["*/*", "consolidated*.safetensors"]
        )
    except HFValidationError:
        raise not_found(name, "it is not a hub id (owner/name)") from None
    except GatedRepoError:
        raise ModelNotFoundError(
            f"{name} is gated on the hub: accept its terms there and log in (hf auth login)"
        ) from None
    except RepositoryNotFoundError:
        raise not_found(name, "the hub knows no such public model") from None
    except (OSError, ValueError) as error:
        reason = "could not be reached" if isinstance(error, OSError) else one_line(error)
        raise not_found(name, f"the hub {reason} (and it was not fetched before)") from None
    return Path(folder)


def read_config(folder: Path, *, trust_remote_code: bool) -> PretrainedConfig:
    """The folder's configuration.

    Raises:
        ModelError: if config.json is missing or broken.
        UnsupportedModelError: for adapters, unknown model types, and code that was not trusted.
    """
    raw = _raw_config(folder)
    kind = str(raw.get("model_type"))
    remote = "AutoConfig" in (raw.get("auto_map") or {})
    if kind not in CONFIG_MAPPING and not (remote and trust_remote_code):
        if remote:
            raise UnsupportedModelError(
                f"{folder} brings its own code; if you trust its authors, allow it with trust_remote_code"
            )
        raise UnsupportedModelError(f"{folder}: model type {kind!r} is unknown to the installed transformers")
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code, local_files_only=True)
    except Exception as error:  # configurations validate with exceptions of many kinds
        raise ModelError(f"{folder / 'config.json'} cannot be used: {one_line(error)}") from error


def load_tokenizer(folder: Path, *, trust_remote_code: bool) -> Any | None:
    """The folder's tokenizer, None if it holds none.

    Raises:
        ModelError: if there is one but it cannot be read.
    """
    if not any((folder / name).exists() for name in _TOKENIZER_FILES):
        return None
    try:
        return AutoTokenizer.from_pretrained(
            folder, trust_remote_code=trust_remote_code, local_files_only=True
        )
    except Exception as error:  # the tokenizers library raises bare Exceptions
        raise ModelError(f"the tokenizer in {folder} cannot be read: {one_line(error)}") from error


def check_weights(folder: Path) -> None:
    """See that the weights are safetensors and whole, without reading them.

    Raises:
        UnsupportedModelError: if they are pickles.
        ModelError: if there are none or one is broken.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
        if pickles:
            raise UnsupportedModelError(
                f"{folder} holds its weights as a pickle ({pickles[0]}), which can run code when read; "
                "convert it where you trust it: load it with transformers and call save_pretrained"
            )
        raise ModelError(f"{folder} holds no weights: a .safetensors file is needed")
    for path in files:
        try:
            with safe_open(path, framework="pt"):
                pass
        except (SafetensorError, OSError, ValueError) as error:
            raise ModelError(f"{path} is broken or cut short ({one_line(error)}); fetch it again") from None


def load_weights(
    folder: Path, config: PretrainedConfig, dtype: torch.dtype, attention: str, *, trust_remote_code: bool
) -> Any:
    """The model on the CPU.

    Raises:
        ModelError: if weights are missing, of the wrong shape, or cannot be read.
    """
    loader: Any = AutoModelForCausalLM
    try:
        model, report = loader.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation=attention,
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below, where transformers would only point to its log
        )
    except Exception as error:  # transformers reports unusable checkpoints with exceptions of many kinds
        raise ModelError(f"{folder} cannot be loaded: {one_line(error)}") from error
    check_loading_report(folder, report)
    return model


def _raw_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if (folder / "adapter_config.json").exists():
        raise UnsupportedModelError(
            f"{folder} holds a PEFT adapter, not a model: merge it into its base model first "
            "(merge_and_unload, then save_pretrained)"
        )
    if not path.exists():
        found = sorted(folder.glob("*.gguf"))
        hint = f"; to use {found[0].name}, give the path of that file" if found else ""
        raise ModelError(f"{folder} is not a model folder: it has no config.json{hint}")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {one_line(error)}") from None
    if not isinstance(raw, dict):
        raise ModelError(f"{path} is not a JSON object")
    return raw
