"""Decompressing a reply while it is received, with a limit on its decompressed size."""

from __future__ import annotations

import zlib

ACCEPTED = "gzip, deflate"
"""The Accept-Encoding header; replies in other encodings are rejected."""


class TooLarge(Exception):
    """A reply has more decompressed bytes than allowed."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the reply is larger than {limit / 2**20:g} MB")


class Body:
    """The decompressed bytes of a reply received so far.

    Args:
        encoding: the reply's Content-Encoding.
        limit: the greatest number of decompressed bytes.

    Raises:
        OSError: the encoding is not one of those that were requested.
    """

    def __init__(self, encoding: str, limit: int) -> None:
        self._limit, self._size, self._parts = limit, 0, list[bytes]()
        name = encoding.strip().lower()
        if name not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise OSError(f"the reply is encoded with {name[:40]!r}, which was not asked for")
        self._unpacks = name not in ("", "identity")
        self._unpacker: zlib._Decompress | None = None

    def add(self, chunk: bytes) -> None:
        """Add the next bytes as received.

        Raises:
            TooLarge: the reply exceeds the limit.
            OSError: the bytes cannot be decompressed.
        """
        if self._unpacks:
            chunk = self._unpacked(chunk)
        self._size += len(chunk)
        if self._size > self._limit:
            raise TooLarge(self._limit)
        self._parts.append(chunk)

    def _unpacked(self, chunk: bytes) -> bytes:
        if not chunk:
            return chunk
        if self._unpacker is None:
            # `deflate` has a zlib header according to the standard, but some servers leave it out.
            bare = chunk[0] & 0x0F != 8 and chunk[:2] != b"\x1f\x8b"
            self._unpacker = zlib.decompressobj(-zlib.MAX_WBITS if bare else zlib.MAX_WBITS | 32)
        try:
            plain: bytes = self._unpacker.decompress(chunk, self._limit - self._size + 1)
            return plain
        except zlib.error as error:
            raise OSError(f"the compressed reply cannot be unpacked ({error})") from error

    def whole(self) -> bytes:
        """The complete decompressed reply.

        Raises:
            OSError: the compressed reply is incomplete.
        """
        if self._unpacks and self._size and self._unpacker is not None and not self._unpacker.eof:
            raise OSError("the compressed reply broke off")
        return b"".join(self._parts)
