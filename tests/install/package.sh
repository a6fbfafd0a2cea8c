#!/usr/bin/env bash
# package.sh TREE BUILD CODENAME URI KEYRING: builds the package on the distribution CODENAME, in a chroot with what deploy/packages
# build installs, and tries it in a second chroot without these: apt install, a command and a training job, upgrade, remove, purge.
# If CODENAME is this machine's distribution, it takes the package of BUILD instead. KEYRING has the keys of the archive at URI.
# Skipped (77) without root, debootstrap or the archive, with the reason.
#
# DTD_INSTALL_CACHE (lib.sh) also keeps CODENAME-build, the chroot with the build's packages and the last build.
set -euo pipefail
tree=$1 build=$(realpath "$2") codename=$3 uri=$4 keyring=$5
. "$tree/tests/install/lib.sh"

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
    inside "$built" bash -euc 'cd /src && deploy/packages build' >"$work/packages.log" 2>&1 ||
      { tail -n 20 "$work/packages.log"; fail "deploy/packages build failed"; }
    touch "$built/.complete"
  fi
  copy_tree "$built/src"
  inside "$built" bash -euc 'cd /src && cmake --preset release && cmake --build --preset release --target programs &&
    rm -f build/release/*.deb && cd build/release && cpack' >"$work/build.log" 2>&1 || { tail -n 30 "$work/build.log"; fail "the build failed"; }
  cp "$built"/src/build/release/*.deb "$work/deb/"
}

new_system "$codename" "$uri" "$keyring"
mkdir "$work/deb"
if [ "$(. /etc/os-release && echo "${VERSION_CODENAME:-}")" = "$codename" ]; then
  (cd "$work/deb" && cpack --config "$build/CPackConfig.cmake" -G DEB >"$work/cpack.log" 2>&1) || { cat "$work/cpack.log"; fail "cpack failed"; }
else
  build_package
fi

# The packages as built are the new version. The old one is the same with a lower number: maintainer scripts and files are tried,
# not an older program.
cp -a --reflink=auto "$cache/$codename" "$work/root"
root=$work/root
mkdir -p "$root"/debs/{old,new}
for deb in "$work"/deb/*.deb; do
  package=$(dpkg-deb -f "$deb" Package)
  [ "$package" != dtd-cuda ] || continue # needs NVIDIA's archive
  cp "$deb" "$root/debs/new/$package.deb"
  dpkg-deb -R "$deb" "$work/old-$package"
  sed -i 's/^Version: .*/Version: 0.0.1/; s/\bdtd (= [^)]*)/dtd (= 0.0.1)/' "$work/old-$package/DEBIAN/control"
  dpkg-deb -b "$work/old-$package" "$root/debs/old/$package.deb" >/dev/null
done
# libraft of Debian 12 is in its backports; a user adds them with deploy/packages, or by hand as here.
if [ "$codename" = bookworm ]; then echo "deb $uri bookworm-backports main" >"$root/etc/apt/sources.list.d/backports.list"; fi
write_job "$root/debs/job.yaml"
cat >"$root/debs/try" <<'T'
set -euo pipefail
die() { echo "FAILED: $*" >&2; exit 1; }
apt-get -qq update
apt-get -qq install -y --no-install-recommends /debs/old/*.deb >/dev/null
getent passwd dtd >/dev/null || die "the package created no user dtd"
packages=$(cd /debs/new && basename -s .deb *)
useradd -m alice
cp /debs/job.yaml /home/alice/
su - alice -c 'dtctl version; dtctl up; dtctl run -- sh -c "echo the command ran"; dtctl submit job.yaml; dtctl down' | tee /tmp/out
grep -q 'is done: step 20' /tmp/out || die "the job did not reach step 20"
# The jobs of one node do not load the modules.
missing=$(find /usr/lib/dtd -name '*.so' -exec ldd {} + | grep 'not found' || true)
[ -z "$missing" ] || die "the dependencies of the modules' packages do not bring: $missing"
[ "$packages" = dtd ] || [ -n "$(find /usr/lib/dtd -name '*.so')" ] || die "/usr/lib/dtd has no module"
mkdir -p /var/lib/dtd && echo state >/var/lib/dtd/kept
echo '# changed by the administrator' >>/etc/dtd/dtd.yaml
echo own >/etc/dtd/own
dpkg -i /debs/new/*.deb >/dev/null
[ "$(dpkg-query -W -f '${Version}' dtd)" != 0.0.1 ] || die "dpkg -i did not upgrade"
[ "$(cat /var/lib/dtd/kept)" = state ] || die "the upgrade lost the state"
grep -q administrator /etc/dtd/dtd.yaml || die "the upgrade overwrote dtd.yaml"
dpkg -r $packages >/dev/null
[ -e /var/lib/dtd/kept ] && [ -e /etc/dtd/dtd.yaml ] || die "remove deleted the state or /etc/dtd"
dpkg -P $packages >/dev/null
left=$(find / -xdev \( -path /proc -o -path /debs -o -path /home -o -path /var/log \) -prune -o \( -name 'dtd*' -o -name 'dtctl*' -o -name 'dt-worker*' \) -print)
[ "$left" = /etc/dtd ] && [ "$(ls -A /etc/dtd)" = own ] || die "purge left: $left $(ls -A /etc/dtd)"
getent passwd dtd >/dev/null || die "purge removed the user dtd, which docs/operate/install.md says remains"
echo "all of the package's steps succeeded"
T
inside "$root" bash /debs/try >"$work/out" 2>&1 || { tail -n 40 "$work/out"; fail "the package failed in a new system"; }
cat "$work/out"
