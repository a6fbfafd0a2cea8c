# Training does not wait for its curves: the folder of the event files is full, and writes to it hang. The job reaches
# its last step, dtd-io logs one line, and `dtctl metrics --to` completes the curves.
. "$(dirname "$0")/lib.sh"
python=${DTD_TORCH_PYTHON:-python3}
write_job

# A write that does not return. The job ends nevertheless; dtd-io waits 5 s for the last lines.
if [ -n "${HANG_LIBRARY:-}" ]; then
  LD_PRELOAD=$HANG_LIBRARY HANG_PART=tfevents up
  job=$(submit --set checkpoint.dir="$tmp/ckpt" --set run.tensorboard="$tmp/tb" --set run.wandb="$tmp/wb")
  wait_done "$job" 60
  wait_for 20 "dtd-io to leave the curves" grep -q 'curves are left unfinished' "$DTD_DIR/jobs/$job/io.log"
  [ "$(status "$job" | jq .restarts)" = 0 ] || fail "the job was restarted"
  dtctl down >/dev/null
fi
up
if [ -n "${HANG_LIBRARY:-}" ]; then
  wait_for 30 "dtd" eval "dtctl status '$job'"
  dtctl metrics "$job" --to tensorboard -o json | jq -e '.added == 40' >/dev/null || fail "the export after the hang"
  dtctl metrics "$job" --to wandb >/dev/null
  dtctl metrics "$job" -o jsonl >"$tmp/job.jsonl"
  "$python" "$(dirname "$0")/curves_check.py" "$tmp/job.jsonl" - "$tmp/tb/job$job" "$tmp/wb"
fi

# A full disk, in the middle of the job.
[ "$(id -u)" = 0 ] || skip "a small file system can only be mounted by root"
mkdir "$tmp/small"
mount -t tmpfs -o size=64k none "$tmp/small" 2>/dev/null || skip "no tmpfs can be mounted here"
job=$(submit --set train.steps=1000 --set model.dim=128 --set checkpoint.every=1000 --set checkpoint.dir="$tmp/ckpt2" \
  --set run.tensorboard="$tmp/small/tb" --set run.wandb="$tmp/small/wb")
wait_done "$job" 90
wait_for 20 "the end of dtd-io" grep -q ' ended job=' "$DTD_DIR/jobs/$job/io.log"
[ "$(grep -c 'curves end here key=run.tensorboard' "$DTD_DIR/jobs/$job/io.log")" = 1 ] || fail "not one line about the full disk: $(grep curves "$DTD_DIR/jobs/$job/io.log")"
[ "$(status "$job" | jq .restarts)" = 0 ] || fail "the job was restarted"
mount -o remount,size=8m "$tmp/small"
for kind in tensorboard wandb; do
  dtctl metrics "$job" --to $kind -o json | jq -e '.steps == 1000 and .added > 0' >/dev/null ||
    fail "the export after the full disk: $(dtctl metrics "$job" --to $kind)"
done
dtctl metrics "$job" -o jsonl >"$tmp/job.jsonl"
"$python" "$(dirname "$0")/curves_check.py" "$tmp/job.jsonl" - "$tmp/small/tb/job$job" "$tmp/small/wb"
