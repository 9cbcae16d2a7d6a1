# Sourced by the other scripts: install a package with whatever this system has.
# HEADWATER_DRY_RUN=1 shows the commands and runs none.

say() { printf '%s\n' "$*" >&2; }

run() {
    if [ -n "${HEADWATER_DRY_RUN:-}" ]; then
        say "would run: $*"
    else
        say "+ $*"
        "$@" </dev/null >&2
    fi
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        run "$@"
    elif command -v sudo >/dev/null 2>&1; then
        # Without a terminal nobody can type a password: fail rather than wait.
        if [ -t 0 ]; then run sudo "$@"; else run sudo -n "$@"; fi
    else
        say "Not root, and there is no sudo: cannot run '$*'."
        return 1
    fi
}

package_manager() {
    for tool in apt-get dnf apk pacman brew; do
        if command -v "$tool" >/dev/null 2>&1; then
            echo "$tool"
            return
        fi
    done
}

# install_package NAME... : install the first of the names that the package manager has.
install_package() {
    manager=$(package_manager)
    case "$manager" in
    apt-get)
        # Java's package links its man pages there; slim images lack the folder.
        as_root mkdir -p /usr/share/man/man1 || return 1
        as_root apt-get update -qq || say "apt-get update failed; trying with the lists at hand."
        ;;
    "") return 1 ;;
    esac
    for name in "$@"; do
        case "$manager" in
        apt-get) as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$name" && return ;;
        dnf) as_root dnf install -y -q "$name" && return ;;
        apk) as_root apk add --no-cache "$name" && return ;;
        pacman) as_root pacman -Sy --noconfirm --needed "$name" && return ;;
        brew) run brew install "$name" && return ;; # brew refuses root
        esac
    done
    return 1
}
