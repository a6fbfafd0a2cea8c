#!/usr/bin/env bash
# contents.sh BUILD: packs the Debian packages and compares the files and the dependencies of each with a table. It also checks that no
# program needs a newer glibc than deploy/bundle promises. Skipped (77) without cpack's tools.
set -euo pipefail
tree=$(cd "$(dirname "$0")/../.." && pwd) build=$1
for tool in cpack dpkg-deb dpkg-shlibdeps file objdump; do
  command -v $tool >/dev/null || { echo "skipped: $tool is not installed (deploy/packages install)"; exit 77; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
wrong() { echo "FAILED: $*" >&2; failed=1; }

(cd "$work" && cpack --config "$build/CPackConfig.cmake" -G DEB -B "$work/deb" >cpack.log 2>&1) || { cat "$work/cpack.log"; exit 1; }

# Package | file. A module's row counts only if the build has the module.
cat >"$work/table" <<'T'
dtd /etc/dtd/dtd.yaml
dtd /usr/bin/dt-worker
dtd /usr/bin/dtctl
dtd /usr/bin/dtd
dtd /usr/bin/dtd-control
dtd /usr/bin/dtd-io
dtd /usr/bin/dtd-web
dtd /usr/lib/systemd/system/dtd.service
dtd /usr/lib/sysusers.d/dtd.conf
dtd /usr/lib/tmpfiles.d/dtd.conf
dtd /usr/share/bash-completion/completions/dtctl
dtd /usr/share/doc/dtd/examples/first-job.yaml
dtd /usr/share/doc/dtd/examples/gpt2-tiny.yaml
dtd /usr/share/dtd/dtd.sbatch
dtd /usr/share/man/man1/dtctl.1
dtd /usr/share/man/man5/dtd-job.5
dtd /usr/share/man/man8/dt-worker.8
dtd /usr/share/man/man8/dtd.8
dtd /usr/share/zsh/site-functions/_dtctl
dtd-cuda /usr/lib/dtd/dtd-cuda.so
dtd-cuda /usr/lib/dtd/dtd-nccl.so
dtd-hdf5 /usr/lib/dtd/dtd-hdf5.so
dtd-report /usr/lib/dtd/dtd-report.so
dtd-ucx /usr/lib/dtd/dtd-ucx.so
T
while read -r package file; do
  case $file in *.so) [ -e "$build/bin/${file##*/}" ] || continue ;; esac
  echo "$package $file"
done <"$work/table" | sort >"$work/want"
for deb in "$work"/deb/*.deb; do
  package=$(dpkg-deb -f "$deb" Package)
  dpkg-deb -c "$deb" | awk -v p="$package" '$6 !~ /\/$/ {print p, substr($6, 2)}'
done | sort >"$work/have"
diff -u --label table --label packages "$work/want" "$work/have" || wrong "the packages' files differ from the table"

# Package | a dependency that it must have.
version=$("$build/bin/dtctl" --version | awk '{print $2}')
while read -r package need; do
  deb=$(echo "$work"/deb/"$package"_*.deb)
  [ -e "$deb" ] || continue
  depends=$(dpkg-deb -f "$deb" Depends)
  [[ ", $depends," == *", $need"[,\ ]* ]] || wrong "$package does not depend on $need; it depends on: $depends"
done <<T
dtd libc6
dtd libraft0
dtd libssl3
dtd-ucx dtd (= $version)
dtd-ucx libucx0
dtd-hdf5 dtd (= $version)
dtd-report dtd (= $version)
dtd-report fonts-dejavu-core
dtd-report libpangocairo-1.0-0
dtd-cuda dtd (= $version)
T

promised=$(sed -n 's/^glibc_max=\([0-9.]*\).*/\1/p' "$tree/deploy/bundle")
[ -n "$promised" ] || wrong "deploy/bundle has no line glibc_max="
for file in "$build"/bin/{dtd,dtd-control,dtd-io,dtd-web,dt-worker,dtctl} "$build"/bin/dtd-*.so; do
  [ -e "$file" ] || continue
  newest=$(objdump -T "$file" | grep -oE '\(GLIBC_2\.[0-9]+(\.[0-9]+)?' | sed 's/.*_//' | sort -Vu | tail -n 1)
  [ "$(printf '%s\n' "$newest" "$promised" | sort -V | tail -n 1)" = "$promised" ] ||
    wrong "$file needs glibc $newest, and deploy/bundle promises $promised: $(objdump -T "$file" | awk -v v="GLIBC_$newest" 'index($0, v) {print $NF}' | tr '\n' ' ')"
done
exit $failed
