# The state directory is full: training and checkpoints continue, status and why show it, and new jobs are refused with
# the cause. As soon as there is space, new jobs are accepted again, and an incident records the time without space.
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" = 0 ] || skip "a small file system can only be mounted by root"
mkdir "$tmp/small"
mount -t tmpfs -o size=64m none "$tmp/small" 2>/dev/null || skip "no tmpfs can be mounted here"
export DTD_DIR=$tmp/small/dtd
write_job
up
job=$(submit --set train.steps=100000 --set checkpoint.every=50 --set checkpoint.keep_last=2)
wait_for 60 "steps" reached "$job" 60
head -c 100m /dev/zero >"$tmp/small/ballast" 2>/dev/null || true
newest() { ls -d "$tmp"/ckpt/step-* 2>/dev/null | sed 's/.*step-//' | sort -n | tail -n 1; }
newer() { [ "$(newest)" -gt "$1" ]; }
at=$(step "$job") have=$(newest)
wait_for 60 "more steps" reached "$job" $((at + 200))
wait_for 60 "a newer checkpoint on disk" newer "$have"
if submit --set checkpoint.dir="$tmp/other" >"$tmp/out" 2>&1; then fail "a job was accepted although the log is full"; fi
grep -qi space "$tmp/out" || { cat "$tmp/out"; fail "the refusal does not name the cause"; }
is_state "$job" running || fail "training stopped: $(state "$job")"
[[ $(status "$job" | jq -r .reason) == "state directory full since"* ]] || fail "status does not show the reason: $(status "$job")"
dtctl why "$job" | grep -q "state directory full since" || fail "why does not show the reason: $(dtctl why "$job")"
rm "$tmp/small/ballast"
second=
again() { second=$(submit --set checkpoint.dir="$tmp/other2") && echo "$second" >"$tmp/second"; }
wait_for 60 "a new job after there was space" again
wait_done "$(cat "$tmp/second")"
is_state "$job" running || fail "the first job is $(state "$job")"
[ "$(status "$job" | jq -r '.reason // ""')" = "" ] || fail "the job still has a reason: $(status "$job" | jq .reason)"
told() { [ "$(status "$job" | jq '[.incident[] | select(.seen | contains("state directory full since"))] | length')" = 1 ]; }
wait_for 30 "the incident" told
[ "$(status "$job" | jq .epoch)" = 1 ] || fail "the epoch ended"
dtctl cancel "$job" >/dev/null
wait_for 30 "the cancel" is_state "$job" canceled
