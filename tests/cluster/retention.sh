# The newest keep_last checkpoints are kept, older ones are removed, and the catalog agrees with the folder.
. "$(dirname "$0")/lib.sh"
write_job
up
job=$(submit --set train.steps=16 --set checkpoint.every=2 --set checkpoint.keep_last=2 --set checkpoint.keep_best=0)
wait_done "$job"
folder() { (cd "$tmp/ckpt" && echo step-*); }
catalog() { dtctl ckpt ls "$job" -o json | jq -r '[.[].step | "step-\(.)"] | join(" ")'; }
only_two() { [ "$(folder)" = "step-14 step-16" ]; }
only_two || fail "the folder has $(folder)"
[ "$(catalog)" = "$(folder)" ] || fail "the catalog has $(catalog), the folder $(folder)"
