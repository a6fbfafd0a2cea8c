# A second dtd on the same directory refuses to start and names the pid of the first one, which is not disturbed.
. "$(dirname "$0")/lib.sh"
up
first=$(pid_of supervisor)
set +e
timeout 10 "$DTD_BIN/dtd" --state-dir "$DTD_DIR" >"$tmp/out" 2>&1
rc=$?
set -e
[ $rc -ne 0 ] && [ $rc -ne 124 ] || fail "the second dtd ended with $rc"
grep -q "$first" "$tmp/out" || { cat "$tmp/out"; fail "the refusal does not name pid $first"; }
[ "$(pid_of supervisor)" = "$first" ] && dtctl status >/dev/null || fail "the first was disturbed"
dtctl up | grep -qi "already\|running" || fail "dtctl up does not report the running dtd"
