"""Compile Headwater's Java code for Spark into the jar of the package. Needs a JDK.

The jar names the checksum of its sources; a test compares it, so an edit without a new jar fails.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from headwater.spark.endpoint import find_java
from headwater.spark.home import OWN_JAR

SOURCES = Path(__file__).resolve().parents[1] / "java"
_RELEASE = "17"  # the oldest Java that Spark supports
_TIME = (1980, 1, 1, 0, 0, 0)


def checksum() -> str:
    """Return the checksum of all sources."""
    known = hashlib.sha256()
    for file in sorted(SOURCES.rglob("*.java")):
        known.update(f"{file.relative_to(SOURCES)}\n".encode() + file.read_bytes())
    return known.hexdigest()


def main() -> int:
    """Write the jar; the same sources and compiler give the same bytes."""
    import pyspark

    compiler = find_java() / "bin" / "javac"
    if not compiler.exists():
        print(f"{compiler} is missing: install a JDK, such as openjdk-17-jdk-headless", file=sys.stderr)
        return 1
    sources = sorted(SOURCES.rglob("*.java"))
    with tempfile.TemporaryDirectory() as name:
        jars = Path(pyspark.__file__).parent / "jars" / "*"
        command = [str(compiler), "--release", _RELEASE, "-classpath", str(jars), "-d", name, *map(str, sources)]
        subprocess.run(command, check=True)
        with zipfile.ZipFile(OWN_JAR, "w", zipfile.ZIP_DEFLATED) as jar:
            manifest = f"Manifest-Version: 1.0\r\nSources-SHA-256: {checksum()}\r\n\r\n"
            jar.writestr(zipfile.ZipInfo("META-INF/MANIFEST.MF", _TIME), manifest)
            for file in sorted(Path(name).rglob("*.class")):
                jar.writestr(zipfile.ZipInfo(str(file.relative_to(name)), _TIME), file.read_bytes())
    print(f"{OWN_JAR} is written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
