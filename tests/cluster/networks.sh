# Sourced after several.sh: nodes in network namespaces of their own, with links to the bridges of a hub.
[ "$(id -u)" = 0 ] || skip "creating network namespaces needs root"
PATH=$PATH:/usr/sbin:/sbin
for tool in unshare nsenter ip ss sysctl; do command -v $tool >/dev/null || skip "$tool is not installed"; done
unshare -nm ip link add v1 type bridge 2>/dev/null || skip "this machine does not allow namespaces, or has no bridge"
declare -A holder
holders=()
inside() { local n=$1; shift; nsenter -t "${holder[$n]}" -n -m -- "$@"; }
separate() { [ "$(readlink "/proc/$1/ns/net")" != "$(readlink /proc/self/ns/net)" ]; }
hold() { # hold NAME: makes the namespaces
  unshare -nm sleep infinity &
  holder[$1]=$!
  holders+=($!)
  wait_for 20 "the namespace of $1" separate "${holder[$1]}"
}
on() { local n=$1; shift; DTD_DIR=$tmp/$n inside "$n" "$DTD_BIN/dtctl" "$@"; }
guard_networks() { # after guard_nodes: ends the namespaces when the test exits
  trap 'rc=$?; set +e; [ $rc -eq 0 ] || for n in $nodes; do tail -n 30 "$tmp/$n"/control.log "$tmp/$n"/jobs/*/*.log; done; downs; kill "${holders[@]}"; (exit $rc); finish' EXIT
}
begin_hub() { # begin_hub BRIDGE...
  local b
  hold hub
  for b in "$@"; do
    inside hub ip link add "$b" type bridge mcast_snooping 0
    inside hub ip link set "$b" up
  done
}
plug() { # plug NODE INTERFACE BRIDGE
  inside "$1" ip link add "$2" type veth peer name "$1_$2" netns "${holder[hub]}"
  inside hub ip link set "$1_$2" master "$3" up
}
reaches() { # reaches NODE ADDRESS PORT: something answers there, be it a refusal
  inside "$1" python3 -c 'import socket, sys; s = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET); s.settimeout(2); sys.exit(s.connect_ex((sys.argv[1], int(sys.argv[2]))) not in (0, 111))' "$2" "$3"
}
