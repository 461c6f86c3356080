"""llama.cpp in this process: an OpenAI-compatible server on a loopback port, from the package xllamacpp (extra `local`).

The server's threads belong to this process, so the server ends whenever the process ends.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from memsys.lean import cores
from memsys.llm.protocol import EndOfRun
from memsys.llm.secrets import register

MAGIC = b"GGUF"
_keys: dict[str, str] = {}
"""The key of each server of this process, by its base URL."""


class LlamaServer:
    """A GGUF model, served until `close` to those who send its key (`key_of`).

    Args:
        file: the model.
        window: tokens of one prompt with its reply.
        slots: number of calls that are processed at once; each has a window of its own.
        threads: number of computing threads; None means one thread per core. More threads than free cores are slower, not faster.
        embeds: serve embeddings (mean of the tokens' vectors) instead of chat.

    Raises:
        ImportError: xllamacpp is not installed; the message names the command that installs it.
        EndOfRun: the file is not a GGUF model, or llama.cpp cannot load it.
    """

    def __init__(
        self, file: Path, *, window: int = 4096, slots: int = 2, threads: int | None = None, embeds: bool = False
    ) -> None:
        check_gguf(file)
        try:
            import xllamacpp
        except ImportError as error:
            raise ImportError("a local model needs llama.cpp: pip install 'memsys-bench[local]'") from error
        settings = xllamacpp.CommonParams()
        settings.model.path = str(file)
        settings.hostnames, settings.port = ["127.0.0.1"], 0  # 0: any free port
        settings.n_ctx, settings.n_parallel = window * slots, slots
        settings.kv_unified = False
        settings.cache_ram_mib = 0  # past prompts would take up to 8 GB, and a run sends no prompt twice
        # Without a key every program of this machine, and every page in a browser, could have the model compute.
        key = secrets.token_urlsafe(24)
        settings.api_keys, settings.cors_origins = [key], "null"
        settings.endpoint_slots = False  # it would show the prompts
        settings.n_gpu_layers, settings.verbosity = -1, -1
        settings.cpuparams.n_threads = threads or cores()
        if embeds:
            settings.embedding, settings.pooling_type = True, xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
            settings.n_batch = settings.n_ubatch = window  # an input is processed in one piece
        try:
            self._server: Any = xllamacpp.Server(settings)
        except Exception as error:
            raise EndOfRun(f"{file.name}: llama.cpp cannot load it ({error})") from error
        self.base_url = f"{self._server.listening_address}/v1"
        register(key, "local.model")
        _keys[self.base_url] = key

    def close(self) -> None:
        """Stop the server."""
        self._server = None


def key_of(base_url: str) -> str:
    """The key of a server of this process; empty for any other server."""
    return _keys.get(base_url.rstrip("/"), "")


def check_gguf(file: Path) -> None:
    """Check that a file may be given to llama.cpp, which ends the process when it cannot read one.

    Raises:
        EndOfRun: it is missing, is not a regular file, or does not begin as a GGUF model does.
    """
    if file.exists() and not file.is_file():  # a pipe would be waited for
        raise EndOfRun(f"{file}: expected a GGUF model, found no plain file")
    try:
        with file.open("rb") as opened:
            head = opened.read(4)
    except OSError as error:
        raise EndOfRun(f"{file}: expected a GGUF model, found no readable file ({error.strerror})") from error
    if head != MAGIC:
        raise EndOfRun(f"{file}: expected a GGUF model, found a file that begins with {head!r}")
