# The logs of workers on a small disk: a log is cut at its limit, and the bytes that are left out are named; a worker that
# fills the disk stops neither submits nor cancels of others, nor does it stop later jobs; while the disk is full of
# something else, a new job waits, and the warning names the folder and the largest logs.
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" = 0 ] || skip "a small file system can only be mounted by root"
mkdir "$tmp/small"
mount -t tmpfs -o size=160m none "$tmp/small" 2>/dev/null || skip "no tmpfs can be mounted here"
export DTD_DIR=$tmp/small/dtd
up
cd "$tmp"
used() { du -k "$DTD_DIR/jobs/$1/rank-0.log" | cut -f1; }

# 1. A limit: 30 MB of numbered lines, of which 8 MB remain.
cat >limited.yaml <<X
name: limited
command: [sh, -c, "seq 1000000 4999999; echo last"]
run: {restarts: 0, log_bytes: 8M}
parallel: {workers: 1}
X
job=$(dtctl submit limited.yaml --detach -o json | jq -er .job)
wait_done "$job"
short() { [ "$(used "$job")" -lt 20000 ]; }
wait_for 20 "a cut log" short
dtctl logs "$job" >out
[ "$(head -n 1 out)" = "[rank 0] 1000000" ] || [ "$(head -n 1 out)" = 1000000 ] || fail "the beginning: $(head -n 2 out)"
[ "$(tail -n 1 out | sed 's/.*] //')" = last ] || fail "the end: $(tail -n 2 out)"
grep -q "dtd left out [0-9]* bytes here" out || fail "no line names the bytes that were left out"
! grep -q -a -P '\x00' out || fail "zeros in the output"
[ "$(sed 's/^\[rank 0\] //' out | grep -v "left out" | grep -c -v -x '[1-4][0-9]\{6\}')" = 1 ] || fail "a line is incomplete"
left=$(sed -n 's/.*dtd left out \([0-9]*\) bytes.*/\1/p' out)
shown=$(sed 's/^\[rank 0\] //' out | grep -v "left out" | wc -c)
[ $((left + shown)) = $((4000000 * 8 + 5)) ] || fail "$left bytes left out and $shown shown, of $((4000000 * 8 + 5))"
[ "$(dtctl logs "$job" --tail 2 | sed 's/^\[rank 0\] //' | tr '\n' ' ')" = "4999999 last " ] || fail "$(dtctl logs "$job" --tail 2)"

# 2. A worker that writes as fast as it can, whatever happens; others submit and cancel.
dtctl run -d -n chatty -- sh -c 'trap "" PIPE; while :; do yes "step 1 loss 0.1" 2>/dev/null; done' >/dev/null
sleep 1
for i in 1 2 3 4 5; do
  timeout 20 "$DTD_BIN/dtctl" run -d -n other -o json -- sleep 60 >submitted 2>&1 || fail "submit $i: $(cat submitted)"
  id=$(jq -er .job submitted)
  timeout 20 "$DTD_BIN/dtctl" cancel "$id" >/dev/null 2>canceled || fail "cancel $i: $(cat canceled)"
  sleep 0.5
done
grep -q "middle of a worker's log is left out" "$DTD_DIR/control.log" || fail "no line in control.log"
chatty=$(dtctl status -o json | jq -er '.[] | select(.name == "chatty") | .job')
timeout 20 "$DTD_BIN/dtctl" cancel "$chatty" >/dev/null || fail "the job that fills the disk cannot be canceled"
wait_for 30 "its end" ended "$chatty"
timeout 20 "$DTD_BIN/dtctl" run -n after -- true >/dev/null || fail "a job after that"

# 3. The disk is full of something else.
fill() { head -c 200m /dev/zero >>"$tmp/small/ballast" 2>/dev/null || true; }
for _ in $(seq 12); do fill; sleep 0.3; done # until no log is left that is worth a cut
warned() { fill; dtctl node | grep -q "the disk of $DTD_DIR is full.*new jobs do not start.*largest logs: job "; }
wait_for 30 "the warning" warned
timeout 20 "$DTD_BIN/dtctl" run -d -n late -o json -- true >submitted || fail "a submit on a full disk: $(cat submitted)"
late=$(jq -er .job submitted)
sleep 1
is_state "$late" pending || fail "the job is $(state "$late")"
status "$late" | jq -er .reason | grep -q "no space left" || fail "the reason: $(status "$late" | jq .reason)"
timeout 20 "$DTD_BIN/dtctl" run -d -n later -o json -- true >submitted || fail "another submit: $(cat submitted)"
timeout 20 "$DTD_BIN/dtctl" cancel "$(jq -er .job submitted)" >/dev/null || fail "a cancel on a full disk"
rm "$tmp/small/ballast"
wait_done "$late"
is_state "$late" done || fail "the job is $(state "$late")"
