# command.sh: a command job: the environment of its ranks, a new c10d store for each attempt, the kill of a rank and of
# control, cancel, a program that does not exist, and workers that cannot be started.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/command_worker.sh"
up
run() { (cd "$tmp/work" && GIVEN="as it was" dtctl run "$@"); }

run --workers-per-node 2 --max-restarts 1 --env MORE=yes -- python3 "$tmp/worker.py" "$tmp/first" >"$tmp/said" || fail "$(cat "$tmp/said")"
job=$(dtctl status -o json | jq -r '.[0].job')
for rank in 0 1; do
  jq -e --arg r $rank --arg work "$tmp/work" --arg job "$job" '.RANK == $r and .LOCAL_RANK == $r and .ROLE_RANK == $r and
    .WORLD_SIZE == "2" and .LOCAL_WORLD_SIZE == "2" and .ROLE_WORLD_SIZE == "2" and .GROUP_RANK == "0" and
    .GROUP_WORLD_SIZE == "1" and .MASTER_ADDR == "127.0.0.1" and .TORCHELASTIC_RESTART_COUNT == "0" and
    .TORCHELASTIC_MAX_RESTARTS == "1" and .TORCHELASTIC_RUN_ID == $job and .TORCHELASTIC_USE_AGENT_STORE == "True" and
    .ROLE_NAME == "default" and .OMP_NUM_THREADS == "1" and .GIVEN == "as it was" and .MORE == "yes" and .cwd == $work' \
    "$tmp/first/$rank-of-2-restart-0" >/dev/null || fail "the environment of rank $rank: $(cat "$tmp/first/$rank-of-2-restart-0")"
done
dtctl logs "$job" --rank 1 | grep -q "rank 1 is in" || fail "no log of rank 1"

# A rank is killed: the other ranks end, and the next attempt has a new store (worker.py fails if the store was used
# before).
job=$(run --workers-per-node 3 --max-restarts 1 --detach -o json -- python3 "$tmp/worker.py" "$tmp/killed" "$tmp/hold" | jq -er .job)
wait_for 30 "three workers" all_in "$tmp/killed" 3 0
survivor=$(worker_pid "$job" 0)
kill -9 "$(worker_pid "$job" 1)"
wait_for 30 "three workers of the next attempt" all_in "$tmp/killed" 3 1
! kill -0 "$survivor" 2>/dev/null || fail "a worker of the previous attempt still runs"
dtctl why "$job" | grep -q "worker rank 1 .* killed by signal 9" || fail "$(dtctl why "$job")"

# Control is killed: its stores are lost, so the attempt ends. That does not count as a restart; the job has none left.
kill -9 "$(pid_of control)"
wait_for 30 "an attempt after control's end" status_epoch "$job" 3
wait_for 30 "its workers" third_attempt "$tmp/killed"
[ "$(status "$job" | jq .restarts)" = 1 ] || fail "the kill of control counted as a restart: $(status "$job")"
rm "$tmp/hold"
wait_done "$job"

touch "$tmp/hold"
job=$(run --workers-per-node 2 --detach -o json -- python3 "$tmp/worker.py" "$tmp/canceled" "$tmp/hold" | jq -er .job)
wait_for 30 "two workers" all_in "$tmp/canceled" 2 0
pid=$(worker_pid "$job" 1)
dtctl cancel "$job" >/dev/null
wait_for 30 "the end" is_state "$job" canceled
! kill -0 "$pid" 2>/dev/null || fail "a worker of a canceled job still runs"

rc=0
run -- no-such-program >"$tmp/said" 2>&1 || rc=$?
[ $rc = 4 ] && grep -q "exit status 127" "$tmp/said" || fail "$rc $(cat "$tmp/said")"
dtctl logs "$(dtctl status -o json | jq -r '.[-1].job')" | grep -q "no-such-program: no such program in PATH" || fail "no reason in the log"

# The job's folder cannot be created because a file has its name: no worker runs, and the job fails.
job=$(($(dtctl status -o json | jq -r '.[-1].job') + 1))
touch "$DTD_DIR/jobs/$job"
rc=0
run -- touch "$tmp/ran" >"$tmp/said" 2>&1 || rc=$?
[ $rc = 4 ] && grep -q "could not be started: Not a directory" "$tmp/said" || fail "$rc $(cat "$tmp/said")"
[ ! -e "$tmp/ran" ] && is_state "$job" failed && [ "$(status "$job" | jq -c '.worker[0].exit_status')" = null ] || fail "$(status "$job")"

run --nodes 2 --workers-per-node 2 -- true 2>"$tmp/said" && fail "a job for more nodes than there are was accepted"
grep -q "the job needs 2 nodes with 2 workers each, and there is 1;" "$tmp/said" || fail "$(cat "$tmp/said")"
dtctl resume "$job" 2>"$tmp/said" && fail "a command was resumed"
! grep "Sanitizer\|runtime error:\|illegal move\|Assertion" "$tmp/dtd/control.log" || fail "control has crashed"
