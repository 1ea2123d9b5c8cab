#!/usr/bin/env bash
# A failure prints a command that shows it again, and a short one: both have to fail in the same words.
set -euo pipefail
explore="$1"
found="$("$explore" --seeds 0:200 --mutant event_add_relaxed)" && { echo "a broken protocol passed"; exit 1; }
complaint="$(sed -n 's/^seed [0-9]*: //p' <<<"$found" | head -1)"
long="$(sed -n 's/^  again: //p' <<<"$found" | head -1)"
short="$(sed -n '/^  short: /{n;s/^  //p;}' <<<"$found" | head -1)"
words="$(sed -n 's/^  short: [0-9]* steps: //p' <<<"$found" | head -1)"
steps="$(sed -n 's/^  short: \([0-9]*\) steps.*/\1/p' <<<"$found" | head -1)"
again="$(eval "$long")" && { echo "it did not fail again: $long"; exit 1; }
grep -qF -- "$complaint" <<<"$again" || { echo "it failed otherwise: $long"; exit 1; }
brief="$(eval "$short")" && { echo "it did not fail again: $short"; exit 1; }
grep -qF -- "$words" <<<"$brief" || { echo "it failed otherwise: $short"; exit 1; }
grep -q "BEGINS" <<<"$brief" || { echo "no timeline"; exit 1; }
(( steps < 2000 )) || { echo "not short: $steps steps"; exit 1; }
echo "$complaint; short: $steps steps"
