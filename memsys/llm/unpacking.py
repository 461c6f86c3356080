"""A reply put together as it comes in: unpacked, and no larger than allowed, however little of it is sent."""

from __future__ import annotations

import zlib

ACCEPTED = "gzip, deflate"
"""What a server is told it may send, and all that is unpacked."""


class TooLarge(Exception):
    """A reply holds more bytes, once unpacked, than allowed."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the reply is larger than {limit / 2**20:g} MB")


class Body:
    """The bytes of a reply so far.

    Args:
        encoding: the reply's Content-Encoding.
        limit: bytes that it may have, unpacked.

    Raises:
        OSError: the encoding is none that was asked for.
    """

    def __init__(self, encoding: str, limit: int) -> None:
        self._limit, self._size, self._parts = limit, 0, list[bytes]()
        name = encoding.strip().lower()
        if name not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise OSError(f"the reply is encoded with {name[:40]!r}, which was not asked for")
        self._unpacks = name not in ("", "identity")
        self._unpacker: zlib._Decompress | None = None

    def add(self, chunk: bytes) -> None:
        """Take the next bytes.

        Raises:
            TooLarge: they are too many.
            OSError: they cannot be unpacked.
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
            # `deflate` comes with the header of zlib, as the standard says, or without, as some servers have it.
            bare = chunk[0] & 0x0F != 8 and chunk[:2] != b"\x1f\x8b"
            self._unpacker = zlib.decompressobj(-zlib.MAX_WBITS if bare else zlib.MAX_WBITS | 32)
        try:
            plain: bytes = self._unpacker.decompress(chunk, self._limit - self._size + 1)
            return plain
        except zlib.error as error:
            raise OSError(f"the compressed reply cannot be unpacked ({error})") from error

    def whole(self) -> bytes:
        """All of it.

        Raises:
            OSError: the compressed reply broke off.
        """
        if self._unpacks and self._size and self._unpacker is not None and not self._unpacker.eof:
            raise OSError("the compressed reply broke off")
        return b"".join(self._parts)
