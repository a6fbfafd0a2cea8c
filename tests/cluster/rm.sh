# rm.sh: dtctl rm removes ended jobs and their logs on all nodes, refuses those that run, and leaves checkpoints alone. A
# removed job does not come back when control starts again, and its number is not used again.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/several.sh"
begin_nodes a b
cd "$tmp"
old=$(on a run -d --nodes 2 -o json -- echo words | jq -er .job)
live=$(on a run -d -n live -o json -- sleep 60 | jq -er .job)
job_is() { on a status "$1" -o json | jq -e ".state == \"$2\""; }
wait_for 30 "job $old" job_is "$old" done
wait_for 30 "job $live" job_is "$live" running
for n in a b; do [ -s "$tmp/$n/jobs/$old/rank-0.log" ] || fail "no log on $n"; done
rc=0
on b rm live "$old" >said 2>error || rc=$?
[ $rc = 2 ] && grep -q "job $live is running; end it first: dtctl cancel $live" error || fail "$rc $(cat error)"
grep -qx "job $old is removed, with its logs" said || fail "$(cat said)"
[ "$(on a status -o json | jq -c 'map(.job | tonumber)')" = "[$live]" ] || fail "$(on a status)"
gone() { [ ! -e "$tmp/a/jobs/$old" ] && [ ! -e "$tmp/b/jobs/$old" ]; }
wait_for 10 "the logs to be removed" gone
rc=0
on a rm "$old" 2>error || rc=$?
[ $rc = 3 ] && grep -q "no job $old" error || fail "$rc $(cat error)"

write_job
trained=$(on a submit job.yaml --detach -o json | jq -er .job)
wait_for 60 "job $trained" job_is "$trained" done
dir=$(on a status "$trained" -o json | jq -r .checkpoint_dir)
on a rm "$trained" >/dev/null
[ -n "$(ls -d "$dir"/step-*)" ] || fail "the checkpoints are gone"
for n in a b; do kill -9 "$(pgrep -P "$(head -n 1 "$tmp/$n/dtd.lock")" -x dtd-control)"; done
listed() { [ "$(on a status -o json | jq -c 'map(.job | tonumber)')" = "[$live]" ]; }
wait_for 30 "the list after a restart" listed
[ "$(on a run -d -o json -- true | jq -er .job)" = $((trained + 1)) ] || fail "a number is used again"
end_nodes
