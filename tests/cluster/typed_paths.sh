# Paths in a job file are relative to its folder, and those on the command line to the folder where they were typed.
. "$(dirname "$0")/lib.sh"
write_job
mkdir -p "$tmp/elsewhere/sub"
cd "$tmp/elsewhere/sub"
cp "$tmp/text.txt" mine.txt
dir_of() { realpath -m "$(dtctl plan ../../job.yaml "$@" -o json | jq -r .checkpoint_dir)"; }
[ "$(dir_of)" = "$tmp/ckpt" ] || fail "a path of the file: $(dir_of)"
[ "$(dir_of --set checkpoint.dir=here)" = "$tmp/elsewhere/sub/here" ] || fail "a typed path: $(dir_of --set checkpoint.dir=here)"
[ "$(dir_of --set checkpoint.dir="$tmp/abs")" = "$tmp/abs" ] || fail "an absolute path"
dtctl plan ../../job.yaml --set 'data.train=[mine.txt]' >/dev/null || fail "a typed list is not relative to this folder"
dtctl plan ../../job.yaml --set 'data.train=[text.txt]' >/dev/null 2>&1 && fail "a typed list is relative to the job file"
up
job=$(dtctl submit ../../job.yaml --set checkpoint.dir=./out --set train.steps=20 --detach -o json | jq -er .job)
wait_done "$job"
[ -d out/step-20 ] || fail "the checkpoint is not where it was typed"
next=$(dtctl resume out --steps 25 --detach -o json | jq -er .job)
wait_done "$next"
[ -d out/step-25 ] || fail "resume of a typed path"
