# Sourced: CHAOS_NODES nodes (3; at most 16) a, b, c, ... Each has a network namespace at one switch (switch.c), a state
# directory on its own small file system, and a dtd. All of this is in namespaces of this test, including the processes:
# when the first process of the test exits or times out, the kernel ends the others.
nodes=({a..p})
nodes=("${nodes[@]:0:${CHAOS_NODES:-3}}")
inside() { # "$0" "$@": executes the script again inside the namespaces
  [ -z "${CHAOS_INSIDE:-}" ] || return 0
  local how=(--mount --net --pid --mount-proc --fork --kill-child)
  [ "$(id -u)" = 0 ] || how+=(--map-root-user)
  for tool in unshare nsenter jq; do command -v $tool >/dev/null || { echo "skipped: no $tool"; exit 77; }; done
  unshare "${how[@]}" true 2>/dev/null || { echo "skipped: no namespaces can be made here"; exit 77; }
  CHAOS_INSIDE=1 exec unshare "${how[@]}" bash "$@"
}
number() { # NODE: 1 for a
  local letter
  printf -v letter %d "'$1"
  echo $((letter - 96))
}
plug_in() { # SLOTS of each node
  local said
  coproc SWITCH { exec "$CHAOS_SWITCH" ${#nodes[@]}; }
  read -r said <&"${SWITCH[0]}" || true
  [ "$said" = ok ] || skip "no network can be made here: $said"
  for n in "${nodes[@]}"; do
    mkdir "$tmp/$n"
    mount -t tmpfs -o size=64m none "$tmp/$n" 2>/dev/null || skip "no tmpfs can be mounted here"
    printf 'state_dir: %s/dtd\nslots: %d\n' "$tmp/$n" "$1" >"$tmp/$n.yaml"
  done
}
link() { # NODE well|down|deaf|mute
  local said
  echo "$(number "$1") $2" >&"${SWITCH[1]}"
  read -r said <&"${SWITCH[0]}"
  [ "$said" = ok ] || fail "link $*: $said"
}
on() { # NODE COMMAND...: of dtctl
  local node=$1
  shift
  DTD_DIR=$tmp/$node/dtd timeout 20 "$DTD_BIN/dtctl" "$@"
}
begin() { # NODE: starts its dtd, also on the state directory of a killed one
  nsenter --net="/proc/$SWITCH_PID/fd/$((100 + $(number "$1")))" "$DTD_BIN/dtd" --config "$tmp/$1.yaml" </dev/null >>"$tmp/$1.out" 2>&1 &
  disown
  wait_for "$limit" "dtd of node $1" on "$1" node
}
supervisor() { head -n 1 "$tmp/$1/dtd/dtd.lock"; }
# NODE KIND: prints the pids of its supervisor, control, io, worker, or all, in the order for kill.
pids() {
  case $2 in
  supervisor) supervisor "$1" ;;
  all) supervisor "$1" && pgrep -P "$(supervisor "$1")" ;;
  worker) pgrep -P "$(supervisor "$1")" -x dt-worker ;;
  *) pgrep -P "$(supervisor "$1")" -x "dtd-$2" ;;
  esac
}
cluster() { on "$1" cluster status -o json; }
cluster_has() { cluster "$1" | jq -e "$2"; }
# All nodes are up in the view of NODE, with three voters: with two, the loss of either one would be that of the majority.
all_up() { cluster_has "$1" '.leader != null and all(.node[]; .state == "up") and ([.node[] | select(.role == "leader" or .role == "voter")] | length == 3)'; }
make_cluster() {
  local n token
  where() { echo --name "$1" --listen "10.77.0.$(number "$1"):7811" --advertise "10.77.0.$(number "$1"):7811"; }
  for n in "${nodes[@]}"; do begin "$n"; done
  token=$(on a cluster init $(where a) -o json | jq -er .token)
  token=$(on a cluster token --uses $((${#nodes[@]} - 1)) -o json | jq -er .token)
  for n in "${nodes[@]:1}"; do on "$n" cluster join <<<"$token" $(where "$n") >/dev/null; done
  for n in "${nodes[@]}"; do wait_for "$limit" "three voters, as $n sees it" all_up "$n"; done
}
network_ends() { # kills every dtd and unmounts the file systems
  local n
  for n in "${nodes[@]}"; do
    [ ! -s "$tmp/$n/dtd/dtd.lock" ] || kill -9 "$(supervisor "$n")" || true
    umount -l "$tmp/$n" || true
  done 2>/dev/null
}
