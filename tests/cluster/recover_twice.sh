# recover_twice.sh: five nodes, three of them voters. Two voters are lost, and the third one recovers the cluster. The two
# nodes that did not vote follow it, with the job that runs on one of them, in the same epoch. With them there are three
# voters again; two of these are lost, and the third one recovers the cluster once more. A node that was lost in between
# follows neither.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/several.sh"
write_job
guard_nodes a b c d e
for n in $nodes; do # the job has room on d and e alone
  mkdir "$tmp/$n"
  printf 'state_dir: %s\nslots: %d\n' "$tmp/$n" "$(case $n in [abc]) echo 1 ;; *) echo 4 ;; esac)" >"$tmp/$n.yaml"
  setsid "$DTD_BIN/dtd" --config "$tmp/$n.yaml" >>"$tmp/$n.out" 2>&1 &
  wait_for 30 "dtd of node $n" on "$n" node
  declare "port_$n=$(port)"
done
on a cluster init $(where a) >/dev/null
for n in b c d e; do
  token=$(on a cluster token -o json | jq -er .token)
  on $n cluster join <<<"$token" $(where $n) >/dev/null
  up_to() { cluster_has a "([.node[] | select(.state == \"up\").name] | index(\"$n\")) and ([.node[] | select(.role == \"leader\" or .role == \"voter\")] | length) == (if \"$n\" == \"b\" then 1 else 3 end)"; }
  wait_for 60 "$n and the voters" up_to
done
id=$(cluster a | jq -er .id)
voting='[.node[] | select(.role == "leader" or .role == "voter").name]'
cluster_has a "$voting | length == 3" >/dev/null || fail "the voters: $(cluster a)"
voters=($(cluster a | jq -r "$voting[]")) others=($(cluster a | jq -r ".node[].name" | grep -vxF "$(cluster a | jq -r "$voting[]")"))
[ ${#others[@]} = 2 ] || fail "there are ${#others[@]} nodes without a vote"
first=${voters[0]}

# The job runs on a node without a vote.
job=$(on $first submit "$tmp/job.yaml" --set train.steps=1000000 --set checkpoint.every=50 --set model.dim=128 --set checkpoint.dir="$tmp/ck" --detach -o json | jq -er .job)
newest() { ls "$tmp/ck" | sed -n 's/^step-\([0-9]*\)$/\1/p' | sort -n | tail -n 1; }
saved() { [ "$(newest || echo 0)" -ge "$1" ]; }
wait_for 60 "step 50" saved 50
place=$(on $first status "$job" -o json | jq -r '.worker[0].node')
[ "$place" = "${others[0]}" ] || others=("${others[1]}" "${others[0]}")
[ "$place" = "${others[0]}" ] || fail "the job is on $place"
runs() { on "$1" status "$job" -o json | jq -e --arg n "$place" '.state == "running" and .restarts == 0 and .epoch == 1 and all(.worker[]; .node == $n)'; }

# recover NODE GENERATION LOST...: the others of these voters are lost.
recover() {
  local survivor=$1 generation=$2 n
  shift 2
  for n in "$@"; do kill_node "$n"; done
  wait_for 30 "the loss of the leader, as $survivor sees it" cluster_has "$survivor" '.leader == null'
  on "$survivor" cluster recover --yes >/dev/null || fail "$survivor does not recover"
  wait_for 30 "generation $generation" cluster_has "$survivor" ".id == \"$id\" and .generation == $generation and .recovered_by == \"$survivor\" and .leader == \"$survivor\""
  for n in "$@"; do cluster_has "$survivor" "all(.node[]; .name != \"$n\")" >/dev/null || fail "$n is still listed: $(cluster "$survivor")"; done
}
follows() { # follows NODE LEADER GENERATION: it is up, at both of them, and has the lineage
  cluster_has "$1" ".generation == $3 and .leader == \"$2\"" && cluster_has "$2" "any(.node[]; .name == \"$1\" and .state == \"up\")"
}

recover $first 2 "${voters[1]}" "${voters[2]}"
for n in "${others[@]}"; do wait_for 60 "$n to follow $first" follows "$n" $first 2; done
wait_for 60 "the job, in the same epoch" runs $first
wait_for 60 "a checkpoint of the recovered cluster" saved $(($(newest) + 100))
wait_for 60 "one key, the new one" cluster_has $first '.key == 2 and .keys == 1'
wait_for 60 "three voters" cluster_has $first "$voting | sort == ([\"$first\", \"${others[0]}\", \"${others[1]}\"] | sort)"
next=$(on "${others[1]}" submit "$tmp/job.yaml" --set checkpoint.dir="$tmp/next" --detach -o json | jq -er .job)
[ "$next" = $((job + 1001)) ] || fail "the next job after $job has the number $next"
is_done() { on "$1" status "$2" -o json | jq -e '.state == "done"'; }
wait_for 60 "the end of job $next" is_done "$place" "$next"

# The second time, on the node of the job, which did not vote in the first generation.
recover "$place" 3 $first "${others[1]}"
cluster_has "$place" '[.node[].name] | length == 1' >/dev/null || fail "the nodes: $(cluster "$place")"
wait_for 60 "the job, in the same epoch" runs "$place"
wait_for 60 "a checkpoint of the cluster that was recovered twice" saved $(($(newest) + 100))
wait_for 60 "one key, the third one" cluster_has "$place" '.key == 3 and .keys == 1'
last=$(on "$place" submit "$tmp/job.yaml" --set checkpoint.dir="$tmp/last" --detach -o json | jq -er .job)
[ "$last" = $((next + 1001)) ] || fail "the next job after $next has the number $last"
wait_for 60 "the end of job $last" is_done "$place" "$last"

# Those of the first and of the second generation come back: nothing of them is accepted, and each reports the recovery.
# The first one may learn it from the second.
back=("${voters[1]}" $first)
for n in "${back[@]}"; do on "$n" up >/dev/null; done
reports() { cluster_has "$1" ".leader == null and (.note | test(\"was recovered on node ($2) at 20\"))"; }
wait_for 60 "$first to report the recovery" reports $first "$place"
wait_for 60 "${voters[1]} to report a recovery" reports "${voters[1]}" "$place|$first"
cluster_has "$place" "[.node[].name] == [\"$place\"] and .generation == 3 and .leader == \"$place\"" >/dev/null || fail "the cluster has changed: $(cluster "$place")"
for n in "${back[@]}"; do
  on "$n" cluster leave
  token=$(on "$place" cluster token -o json | jq -er .token)
  on "$n" cluster join <<<"$token" $(where "$n") >/dev/null
done
wait_for 60 "three voters of the third generation" cluster_has "$place" "($voting | length == 3) and .generation == 3"
for n in "${back[@]}"; do wait_for 60 "$n to follow $place" follows "$n" "$place" 3; done
runs "$place" >/dev/null || fail "the job: $(on "$place" why "$job")"
end_nodes
