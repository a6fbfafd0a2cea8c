# Measurements of a job compared with its plan: the timeline of one step of a pipeline, the bytes per axis in the metrics,
# and steps that were skipped because their loss was NaN.
. "$(dirname "$0")/lib.sh"
write_job
up
run() { # SETS...: runs the job; sets $job to its id and writes its plan to $tmp/plan
  rm -rf "$tmp/ckpt"
  job=$(submit "$@")
  wait_done "$job"
  dtctl plan "$tmp/job.yaml" "$@" -o json >"$tmp/plan"
}
same_bytes() {
  dtctl metrics "$job" -o jsonl | jq -ce .bytes >"$tmp/counted"
  jq -ce .forecast.bytes "$tmp/plan" >"$tmp/said"
  [ "$(sort -u "$tmp/counted")" = "$(cat "$tmp/said")" ] || { head "$tmp/counted" "$tmp/said"; fail "$1: the bytes differ from those of the plan"; }
}

pipe=(--set parallel.workers=2 --set parallel.pp=2 --set train.steps=3 --set train.warmup=0 --set train.verify_every=1 --set run.timeline_step=2)
run "${pipe[@]}"
same_bytes pipeline
dtctl plan "$tmp/job.yaml" "${pipe[@]}" --measured "$job" --timeline "$tmp/step.svg" -o json >"$tmp/measured"
jq -e '.measured | .step == 2 and .epoch == 1 and (.ranks | length) == 2 and .seconds > 0 and .bubble > 0 and .bubble < 1
  and .exposed > 0 and .exposed <= .bubble + 1e-9' "$tmp/measured" >/dev/null || { cat "$tmp/measured"; fail "wrong figures of the measured step"; }
[ "$(grep -c '>measured</text>' "$tmp/step.svg")" = 2 ] || fail "the picture lacks the measured row of a rank"
cut -d' ' -f1,2 "$tmp/ckpt/timeline/rank-1" | grep -q "exchange" || fail "rank 1 has no exchange"
dtctl plan "$tmp/job.yaml" "${pipe[@]}" --measured "$tmp/ckpt" | grep -q "Measured   step 2 of epoch 1" || fail "plan --measured does not accept a checkpoint folder"
dtctl explain "$tmp/job.yaml" "${pipe[@]}" --measured "$job" -o json >"$tmp/explained"
jq -e --slurpfile m "$tmp/measured" '.measured and (.["end"] - $m[0].measured.seconds * 1e9 | fabs) < 2 and
  (.moves | length) > 0 and (.["end"] as $last | .moves | all(.[8] >= 0 and .[8] <= .[9] and .[9] <= 1.5 * $last)) and
  ([.moves[][10][]] | add) == ($m[0].forecast.bytes | add)' "$tmp/explained" >/dev/null || { head -c 600 "$tmp/explained"; fail "wrong data of the measured step"; }
dtctl explain "$tmp/job.yaml" "${pipe[@]}" --measured "$tmp/ckpt" --html "$tmp/step.html" && grep -q '"measured":true' "$tmp/step.html" || fail "explain --measured writes no page"
if dtctl explain ring --measured "$tmp/ckpt" 2>"$tmp/refused"; then fail "explain accepts the timeline of a job with another number of workers"; fi
grep -q "has 2 workers, but this job has 4" "$tmp/refused" || { cat "$tmp/refused"; fail "the refusal of explain does not name both numbers of workers"; }
if dtctl plan "$tmp/job.yaml" --set parallel.workers=3 --measured "$job" 2>"$tmp/refused"; then fail "plan accepts the timeline of a job with another number of workers"; fi
grep -q "has 2 workers, but this plan has 3" "$tmp/refused" || { cat "$tmp/refused"; fail "the refusal does not name both numbers of workers"; }
if dtctl plan "$tmp/job.yaml" --measured "$tmp" 2>"$tmp/refused"; then fail "plan accepts a folder without a timeline"; fi
grep -q "run.timeline_step" "$tmp/refused" || fail "the refusal names no remedy"

run --set parallel.workers=2 --set parallel.tp=2 --set train.steps=2 --set train.warmup=0 --set train.numerics=fast
same_bytes tensor

# A weight decay that multiplies the weights by about -100,000 in each step, until they overflow and the loss is NaN.
run --set train.steps=12 --set train.nan=skip --set train.nan_limit=100 --set train.lr=1000 --set train.schedule=constant \
  --set train.warmup=0 --set train.weight_decay=100 --set train.verify_every=0
skipped=$(dtctl metrics "$job" -o jsonl | jq -s 'map(select(.skipped)) | length')
[ "$skipped" -ge 1 ] && [ "$skipped" -lt 12 ] || { dtctl metrics "$job" -o jsonl; fail "the metrics count $skipped skipped steps"; }
