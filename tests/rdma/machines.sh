# Sourced after tests/cluster/lib.sh: two emulated machines, a and b, with soft-RoCE between them, that is, InfiniBand's verbs over a
# virtual network card. Each boots Debian's kernel, has this machine's files read-only and $tmp writable, and runs the commands in files
# there. The host is not changed; a machine ends with the test, or by power_off.
nodes="a b"
rdma=${RDMA_FOLDER:-$DTD_SOURCE/build/rdma}
limit=${RDMA_LIMIT:-180} # seconds for any wait; an emulated processor is slow
declare -A machine=()

# Kernel modules for the files, the network, and verbs.
modules="virtio_pci virtio_net 9p 9pnet_virtio crc32_generic rdma_rxe ib_uverbs rdma_ucm"

# Unpacks the kernel's package in build/rdma and makes an initial file system with its modules, unless these exist.
make_kernel() {
  local package version
  for tool in qemu-system-x86_64 busybox cpio depmod rdma dpkg-deb; do
    command -v $tool >/dev/null || skip "$tool is not installed (deploy/packages rdma)"
  done
  ls /usr/lib/*/libibverbs/librxe-* >/dev/null 2>&1 || skip "libibverbs has no soft-RoCE (deploy/packages rdma)"
  [ ! -e "$rdma/initrd" ] || [ "$DTD_SOURCE/tests/rdma/init" -nt "$rdma/initrd" ] || return 0
  mkdir -p "$rdma"
  package=$(apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
  [ -n "$package" ] || skip "apt lists no kernel package of Debian"
  version=${package#linux-image-}
  [ -e "$rdma/boot/vmlinuz-$version" ] || {
    echo "downloading $package into build/rdma"
    (cd "$rdma" && apt-get -qq download "$package" 2>/dev/null) || skip "$package cannot be downloaded"
    dpkg-deb --fsys-tarfile "$rdma/$package"_*.deb | tar -x -C "$rdma" --wildcards ./boot/vmlinuz-* './lib/modules/*/modules.*' \
      './lib/modules/*/kernel/drivers/infiniband' './lib/modules/*/kernel/drivers/net' './lib/modules/*/kernel/drivers/virtio' \
      './lib/modules/*/kernel/net' './lib/modules/*/kernel/fs' './lib/modules/*/kernel/crypto' './lib/modules/*/kernel/lib' \
      './lib/modules/*/kernel/arch'
    rm "$rdma/$package"_*.deb
    depmod -b "$rdma" "$version"
  }
  rm -rf "$rdma/root"
  mkdir -p "$rdma/root/bin" "$rdma/root/modules"
  cp "$(command -v busybox)" "$rdma/root/bin/busybox"
  cp "$DTD_SOURCE/tests/rdma/init" "$rdma/root/init"
  for m in $modules; do modprobe -d "$rdma" -S "$version" --show-depends $m | sed -n 's/^insmod \([^ ]*\).*/\1/p'; done |
    awk '!seen[$0]++' | while read -r file; do
    cp "$file" "$rdma/root/modules/"
    basename "$file" >>"$rdma/root/modules/order"
  done
  cp "$rdma/boot/vmlinuz-$version" "$rdma/vmlinuz"
  (cd "$rdma/root" && find . | cpio -o -H newc --quiet | gzip -1) >"$rdma/initrd.new"
  mv "$rdma/initrd.new" "$rdma/initrd"
}

number() { case $1 in a) echo 1 ;; b) echo 2 ;; esac; }
other() { case $1 in a) echo b ;; b) echo a ;; esac; }
power_on() { # NODE
  mkdir -p "$tmp/$1"
  qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 1536 -nodefaults -display none -no-reboot \
    -kernel "$rdma/vmlinuz" -initrd "$rdma/initrd" -serial "file:$tmp/$1/console" \
    -append "console=ttyS0 quiet panic=-1 mitigations=off node=$1 address=10.78.0.$(number "$1") share=$tmp" \
    -fsdev "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap" -device virtio-9p-pci,fsdev=root,mount_tag=root \
    -fsdev "local,id=share,path=$tmp,security_model=none,multidevs=remap" -device virtio-9p-pci,fsdev=share,mount_tag=share \
    -netdev "dgram,id=net,local.type=unix,local.path=$tmp/$1/net,remote.type=unix,remote.path=$tmp/$(other "$1")/net" \
    -device "virtio-net-pci,netdev=net,mac=52:54:00:00:00:0$(number "$1")" </dev/null >"$tmp/$1/qemu" 2>&1 &
  machine[$1]=$!
  disown # the shell must not report its end
}
power_off() { # NODE
  kill -9 "${machine[$1]}"
  rm -f "$tmp/$1/net"
}
is_on() { # NODE
  [ -e "$tmp/$1/up" ] || { kill -0 "${machine[$1]}" 2>/dev/null || fail "machine $1 has ended: $(cat "$tmp/$1/qemu")"; false; }
}

# on NODE COMMAND...: runs the command on the machine, as root, and returns its output and status.
on() {
  local node=$1 n
  shift
  n=$(($(ls "$tmp/$node" | grep -c '^ask[.][0-9]') + 1)) # counted by files, because a subshell cannot change a counter
  printf '%q ' "$@" >"$tmp/$node/ask.new"
  mv "$tmp/$node/ask.new" "$tmp/$node/ask.$n"
  while [ ! -e "$tmp/$node/status.$n" ]; do
    kill -0 "${machine[$node]}" 2>/dev/null || fail "machine $node has ended"
    sleep 0.05
  done
  cat "$tmp/$node/out.$n"
  cat "$tmp/$node/err.$n" >&2
  return "$(cat "$tmp/$node/status.$n")"
}
