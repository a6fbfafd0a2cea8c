# Every key that -o json prints is documented with its type, and what is documented is printed.
. "$(dirname "$0")/lib.sh"
write_job
check() { # SECTION: of the value on standard input
  python3 "$DTD_SOURCE/tests/cluster/json_check.py" "$DTD_SOURCE/docs/formats/json-output.md" "$1" || fail "-o json of $1"
}
dtctl up -o json | check up
dtctl version -o json | check version
dtctl node -o json | check node
job=$(submit --set train.eval_every=5 --set "data.valid=[$tmp/text.txt]" --set train.steps=20)
wait_done "$job"
dtctl status -o json | check status
dtctl status "$job" -o json | check status
dtctl status -o jsonl | check status
dtctl metrics "$job" -o jsonl | check metrics
dtctl metrics "$job" -o json | check metrics
dtctl logs "$job" -o jsonl | check logs
dtctl report "$job" --to "$tmp/report.html" -o json | check report
dtctl ckpt ls "$tmp/ckpt" -o json | check "ckpt ls"
dtctl ckpt inspect "$tmp/ckpt/step-20" -o json | check "ckpt inspect"
dtctl ckpt verify "$tmp/ckpt/step-20" -o json | check "ckpt verify"
long=$(submit --set train.steps=100000 --set checkpoint.dir=long)
wait_for 30 "step 15" reached "$long" 15
kill -9 "$(worker_pid "$long" 1)"
back() { status "$long" | jq -e '.restarts == 1 and .state == "running" and .incident[0].recover_ms != null'; }
wait_for 60 "the recovery" back
dtctl why "$long" -o json | check why
dtctl profile "$long" --to "$tmp/trace.json.gz" -o json | check profile
# mfu is the rate of the model's operations over a peak that each epoch measures once: the same in its rows, plausible
flop=$(dtctl plan "$tmp/job.yaml" -o json | jq .flops_per_token)
dtctl metrics "$long" -o json | jq -e --argjson flop "$flop" \
  'map(select(.epoch == 2)) | map($flop * .tokens_per_s / (2 * .mfu)) | (max / min - 1 < 1e-9) and min > 1e9 and max < 1e12' >/dev/null || fail "mfu is not the share of the peak rate"
has_window() { dtctl metrics "$long" --ranks -o json | jq -e 'length > 0'; }
wait_for 60 "a window of usage" has_window
dtctl metrics "$long" --ranks -o json | check usage
dtctl status "$long" -o json | check status
dtctl cancel "$long" -o json | check status
dtctl store open -n one -o json | check "store open"
dtctl store ls -o json | check "store ls"
dtctl cluster status -o json | check "cluster status"
# a checker that misses a key or a type would pass everything
echo '{"port": 1, "more": 2}' | python3 "$DTD_SOURCE/tests/cluster/json_check.py" "$DTD_SOURCE/docs/formats/json-output.md" "store open" 2>/dev/null && fail "an unknown key passes"
echo '{"port": "1"}' | python3 "$DTD_SOURCE/tests/cluster/json_check.py" "$DTD_SOURCE/docs/formats/json-output.md" "store open" 2>/dev/null && fail "a wrong type passes"
echo '{}' | python3 "$DTD_SOURCE/tests/cluster/json_check.py" "$DTD_SOURCE/docs/formats/json-output.md" "store open" 2>/dev/null && fail "a missing key passes"
dtctl down -o json | check down
