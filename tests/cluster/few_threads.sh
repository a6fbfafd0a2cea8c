#!/usr/bin/env bash
# A limit of processes and threads that leaves no room for dtd-control: dtctl up names the limit, and dtctl down ends dtd.
here=$(dirname "$0")
. "$here/lib.sh"
[ "$(id -u)" -eq 0 ] || skip "only root can become a user without other processes"
uid=65431
chmod 711 "$tmp"
mkdir "$DTD_DIR" && chown $uid "$DTD_DIR"
limited() { # LIMIT COMMAND...
  setpriv --reuid $uid --regid $uid --clear-groups bash -c 'ulimit -u "$0"; exec "$@"' "$@"
}
limited 100 test -x "$DTD_BIN/dtctl" || skip "another user cannot run $DTD_BIN/dtctl"
rc=0
limited 6 "$DTD_BIN/dtctl" up >"$tmp/out" 2>&1 || rc=$?
[ $rc -eq 1 ] || { cat "$tmp/out"; fail "up: exit $rc"; }
grep -q "dtd-control does not start: cannot start 8 threads: .*ulimit -u" "$tmp/out" || { cat "$tmp/out"; fail "up does not name the limit"; }
limited 100 "$DTD_BIN/dtctl" down >/dev/null 2>&1 || fail "down: exit $?"
limited 100 "$DTD_BIN/dtctl" up >/dev/null || fail "up with room for threads: exit $?"
limited 100 "$DTD_BIN/dtctl" run -- true >/dev/null || fail "run: exit $?"
