# run.tensorboard and run.wandb: rank 0 is killed, so that the job goes back to its first step and later to a checkpoint.
# The curves that the job wrote, read by the real tensorboard and wandb packages where they are installed, have each step once, with the
# values of the last time that it ran. `dtctl metrics --to` finds nothing to add; into other folders it writes the same.
. "$(dirname "$0")/lib.sh"
write_job
up
job=$(submit --set train.steps=400 --set model.dim=128 --set checkpoint.every=150 --set checkpoint.dir="$tmp/ckpt" \
  --set run.tensorboard="$tmp/tb" --set run.wandb="$tmp/wb" --set 'run.env={SECRET: hidden}')
wait_for 30 "the event file" grep -q train/loss "$tmp/tb/job$job" -rs
live=$(dtctl metrics "$job" --to tensorboard 2>&1) && fail "an export while the job writes: $live"
grep -q "is writing to $tmp/tb/job$job itself" <<<"$live" || fail "the refusal names no reason: $live"
kill -9 "$(worker_pid "$job" 0)" # before the first checkpoint, except on a fast machine
# Lines reach dtd-io once a second. The second kill comes when the curves have steps behind a checkpoint.
sent() {
  local s
  s=$(tail -n 1 "$tmp/ckpt/metrics.jsonl" | jq .step) && [ "$s" -gt 150 ] && [ $((s % 150)) -ge 5 ] && [ $((s % 150)) -le 120 ]
}
wait_for 30 "lines behind a checkpoint" eval 'sent || ended "$job"'
ended "$job" || kill -9 "$(worker_pid "$job" 0)"
wait_done "$job"
status "$job" | jq -e '.epoch >= 2 and .restarts >= 1' >/dev/null || { status "$job"; fail "no second epoch"; }
[ "$(find "$tmp/tb/job$job" -name 'events.out.tfevents.*' | wc -l)" -ge 2 ] || fail "no event file of the second epoch"
[ "$(find "$tmp/wb" -name '*.wandb' | wc -l)" = 1 ] || fail "not one W&B log for both epochs"
! grep -rq hidden "$tmp/tb" "$tmp/wb" || fail "a variable of run.env is in the files"

wait_for 20 "the end of dtd-io" grep -q ' ended job=' "$DTD_DIR/jobs/$job/io.log"
# Nothing is missing: the exports into the same folders leave every file as it is.
sums() { find "$tmp/tb" "$tmp/wb" -type f -exec cksum {} + | sort; }
sums >"$tmp/before"
for kind in tensorboard wandb; do
  dtctl metrics "$job" --to $kind -o json | jq -e '.steps == 400 and .added == 0' >/dev/null || fail "--to $kind: $(dtctl metrics "$job" --to $kind)"
done
sums >"$tmp/after"
cmp "$tmp/before" "$tmp/after" || fail "an export without new steps changed a file"
for i in 1 2; do
  dtctl metrics "$job" --to tensorboard --dir "$tmp/tb2" >"$tmp/said"
  dtctl metrics "$job" --to wandb --dir "$tmp/wb2" >>"$tmp/said"
done
grep -q '^400 steps, 0 of them new, in ' "$tmp/said" || { cat "$tmp/said"; fail "the second export is not empty"; }

dtctl metrics "$job" --to csv >"$tmp/job.csv"
dtctl metrics "$job" --to csv --dir "$tmp/csv" >/dev/null
cmp "$tmp/job.csv" "$tmp/csv/job$job.csv" || fail "the two CSV files differ"
dtctl metrics "$job" -o jsonl >"$tmp/job.jsonl"
python=${DTD_TORCH_PYTHON:-python3}
"$python" "$(dirname "$0")/curves_check.py" "$tmp/job.jsonl" "$tmp/job.csv" "$tmp/tb/job$job" "$tmp/wb" "$tmp/tb2/job$job" "$tmp/wb2"

# A folder that cannot be written costs the job nothing but a line in dtd-io's log. The export fills it later.
echo plain >"$tmp/file"
job=$(submit --set checkpoint.dir="$tmp/ckpt2" --set run.tensorboard="$tmp/file/tb" --set run.wandb=wb3)
wait_done "$job"
wait_for 20 "the end of dtd-io" grep -q ' ended job=' "$DTD_DIR/jobs/$job/io.log"
[ "$(grep -c 'curves end here key=run.tensorboard' "$DTD_DIR/jobs/$job/io.log")" = 1 ] || fail "not one line about the folder: $(cat "$DTD_DIR/jobs/$job/io.log")"
dtctl metrics "$job" --to tensorboard --dir "$tmp/tb3" -o json | jq -e '.added == 40' >/dev/null || fail "the export after the failure"
dtctl metrics "$job" --to wandb -o json | jq -e '.steps == 40 and .added == 0' >/dev/null || fail "W&B stopped with TensorBoard"
[ -d "$tmp/wb3/wandb" ] || fail "a relative folder does not start where it was typed"

refused() { # WHAT EXPECTED COMMAND...
  local what=$1 expected=$2
  shift 2
  if "$@" >"$tmp/said" 2>&1; then fail "accepted: $what"; fi
  grep -q -- "$expected" "$tmp/said" || { cat "$tmp/said"; fail "$what: another reason"; }
}
refused "an unknown kind" "--to png: expected tensorboard, wandb or csv" dtctl metrics "$job" --to png
refused "a folder without a kind" "--dir needs --to" dtctl metrics "$job" --dir "$tmp"
refused "to follow" "--to writes all steps: it takes none of" dtctl metrics "$job" --to csv -f
dtctl run --name words --workers-per-node 1 true >/dev/null
refused "a command" "runs a command of its own" dtctl metrics words --to csv
