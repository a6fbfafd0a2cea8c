# A dense model is trained, gets experts that are copies of its feed-forward, generates the same text with them, and its training
# continues on another number of workers, from the first step and with an optimizer state of its own.
. "$(dirname "$0")/lib.sh"
write_job
up
job=$(submit)
wait_done "$job"
dtctl ckpt upcycle "$job" "$tmp/up" --experts 4 --experts-per-token 2 >"$tmp/said"
grep -q 'have 4 experts, each a copy of' "$tmp/said" || fail "upcycle printed: $(cat "$tmp/said")"
dtctl ckpt verify "$tmp/up" >/dev/null
generate() { dtctl generate "$1" --prompt 'the dog' --tokens 12 --temperature 0; }
generate "$tmp/ckpt" >"$tmp/dense"
generate "$tmp/up" >"$tmp/experts"
cmp "$tmp/dense" "$tmp/experts" || fail "with experts: $(cat "$tmp/experts")"
next=$(dtctl resume "$tmp/up" --steps 12 --workers 3 --set model.aux_loss=0.01 --detach -o json | jq -er .job)
wait_done "$next"
[ "$(losses "$next" | head -n 1 | cut -d' ' -f1)" = 1 ] || fail "the upcycled model did not begin at step 1"
dtctl ckpt verify "$tmp/up" >/dev/null
dtctl ckpt inspect "$tmp/up" -o json | jq -e '.tensors[] | select(.name == "layers.0.moe.experts.w1" or .fqn == "layers.0.moe.experts.w1")' >/dev/null ||
  fail "the trained model has no experts"
