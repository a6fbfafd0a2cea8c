# grace.sh: how workers are stopped: the time of grace, the stop signal, cancel --now and another cancel, for commands and
# for a training job. Jobs that must not be killed for their time have a grace of a day, so nothing depends on the speed
# of the machine.
. "$(dirname "$0")/lib.sh"
write_job
up
cat >"$tmp/worker.py" <<'X2'
"""worker.py FOLDER WORD...: rank R does what WORD R says. deaf: ignores SIGTERM. saves: on SIGUSR1 writes the file saved-R
and exits. fails: exits with 3 when there is a file FOLDER/fail. waits: nothing. Each rank first writes the file ready-R."""
import os, signal, sys, time
folder, word, rank = sys.argv[1], sys.argv[2 + int(os.environ['RANK'])], os.environ['RANK']
def save(*args):
    open('%s/saved-%s' % (folder, rank), 'w').close()
    os._exit(0)
if word == 'deaf':
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if word == 'saves':
    signal.signal(signal.SIGUSR1, save)
os.makedirs(folder, exist_ok=True)
open('%s/ready-%s' % (folder, rank), 'w').close()
while word != 'fails' or not os.path.exists(folder + '/fail'):
    time.sleep(0.05)
sys.exit(3)
X2
all_ready() { [ "$(ls "$1" | grep -c '^ready-')" = "$2" ]; }
# start NAME WORDS OPTIONS...: starts a worker for each of WORDS and sets `job`
start() {
  local name=$1 words=$2
  shift 2
  job=$(dtctl run --workers-per-node "$(wc -w <<<"$words")" --detach -o json "$@" -- python3 "$tmp/worker.py" "$tmp/$name" $words | jq -er .job)
  wait_for 60 "the workers of $name" all_ready "$tmp/$name" "$(wc -w <<<"$words")"
}
# cancel yes|no OPTIONS...: cancels `job`; whether dtctl then offers to end it at once
cancel() {
  local offer=$1
  shift
  dtctl cancel "$@" "$job" >"$tmp/said" || fail "$(cat "$tmp/said")"
  if grep -q "To end it at once: dtctl cancel --now $job" "$tmp/said"; then [ $offer = yes ]; else [ $offer = no ]; fi ||
    fail "cancel $*, expected the offer to end it at once: $offer; $(cat "$tmp/said")"
}
# canceled_as PATTERN: `job` ends as canceled, with this reason, and no worker of it is left
canceled_as() {
  local pids
  pids=$(status "$job" | jq -r '.worker[].pid')
  wait_for 60 "the end of job $job" ended "$job"
  is_state "$job" canceled && status "$job" | jq -r .reason | grep -qE "^$1\$" || fail "expected $1: $(status "$job")"
  for pid in $pids; do ! kill -0 "$pid" 2>/dev/null || fail "worker $pid of job $job still runs"; done
}

# One worker ends by SIGTERM, the other one is killed when its second is over.
start short "waits deaf" --grace 1
cancel yes
canceled_as 'canceled; worker rank 0 ended after SIGTERM, worker rank 1 received SIGKILL after [1-9][0-9]* s of grace'

# The same after the failure of a worker: the incident names the worker that was killed.
start failure "fails deaf" --grace 1
touch "$tmp/failure/fail"
wait_for 60 "the failure" is_state "$job" failed
dtctl why "$job" >"$tmp/said"
grep -q "worker rank 0 .* exit.* status 3" "$tmp/said" && tr -s ' \n' ' ' <"$tmp/said" | grep -q "worker rank 1 received SIGKILL after" ||
  fail "$(cat "$tmp/said")"

# SIGUSR1 instead of SIGTERM, which would end these workers without their files.
start signal "saves saves" --grace 86400 --stop-signal USR1
cancel yes
canceled_as 'canceled; all 2 workers ended after SIGUSR1'
[ -e "$tmp/signal/saved-0" ] && [ -e "$tmp/signal/saved-1" ] || fail "SIGUSR1 did not reach the workers"

# cancel --now sends no other signal first: the worker would have saved.
start now "saves deaf" --grace 86400 --stop-signal USR1
cancel no --now
canceled_as 'canceled; all 2 workers received SIGKILL at once'
[ ! -e "$tmp/now/saved-0" ] || fail "cancel --now sent the stop signal"

# Another cancel of a job that stops: with a time of its own it does not end the job, without one it does.
start again "deaf deaf" --grace 7200
cancel yes
status "$job" | jq -e '.grace_left_ms > 0 and .grace_left_ms <= 7200000' >/dev/null || fail "$(status "$job")"
cancel yes --grace 86400
status "$job" | jq -e '.grace_left_ms > 7200000' >/dev/null || fail "--grace of another cancel has no effect: $(status "$job")"
cancel no
canceled_as 'canceled; all 2 workers received SIGKILL after [0-9]+ s of grace'

# A control that starts meanwhile continues to stop the job, and its next cancel is another one as well.
start control "deaf" --grace 86400
cancel yes
kill -9 "$(pid_of control)"
wait_for 60 "control to stop the job again" is_state "$job" stopping
kill -0 "$(worker_pid "$job" 0)" || fail "the start of control has ended the worker"
cancel no
canceled_as 'canceled; worker rank 0 received SIGKILL after [0-9]+ s of grace'

# A training job saves the step at which it stops. What it saves is what it reports.
train() { job=$(submit --set train.steps=1000000 --set checkpoint.every=0 --set "checkpoint.dir=$1" --set run.hang_seconds=0); }
train saved
wait_for 60 "step 5" reached "$job" 5
cancel yes --save
canceled_as 'canceled, with a checkpoint saved first'
[ -d "$tmp/saved/step-$(step "$job")" ] || fail "no checkpoint of step $(step "$job"): $(ls "$tmp/saved")"

# The time of grace does not concern workers that have done all steps.
job=$(submit --set checkpoint.dir=done --set run.grace_seconds=0)
wait_done "$job"
[ "$(status "$job" | jq -c '[.worker[].exit_status]')" = '[0,0]' ] || fail "workers of a job that is done were killed: $(status "$job")"

# A worker that is stopped by SIGSTOP cannot save. Its time of grace ends, or another cancel ends it; the reason reports that
# nothing was saved.
for how in grace another; do
  train "none-$how"
  wait_for 60 "step 5" reached "$job" 5
  kill -STOP "$(worker_pid "$job" 1)"
  if [ $how = grace ]; then
    cancel yes --save --grace 2
    canceled_as 'canceled; the time of grace was over before the workers had saved, so no checkpoint of their last step was saved'
  else
    cancel yes --save --grace 86400
    cancel no
    canceled_as 'canceled; a second cancel ended the workers at once, so no checkpoint of their last step was saved'
  fi
  [ -z "$(ls -d "$tmp/none-$how"/step-* 2>/dev/null)" ] || fail "a checkpoint was saved: $(ls "$tmp/none-$how")"
done
! grep "Sanitizer\|runtime error:\|illegal move\|Assertion" "$tmp/dtd/control.log" || fail "control has crashed"
