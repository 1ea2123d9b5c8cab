#!/usr/bin/env bash
# check.sh DIR MODEL holds|fails [-DNAME...]: searches all states of a model. `holds`: no error may be found, nothing left out of
# the search, and no line of the model unreached. `fails`: an error must be found, since a mistake was put in.
# Exit 77 (a skip) without spin or a C compiler.
set -euo pipefail
dir="$1" model="$2" expected="$3"
shift 3

for tool in spin cc; do
  if ! command -v "$tool" >/dev/null; then
    echo "skipped: $tool is not installed"
    exit 77
  fi
done

rm -rf "$dir"
mkdir -p "$dir"
cd "$dir"
spin "$@" -a "$model" >spin.log 2>&1 || { cat spin.log; exit 1; }
# COLLAPSE packs states without loss; memory in MB; depth and table are as large as the largest model asks for.
# A mistake is found soon, the nearest first: there the compiler is what takes time, and a search in depth may lose itself.
search=(-O2)
[[ "$expected" == holds ]] || search=(-O0 -DBFS)
cc "${search[@]}" -w -DSAFETY -DNOCLAIM -DCOLLAPSE -DMEMLIM=3500 -o pan pan.c
./pan -m8000000 -w24 >pan.log 2>&1 || true
grep -E '^pan:|^error|States|states, stored|total actual|elapsed|depth reached' pan.log | grep -v '^Depth=' || cat pan.log

if [[ "$expected" == fails ]]; then
  grep -qE '^pan:1: (assertion violated|invalid end state)' pan.log && exit 0
  echo "the mistake ($*) was not found"
  exit 1
fi
unreached="$(grep -E '^\s.*, state [0-9]+, ' pan.log | grep -v '"-end-"' || true)"
if ! grep -q 'errors: 0$' pan.log || grep -qE '^error|Search not completed|out of memory|max search depth' pan.log; then
  echo "the model does not hold; to see how: cd $dir && spin $* -t -p -g $model"
  exit 1
fi
if [[ -n "$unreached" ]]; then
  printf 'lines that no state reaches:\n%s\n' "$unreached"
  exit 1
fi
