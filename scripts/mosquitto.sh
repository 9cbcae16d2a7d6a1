#!/bin/sh
# Print the path of Mosquitto, an MQTT broker for tests, or nothing. With --install, install one where there is none.
# Only tests need it, and they are skipped without it, so a failed installation is no error.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/system_package.sh"

find_mosquitto() {
    # Debian installs it outside the PATH of users.
    PATH="$PATH:/usr/sbin:/usr/local/sbin:/opt/homebrew/sbin" command -v mosquitto
}

find_mosquitto && exit

if [ "${1:-}" = --install ]; then
    case "$(package_manager)" in
    apt-get | dnf | apk | pacman | brew)
        say "The MQTT tests need Mosquitto; installing it."
        if install_package mosquitto && command -v systemctl >/dev/null 2>&1; then
            # Debian starts a broker on port 1883 with the package; the tests start their own.
            as_root systemctl disable --now mosquitto || true
        fi
        ;;
    esac
    if find_mosquitto; then exit; fi
    say "There is no Mosquitto: some tests of MQTT will be skipped."
fi
