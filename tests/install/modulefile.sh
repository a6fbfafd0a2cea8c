#!/usr/bin/env bash
# modulefile.sh TREE BUILD: loads and unloads the modulefile of the bundle, in a folder with a space, with environment-modules. Loaded,
# it must find dtctl and its manual page and leave the system's pages; unloaded, it must restore PATH and MANPATH.
# Skipped (77) without environment-modules, man or the bundle's tools.
set -euo pipefail
tree=$1 build=$2
skip() { echo "skipped: $*"; exit 77; }
fail() { echo "FAILED: $*" >&2; exit 1; }
init=/usr/share/modules/init/bash
[ -r $init ] || skip "environment-modules is not installed (deploy/packages install)"
for tool in patchelf man; do command -v $tool >/dev/null || skip "$tool is not installed (deploy/packages install)"; done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
system_page=$(man -w bash 2>/dev/null) || system_page= # minimal systems have no manual pages
"$tree/deploy/bundle" --out "$work" "$build"
mkdir "$work/some folder"
tar -C "$work/some folder" -xf "$work"/dtd-*.tar.xz
bundle=$(echo "$work/some folder"/dtd-*)

for manpath in '' /usr/share/man; do
  unset MANPATH
  [ -z "$manpath" ] || export MANPATH=$manpath
  before="$PATH|${MANPATH-}"
  set +eu
  . $init
  module use "$bundle/share/modulefiles"
  module load dtd || fail "module load dtd failed"
  set -eu
  [ "$(command -v dtctl)" = "$bundle/bin/dtctl" ] || fail "the loaded module does not find dtctl, but $(command -v dtctl)"
  dtctl --version | grep -q '^dtctl [0-9]' || fail "dtctl --version failed"
  [ "$(man -w dtctl)" = "$bundle/share/man/man1/dtctl.1" ] || fail "man does not find dtctl's page with MANPATH=$MANPATH"
  [ "$(man -w bash 2>/dev/null || true)" = "$system_page" ] || fail "man no longer finds the system's pages with MANPATH=$MANPATH"
  set +eu
  module unload dtd
  module unuse "$bundle/share/modulefiles"
  set -eu
  [ "$PATH|${MANPATH-}" = "$before" ] || fail "unload left PATH|MANPATH as $PATH|${MANPATH-}, not $before"
done
echo "the modulefile loads and unloads"
