# The state directory is full: training and checkpoints continue, jobs are submitted and canceled, and new jobs wait with
# the cause. As soon as there is space, they start.
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
is_state "$job" running || fail "training stopped: $(state "$job")"
warned() { dtctl node | grep -q "the disk of $DTD_DIR is full: 0 MiB free; new jobs do not start on this node"; }
wait_for 30 "the warning" warned
second=$(submit --set checkpoint.dir="$tmp/other") || fail "a job was not accepted although the log has its reserve"
third=$(submit --set checkpoint.dir="$tmp/other2") || fail "the next job was not accepted"
dtctl cancel "$third" >/dev/null || fail "a job cannot be canceled"
is_state "$third" canceled || fail "the canceled job is $(state "$third")"
is_state "$second" pending || fail "the second job is $(state "$second")"
waits() { status "$1" | jq -er .reason | grep -q "has no space left for its state"; }
wait_for 10 "the reason of the job that waits" waits "$second"
kill -9 "$(pgrep -P "$(head -n 1 "$DTD_DIR/dtd.lock")" -x dtd-control)" # what was acknowledged is not lost
wait_for 60 "the state of the jobs after control ended" status "$second"
is_state "$third" canceled || fail "the canceled job is $(state "$third")"
rm "$tmp/small/ballast"
wait_done "$second"
is_state "$second" done || fail "the second job is $(state "$second")"
is_state "$job" running || fail "the first job is $(state "$job")"
[ "$(status "$job" | jq .epoch)" = 1 ] || fail "the epoch ended"
dtctl cancel "$job" >/dev/null
wait_for 30 "the cancel" is_state "$job" canceled
