"""The offline engine: a deterministic substitute for a language model."""
