"""Fixtures of the text tests: each tiny tokenizer is built once."""

from __future__ import annotations

from functools import cache

import pytest
import tiny_tokenizers

from foredraft.text import TextTokenizer


@cache
def _built(kind: str) -> TextTokenizer:
    return TextTokenizer(tiny_tokenizers.KINDS[kind]())


@pytest.fixture(scope="session", params=sorted(tiny_tokenizers.KINDS))
def any_tokenizer(request: pytest.FixtureRequest) -> TextTokenizer:
    """One tokenizer of each kind in turn."""
    return _built(request.param)


@pytest.fixture(scope="session")
def byte_level() -> TextTokenizer:
    """GPT-2's kind."""
    return _built("byte_level")


@pytest.fixture(scope="session")
def sentencepiece() -> TextTokenizer:
    """Llama 2's kind."""
    return _built("sentencepiece")


@pytest.fixture(scope="session")
def slow_bytes() -> TextTokenizer:
    """A tokenizer in pure Python."""
    return _built("slow_bytes")
