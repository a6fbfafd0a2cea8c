# A rank that computes slowly is named by its number, and only this one: its peers wait for it, so their steps take as
# long as its own. Before and after, no rank is named, and neither is a rank that is slow for one step.
. "$(dirname "$0")/lib.sh"
[ -n "${SLOW_LIBRARY:-}" ] || skip "built with a sanitizer, which must be loaded first"

export LD_PRELOAD=$SLOW_LIBRARY SLOW_SLOT=1 SLOW_FILE=$tmp/slow
named() { status "$1" | jq -e '.straggler // [] | length > 0'; }
names_only() { status "$1" | jq -e --argjson rank "$2" '.straggler | length == 1 and .[0].rank == $rank and .[0].ratio > 1.1'; }
unnamed() { ! named "$1"; }
windows() { dtctl metrics "$1" --ranks -o json | jq length; }
has_windows() { [ "$(windows "$1")" -ge "$2" ]; }

write_job
up
# Most of a step is computation: with the model of the other tests, ranks mostly wait.
job=$(submit --set train.steps=1000000 --set checkpoint.every=0 --set train.numerics=fast --set model.dim=256 \
  --set model.ffn=512 --set train.seq=128 --set run.threads=1)
wait_for 60 "four windows" has_windows "$job" 4

touch "$SLOW_FILE"
sleep 0.3 # some slow steps, in one window or two
rm "$SLOW_FILE"
sleep 6
named "$job" >/dev/null && fail "a rank was named for some slow steps: $(status "$job" | jq -c .straggler)"

touch "$SLOW_FILE"
wait_for 100 "that rank 1 is named" names_only "$job" 1
dtctl status "$job" | grep -q "rank 1 on node .* computes [1-9][.0-9]* times as long as the median since" || fail "status does not name rank 1"
dtctl metrics "$job" --ranks -o json >"$tmp/usage"
# The step takes the same time on both ranks; only computing and waiting differ.
jq -e '.[-1] | (.step_s[1] / .step_s[0] - 1 | fabs) < 0.25 and .compute_s[1] > 1.3 * .compute_s[0] and .comm_s[0] > .comm_s[1]' \
  "$tmp/usage" >/dev/null || { jq -c '.[-1]' "$tmp/usage"; fail "the windows do not show a slow rank 1"; }
rm "$SLOW_FILE"
wait_for 60 "that nobody is named" unnamed "$job"
dtctl cancel "$job" >/dev/null
wait_for 60 "the end" ended "$job"

# What is beside the checkpoints is the same as in the state directory.
cmp "$DTD_DIR/metrics/$job.usage.jsonl" "$tmp/ckpt/usage.jsonl" || fail "usage.jsonl differs"

# Both are events, too.
dtctl events "$job" --type straggler,straggler-gone -o json | jq -es 'map(.type) == ["straggler", "straggler-gone"] and
  (.[0].text | test("^rank 1 computes [1-9][.0-9]* times as long as the median$"))' >/dev/null || fail "$(dtctl events "$job")"
