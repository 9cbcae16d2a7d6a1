#!/bin/sh
# Print the home of a Java 17 or newer. With --install, install one when there is none.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/system_package.sh"

wanted=17

# home_of JAVA: print its home when it is new enough.
home_of() {
    [ -x "$1" ] || return 1
    facts=$("$1" -XshowSettings:properties -version 2>&1) || return 1
    version=$(printf '%s\n' "$facts" | sed -n 's/^ *java\.specification\.version = //p')
    [ "${version%%.*}" -ge "$wanted" ] 2>/dev/null || return 1
    printf '%s\n' "$facts" | sed -n 's/^ *java\.home = //p'
}

find_java() {
    if [ -n "${JAVA_HOME:-}" ]; then home_of "$JAVA_HOME/bin/java" && return; fi
    for java in "$(command -v java || true)" \
        /usr/lib/jvm/*/bin/java \
        /opt/homebrew/opt/openjdk*/bin/java /usr/local/opt/openjdk*/bin/java \
        /Library/Java/JavaVirtualMachines/*/Contents/Home/bin/java; do
        home_of "$java" && return
    done
    return 1
}

find_java && exit

if [ "${1:-}" = --install ]; then
    say "Spark needs Java $wanted or newer, and none was found; installing it."
    case "$(package_manager)" in
    # The newest Debian and Ubuntu carry 21 in place of 17.
    apt-get) install_package openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless || true ;;
    dnf) install_package java-17-openjdk-headless java-21-openjdk-headless || true ;;
    apk) install_package openjdk17-jre-headless openjdk21-jre-headless || true ;;
    pacman) install_package jre17-openjdk-headless jre21-openjdk-headless || true ;;
    brew) install_package openjdk@17 || true ;;
    *) say "No package manager that this script knows (apt-get, dnf, apk, pacman, brew)." ;;
    esac
    if find_java; then exit; fi
    if [ -n "${HEADWATER_DRY_RUN:-}" ]; then exit; fi
fi

say "Headwater needs Java $wanted or newer for Spark, and found none."
say "  -> Install a Java $wanted runtime (Debian/Ubuntu: apt-get install openjdk-17-jre-headless;"
say "     Fedora: dnf install java-17-openjdk-headless; macOS: brew install openjdk@17;"
say "     others: https://adoptium.net), then set JAVA_HOME to its folder or put java on PATH,"
say "     and run 'make setup' again."
exit 1
