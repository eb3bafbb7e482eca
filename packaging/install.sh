#!/bin/sh
# Installs Cofferdam for this user, or for all users when root runs it. Needs no compiler and no other program than sh,
# tar, gzip, sha256sum, and curl or wget for an address.
#
#   sh install.sh                    from the directory of this file
#   sh install.sh --from PLACE       from another directory or an https:// address with the same files
#   sh install.sh --prefix DIRECTORY instead of ~/.local, or /usr/local for root
#   sh install.sh --version VERSION  instead of the newest in SHA256SUMS
#   sh install.sh --uninstall        removes what was installed; configuration and state stay
#
# Nothing is unpacked before its checksum in SHA256SUMS was compared, and nothing is replaced before everything is unpacked.
set -eu

main() {
  from= prefix= version= uninstall=no
  while [ $# -gt 0 ]; do
    case $1 in
      --from) from=$(value "$@") || exit; shift ;;
      --prefix) prefix=$(value "$@") || exit; shift ;;
      --version) version=$(value "$@") || exit; shift ;;
      --uninstall) uninstall=yes ;;
      --help | -h) sed -n '2,/^$/{s/^# \{0,1\}//p;}' "$0"; exit 0 ;;
      *) fail 64 "unknown option \`$1\`" "run \`sh install.sh --help\`" ;;
    esac
    shift
  done
  if [ -z "$prefix" ]; then
    if [ "$(id -u)" = 0 ]; then prefix=/usr/local; else prefix=${HOME:?set HOME, or name a directory with --prefix}/.local; fi
  fi
  program=$prefix/bin/cofferdam
  documents=$prefix/share/doc/cofferdam
  if [ "$uninstall" = yes ]; then remove; else install_program; fi
}

install_program() {
  from=${from:-$(directory_of_this_file)}
  architecture=$(uname -m)
  case $architecture in
    x86_64 | amd64) architecture=x86_64 ;;
    aarch64 | arm64) architecture=aarch64 ;;
    *) fail 69 "there is no build for the processor $architecture" "build it from source: see README" ;;
  esac
  [ "$(uname -s)" = Linux ] || fail 69 "there is no build for $(uname -s)" "the sidecar runs on Linux"
  for tool in gzip sha256sum tar; do
    command -v "$tool" > /dev/null || fail 69 "\`$tool\` is missing" "install it with the system's package manager"
  done
  said=$(LC_ALL=C mktemp -d "${TMPDIR:-/tmp}/cofferdam-install.XXXXXXXX" 2>&1) ||
    cannot_write "${TMPDIR:-/tmp}" TMPDIR "make the directory, or name another with TMPDIR"
  work=$said
  trap 'rm -rf "$work"' EXIT
  trap 'exit 130' INT TERM HUP

  fetch SHA256SUMS
  name=$(sed -n "s/^[0-9a-f]\{64\}  \(cofferdam-${version:-[0-9][0-9.]*}-$architecture-linux\.tar\.gz\)\$/\1/p" "$work/SHA256SUMS" |
    sort -t- -k2,2V | tail -n 1)
  [ -n "$name" ] || fail 66 "\`$from\` has no archive ${version:+of version $version }for $architecture" \
    "see which there are in SHA256SUMS"
  fetch "$name"
  sum=$(grep "^[0-9a-f]\{64\}  $name\$" "$work/SHA256SUMS" | cut -c1-64)
  found=$(sha256sum "$work/$name" | cut -c1-64)
  [ "$sum" = "$found" ] || fail 65 "the checksum of \`$name\` is $found and should be $sum: the file is damaged, incomplete or not the one that was published" \
    "get it again, from another place if this stays"
  # The archive has its checksum, so what fails is the writing.
  said=$( (umask 022 && cd "$work" && LC_ALL=C tar -xzf "$name") 2>&1) ||
    cannot_write "$work" TMPDIR "name a directory with TMPDIR in which \`$name\` can be unpacked"
  unpacked=$work/${name%.tar.gz}
  described=$("$unpacked/cofferdam" --version) || fail 69 "the program of \`$name\` does not run on this machine" \
    "build it from source: see README"

  said=$( (umask 022 && LC_ALL=C mkdir -p "$prefix/bin" "$documents") 2>&1) ||
    cannot_write "$prefix" --prefix "cannot create \`$prefix/bin\` and \`$documents\`; choose a directory with --prefix"
  # A program that runs cannot be overwritten: it is written beside and renamed.
  new=$prefix/bin/.cofferdam.$$.new
  trap 'rm -rf "$work" "$new"' EXIT
  said=$( { cp "$unpacked/cofferdam" "$new" && chmod 0755 "$new" &&
    cp "$unpacked/LICENSE" "$unpacked/README.md" "$unpacked/CHANGELOG.md" "$documents/" && mv -f "$new" "$program"; } 2>&1) ||
    cannot_write "$prefix" --prefix "choose a directory with --prefix"
  echo "installed $described as $program"
  case :$PATH: in
    *:"$prefix/bin":*) echo "next: cofferdam demo" ;;
    *) echo "next: export PATH=\"$prefix/bin:\$PATH\" && cofferdam demo" ;;
  esac
}

remove() {
  [ -e "$program" ] || fail 66 "\`$program\` is not installed" "name the directory that was used with --prefix"
  rm -f "$program" "$documents/LICENSE" "$documents/README.md" "$documents/CHANGELOG.md" ||
    fail 73 "cannot remove \`$program\`" "run this as the user who installed it"
  rmdir "$documents" 2> /dev/null || true
  echo "removed $program; configuration and state stay where they are"
}

# Brings a file into $work: from a directory, or from an address.
fetch() {
  case $from in
    https://* | http://127.0.0.1:* | http://localhost:*)
      # Their own exit codes for a file that cannot be written: 23 and 3.
      if command -v curl > /dev/null; then
        unwritten=23
        curl --fail --silent --show-error --location --proto-redir '=https' --max-time 600 --output "$work/$1" "$from/$1"
      elif command -v wget > /dev/null; then
        unwritten=3
        wget --quiet --timeout=60 --output-document="$work/$1" "$from/$1"
      else
        fail 69 "neither \`curl\` nor \`wget\` is installed" "install one, or get the files by hand and name their directory with --from"
      fi || {
        [ $? != "$unwritten" ] || fail 73 "there is no room for \`$1\` in \`$work\`" "name a directory with more room with TMPDIR"
        fail 69 "cannot get \`$from/$1\`" "check the address and the network"
      } ;;
    http://*) fail 64 "\`$from\` is not encrypted" "use https://, or a directory" ;;
    *) [ -f "$from/$1" ] || fail 66 "there is no \`$1\` in \`$from\`" "name the directory or address of a release with --from"
      [ -r "$from/$1" ] || fail 66 "cannot read \`$from/$1\`" "check its permissions"
      said=$(LC_ALL=C cp "$from/$1" "$work/$1" 2>&1) || cannot_write "$work" TMPDIR "name another directory with TMPDIR" ;;
  esac
}

directory_of_this_file() {
  case $0 in
    */*) (cd "$(dirname "$0")" && pwd) ;;
    *) fail 64 "this is not run from a file" "name a directory or an address with --from" ;;
  esac
}

value() {
  [ $# -ge 2 ] || fail 64 "$1 needs a value" "run \`sh install.sh --help\`"
  printf %s "$2"
}

# Ends because a program, which has printed $said, cannot write to a directory: PLACE, how another is named, and what to do
# unless the disk is full.
cannot_write() {
  echo "$said" >&2
  case $said in
    # tar's words are the last.
    *"No space left on device"* | *"Disk quota exceeded"* | *"Wrote only "*)
      fail 73 "there is no room in \`$1\`" "free some space there, or name a directory with more room with $2" ;;
  esac
  fail 73 "cannot write to \`$1\`" "$3"
}

fail() {
  echo "install.sh: $2; $3" >&2
  exit "$1"
}

# The whole file is read before anything is done: a download that was cut runs nothing.
main "$@"
