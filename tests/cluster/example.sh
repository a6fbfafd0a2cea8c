# deploy/examples/first-job.yaml: its loss falls below 2.3 nats per byte, and a resumed run continues from there.
. "$(dirname "$0")/lib.sh"
up
job=$(dtctl submit "$DTD_SOURCE/deploy/examples/first-job.yaml" --set checkpoint.dir="$tmp/ckpt" --detach -o json | jq -er .job)
wait_done "$job" 600
last() { dtctl metrics "$1" -o jsonl | tail -n 20 | jq -s 'map(.loss) | add / length'; }
loss=$(last "$job")
echo "mean loss of the last 20 steps: $loss"
jq -n -e "$loss < 2.3" >/dev/null || fail "$loss is not below 2.3"
next=$(dtctl resume "$job" --workers 3 --more 20 --detach -o json | jq -er .job)
wait_done "$next" 200
jq -n -e "$(last "$next") < 2.3" >/dev/null || fail "the resumed run has a higher loss: $(last "$next")"
