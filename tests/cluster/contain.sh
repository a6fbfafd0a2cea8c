# What a job has started ends with it, even if it left the process group by setsid and a double fork, and dropped its environment. First
# without a control group for the job, then with one that is delegated to dtd.
. "$(dirname "$0")/lib.sh"
command -v python3 >/dev/null || skip "python3 is not installed (deploy/packages test)"

# escape.py NAME [CLEAR]: leaves a process in a session of its own, whose parents have ended, and writes its id to NAME.
cat >"$tmp/escape.py" <<'X'
import os, sys, time
name, clear = sys.argv[1], len(sys.argv) > 2
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        if os.environ.pop("AGAIN", None) is None:
            environment = {"AGAIN": "1"} if clear else dict(os.environ, AGAIN="1")
            os.execve(sys.executable, [sys.executable, "-c", f"""
import os, time
open({name!r} + '.new', 'w').write(str(os.getpid()))
os.rename({name!r} + '.new', {name!r})
child = os.fork()
if child == 0:
    open({name!r} + '-child', 'w').write(str(os.getpid()))
time.sleep(300)
"""], environment)
    os._exit(0)
os.wait()
while not os.path.exists(name + "-child"):
    time.sleep(0.01)
X
alive() { [ -d "/proc/$1" ] && ! grep -q '^State:.Z' "/proc/$1/status" 2>/dev/null; }
gone() { ! alive "$1"; }

# The job ends by itself while a process that it has started waits for 300 s. The end of the job is reported when that is gone.
escapes() { # NAME [CLEAR]
  local job name=$tmp/$1 p
  job=$(dtctl run -d -o json -- python3 "$tmp/escape.py" "$name" "${@:2}" | jq -er .job)
  wait_for 30 "job $job to end" ended "$job"
  is_state "$job" done || { status "$job"; fail "job $job is $(state "$job")"; }
  for p in "$(cat "$name")" "$(cat "$name-child")"; do
    alive "$p" && fail "process $p of job $job ($1) has outlived it"
  done
  return 0
}

# A worker is killed while another job of the user runs: only what belongs to the worker ends.
other_is_left() {
  local one other
  other=$(dtctl run -d -o json -- sh -c "python3 $tmp/escape.py $tmp/$1-kept; sleep 300" | jq -er .job)
  one=$(dtctl run -d -o json -- sh -c "python3 $tmp/escape.py $tmp/$1-lost; sleep 300" | jq -er .job)
  for name in kept lost; do wait_for 30 "$name" test -s "$tmp/$1-$name-child"; done
  dtctl cancel "$one" >/dev/null
  wait_for 30 "job $one to end" ended "$one"
  alive "$(cat "$tmp/$1-lost")" && fail "the process of job $one has outlived it"
  alive "$(cat "$tmp/$1-kept")" || fail "a process of job $other ended with job $one"
  dtctl cancel "$other" >/dev/null
  wait_for 30 "job $other to end" ended "$other"
  alive "$(cat "$tmp/$1-kept")" && fail "the process of job $other has outlived it"
  return 0
}

up
escapes plain
escapes cleared CLEAR
other_is_left descent
limited() { # KEY: the end of a job with this key
  echo "{name: x, command: [sleep, '300'], parallel: {workers: 1}, run: {restarts: 3, $1}}" >"$tmp/limited.yaml"
  local job
  job=$(dtctl submit "$tmp/limited.yaml" --detach -o json | jq -er .job)
  wait_for 30 "the end of job $job" ended "$job"
  status "$job" | jq -r '"\(.state), \(.restarts) restarts: \(.reason)"'
}
if [ "$(id -u)" = 0 ]; then # a user's own dtd may be in a delegated group
  for key in "memory: 1G" "cores: 1"; do
    limited "$key" >"$tmp/limited"
    grep -q "^failed, 0 restarts: .*could not be started: run.memory and run.cores need a control group that is delegated to dtd on .*remove the key" \
      "$tmp/limited" || fail "a job with $key: $(cat "$tmp/limited")"
  done
fi
dtctl down >/dev/null
echo "without a control group: setsid, a double fork and a cleared environment do not escape"

# ---- with a delegated control group ----
cg2=$(awk '$3 == "cgroup2" {print $2; exit}' /proc/mounts)
group=$cg2/dtd-contain-$$
[ "$(id -u)" = 0 ] && [ -n "$cg2" ] && mkdir "$group" 2>/dev/null || skip "the rest needs root and cgroup2"
leave_group() { echo $$ >"$cg2/cgroup.procs"; find "$group" -depth -type d -exec rmdir {} + 2>/dev/null; }
trap 'rc=$?; leave_group; (exit $rc); finish' EXIT
python3 -c "import os, sys; os.setxattr(sys.argv[1], 'user.delegate', b'1')" "$group" 2>/dev/null || skip "cgroup2 has no extended attributes"
echo $$ >"$group/cgroup.procs"
up
ls -d "$group"/dtd-*/daemon >/dev/null || fail "dtd made no control groups in one that is delegated to it"
escapes group
escapes group-cleared CLEAR
other_is_left group
[ -z "$(ls -d "$group"/dtd-*/job-*/*/ 2>/dev/null)" ] || fail "groups of ended processes are left: $(ls -d "$group"/dtd-*/job-*/*/)"

# The supervisor is killed: the next one ends what is left, and removes the groups.
dtctl run -d -- sh -c "python3 $tmp/escape.py $tmp/orphan; sleep 300" >/dev/null
wait_for 30 "the process" test -s "$tmp/orphan-child"
kill -9 "$(pid_of supervisor)"
sleep 0.5
alive "$(cat "$tmp/orphan")" || fail "the test expects that only the next dtd ends the process"
up
wait_for 10 "the end of the process" gone "$(cat "$tmp/orphan")"
[ "$(ls -d "$group"/dtd-* | wc -l)" = 1 ] || fail "groups of the killed dtd are left: $(ls -d "$group"/dtd-*)"
dtctl down >/dev/null
[ -z "$(ls -d "$group"/dtd-* 2>/dev/null)" ] || fail "dtd has left its groups: $(ls -d "$group"/dtd-*)"
echo "with a control group: nothing escapes, and the next dtd ends what a killed one has left"
