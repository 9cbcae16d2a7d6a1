"""Rewrite Java's file of root certificates so that the same certificates give the same file; the time is the argument.

Debian makes it when the package is configured: with the time of that moment in each entry, in any order.
"""

import hashlib
import struct
import sys
from pathlib import Path

CACERTS = Path("/etc/ssl/certs/java/cacerts")
PASSWORD = "changeit"  # Debian's, and Java's default
SALT = b"Mighty Aphrodite"  # of the format JKS
MAGIC, VERSION, CERTIFICATE = 0xFEEDFEED, 2, 2


def main() -> None:
    """Set the time of all entries, and sort them by their names."""
    data = CACERTS.read_bytes()
    magic, version, count = struct.unpack_from(">III", data)
    if (magic, version) != (MAGIC, VERSION):
        raise SystemExit(f"{CACERTS} has another format than JKS of version 2")
    at, entries = 12, {}
    for _ in range(count):
        (tag,) = struct.unpack_from(">I", data, at)
        if tag != CERTIFICATE:
            raise SystemExit(f"{CACERTS} has an entry that is no certificate")
        (length,) = struct.unpack_from(">H", data, at + 4)
        name, at = data[at + 6 : at + 6 + length], at + 6 + length + 8
        (kind,) = struct.unpack_from(">H", data, at)
        (size,) = struct.unpack_from(">I", data, at + 2 + kind)
        end = at + 2 + kind + 4 + size
        entries[name], at = data[at:end], end
    time = struct.pack(">q", int(sys.argv[1]) * 1000)
    body = struct.pack(">III", MAGIC, VERSION, count) + b"".join(
        struct.pack(">IH", CERTIFICATE, len(name)) + name + time + entries[name] for name in sorted(entries)
    )
    digest = hashlib.sha1(PASSWORD.encode("utf-16-be") + SALT + body, usedforsecurity=False).digest()
    CACERTS.write_bytes(body + digest)


if __name__ == "__main__":
    main()
