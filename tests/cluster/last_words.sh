# `dtctl why` shows the last lines of the process that failed, and never those of an earlier one in the same log.
. "$(dirname "$0")/lib.sh"
up
cd "$tmp"
job=$(dtctl run -d --max-restarts 2 -o json -- sh -c 'case $TORCHELASTIC_RESTART_COUNT in
  0) echo "first failure"; exit 1 ;; 1) exec sleep 60 ;; 2) printf "third failure, no newline"; exit 3 ;; esac' | jq -er .job)
second_runs() { status "$job" | jq -e '.restarts == 1 and .state == "running"'; }
wait_for 20 "the second process" second_runs
kill -9 "$(worker_pid "$job" 0)"
wait_for 20 "the end of the job" ended "$job"
dtctl why "$job" -o json >"$tmp/why"
expect() { # INCIDENT LINES
  local log
  log=$(jq -r ".[$1].log // \"\"" "$tmp/why")
  [ "$log" = "$2" ] || { cat "$tmp/why"; fail "incident $1 shows '$log', expected '$2'"; }
}
expect 0 "first failure"
expect 1 ""
expect 2 "third failure, no newline"
[ "$(dtctl logs "$job" | grep -c 'started again at')" = 2 ] || fail "logs do not separate the processes"
