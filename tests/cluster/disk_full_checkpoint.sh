# The disk of the checkpoints is full: training continues, the failure is reported, the last checkpoint remains intact,
# and the next save succeeds as soon as there is space.
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" = 0 ] || skip "a small file system can only be mounted by root"
mkdir "$tmp/small"
mount -t tmpfs -o size=24m none "$tmp/small" 2>/dev/null || skip "no tmpfs can be mounted here"
write_job
up
job=$(submit --set model.dim=128 --set train.steps=100000 --set checkpoint.every=20 --set checkpoint.keep_last=1 --set checkpoint.dir="$tmp/small/ckpt")
committed() { [ "$(status "$1" | jq -r '.checkpoint_step // 0')" -ge "$2" ]; }
wait_for 60 "a first checkpoint" committed "$job" 20
head -c 100m /dev/zero >"$tmp/small/ballast" 2>/dev/null || true
wait_for 60 "the report" eval "status $job | jq -e '.checkpoint_error | test(\"space\")'"
status "$job" | jq -e '[.incident[].seen] | any(test("[Ss]pace"))' >/dev/null || { status "$job"; fail "no incident names the full disk"; }
status "$job" | jq -e ".checkpoint_error | test(\"no space left: [0-9]+ bytes are needed and [0-9]+ are free\")" >/dev/null || fail "the report: $(status "$job" | jq .checkpoint_error)"
last=$(status "$job" | jq -r .checkpoint_step)
at=$(step "$job")
wait_for 60 "more steps" reached "$job" $((at + 50))
is_state "$job" running || fail "training stopped: $(state "$job")"
dtctl ckpt verify "$tmp/small/ckpt/step-$last" >/dev/null || fail "step-$last is damaged"
rm "$tmp/small/ballast"
wait_for 60 "a commit after there was space" committed "$job" $((last + 1))
wait_for 20 "the error to be cleared" eval "status $job | jq -e '(.checkpoint_error // \"\") == \"\"'"
[ "$(status "$job" | jq .epoch)" = 1 ] || fail "the epoch ended"
dtctl cancel "$job" >/dev/null
wait_for 30 "the cancel" is_state "$job" canceled
