"""The offline engine: a deterministic stand-in for a language model."""
