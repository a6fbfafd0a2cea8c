# Sourced after lib.sh: several dtds of one cluster on this machine, each with its own state directory.
port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
on() { # on NODE COMMAND...
  local node=$1
  shift
  DTD_DIR=$tmp/$node "$DTD_BIN/dtctl" "$@"
}
# Kills PID and all its descendants.
tree() { local child; for child in $(pgrep -P "$1"); do tree "$child"; done; echo "$1"; }
# All at the same time, by kill: of three voters, the second one to shut down regularly would wait for a majority without
# it. stop_two.sh tests regular shutdowns.
downs() { for n in $nodes; do
  [ ! -s "$tmp/$n/dtd.lock" ] || kill -9 $(tree "$(head -n 1 "$tmp/$n/dtd.lock")") 2>/dev/null || true
done; }
where() { local p="port_$1"; echo --name "$1" --listen "127.0.0.1:${!p}" --advertise "127.0.0.1:${!p}"; }

cluster() { on "$1" cluster status -o json; }
cluster_has() { cluster "$1" | jq -e "$2"; } # cluster_has NODE FILTER
kill_node() { kill -9 "$(head -n 1 "$tmp/$1/dtd.lock")"; } # the kernel kills its children with it

# guard_nodes NODE...: ends these nodes when the test exits; after a failure shows their logs first.
guard_nodes() {
  nodes=$*
  trap 'rc=$?; set +e; [ $rc -eq 0 ] || for n in $nodes; do for f in "$tmp/$n/control.log" "$tmp/$n"/jobs/*/*.log; do echo "--- $f"; tail -n 30 "$f" 2>/dev/null || true; done; done; downs; (exit $rc); finish' EXIT
}

# begin_nodes NODE...: the first node creates the cluster, the others join; returns when all are up.
begin_nodes() {
  guard_nodes "$@"
  for n in $nodes; do on $n up >/dev/null; declare -g "port_$n=$(port)"; done
  local token=$(on $1 cluster init $(where $1) -o json | jq -er .token) first=$1
  shift
  for n in "$@"; do
    on $n cluster join <<<"$token" $(where $n) >/dev/null
    token=$(on $first cluster token -o json | jq -er .token)
  done
  wait_for 30 "all nodes up" cluster_has $first "[.node[] | select(.state == \"up\")] | length == $#+1"
  # Between one and three voters there are two, and the loss of either one would be the loss of the majority.
  [ $# -lt 2 ] || wait_for 30 "three voters" cluster_has $first '[.node[] | select(.role == "leader" or .role == "voter")] | length >= 3'
}

# A crash of control fails the test even if a new control has continued its work.
end_nodes() {
  ! grep -l "Sanitizer\|runtime error:\|illegal move\|Assertion" "$tmp"/*/control.log || fail "control has crashed"
}
