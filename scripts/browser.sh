#!/bin/sh
# Print the path of a Chromium for the tests of the dashboard, or nothing. With --install, install one where there
# is none. Only those tests want it, so that it is no error when there is none to be had.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/system_package.sh"

find_browser() {
    for browser in /usr/bin/chromium /usr/bin/chromium-browser; do
        # Ubuntu's chromium-browser only says that there is a snap.
        if [ -x "$browser" ] && "$browser" --version >/dev/null 2>&1; then
            echo "$browser"
            return
        fi
    done
    return 1
}

find_browser && exit

if [ "${1:-}" = --install ]; then
    case "$(package_manager)" in
    apt-get | dnf | apk | pacman)
        say "The tests of the dashboard want Chromium, and none was found; installing it."
        install_package chromium || true
        ;;
    esac
    if find_browser; then exit; fi
    say "There is no Chromium: the tests of the dashboard will be skipped."
fi
