#!/usr/bin/env bash
# package.sh TREE BUILD CODENAME URI KEYRING: builds the package on the distribution CODENAME, in a chroot with what deploy/packages
# build installs, and tries it in a second chroot without these: apt install, a command and a training job, upgrade, remove, purge.
# If CODENAME is this machine's distribution, it takes the package of BUILD instead. KEYRING has the keys of the archive at URI.
# Skipped (77) without root, debootstrap or the archive, with the reason.
#
# DTD_INSTALL_CACHE: a folder that keeps the chroots CODENAME (minimal) and CODENAME-build (with the build's packages and the last
# build), so that the next run takes minutes less. Without it they are deleted at the end.
set -euo pipefail
tree=$1 build=$2 codename=$3 uri=$4 keyring=$5
skip() { echo "skipped: $codename: $*"; exit 77; }
fail() { echo "FAILED: $codename: $*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || skip "a chroot needs root"
for tool in debootstrap unshare git dpkg-deb cpack; do command -v $tool >/dev/null || skip "$tool is not installed (deploy/packages install)"; done
[ -r "$keyring" ] || skip "$keyring is not installed (deploy/packages install)"
unshare --mount --pid --fork true 2>/dev/null || skip "this machine does not allow new mount namespaces"
work=$(mktemp -d "${TMPDIR:-/var/tmp}/dtd-install-XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
cache=${DTD_INSTALL_CACHE:-$work}
mkdir -p "$cache"

# In ROOT, in mount and PID namespaces of its own: bash COMMAND.
inside() {
  unshare --mount --pid --fork --kill-child bash -euc '
    mount --make-rprivate /
    mount --rbind /dev "$1/dev"
    mount -t proc proc "$1/proc"
    mount -t tmpfs tmpfs "$1/tmp"
    cp --remove-destination -L /etc/resolv.conf "$1/etc/resolv.conf"
    exec chroot "$1" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive bash -euc "$2"
  ' bash "$1" "$2"
}

make_chroot() {
  [ ! -e "$cache/$codename/.complete" ] || return 0
  rm -rf --one-file-system "${cache:?}/$codename"
  local components=main script=()
  # The debootstrap of Debian 12 has no script for newer Ubuntus; theirs are all links to gutsy.
  case $uri in *ubuntu*) components=main,universe script=(gutsy) ;; esac
  debootstrap --variant=minbase --components=$components --keyring="$keyring" "$codename" "$cache/$codename" "$uri" "${script[@]}" \
    >"$work/debootstrap.log" 2>&1 || { tail -n 5 "$work/debootstrap.log"; fail "debootstrap failed with $uri"; }
  touch "$cache/$codename/.complete"
}

# Makes FOLDER/ equal to the tree but for its build/. Equal files keep their times, so that only what changed is compiled.
copy_tree() {
  local to=$1 file
  git -C "$tree" ls-files -z --cached --others --exclude-standard | sort -z >"$work/files"
  (cd "$to" && find . -path ./build -prune -o -type f -printf '%P\0') | sort -z | comm -z -13 "$work/files" - |
    (cd "$to" && xargs -0r rm -f)
  while IFS= read -r -d '' file; do
    [ -e "$tree/$file" ] || continue # deleted, but not yet committed
    cmp -s "$tree/$file" "$to/$file" || install -D -m "$(stat -c %a "$tree/$file")" "$tree/$file" "$to/$file"
  done <"$work/files"
}

# Builds the package in the chroot CODENAME-build and copies it to $work/deb.
build_package() {
  local built=$cache/$codename-build
  if [ ! -e "$built/.complete" ]; then
    rm -rf --one-file-system "$built"
    cp -a --reflink=auto "$cache/$codename" "$built"
    rm "$built/.complete"
    mkdir -p "$built/src"
    cp -r "$tree/deploy" "$built/src/"
    inside "$built" 'cd /src && deploy/packages build' >"$work/packages.log" 2>&1 ||
      { tail -n 20 "$work/packages.log"; fail "deploy/packages build failed"; }
    touch "$built/.complete"
  fi
  copy_tree "$built/src"
  inside "$built" 'cd /src && cmake --preset release && cmake --build --preset release --target programs &&
    rm -f build/release/*.deb && cd build/release && cpack' >"$work/build.log" 2>&1 || { tail -n 30 "$work/build.log"; fail "the build failed"; }
  cp "$built"/src/build/release/*.deb "$work/deb/"
}

# The archive answers, or the test is skipped.
release=$uri/dists/$codename/Release
python3 -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=20).read(1)' "$release" 2>"$work/release.log" ||
  skip "$release cannot be read: $(tail -n 1 "$work/release.log")"
make_chroot
mkdir "$work/deb"
if [ "$(. /etc/os-release && echo "${VERSION_CODENAME:-}")" = "$codename" ]; then
  (cd "$work/deb" && cpack --config "$build/CPackConfig.cmake" -G DEB >"$work/cpack.log" 2>&1) || { cat "$work/cpack.log"; fail "cpack failed"; }
else
  build_package
fi

# The package as built is the new version. The old one is the same with a lower number: maintainer scripts and files are tried,
# not an older program.
new=$(ls "$work"/deb/dtd_*.deb)
cp -a --reflink=auto "$cache/$codename" "$work/root"
root=$work/root
mkdir "$root/debs"
cp "$new" "$root/debs/new.deb"
dpkg-deb -R "$new" "$work/old"
sed -i 's/^Version: .*/Version: 0.0.1/' "$work/old/DEBIAN/control"
dpkg-deb -b "$work/old" "$root/debs/old.deb" >/dev/null
# libraft of Debian 12 is in its backports; a user adds them with deploy/packages, or by hand as here.
if [ "$codename" = bookworm ]; then echo "deb $uri bookworm-backports main" >"$root/etc/apt/sources.list.d/backports.list"; fi
cat >"$root/debs/try" <<'T'
set -euo pipefail
die() { echo "FAILED: $*" >&2; exit 1; }
apt-get -qq update
apt-get -qq install -y --no-install-recommends /debs/old.deb >/dev/null
getent passwd dtd >/dev/null || die "the package created no user dtd"
useradd -m alice
cat >/home/alice/job.yaml <<'J'
name: first
model: {arch: llama, dim: 32, layers: 2, heads: 4}
data: {train: ["/usr/share/common-licenses/GPL-3"]}
train: {steps: 20, seq: 64, global_batch: 4, micro_batch: 2}
parallel: {workers: 2}
checkpoint: {dir: ckpt, every: 10}
J
su - alice -c 'dtctl version; dtctl up; dtctl run -- sh -c "echo the command ran"; dtctl submit job.yaml; dtctl down' | tee /tmp/out
grep -q 'is done: step 20' /tmp/out || die "the job did not reach step 20"
mkdir -p /var/lib/dtd && echo state >/var/lib/dtd/kept
echo '# changed by the administrator' >>/etc/dtd/dtd.yaml
dpkg -i /debs/new.deb >/dev/null
[ "$(dpkg-query -W -f '${Version}' dtd)" != 0.0.1 ] || die "dpkg -i did not upgrade"
[ "$(cat /var/lib/dtd/kept)" = state ] || die "the upgrade lost the state"
grep -q administrator /etc/dtd/dtd.yaml || die "the upgrade overwrote dtd.yaml"
dpkg -r dtd >/dev/null
[ -e /var/lib/dtd/kept ] && [ -e /etc/dtd/dtd.yaml ] || die "remove deleted the state or /etc/dtd"
dpkg -P dtd >/dev/null
left=$(find / -xdev \( -path /proc -o -path /debs -o -path /home -o -path /var/log \) -prune -o \( -name 'dtd*' -o -name 'dtctl*' -o -name 'dt-worker*' \) -print)
[ -z "$left" ] || die "purge left: $left"
getent passwd dtd >/dev/null || die "purge removed the user dtd, which docs/operate/install.md says remains"
echo "all of the package's steps succeeded"
T
inside "$root" 'bash /debs/try' >"$work/out" 2>&1 || { tail -n 40 "$work/out"; fail "the package failed in a new system"; }
cat "$work/out"
