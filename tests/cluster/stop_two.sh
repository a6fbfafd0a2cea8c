# stop_two.sh: of two nodes one is stopped in order, the one that leads and the one that does not, again and again: the other decides
# alone within seconds, takes a job and ends it, while the first is away.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/several.sh"
write_job
begin_nodes a b
other() { [ "$1" = a ] && echo b || echo a; }
leads() { says "$1" ".leader == \"$1\""; }
job_done() { on "$1" status "$2" -o json | jq -e '.state == "done"'; }
leader() { cluster a | jq -r .leader; }

for round in 1 2 3; do
  for who in leader follower; do
    away=$(leader)
    [ $who = leader ] || away=$(other "$away")
    rest=$(other "$away")
    begin=$(date +%s%N)
    on "$away" down >/dev/null
    echo "round $round: the $who is down after $((($(date +%s%N) - begin) / 1000000)) ms"
    wait_for 20 "$rest to lead without $away" leads "$rest"
    job=$(on "$rest" submit "$tmp/job.yaml" --set checkpoint.dir="$tmp/$round-$who" --detach -o json | jq -er .job)
    wait_for 60 "a job on the one that is left" job_done "$rest" "$job"
    on "$away" up >/dev/null
    wait_for 30 "both up" says "$rest" '[.node[] | select(.state == "up")] | length == 2'
  done
done
end_nodes
