#!/bin/sh
# Writes the text that the language model learns to one file: the King James Bible, 4.3 MB of English in 7-bit characters, as
# Debian's package bible-kjv prints it. Usage: prepare_text.sh OUTPUT
set -eu

if [ $# -ne 1 ]; then
  echo "usage: $0 OUTPUT" >&2
  exit 2
fi
output=$1

if ! command -v bible >/dev/null; then
  echo "$0: the program 'bible' is missing; install it with: apt-get install bible-kjv" >&2
  exit 1
fi

# bible is interactive when standard input is a terminal, and breaks lines at the width given.
mkdir -p "$(dirname "$output")"
bible -l 1000000 gen1:1-rev22:21 </dev/null >"$output.part"

bytes=$(wc -c <"$output.part")
if [ "$bytes" -lt 4000000 ]; then
  echo "$0: 'bible' wrote $bytes bytes, expected more than 4000000" >&2
  exit 1
fi
mv "$output.part" "$output"
echo "$output: $bytes bytes"
