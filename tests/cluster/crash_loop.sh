# crash_loop.sh: a command that fails soon after each start. The waits between its attempts are 0, 1, 2 and 4 s, status
# shows the time of the next attempt, a cancel ends the wait, and an attempt that lives longer than 10 s resets it.
. "$(dirname "$0")/lib.sh"
up
mkdir "$tmp/work"
run() { (cd "$tmp/work" && dtctl run --max-restarts 1000 --detach -o json -- "$@" | jq -er .job); }
attempts() { [ "$(wc -l <"$tmp/work/$1")" -ge "$2" ]; }
waits_in_log() { grep -c "next epoch waits job=$1 " "$DTD_DIR/control.log" || true; }

job=$(run sh -c 'date +%s.%N >>loop; exit 3')
wait_for 60 "five attempts" attempts loop 5
reason() { status "$1" | jq -er .reason; }
wait_for 5 "the wait for the sixth" sh -c "DTD_DIR='$DTD_DIR' '$DTD_BIN/dtctl' status $job -o json | jq -e '.restarts == 5 and .state == \"recovering\"'"
[[ $(reason "$job") == "5 epochs in a row failed within 10 s of their start; the next one starts at "* ]] || fail "$(reason "$job")"
next=$(date -d "$(reason "$job" | sed 's/.* starts at \([^ ]*\)\..*/\1/')" +%s)
dtctl cancel "$job" >/dev/null
wait_for 30 "the end of the canceled job" is_state "$job" canceled
[ "$(date +%s)" -le "$next" ] || fail "the cancel has waited for the next attempt"
attempts loop 6 && fail "an attempt began after the cancel"
awk 'NR > 1 && $1 - last < least { print "attempt " NR " began " $1 - last " s after the one before, not " least; bad = 1 }
  { last = $1; least = NR == 1 ? 0 : NR == 2 ? 1 : 2 * least } END { exit bad }' "$tmp/work/loop" || fail "an attempt began too early"

# The attempts 1 and 2 fail at once, which makes one wait. The third lives longer, so the failure of the fourth is the
# first of a new row.
job=$(run sh -c 'date >>long; case $(wc -l <long) in 1 | 2 | 4) exit 3 ;; 3) sleep 10.5; exit 3 ;; esac')
wait_done "$job" 60
[ "$(status "$job" | jq .restarts)" = 4 ] || fail "$(status "$job")"
[ "$(waits_in_log "$job")" = 1 ] || fail "waits: $(grep "next epoch waits" "$DTD_DIR/control.log")"
