#!/bin/sh
# Installs the Debian packages that building weft needs and that are missing; arguments are further packages. --mpi and
# --mpich stand for the packages of OpenMPI and of MPICH: MPI is optional, a build without it runs ranks as threads.
#
# As root, or where sudo asks for no password, it installs them. Otherwise it prints the one command to run and ends
# with 2. On a system without dpkg it only names them.
set -eu

packages="g++ cmake ninja-build pkg-config libfmt-dev nlohmann-json3-dev libcli11-dev libpcre2-dev libhwy-dev libgtest-dev"
for argument in "$@"; do
  shift
  case $argument in
    --mpi) set -- "$@" libopenmpi-dev openmpi-bin ;;
    --mpich) set -- "$@" libmpich-dev mpich ;;
    *) set -- "$@" "$argument" ;;
  esac
done

if ! command -v dpkg-query >/dev/null 2>&1; then
  echo "No dpkg here. weft needs what Debian 12 calls: $packages $*" >&2
  exit 0
fi

missing=
for package in $packages "$@"; do
  status=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ]; then
  as_root=
elif sudo -n true 2>/dev/null; then
  as_root="sudo -n"
else
  echo "Missing Debian packages. Install them with this command, then run make again:" >&2
  echo "    sudo sh -c 'apt-get update && apt-get install -y --no-install-recommends$missing'" >&2
  exit 2
fi

echo "Installing Debian packages:$missing" >&2
$as_root apt-get update -q
# shellcheck disable=SC2086  # a list of words
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing
