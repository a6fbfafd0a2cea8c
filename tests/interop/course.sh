# course.sh: every dtctl line of docs/use/course.md, in its order, on small files that course_side.py makes. The job files are
# the page's with smaller numbers. Then: the files of all formats gave the tokens of the course's rules, the plan has every
# window, and the exported model has dtd's validation loss in transformers.
. "$(dirname "$0")/../cluster/lib.sh"
[ -n "${DTD_TORCH_PYTHON:-}" ] && "$DTD_TORCH_PYTHON" -c 'import datasets, h5py, pyarrow, tokenizers, torch, transformers' 2>/dev/null ||
  skip "no PyTorch, transformers, datasets, pyarrow or h5py (DTD_TORCH_PYTHON)"
side=$(dirname "$(realpath "$0")")/course_side.py
cd "$tmp"
"$DTD_TORCH_PYTHON" "$side" "$tmp" >side.log 2>&1 || { cat side.log; fail "the files"; }
export XDG_CACHE_HOME=$tmp/cache
sed 's/dim: 128/dim: 16/; s/steps: 4000/steps: 4/; s/global_batch: 512, micro_batch: 64/global_batch: 8, micro_batch: 4/
  s/eval_every: 1000/eval_every: 2/; s/every: 1000,/every: 2,/' "$DTD_SOURCE/deploy/examples/course.yaml" >course.yaml
sed 's/dim: 768, layers: 12, heads: 12/dim: 32, layers: 2, heads: 4/; s/seq: 1024/seq: 64/; s/lr: 2.0e-5/lr: 3.0e-3/
  s/dtype: bfloat16/dtype: float32/; s/eval_batches: 60/eval_batches: 0/' "$DTD_SOURCE/deploy/examples/imdb.yaml" >imdb.yaml
grep -c 'steps: 4,\|dim: 16,\|seq: 64\|heads: 4, labels' course.yaml imdb.yaml | grep -q ':0' && fail "the examples have other numbers than this script replaces"
sed -n 's/^    \(dtctl .*\)/\1/p' "$DTD_SOURCE/docs/use/course.md" | sed 's/global_batch=1024/global_batch=16/; s/--steps 10/--steps 60/' >lines
[ "$(wc -l <lines)" -ge 15 ] || fail "the page has $(wc -l <lines) lines of dtctl"
n=0
while IFS= read -r line; do
  n=$((n + 1))
  eval "$line" >"out-$n" 2>&1 </dev/null || { cat "out-$n"; fail "$line"; }
  echo "$line" >>"out-$n"
done <lines

sets=$(grep -l -- '--tokenizer split' out-* | sort -t- -k2n)
[ "$(wc -w <<<"$sets")" = 5 ] || fail "sets: $sets"
for out in $sets; do
  hash=$(grep -o '[0-9a-f]\{64\}' "$out" | head -n 1)
  dtctl data show "$hash" -n 1000 -o json >shown.json
  jq -es '.[1] as $e | .[0] | .tokens == $e.tokens and .vocab == $e.vocab and (.samples | map(.ids) | add) == $e.ids' shown.json expected.json >/dev/null ||
    fail "other tokens than Python's: $(cat "$out")"
done
hash=$(grep -l -- '--label targets' out-* | xargs grep -oh '[0-9a-f]\{64\}' | head -n 1)
dtctl data show "$hash" -n 1000 -o json | jq -es '.[1].labelled == .[0].documents and .[0].samples[-1].label < 3' - expected.json >/dev/null || fail "the labels"
grep -l 'dtctl plan' out-* | xargs grep -q "$(jq .samples expected.json)" || { cat $(grep -l 'dtctl plan' out-*); fail "not $(jq .samples expected.json) windows"; }
job=$(dtctl status -o json | jq -r '[.[] | select(.name == "imdb")][-1].job')
dtctl metrics "$job" -o jsonl | tail -n 1 >last.json
"$DTD_TORCH_PYTHON" "$side" "$tmp" check "$tmp/imdb-model" 2>side.log | tail -n 1 >theirs || { cat side.log; fail "transformers"; }
echo "dtd: $(jq -c '[.loss, .valid_loss]' last.json); transformers: $(cat theirs)"
jq -e --argjson theirs "$(sed 's/loss \([^,]*\),.*/\1/' theirs)" '(.valid_loss - $theirs) | fabs < 1e-5' last.json >/dev/null || fail "another loss"
awk '{ exit !($4 > 0.9) }' theirs || fail "the model has learned nothing: $(cat theirs)"
