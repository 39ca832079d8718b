"""foredraft: lossless speculative decoding for causal language models."""
