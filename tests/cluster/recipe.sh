# The recipe of the course on three small texts: validation during training, and the test split once at the end, with equal
# results in any layout. The best checkpoint by validation loss and the final one are kept and named. The validation text
# has the words of the training text in another order, so its loss rises with longer training: the best checkpoint is not
# the last one.
. "$(dirname "$0")/lib.sh"
write_job
up
mix() { tr ' ' '\n' <"$tmp/text.txt" | awk -v seed="$1" 'BEGIN { srand(seed) } { print rand(), $0 }' | sort | cut -d' ' -f2 | paste -sd ' \n'; }
mix 1 | sed -n '1,300p' >"$tmp/valid.txt"
{ head -n 100 "$tmp/text.txt"; mix 2 | sed -n '1,50p'; } | tr a-z A-Z >"$tmp/test.txt"
recipe=(--set model.arch=transformer --set model.kv_heads=0 --set model.dim=32 --set data.tokenizer=words --set data.lowercase=true
  --set train.lr=2e-3 --set train.schedule=constant --set train.eval_every=10 --set checkpoint.keep_last=1)
job=$(submit "${recipe[@]}" --set 'data.valid=[valid.txt]' --set 'data.test=[test.txt]' --set parallel.workers=1 --set checkpoint.dir="$tmp/one")
wait_done "$job"
rows() { dtctl metrics "$1" -o jsonl; }
rows "$job" | jq -s -e '[.[] | select(.valid_loss) | .step] == [10, 20, 30, 40] and [.[] | select(.test_loss) | .step] == [40]' >/dev/null ||
  { rows "$job"; fail "validation is not in these steps, or the test not in the last one only"; }
best=$(rows "$job" | jq -s '[.[] | select(.valid_loss)] | min_by(.valid_loss).step')
[ "$best" -lt 40 ] || fail "the last step has the best validation loss, so this test proves nothing"
dtctl ckpt ls "$job" -o json | jq -e "[.[] | {step, best, final}] == [{step: $best, best: true, final: false}, {step: 40, best: false, final: true}]" >/dev/null ||
  { dtctl ckpt ls "$job"; fail "the best is step $best"; }
dtctl ckpt ls "$job" | grep "final$" >/dev/null || fail "ls does not name the final checkpoint"
dtctl status "$job" | grep "test [0-9]" >/dev/null || fail "status does not show the test loss"
test_loss=$(rows "$job" | jq 'select(.test_loss) | .test_loss')

# The test text used for validation, on a pipeline: the loss equals the test loss bit for bit.
job=$(submit "${recipe[@]}" --set 'data.valid=[test.txt]' --set 'data.test=[valid.txt]' --set parallel.pp=2 --set checkpoint.dir="$tmp/two")
wait_done "$job"
rows "$job" | jq -s -e ".[-1].valid_loss == $test_loss" >/dev/null || { rows "$job" | tail -n 1; fail "the validation loss differs from the test loss $test_loss"; }
