#!/bin/sh
# Print the path of Mosquitto, an MQTT broker for tests, or nothing. With --install, install one where there is none.
# Only tests want it, and skip what needs it, so that it is no error when there is none to be had.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/system_package.sh"

find_mosquitto() {
    # Debian puts it where users' PATH does not look.
    PATH="$PATH:/usr/sbin:/usr/local/sbin:/opt/homebrew/sbin" command -v mosquitto
}

find_mosquitto && exit

if [ "${1:-}" = --install ]; then
    case "$(package_manager)" in
    apt-get | dnf | apk | pacman | brew)
        say "The tests of MQTT want Mosquitto, and none was found; installing it."
        if install_package mosquitto && command -v systemctl >/dev/null 2>&1; then
            # Debian starts a broker on port 1883 with the package; the tests start their own.
            as_root systemctl disable --now mosquitto || true
        fi
        ;;
    esac
    if find_mosquitto; then exit; fi
    say "There is no Mosquitto: some tests of MQTT will be skipped."
fi
