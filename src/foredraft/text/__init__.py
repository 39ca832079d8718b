"""Text to token ids and back: tokenizer adapter, incremental detokenisation, stop strings."""

from foredraft.text.detokenizer import IncrementalDetokenizer
from foredraft.text.stop_strings import StopStringMatcher
from foredraft.text.stream import TextStream
from foredraft.text.tokenizer import TextTokenizer

__all__ = ["IncrementalDetokenizer", "StopStringMatcher", "TextStream", "TextTokenizer"]
