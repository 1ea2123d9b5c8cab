#!/usr/bin/env python3
"""No build of the worker leaves an inline function that the linker could swap for another build's.

usage: isa.py NAMESPACE OBJECT...

The worker is compiled once for each instruction set, each in an inline namespace of its own. A weak symbol outside that
namespace is one that all builds define and the linker keeps once: code for a newer CPU might run on an older one.
"""
import subprocess
import sys


def weak_symbols(path):
    done = subprocess.run(["nm", "-C", "--defined-only", path], capture_output=True, text=True, check=True)
    for line in done.stdout.splitlines():
        fields = line.split(maxsplit=2)
        if len(fields) == 3 and fields[1] in "WVu":
            yield fields[2]


def main():
    namespace, objects = sys.argv[1], sys.argv[2:]
    count, wrong = 0, 0
    for path in objects:
        for symbol in weak_symbols(path):
            count += 1
            if f"{namespace}::" not in symbol:
                wrong += 1
                print(f"{path}: {symbol} stands outside {namespace}")
    print(f"isa: {wrong} of {count} inline functions outside {namespace}")
    return 1 if wrong or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
