# rights.sh: a training job has the limits and the niceness of its submitter. no other user can read what a job of a user with umask 077 writes: checkpoints with the weights and the job
# file, curves, reports. With the usual umask others can, as before.
. "$(dirname "$0")/lib.sh"
write_job
dtctl up >/dev/null

umask 077
dtctl submit "$tmp/job.yaml" --set checkpoint.dir="$tmp/private" --set run.tensorboard="$tmp/tb" --set run.wandb="$tmp/wandb" \
  --set run.report="$tmp/report.html" >/dev/null
wait_for 20 "the report" test -s "$tmp/report.html"
for path in private tb wandb report.html; do
  [ -e "$tmp/$path" ] || fail "the job wrote no $path"
  seen=$(find "$tmp/$path" -perm /077 -print -quit)
  [ -z "$seen" ] || fail "others may read $seen: $(stat -c %A "$seen")"
done
grep -q 'umask: "\?0077' "$tmp"/private/step-*/dtd.job.yaml || fail "the checkpoint's job file does not say its umask"

umask 022
dtctl resume 1 --set train.steps=50 >/dev/null
[ -z "$(find "$tmp/private" -perm /077 -print -quit)" ] || fail "a job that is resumed under another umask shows its files"
dtctl submit "$tmp/job.yaml" --set checkpoint.dir="$tmp/public" >/dev/null
[ "$(stat -c %a "$tmp/public")" = 755 ] || fail "a job with the usual umask hides its folder: $(stat -c %A "$tmp/public")"
dtctl submit "$tmp/job.yaml" --set checkpoint.dir="$tmp/odd" --set run.umask=0777 2>"$tmp/err" && fail "a umask without rights for the owner"
grep -q 'run.umask: expected an octal number from 0 to 0077' "$tmp/err" || fail "the refusal: $(cat "$tmp/err")"

# ---- limits and niceness, of workers and dtd-io ----
(ulimit -Hc 0; ulimit -n 900; nice -n 6 "$DTD_BIN/dtctl" submit "$tmp/job.yaml" --set checkpoint.dir="$tmp/limited" --set train.steps=100000 --set checkpoint.every=1000 --detach >/dev/null)
job=$(dtctl status -o json | jq -r '[.[].job | tonumber] | max')
wait_for 30 "job $job to train" reached "$job" 1
for pid in $(worker_pid "$job" 0) $(pgrep -P "$(pid_of supervisor)" -x dtd-io | tail -n 1); do
  grep -qE '^Max core file size +0 +0 ' "/proc/$pid/limits" && grep -qE '^Max open files +900 +900 ' "/proc/$pid/limits" ||
    fail "process $pid has other limits than its submitter: $(cat "/proc/$pid/limits")"
  [ "$(ps -o ni= -p "$pid" | tr -d ' ')" = 6 ] || fail "process $pid has the niceness $(ps -o ni= -p "$pid")"
done
dtctl cancel "$job" >/dev/null
wait_for 30 "the end of job $job" ended "$job"
