#!/bin/sh
# Make .venv with a fitting Python and install Headwater there: '.' alone, or '.[dev]' with its development tools.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/system_package.sh"
cd "$here/.."

fits() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }
makes_venvs() { "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; }

# PYTHON=... chooses another one.
candidates="${PYTHON:-python3.13 python3.12 python3.11 python3}"

pick_python() {
    for name in $candidates; do
        if fits "$name" && makes_venvs "$name"; then
            echo "$name"
            return
        fi
    done
    # Debian keeps venv in a package of its own.
    for name in $candidates; do
        if fits "$name"; then
            version=$("$name" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
            say "$name cannot make virtual environments; installing python$version-venv."
            if install_package "python$version-venv" python3-venv && makes_venvs "$name"; then
                echo "$name"
                return
            fi
            say "  -> Install venv for $name (Debian/Ubuntu: apt-get install python$version-venv) and try again."
            return 1
        fi
    done
    say "Headwater needs Python 3.11 or newer; tried: $candidates."
    say "  -> Install one (Debian 12+/Ubuntu 24.04+: apt-get install python3 python3-venv;"
    say "     Fedora: dnf install python3.12; macOS: brew install python@3.12; others: https://www.python.org),"
    say "     or name one: make setup PYTHON=/path/to/python3.12"
    return 1
}

if fits .venv/bin/python && .venv/bin/python -m pip --version >/dev/null 2>&1; then
    say "Using the .venv that is there ($(.venv/bin/python -V))."
else
    python=$(pick_python)
    say "Making .venv with $python ($("$python" -V))."
    run "$python" -m venv --clear .venv
fi
export DIST_EXTRA_CONFIG="$here/wheels.cfg"
run .venv/bin/python -m pip install --quiet --disable-pip-version-check --use-pep517 --editable "${1:-.[dev]}"
