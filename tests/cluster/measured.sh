# What a job has done beside what its plan says: the timeline of a step of a pipeline, bytes by axis in the metrics, and steps that
# were skipped because their loss was not a number.
. "$(dirname "$0")/lib.sh"
write_job
up
run() { # SETS...: runs the job, and leaves its id in $job and what plan says of it in $tmp/plan
  rm -rf "$tmp/ckpt"
  job=$(submit "$@")
  wait_done "$job"
  dtctl plan "$tmp/job.yaml" "$@" -o json >"$tmp/plan"
}
same_bytes() {
  dtctl metrics "$job" -o jsonl | jq -ce .bytes >"$tmp/counted"
  jq -ce .forecast.bytes "$tmp/plan" >"$tmp/said"
  [ "$(sort -u "$tmp/counted")" = "$(cat "$tmp/said")" ] || { head "$tmp/counted" "$tmp/said"; fail "$1: other bytes than the plan's"; }
}

pipe=(--set parallel.workers=2 --set parallel.pp=2 --set train.steps=3 --set train.warmup=0 --set train.verify_every=1 --set run.timeline_step=2)
run "${pipe[@]}"
same_bytes pipeline
dtctl plan "$tmp/job.yaml" "${pipe[@]}" --measured "$job" --timeline "$tmp/step.svg" -o json >"$tmp/measured"
jq -e '.measured | .step == 2 and .epoch == 1 and (.ranks | length) == 2 and .seconds > 0 and .bubble > 0 and .bubble < 1
  and .exposed > 0 and .exposed <= .bubble + 1e-9' "$tmp/measured" >/dev/null || { cat "$tmp/measured"; fail "figures of the measured step"; }
[ "$(grep -c '>measured</text>' "$tmp/step.svg")" = 2 ] || fail "the picture has not both ranks' measured rows"
cut -d' ' -f1,2 "$tmp/ckpt/timeline/rank-1" | grep -q "exchange" || fail "rank 1 has no exchange"
dtctl plan "$tmp/job.yaml" "${pipe[@]}" --measured "$tmp/ckpt" | grep -q "Measured   step 2 of epoch 1" || fail "a folder"
if dtctl plan "$tmp/job.yaml" --set parallel.workers=3 --measured "$job" 2>"$tmp/refused"; then fail "a plan of others is drawn"; fi
grep -q "has 2 workers, but this plan has 3" "$tmp/refused" || { cat "$tmp/refused"; fail "the refusal"; }
if dtctl plan "$tmp/job.yaml" --measured "$tmp" 2>"$tmp/refused"; then fail "a folder without a timeline"; fi
grep -q "run.timeline_step" "$tmp/refused" || fail "the refusal names no remedy"

run --set parallel.workers=2 --set parallel.tp=2 --set train.steps=2 --set train.warmup=0 --set train.numerics=fast
same_bytes tensor

# Decay that turns the weights over, a hundred thousand times larger in each step, until they are no numbers.
run --set train.steps=12 --set train.nan=skip --set train.nan_limit=100 --set train.lr=1000 --set train.schedule=constant \
  --set train.warmup=0 --set train.weight_decay=100 --set train.verify_every=0
skipped=$(dtctl metrics "$job" -o jsonl | jq -s 'map(select(.skipped)) | length')
[ "$skipped" -ge 1 ] && [ "$skipped" -lt 12 ] || { dtctl metrics "$job" -o jsonl; fail "$skipped steps are said to be skipped"; }
