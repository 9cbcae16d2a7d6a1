#!/bin/sh
# Build the image from Debian packages and wheels, without a registry and without rights of root:
#   build.sh WHEELS [NAME]
# WHEELS is a directory with the wheels of Headwater and of all it needs; see docs/guides/container.md.
# DEBIAN_MIRROR names another source of packages, such as a snapshot or a local mirror, to pin them.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 1 ] && [ -d "$1" ] || { echo "usage: build.sh WHEELS [NAME]" >&2; exit 2; }
wheels=$(cd "$1" && pwd)
name=${2:-headwater}
suite=bookworm
packages=openjdk-17-jre-headless,python3,python3-venv,tini,procps,ca-certificates

for program in mmdebstrap buildah; do
    command -v "$program" >/dev/null || { echo "$program is missing: apt-get install mmdebstrap buildah uidmap" >&2; exit 3; }
done
if [ -f "$wheels/SHA256SUMS" ]; then # written when the wheels were chosen
    (cd "$wheels" && sha256sum --quiet --check SHA256SUMS)
fi
# One time for all files, so that the same packages and wheels give the same layers.
: "${SOURCE_DATE_EPOCH:=$(git -C "$here" log -1 --format=%ct)}"
STEADY_CACERTS="$here/steady_cacerts.py"
export SOURCE_DATE_EPOCH STEADY_CACERTS

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
echo "base: Debian $suite with $packages"
# Java's packages link manual pages into that directory.
mmdebstrap --quiet --variant=minbase --include="$packages" --essential-hook='mkdir -p "$1/usr/share/man/man1"' \
    --customize-hook='chroot "$1" python3 - "$SOURCE_DATE_EPOCH" < "$STEADY_CACERTS"' \
    --dpkgopt=force-unsafe-io --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
    "$suite" "$scratch/base.tar" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"}

base=$(buildah from scratch)
buildah add --quiet "$base" "$scratch/base.tar" / >/dev/null
buildah commit --quiet --timestamp "$SOURCE_DATE_EPOCH" --rm "$base" headwater-base >/dev/null
echo "image: $name"
# The format of Docker, because that of OCI has no health check. Isolation by chroot needs no runtime, and no rights of root.
buildah build --quiet --isolation chroot --pull-never --format docker --timestamp "$SOURCE_DATE_EPOCH" \
    --volume "$wheels:/wheels:ro" --build-arg BASE=localhost/headwater-base --tag "$name" "$here"
