"""The lab's command line: `check` it, hold one `up` for experiments, `clean` the remains of a crash."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from types import FrameType

from benchmarks.netlab import namespaces
from benchmarks.netlab.check import check, table
from benchmarks.netlab.lab import Lab
from headwater.continuum.model import Continuum
from headwater.core.errors import HeadwaterError


def main(arguments: list[str] | None = None) -> int:
    """Carry out one command; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.netlab", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    checked = commands.add_parser("check", help="measure bandwidth and delay of a small lab")
    checked.add_argument("--quick", action="store_true", help="two settings instead of twelve")
    checked.add_argument("--json", type=Path, metavar="FILE", help="write the result to this file")
    up = commands.add_parser("up", help="keep a lab until Ctrl-C")
    up.add_argument("continuum", type=Path, help="a continuum's YAML file")
    cleaned = commands.add_parser("clean", help="remove what labs have left whose process is gone")
    cleaned.add_argument("--all", action="store_true", help="running labs as well")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _leave)  # so that `with` and `finally` do their work
    try:
        if options.command == "check":
            _check(options)
        elif options.command == "up":
            _up(options.continuum)
        else:
            namespaces.require()
            removed = namespaces.clean(all_labs=options.all)
            print("\n".join(removed) if removed else "nothing to remove")
    except HeadwaterError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def _check(options: argparse.Namespace) -> None:
    result = check(quick=options.quick)
    print(table(result))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=2) + "\n")


def _up(file: Path) -> None:
    with Lab(Continuum.from_yaml(file)) as lab:
        for zone in lab.topology.zones.values():
            print(f"{zone.name:<16} {zone.address:<12} ip netns exec {zone.namespace} COMMAND", flush=True)
        signal.pause()


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
