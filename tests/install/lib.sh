# Common functions of the tests that install dtd in new systems; sourced. They need root and debootstrap. `work` is a new folder, which
# is deleted at the end.
#
# DTD_INSTALL_CACHE: a folder that keeps the minimal systems, one per CODENAME, so that the next run takes minutes less.
skip() { echo "skipped: $*"; exit 77; }
fail() { echo "FAILED: $*" >&2; exit 1; }

[ "$(id -u)" = 0 ] || skip "a chroot needs root"
for tool in debootstrap unshare git dpkg-deb cpack patchelf; do
  command -v $tool >/dev/null || skip "$tool is not installed (deploy/packages install)"
done
unshare --mount --pid --fork true 2>/dev/null || skip "this machine does not allow new mount namespaces"
work=$(mktemp -d "${TMPDIR:-/var/tmp}/dtd-install-XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
cache=${DTD_INSTALL_CACHE:-$work/systems}
mkdir -p "$cache"

# inside ROOT COMMAND [ARGUMENT]...: runs COMMAND as process 1 of new mount and PID namespaces, in ROOT, with the network of this machine.
inside() {
  unshare --mount --pid --fork --kill-child bash -euc '
    root=$1
    shift
    mount --make-rprivate /
    mount --rbind /dev "$root/dev"
    mount -t proc proc "$root/proc"
    mount -t tmpfs tmpfs "$root/tmp"
    cp --remove-destination -L /etc/resolv.conf "$root/etc/resolv.conf"
    exec chroot "$root" env -i PATH=/opt/dtd/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"
  ' bash "$@"
}

# Makes the minimal system $cache/$codename of the Debian archive in this machine's apt configuration, and sets codename.
new_own_system() {
  local found uri
  found=$(apt-get indextargets --format '$(CREATED_BY)|$(CODENAME)|$(COMPONENT)|$(ORIGIN)|$(REPO_URI)' |
    awk -F'|' '$1 == "Packages" && $3 == "main" && $4 == "Debian" && $2 !~ /-/ && !n++ {print $2, $5}')
  [ -n "$found" ] || skip "apt's sources have no Debian archive"
  read -r codename uri <<<"$found"
  new_system "$codename" "${uri%/}" /usr/share/keyrings/debian-archive-keyring.gpg
}

# new_system CODENAME URI KEYRING: makes the minimal system $cache/CODENAME unless it is there. If the archive does not answer, the
# test is skipped.
new_system() {
  local codename=$1 uri=$2 keyring=$3 release=$2/dists/$1/Release components=main script=()
  [ -r "$keyring" ] || skip "$keyring is not installed (deploy/packages install)"
  python3 -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=20).read(1)' "$release" 2>"$work/release.log" ||
    skip "$release cannot be read: $(tail -n 1 "$work/release.log")"
  [ ! -e "$cache/$codename/.complete" ] || return 0
  rm -rf --one-file-system "${cache:?}/$codename"
  # The debootstrap of Debian 12 has no script for newer Ubuntus; theirs are all links to gutsy.
  case $uri in *ubuntu*) components=main,universe script=(gutsy) ;; esac
  debootstrap --variant=minbase --components=$components --keyring="$keyring" "$codename" "$cache/$codename" "$uri" "${script[@]}" \
    >"$work/debootstrap.log" 2>&1 || { tail -n 5 "$work/debootstrap.log"; fail "debootstrap failed with $uri"; }
  touch "$cache/$codename/.complete"
}

# write_job FILE: a job of 20 steps on 2 workers, whose data every Debian has.
write_job() {
  cat >"$1" <<'J'
name: first
model: {arch: llama, dim: 32, layers: 2, heads: 4}
data: {train: ["/usr/share/common-licenses/GPL-3"]}
train: {steps: 20, seq: 64, global_batch: 4, micro_batch: 2}
parallel: {workers: 2}
checkpoint: {dir: ckpt, every: 10}
J
}
