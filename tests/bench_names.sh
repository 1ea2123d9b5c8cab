#!/bin/sh
# bench_names.sh CCKS_BENCH PYTHON: a name that a bench does not know is an error that lists those it does know, not a run of nothing.
bench=$1 python=$2 root=$(dirname "$0")/.. failed=0

refuses() {  # a name that must be listed, the command
  listed=$1
  shift
  said=$("$@" 2>&1)
  code=$?
  case $code:$said in
    2:*"$listed"*) ;;
    *) echo "exit code $code, and 2 was expected, with '$listed' among the names: $*"; echo "$said"; failed=1 ;;
  esac
}

refuses gpu_queue "$bench" micro --arms static,copilot
refuses gpu_queue "$bench" micro --arms static coplot
refuses micro/attn8 "$bench" micro --only chain200
refuses lookahead "$bench" crossover --arms copilot
refuses dynamic "$bench" crossover --programs moving
refuses stack_machine "$python" -B "$root/bench/control_flow.py" --programs stacked
refuses replay_tiles "$python" -B "$root/bench/control_flow.py" --arms copilot,replayed
refuses handoff "$python" -B "$root/bench/gpu" --no-build --only micros
exit $failed
