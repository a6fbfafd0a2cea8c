# no_record.sh: a command that would change nothing is answered without a record in the log: the second cancel of a job
# that is stopping, which still ends it at once, and a drain or undrain of a node that is so already.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/several.sh"
begin_nodes a
index() { on a node -o json | jq -er .raft_index; }
run() { on a "$@" >"$tmp/said" 2>&1 || fail "$*: $(cat "$tmp/said")"; }
records() { # records COMMAND...: it is recorded
  local before=$(index)
  run "$@"
  [ "$(index)" -gt "$before" ] || fail "$*: no record"
}
# no_record COMMAND...: five of them make less than five records. Others may come, such as one of a job that has started.
no_record() {
  local before=$(index) i
  for i in 1 2 3 4 5; do run "$@"; done
  [ "$(index)" -lt $((before + 5)) ] || fail "$*: from $before to $(index) after five of them"
}

records node drain a --reason "memory is replaced"
no_record node drain a --reason "memory is replaced"
records node drain a --reason "disk is replaced"
records node undrain a
no_record node undrain a

# The worker ignores SIGTERM and has a day, so the job is stopping until the last cancel.
cat >"$tmp/deaf.sh" <<X
trap '' TERM
touch "$tmp/ready"
while :; do sleep 0.05; done
X
job=$(on a run -d -o json --grace 86400 -- bash "$tmp/deaf.sh" | jq -er .job)
job_is() { on a status "$job" -o json | jq -e ".state == \"$1\""; }
wait_for 60 "the worker" test -e "$tmp/ready"
wait_for 60 "the job to run" job_is running
records cancel --grace 86400 "$job"
no_record cancel --grace 80000 "$job"
! job_is canceled >/dev/null || fail "the job has ended"
no_record cancel "$job" # the first of them ends the time of grace
wait_for 60 "the end of the job" job_is canceled
no_record cancel "$job"
end_nodes
