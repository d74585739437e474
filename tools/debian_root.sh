#!/usr/bin/env bash
# Make a folder with a small Debian that has a Python and its headers, for wheels of Pythons that are not here.
# usage: debian_root.sh SUITE ARCHITECTURE FOLDER, as root; needs debootstrap and, for another architecture, qemu-user-static.
# One that is there stays as it is.
set -euo pipefail
if [ ! -e "$3/usr/include/.complete" ]; then
  mkdir -p "$3"  # Its log goes beside it.
  if [ "$2" != "$(dpkg --print-architecture)" ] && [ ! -e /proc/sys/fs/binfmt_misc/qemu-aarch64 ]; then
    mountpoint -q /proc/sys/fs/binfmt_misc || mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
    cat /usr/lib/binfmt.d/qemu-aarch64.conf > /proc/sys/fs/binfmt_misc/register
  fi
  debootstrap --arch="$2" --variant=minbase --include=python3,python3-venv,libpython3-dev "$1" "$3" > "$3.log" 2>&1 \
    || { tail -n 20 "$3.log" >&2; exit 1; }
  touch "$3/usr/include/.complete"
fi
