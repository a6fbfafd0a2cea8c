# kill_daemon.sh supervisor|control|io submit|step|save: kill -9 of one of dtd's processes at that moment. Nothing that was
# committed is lost, no job runs twice, workers survive the kill of control and io, and the job ends with the tensors of
# an undisturbed run.
who=$1 when=$2
. "$(dirname "$0")/lib.sh"
write_job
big=(--set model.dim=192 --set model.heads=6 --set train.steps=360 --set checkpoint.every=120)
up
job=$(submit "${big[@]}" --set checkpoint.dir="$tmp/quiet")
wait_done "$job" 90
hashes "$tmp/quiet/step-360" >"$tmp/quiet-hashes"

kill_it() {
  local pids
  pids=$(pid_of "$who") || fail "$who does not run"
  kill -9 $pids
}
case $when in
submit)
  if [ "$who" = io ]; then # the io process of a job that has just been accepted
    job=$(submit "${big[@]}" --set checkpoint.dir="$tmp/killed")
    wait_for 10 "its io process" pid_of io
    kill_it
  else
    submit "${big[@]}" --set checkpoint.dir="$tmp/killed" >"$tmp/id" 2>"$tmp/err" &
    submitter=$!
    sleep 0.0$((RANDOM % 10))
    kill_it
    if [ "$who" = supervisor ]; then
      sleep 0.2
      up
    fi
    wait $submitter || true
    # The answer must be true, whether the job was accepted or not. A client without an answer submits again.
    if [ -s "$tmp/id" ]; then job=$(cat "$tmp/id"); else
      cat "$tmp/err"
      taken=$(dtctl status -o json | jq -r '[.[] | select(.state != "done")] | length')
      if [ "$taken" = 0 ]; then job=$(submit "${big[@]}" --set checkpoint.dir="$tmp/killed"); else
        job=$(dtctl status -o json | jq -r '[.[] | select(.state != "done")][0].job'); fi
    fi
  fi
  ;;
step)
  job=$(submit "${big[@]}" --set checkpoint.dir="$tmp/killed")
  wait_for 60 "step 130" reached "$job" 130
  kill_it
  ;;
save)
  # Many saves, because on a busy machine one can end before this script sees it.
  job=$(submit "${big[@]}" --set checkpoint.every=10 --set checkpoint.dir="$tmp/killed")
  wait_for 60 "its io process" pid_of io
  n=0
  # The process is stopped before the kill, so that the state at the kill is known. If the commit was faster than this
  # script, io continues.
  pids=$(pid_of "$who") n=0 partial=
  until [ -n "$partial" ]; do
    [ $((n += 1)) -lt 400000 ] || fail "the script saw no save"
    compgen -G "$tmp/killed/.step-*.partial" >/dev/null || continue
    kill -STOP $pids
    partial=$(compgen -G "$tmp/killed/.step-*.partial") || kill -CONT $pids
  done
  kill -9 $pids
  echo "killed $who while $partial was there"
  ;;
esac
if [ "$who" = supervisor ] && [ "$when" != submit ]; then
  sleep 0.2
  up
fi
wait_done "$job" 90
jobs=$(dtctl status -o json | jq length)
[ "$jobs" = 2 ] || { dtctl status; fail "$jobs jobs, expected 2"; }
if [ "$who" != supervisor ] && [ "$when" != submit ]; then
  epoch=$(status "$job" | jq .epoch)
  [ "$epoch" = 1 ] || { status "$job"; fail "the kill of $who ended the epoch: $epoch"; }
fi
hashes "$tmp/killed/step-360" >"$tmp/killed-hashes"
cmp "$tmp/quiet-hashes" "$tmp/killed-hashes" || fail "the final tensors differ from those of the undisturbed run"
# Each step has one line: no two workers of one rank ran at the same time.
dtctl metrics "$job" -o jsonl | jq -s -e 'map(.step) == ([range(1; 361)])' >/dev/null || fail "the metrics do not contain each of the steps 1 to 360 once"
for s in 120 240 360; do dtctl ckpt verify "$tmp/killed/step-$s" >/dev/null || fail "step-$s does not verify"; done
