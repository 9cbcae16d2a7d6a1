#!/bin/sh
# Print the path of strace, which records the writes of a run for tests of power cuts, or nothing. With --install,
# install it where there is none. Only tests need it, and they are skipped without it, so a failed installation is no
# error.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/system_package.sh"

command -v strace && exit

if [ "${1:-}" = --install ]; then
    case "$(package_manager)" in
    apt-get | dnf | apk | pacman)
        say "The tests of power cuts need strace; installing it."
        install_package strace || true
        ;;
    esac
    command -v strace && exit
    say "There is no strace: some tests of power cuts will be skipped."
fi
