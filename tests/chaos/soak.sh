# soak.sh MINUTES: CHAOS_NODES nodes (3) in network namespaces, under work that repeats for MINUTES: jobs that train, end, fail
# and are canceled, a command on all nodes, requests of every kind, a worker and a dtd-io killed, a link that is down, a node
# drained. After each round nothing runs, and a line is printed with what control and supervisor of each node hold:
# descriptors, threads, memory, and bytes of the state directory.
#
# It fails if all nodes together hold more after the last round than at most after the first four: more than 4 descriptors (the
# leader may have a connection less or more at the moment), more than 2 threads, or more memory than SOAK_JOB_KIB (64) for each
# job and 8 MiB on each node, since a job that has ended is remembered, and so are events.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/network.sh"
inside "$0" "$@"
. "$here/../cluster/lib.sh"
. "$here/faults.sh"
minutes=$1 limit=${CHAOS_LIMIT:-300} random=$((${2:-1}))
trap 'rc=$?; set +e; [ $rc -eq 0 ] || [ $rc -eq 77 ] || explain; network_ends; (exit $rc); finish' EXIT
explain() {
  on a cluster status || true
  on a status || true
  for n in "${nodes[@]}"; do
    echo "--- $n"
    tail -n 40 "$tmp/$n/dtd/control.log" || true
  done
}

# ---- work ----
write_job
job_status() { on a status "$1" -o json; }
is_in() { # JOB STATE...
  local job=$1
  shift
  [[ " $* " == *" $(job_status "$job" | jq -r .state) "* ]]
}
steps_of() { [ "$(job_status "$1" | jq -r .step)" -ge "$2" ]; }
send() { # NODE FOLDER OPTION...: prints the number of the job
  local node=$1 folder=$2
  shift 2
  on "$node" submit "$tmp/job.yaml" --set checkpoint.dir="$tmp/ckpt/$folder" --set checkpoint.every=20 "$@" --detach -o json | jq -er .job
}
ask() { # what users and monitors look at
  local n
  for n in "${nodes[@]}"; do
    on "$n" status && on "$n" cluster status && on "$n" node && on "$n" events && on "$n" why "$1" && on "$n" metrics "$1" && on "$n" logs "$1"
  done >/dev/null 2>&1 || true
}
round() {
  local trained canceled failed command
  draw ${#nodes[@]}
  trained=$(send "${nodes[drawn]}" $count --set train.steps=60 --set parallel.workers=4 --set run.nodes=0 --set run.restarts=100)
  wait_for "$limit" "steps of job $trained" steps_of "$trained" 5
  for kind in kill_worker kill_io link_down; do
    find_victim $kind
    strike_$kind "$victim"
    sleep 1
    heal $kind "$victim"
  done
  ask "$trained"
  canceled=$(send a canceled-$count --set train.steps=1000000)
  failed=$(on b run --nodes 1 --workers-per-node 1 --max-restarts 0 --detach -o json -- false | jq -er .job)
  command=$(on a run --nodes "${#nodes[@]}" --workers-per-node 1 --detach -o json -- sh -c 'echo $RANK; sleep 0.2' | jq -er .job)
  wait_for "$limit" "the end of job $trained" is_in "$trained" "done"
  on a cancel "$canceled" >/dev/null
  wait_for "$limit" "the cancel of job $canceled" is_in "$canceled" canceled
  wait_for "$limit" "the end of job $command" is_in "$command" "done" failed
  wait_for "$limit" "the end of job $failed" is_in "$failed" failed
  draw ${#nodes[@]}
  on a node drain "${nodes[drawn]}" --reason soak >/dev/null
  on a node undrain "${nodes[drawn]}" >/dev/null
  for n in "${nodes[@]}"; do wait_for "$limit" "all nodes, as $n sees it" all_up "$n"; done
  jobs=$command
  rm -r "$tmp/ckpt"
}

# ---- what is held ----
holds() { # PID: descriptors, threads, KiB of memory
  echo "$(ls "/proc/$1/fd" | wc -l) $(ls "/proc/$1/task" | wc -l) $(awk '/^VmRSS/ { print $2 }' "/proc/$1/status")"
}
sample() { # a line of JSON for each node, and one that a person reads
  local n control supervised state line=
  for n in "${nodes[@]}"; do
    read -r -a control <<<"$(holds "$(pids "$n" control)")"
    read -r -a supervised <<<"$(holds "$(supervisor "$n")")"
    state=$(du -sk "$tmp/$n/dtd" | cut -f1)
    line+=$(printf ' | %s %3d %3d %6d %5d %6d' "$n" $((control[0] + supervised[0])) $((control[1] + supervised[1])) "${control[2]}" "${supervised[2]}" "$state")
    echo "{\"round\": $1, \"jobs\": $jobs, \"node\": \"$n\", \"fds\": $((control[0] + supervised[0])), \"threads\": $((control[1] + supervised[1])), \"kib\": ${control[2]}}" >>"$tmp/samples"
  done
  printf '%5d %6d %5d%s\n' "$1" "$((SECONDS / 60))" "$jobs" "$line"
}

plug_in 2
make_cluster
echo "for each node: descriptors and threads of control and supervisor together, KiB of control's memory, of the supervisor's, and"
echo "of the state directory"
echo "ROUND MINUTE  JOBS"
for ((count = 1; count <= 4 || SECONDS < 60 * minutes; count++)); do
  round
  sleep 3 # closed connections and ended threads go away within a moment; what stays is held
  sample $count
done
jq -s --argjson kib "${SOAK_JOB_KIB:-64}" '
  group_by(.round) | map({round: .[0].round, jobs: .[0].jobs, nodes: length, fds: map(.fds) | add, threads: map(.threads) | add, kib: map(.kib) | add})
  | (map(select(.round <= 4)) | {jobs: map(.jobs) | max, fds: map(.fds) | max, threads: map(.threads) | max, kib: map(.kib) | max}) as $begun
  | .[-1] | {jobs: (.jobs - $begun.jobs), fds: (.fds - $begun.fds), threads: (.threads - $begun.threads), kib: (.kib - $begun.kib), nodes}
  | . + {kept: (.fds <= 4 and .threads <= 2 and .kib <= .nodes * (8192 + $kib * .jobs))}' "$tmp/samples" >"$tmp/growth"
jq -r '"\(.jobs) jobs since round 4: \(.fds) descriptors, \(.threads) threads and \(.kib) KiB more on all nodes together"' "$tmp/growth"
jq -e .kept "$tmp/growth" >/dev/null || fail "something is kept"
