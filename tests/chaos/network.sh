# Sourced: three nodes a, b, c, each with a network namespace on one switch (switch.c), a state directory on a small file system of
# its own, and a dtd. All of it lives in namespaces of this test's own, processes too: when its first process ends, by
# itself or by a timeout, the kernel ends the rest.
nodes=(a b c)
inside() { # "$0" "$@": goes on in there
  [ -z "${CHAOS_INSIDE:-}" ] || return 0
  local how=(--mount --net --pid --mount-proc --fork --kill-child)
  [ "$(id -u)" = 0 ] || how+=(--map-root-user)
  for tool in unshare nsenter jq; do command -v $tool >/dev/null || { echo "skipped: no $tool"; exit 77; }; done
  unshare "${how[@]}" true 2>/dev/null || { echo "skipped: no namespaces can be made here"; exit 77; }
  CHAOS_INSIDE=1 exec unshare "${how[@]}" bash "$@"
}
number() { case $1 in a) echo 1 ;; b) echo 2 ;; c) echo 3 ;; esac; }
plug_in() { # SLOTS of each node
  local said
  coproc SWITCH { exec "$CHAOS_SWITCH" 3; }
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
begin() { # NODE: its dtd; a state directory whose dtd was killed is taken over
  nsenter --net="/proc/$SWITCH_PID/fd/$((100 + $(number "$1")))" "$DTD_BIN/dtd" --config "$tmp/$1.yaml" </dev/null >>"$tmp/$1.out" 2>&1 &
  disown
  wait_for "$limit" "dtd of node $1" on "$1" node
}
supervisor() { head -n 1 "$tmp/$1/dtd/dtd.lock"; }
# NODE KIND: pids of its supervisor, control, io, worker, or all, in the order in which they are to be hit.
pids() {
  case $2 in
  supervisor) supervisor "$1" ;;
  all) supervisor "$1" && pgrep -P "$(supervisor "$1")" ;;
  worker) pgrep -P "$(supervisor "$1")" -x dt-worker ;;
  *) pgrep -P "$(supervisor "$1")" -x "dtd-$2" ;;
  esac
}
cluster() { on "$1" cluster status -o json; }
says() { cluster "$1" | jq -e "$2"; }
# As one node sees it. Three voters, too: of two either one's loss is that of the majority.
all_up() { says "$1" '.leader != null and all(.node[]; .state == "up") and ([.node[] | select(.role == "leader" or .role == "voter")] | length == 3)'; }
make_cluster() {
  local n token
  where() { echo --name "$1" --listen "10.77.0.$(number "$1"):7811" --advertise "10.77.0.$(number "$1"):7811"; }
  for n in "${nodes[@]}"; do begin "$n"; done
  token=$(on a cluster init $(where a) -o json | jq -er .token)
  token=$(on a cluster token --uses 2 -o json | jq -er .token)
  for n in b c; do on $n cluster join "$token" $(where $n) >/dev/null; done
  for n in "${nodes[@]}"; do wait_for "$limit" "three voters, as $n sees it" all_up "$n"; done
}
network_ends() { # every dtd, and the file systems
  local n
  for n in "${nodes[@]}"; do
    [ ! -s "$tmp/$n/dtd/dtd.lock" ] || kill -9 "$(supervisor "$n")" || true
    umount -l "$tmp/$n" || true
  done 2>/dev/null
}
