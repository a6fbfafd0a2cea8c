# rerun.sh: a job that has ended is submitted again: a command with its environment and folder, a training job from its
# newest checkpoint, or afresh where there is none.
. "$(dirname "$0")/lib.sh"
up
mkdir "$tmp/there"
old=$(cd "$tmp/there" && GIVEN="as it was" dtctl run -d -n twice -o json -- sh -c 'echo "$GIVEN in $PWD"; sleep "${FOR:-0}"' | jq -er .job)
wait_for 20 "job $old" ended "$old"
cd "$tmp"
dtctl rerun twice >said || fail "$(cat said)"
grep -qx "as it was in $tmp/there" said || fail "$(cat said)"
new=$(dtctl rerun "$old" --set 'run.env={FOR: "60"}' --set name=third -d -o json | jq -er .job)
[ "$new" = $((old + 2)) ] && [ "$(status "$new" | jq -r .name)" = third ] || fail "$(dtctl status)"
rc=0
dtctl rerun "$new" 2>said || rc=$?
[ $rc = 2 ] && grep -q "Wait until it has ended, or run dtctl cancel $new first" said || fail "$rc $(cat said)"
dtctl cancel "$new" >/dev/null

write_job
dtctl submit job.yaml >said || fail "$(cat said)"
job=$(dtctl status -o json | jq -r '.[-1].job')
steps=$(status "$job" | jq .steps)
dtctl rerun "$job" >said || fail "$(cat said)"
grep -q "is done already: step $steps" said || fail "$(cat said)"
dtctl rerun "$job" --set train.steps=$((steps + 2)) >said || fail "$(cat said)"
grep -q "resumes from step $steps in " said || fail "$(cat said)"
dtctl rerun "$job" --set checkpoint.dir=afresh >said || fail "$(cat said)"
grep -q "starts afresh: there is no checkpoint in $tmp/afresh" said || fail "$(cat said)"
[ -d "$tmp/afresh/step-$steps" ] || fail "no checkpoint in the other folder"
