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
package=${1:-.[dev]}

# Give uv the settings of pip, unless it has its own; fail if uv has no setting like one of pip's.
use_settings_of_pip() {
    settings=$(.venv/bin/python -m pip config list) || return 1
    known=yes
    while IFS='=' read -r name value; do
        # A value is quoted, and several are separated by \n.
        value=$(printf '%s' "$value" | sed "s/^'//; s/'\$//; s/^\\\\n//; s/\\\\n/ /g")
        case "${name##*.}" in
        '') ;;
        index-url) export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$value}" ;;
        extra-index-url) export UV_INDEX="${UV_INDEX:-$value}" ;;
        find-links) export UV_FIND_LINKS="${UV_FIND_LINKS:-$(printf '%s' "$value" | tr ' ' ',')}" ;;
        cert) export SSL_CERT_FILE="${SSL_CERT_FILE:-$value}" ;;
        default-timeout | timeout) export UV_HTTP_TIMEOUT="${UV_HTTP_TIMEOUT:-$value}" ;;
        no-cache-dir) export UV_NO_CACHE=1 ;;
        break-system-packages | config-file | disable-pip-version-check | no-input) ;;
        no-warn-script-location | progress-bar | quiet | require-virtualenv | root-user-action) ;;
        *)
            say "uv has no setting like pip's '$name'."
            known=
            ;;
        esac
    done <<END
$settings
END
    [ -n "$known" ]
}

# uv installs the same packages in a quarter of the time that pip takes.
install_with_uv() {
    uv=$(command -v uv) || {
        run .venv/bin/python -m pip install --quiet --only-binary :all: 'uv>=0.5,<1' || return 1
        uv=.venv/bin/uv
    }
    run "$uv" pip install --quiet --python .venv/bin/python --editable "$package"
}

if ! use_settings_of_pip || ! install_with_uv; then
    run .venv/bin/python -m pip install --quiet --disable-pip-version-check --use-pep517 --editable "$package"
fi
