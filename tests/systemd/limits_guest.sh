# Runs on the kernel that limits.sh has started, as root. The users are two that every Debian has.
set -euo pipefail
alice=daemon bob=games
export PATH=/run/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 DTD_DIR=/run/dtd
heading() { printf '== %s\n' "$*"; }
fail() { echo "FAILED: $*"; tail -n 40 /run/dtd.out; exit 1; }
wait_for() { # SECONDS WHAT COMMAND...
  local end=$(($(date +%s) + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ "$(date +%s)" -lt $end ] || fail "timeout while waiting for: $what"
    sleep 0.1
  done
}
as() { # USER COMMAND...
  local user=$1
  shift
  setpriv --reuid "$user" --regid "$user" --clear-groups env HOME="/run/$user" USER="$user" bash -c 'cd "$HOME" && exec "$@"' x "$@"
}
controllers=$(cat /sys/fs/cgroup/cgroup.controllers)
for c in memory cpu pids; do [[ " $controllers " == *" $c "* ]] || fail "this kernel has no controller $c: $controllers"; done

mkdir /run/bin
cp /run/share/{dtd,dtd-control,dtd-io,dt-worker,dtctl} /run/bin/
for user in $alice $bob; do install -d -o $user -g $user -m 700 /run/$user; done
printf 'state_dir: /run/state\nrun_dir: /run/dtd\nuser: nobody\nslots: 4\ngpus: "0"\njobs: {processes: 60}\n' >/run/dtd.yaml
DTD_LOG=debug /run/bin/dtd --system --config /run/dtd.yaml >/run/dtd.out 2>&1 &
supervisor=$!
wait_for 60 "dtd" dtctl node
tree=$(echo /sys/fs/cgroup/dtd-*)
[ -d "$tree/daemon" ] || fail "there are no control groups: $(grep 'control groups' /run/dtd.out)"

job_file() { # USER RUN COMMAND...: writes the file of a job of one worker with these keys of its section run
  local user=$1 run=$2 words
  shift 2
  words=$(printf '%s\n' "$@" | jq -R . | jq -sc .)
  printf '{name: x, command: %s, parallel: {workers: 1}, run: {restarts: 0%s}}\n' "$words" "$run" >/run/job.yaml
  install -o "$user" -m 600 /run/job.yaml "/run/$user/job.yaml"
}
job() { # USER RUN COMMAND...: submits such a job; prints its number
  job_file "$@"
  as "$1" dtctl submit job.yaml --detach -o json | jq -er .job
}
status() { dtctl status "$1" -o json; }
ended() { case $(status "$1" | jq -r .state) in done | failed | canceled) ;; *) return 1 ;; esac; }
reason_has() { # JOB TEXT
  status "$1" | jq -r .reason | grep -qF "$2" || fail "the reason of job $1 does not have \"$2\": $(status "$1" | jq -r .reason)"
}
timed() { # COMMAND...: prints the milliseconds that it takes
  local begin
  begin=$(date +%s%N)
  "$@" >/run/timed
  echo $((($(date +%s%N) - begin) / 1000000))
}
# Control answers a submit as fast as it answers `dtctl node`; the rest of the time the programs need that a user starts.
submit_timed() { # USER WHAT
  local user=$1 what=$2 submit node start
  job_file "$user" "" true
  start=$(timed as "$user" dtctl --version)
  node=$(timed as "$user" dtctl node)
  submit=$(timed as "$user" dtctl submit job.yaml --detach -o json)
  echo "$what: dtctl submit of $user takes $submit ms, dtctl node $node ms, dtctl --version $start ms"
  j=$(jq -er .job /run/timed)
}
alone() { # USER: a job of the other user is done within 20 s
  local j
  submit_timed "$1" "beside the attack"
  wait_for 20 "job $j of $1 beside the attack" ended "$j"
  [ "$(status "$j" | jq -r .state)" = done ] || fail "job $j of $1: $(status "$j")"
}
total=$(awk '/^MemTotal/ {print $2 * 1024}' /proc/meminfo)

heading "a job has its share: 90 % of the memory by 4 slots, 60 processes for each worker and 256 for dtd-io"
j=$(job $alice "" sleep 300)
runs() { [ "$(cat "$tree/job-$1/rank-0/cgroup.procs")" ]; }
wait_for 20 "job $j" runs "$j"
want=$((total / 100 * 90 / 4)) got=$(cat "$tree/job-$j/memory.max")
[ $((want - got)) -lt 8192 ] && [ $((got - want)) -lt 8192 ] || fail "memory.max is $got, not $want"
[ "$(cat "$tree/job-$j/pids.max")" = 316 ] || fail "pids.max is $(cat "$tree/job-$j/pids.max")"
[ "$(cat "$tree/job-$j/cpu.max")" = "max 100000" ] || fail "cpu.max is $(cat "$tree/job-$j/cpu.max")"
[ "$(cat "$tree/daemon/cpu.weight")" = 1000 ] || fail "cpu.weight of dtd is $(cat "$tree/daemon/cpu.weight")"
[ "$(cat "$tree/job-$j/cpu.weight")" = 100 ] || fail "cpu.weight is $(cat "$tree/job-$j/cpu.weight")"
dtctl cancel "$j" >/dev/null
wait_for 40 "the end of job $j" ended "$j"
gone() { [ ! -d "$tree/job-$1/rank-0" ]; }
wait_for 10 "the end of its group" gone "$j"

heading "run.memory and run.cores: the kernel ends a job that needs more, and the reason names the limit and the key"
j=$(job $alice ", memory: 100M, cores: 2" tail /dev/zero)
wait_for 60 "the end of job $j" ended "$j"
reason_has "$j" "was killed by signal 9 (Killed): the kernel killed it because the job's memory limit on this node, 95.37 MiB, was reached (memory.max); raise run.memory"
j=$(job $alice ", memory: 64M, cores: 2" sleep 300)
wait_for 20 "job $j" runs "$j"
[ "$(cat "$tree/job-$j/memory.max")" = $((64000000 / 4096 * 4096)) ] ||
  fail "memory.max is $(cat "$tree/job-$j/memory.max")"
[ "$(cat "$tree/job-$j/cpu.max")" = "200000 100000" ] || fail "cpu.max is $(cat "$tree/job-$j/cpu.max")"
dtctl cancel "$j" >/dev/null
wait_for 40 "the end of job $j" ended "$j"

heading "a worker that is not the one that needs the memory sees its child killed"
j=$(job $alice ", memory: 100M" sh -c 'tail /dev/zero; exit 3')
wait_for 60 "the end of job $j" ended "$j"
reason_has "$j" "ended with exit status 3: the kernel killed a process that it had started because the job's memory limit"

heading "a job cannot use the memory of another user's: the share ends it"
other=$(job $bob "" sleep 300)
j=$(job $alice "" tail /dev/zero)
wait_for 60 "the end of job $j" ended "$j"
reason_has "$j" "the kernel killed it because the job had used up its share of the node's memory, "
reason_has "$j" "jobs.memory_percent"
[ "$(status "$other" | jq -r .state)" = running ] || fail "the job of $bob: $(status "$other")"
dtctl cancel "$other" >/dev/null

heading "a job that forks without end stops at its limit, and another user's job runs beside it"
cat >/run/bomb <<'X'
echo $$ >/run/daemon/bomb
bomb() { while :; do (bomb) & done; }
bomb 2>/dev/null
X
submit_timed $bob "beside nothing"
wait_for 20 "job $j of $bob" ended "$j"
j=$(job $alice "" bash /run/bomb)
full() { [ "$(cat "$tree/job-$j/pids.current")" -ge 300 ]; }
wait_for 60 "the bomb" full
alone $bob
[ "$(cat "$tree/job-$j/pids.current")" -le 316 ] || fail "the job has $(cat "$tree/job-$j/pids.current") processes"
dtctl cancel --now "$j" >/dev/null
wait_for 60 "the end of job $j" ended "$j"
[ "$(pgrep -c -u $alice || true)" = 0 ] || fail "processes of $alice are left: $(pgrep -a -u $alice | head)"

heading "setsid and a double fork do not escape, and the slots are free only after the end of all processes"
j=$(job $alice "" sh -c 'setsid -f env -i setsid -f sleep 300; sleep 0.5')
wait_for 30 "the end of job $j" ended "$j"
[ "$(status "$j" | jq -r .state)" = done ] || fail "job $j: $(status "$j")"
[ "$(pgrep -c -u $alice || true)" = 0 ] || fail "processes of $alice are left: $(pgrep -a -u $alice)"

heading "dtd ends, and leaves no group"
kill -TERM $supervisor
wait $supervisor || fail "dtd ended with $?"
[ "$(ls -d /sys/fs/cgroup/dtd-* 2>/dev/null | wc -l)" = 0 ] || fail "groups are left: $(find /sys/fs/cgroup/dtd-*)"
heading "passed"
