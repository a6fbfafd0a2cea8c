# command_output.sh: dtctl run shows the output of its workers: all lines once, by rank, while they run; also a progress
# bar, and also after control was killed. The exit status is the job's, 130 after Ctrl-C, 75 after a signal with --batch.
. "$(dirname "$0")/lib.sh"
unset PYTHONUNBUFFERED
up
cd "$tmp"
count() { grep -c -x -F "$1" "$2" || true; }

rc=0
mkdir -p logs/attempt-1 && echo "of an earlier run" >logs/attempt-1/rank-0.log
dtctl run --nproc-per-node 2 --max-restarts 1 --log-dir logs -- sh -c '
  echo "try $TORCHELASTIC_RESTART_COUNT of $RANK"; touch "$TORCHELASTIC_RESTART_COUNT-$RANK"
  until [ -e "$TORCHELASTIC_RESTART_COUNT-0" ]; do sleep 0.02; done
  [ $RANK = 0 ] && sleep 60; exit 3' >out || rc=$?
[ $rc = 4 ] || fail "exit status $rc"
for line in "[rank 0] try 0 of 0" "[rank 1] try 0 of 1" "[rank 0] try 1 of 0" "[rank 1] try 1 of 1" "  try 1 of 1"; do
  [ "$(count "$line" out)" = 1 ] || fail "'$line' is in the output $(count "$line" out) times: $(cat out)"
done
[ "$(grep -c "last lines of the failed worker" out)" = 1 ] && ! grep -q -x -F "  try 0 of 1" out || fail "$(cat out)"
for a in 0 1; do
  for r in 0 1; do
    [ "$(cat "logs/attempt-$a/rank-$r.log")" = "try $a of $r" ] || fail "attempt-$a/rank-$r.log: $(cat "logs/attempt-$a/rank-$r.log")"
  done
done

# One worker: no rank. Python's output is shown before the worker ends, and so is a bar that has no end of line yet.
cat >slow.py <<'X'
import os, sys, time
print("begins")
sys.stderr.write("\r10%"); sys.stderr.write("\r20%"); sys.stderr.flush()
while not os.path.exists("go"): time.sleep(0.05)
X
dtctl run -- python3 slow.py >out & pid=$!
wait_for 20 "the first line" grep -q -x begins out
wait_for 20 "the bar" grep -q "10%" out
touch go
wait $pid || fail "exit status $?"
rm go
PYTHONUNBUFFERED= dtctl run -- sh -c 'echo "set to <$PYTHONUNBUFFERED>"' >out
grep -q -x "set to <>" out || fail "PYTHONUNBUFFERED of the caller is not kept: $(cat out)"

# Control is killed while the job runs: its workers start again, and each line is shown once.
dtctl run --workers-per-node 2 -- sh -c 'for i in 1 2 3; do echo "line $i of $RANK, pid $$"; done; until [ -e go ]; do sleep 0.05; done; echo "end of $RANK"' >out 2>&1 & pid=$!
wait_for 20 "both workers" sh -c 'grep -q "line 3 of 0" out && grep -q "line 3 of 1" out'
kill -9 "$(pid_of control)"
wait_for 30 "the next attempt" sh -c '[ "$(grep -c "line 3 of [01]" out)" = 4 ]'
touch go
wait $pid || fail "exit status $?: $(cat out)"
[ "$(grep -c "end of" out)" = 2 ] || fail "the end is missing: $(cat out)"
[ -z "$(grep "pid" out | grep "line" | sort | uniq -d)" ] || fail "lines are shown twice: $(cat out)"
rm go

# --quiet only writes the files. A file that cannot be written is an error, and the job continues.
rc=0
dtctl run -q --log-dir logs -- sh -c 'echo done' >out || rc=$?
[ $rc = 0 ] && [ "$(cat logs/attempt-0/rank-0.log)" = "done" ] && ! grep -q -x "done" out || fail "$rc $(cat out)"
rm -r logs/attempt-0 && touch logs/attempt-0
dtctl run --log-dir logs -- sh -c 'echo done' >out 2>&1 || rc=$?
[ $rc = 1 ] && grep -q "cannot write the output of the workers: Not a directory" out || fail "$rc $(cat out)"

"$DTD_BIN/dtctl" run -- sleep 60 >out & pid=$!
wait_for 20 "a job" grep -q submitted out
sleep 0.5
kill -INT $pid
rc=0; wait $pid || rc=$?
job=$(dtctl status -o json | jq -r '.[-1].job')
[ $rc = 130 ] && ! ended "$job" || fail "after Ctrl-C: exit status $rc, job $(state "$job")"
"$DTD_BIN/dtctl" logs -f "$job" >/dev/null & pid=$!
sleep 0.5
kill -INT $pid
rc=0; wait $pid || rc=$?
[ $rc = 130 ] || fail "logs -f after Ctrl-C: exit status $rc"
dtctl cancel "$job" >/dev/null
"$DTD_BIN/dtctl" run --batch -- sh -c 'echo runs; exec sleep 60' >out & pid=$!
wait_for 20 "a line of the worker" grep -q -x runs out
kill -TERM $pid
rc=0; wait $pid || rc=$?
job=$(dtctl status -o json | jq -r '.[-1].job')
[ $rc = 75 ] && is_state "$job" canceled || fail "--batch after SIGTERM: exit status $rc, job $(state "$job")"
