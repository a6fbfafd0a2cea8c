# Classification: rows of a text and a label, on several layouts. The loss of labels that follow from the texts falls, validation
# and test are over all texts, and the export is a model of sequence classification. Labels that the model lacks are
# refused, and so are rows without one.
. "$(dirname "$0")/lib.sh"
write_job
python3 - "$tmp" <<'P'
import json, random, sys
rng = random.Random(1)
for name, n in (("train", 300), ("valid", 40)):
    with open("%s/%s.jsonl" % (sys.argv[1], name), "w") as f:
        for _ in range(n):
            label = rng.randrange(3)
            text = "".join(rng.choice("abc"[label] + "xyz") for _ in range(rng.randrange(1, 40)))
            f.write(json.dumps({"text": text + "abc"[label], "label": label}) + "\n")
P
echo '{"text": "a"}' >"$tmp/bare.jsonl"
up
rows=(--set "data.train=[$tmp/train.jsonl]" --set "data.valid=[$tmp/valid.jsonl]" --set "data.test=[$tmp/valid.jsonl]" --set model.arch=gpt2
  --set model.kv_heads=0 --set model.tied=true --set model.labels=3 --set train.seq=32 --set train.eval_every=20)
(cd "$tmp" && dtctl plan job.yaml "${rows[@]}") >"$tmp/plan"
(cd "$tmp" && ! dtctl plan job.yaml "${rows[@]}" --set model.labels=2 2>"$tmp/few") || fail "two labels of three"
grep -q 'a document has the label 2, but model.labels is 2: write at least 3' "$tmp/few" || fail "the refusal: $(cat "$tmp/few")"
(cd "$tmp" && ! dtctl plan job.yaml "${rows[@]}" --set parallel.workers=4 --set parallel.tp=4 2>"$tmp/wide") || fail "four parts of three labels"
grep -q 'parallel.tp is 4, but score.weight has only 3 parts; the nearest legal value is 3' "$tmp/wide" || fail "the refusal: $(cat "$tmp/wide")"
(cd "$tmp" && ! dtctl plan job.yaml "${rows[@]}" --set "data.train=[$tmp/bare.jsonl]" 2>"$tmp/bare") || fail "a row without label"
grep -q 'line 1 has no key "label" (data.label)' "$tmp/bare" || fail "the refusal: $(cat "$tmp/bare")"
job=$(submit "${rows[@]}" --set checkpoint.dir="$tmp/two")
wait_done "$job"
dtctl metrics "$job" -o jsonl >"$tmp/metrics"
jq -es 'all(.targets == 8)' "$tmp/metrics" >/dev/null || fail "targets: $(head -n 1 "$tmp/metrics")"
jq -es '.[0].loss > 0.9 and .[0].loss < 1.3 and .[-1].loss < 0.4 and .[-1].valid_loss < 0.4 and .[-1].test_loss < 0.4' \
  "$tmp/metrics" >/dev/null || fail "losses: $(head -n 1 "$tmp/metrics") to $(tail -n 1 "$tmp/metrics")"
hashes "$tmp/two/step-40" >"$tmp/hashes-two"
for w in 1 3; do
  job=$(submit "${rows[@]}" --set parallel.workers=$w --set checkpoint.dir="$tmp/on-$w")
  wait_done "$job"
  hashes "$tmp/on-$w/step-40" >"$tmp/hashes-$w"
  cmp "$tmp/hashes-two" "$tmp/hashes-$w" || fail "on $w workers, the tensors differ"
done
dtctl ckpt export "$tmp/two" "$tmp/model" >"$tmp/exported"
jq -e '.architectures == ["GPT2ForSequenceClassification"] and .num_labels == 3' "$tmp/model/config.json" >/dev/null ||
  fail "the export: $(cat "$tmp/model/config.json")"
! dtctl generate "$tmp/two" --prompt a 2>"$tmp/generated" || fail "it generates"
grep -q 'classifies texts (model.labels 3)' "$tmp/generated" || fail "generate: $(cat "$tmp/generated")"
