#!/usr/bin/env python3
"""Hostile and malformed specs are refused by `ccks-gen check`: a diagnostic, exit 1, under 2 s of CPU and 64 MB.

usage: hostile.py CCKS_GEN

Takes the files of hostile/ and larger ones made here. Each must end with exit 1 and a diagnostic that names a code; a
path at which there is nothing ends with exit 2.
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

CPU_LIMIT_S = 2.0
MEMORY_LIMIT_KB = 64 * 1024
WALL_LIMIT_S = 60  # the machine may be busy: CPU time is judged, this only ends a hang

HEAD = "ccks: 1\nprogram: p\n"


def made_here():
    """(name, bytes) of files too large or too odd to keep in the repository."""
    yield "deep_brackets", (HEAD + "dims: " + "[" * 100_000).encode()
    yield "deep_braces", (HEAD + "dims: " + "{a: " * 50_000).encode()
    yield "deep_indent", "".join(" " * i + "a:\n" for i in range(2_000)).encode()
    yield "deep_expression", (HEAD + "dims: {n: \"" + "(" * 100_000 + "1" + ")" * 100_000 + "\"}\n").encode()
    yield "long_expression", (HEAD + "dims: {n: " + "1 + " * 200_000 + "1}\n").encode()
    yield "long_line", (HEAD + "x: " + "a" * 10_000_000 + "\n").encode()
    yield "many_dims", (HEAD + "dims:\n" + "".join(f"  d{i}: d{i + 1} + 1\n" for i in range(50_000))).encode()
    yield "doubling", (HEAD + "dims:\n  d0: {range: [1, 2]}\n" +
                       "".join(f"  d{i + 1}: d{i} * d{i} + d{i}\n" for i in range(200))).encode()
    yield "aliases", ("a: &a [x, x]\n" + "".join(f"b{i}: &b{i} [*{'a' if i == 0 else f'b{i - 1}'}, *a]\n"
                                                for i in range(40))).encode()
    yield "not_utf8", HEAD.encode() + b"dims: {n: \xff\xfe\x80}\n"
    yield "zeros", b"\0" * 1_000_000
    yield "empty", b""
    yield "repeat_bomb", (HEAD + "dims: {d: 8}\ntensors:\n  x: {shape: [d], dtype: f32, kind: input}\nops:\n" +
                          "  - repeat: {index: i, count: 2000000000, ops: [{op: map, expr: a + 1, with: {a: x}, out: x}]}\n"
                          ).encode()


def judge(program, path, expected=1):
    """None if `program check path` behaves, else what is wrong."""
    read_end, write_end = os.pipe()
    child = subprocess.Popen([program, "check", str(path)], stdin=subprocess.DEVNULL, stdout=write_end, stderr=write_end)
    os.close(write_end)
    hang = threading.Timer(WALL_LIMIT_S, child.kill)
    hang.start()
    with os.fdopen(read_end, "rb") as stream:
        said = stream.read()
    child_status, usage = os.wait4(child.pid, 0)[1:]
    hang.cancel()
    code = os.waitstatus_to_exitcode(child_status)
    child.returncode = code
    cpu = usage.ru_utime + usage.ru_stime
    if code != expected:
        return f"exit {code} instead of {expected}: {said[-300:]!r}"
    if expected == 1 and b"error[CCKS" not in said:
        return f"no diagnostic: {said[-300:]!r}"
    if len(said) > 1_000_000:
        return f"{len(said)} bytes of diagnostics"
    if cpu > CPU_LIMIT_S:
        return f"{cpu:.2f} s of CPU"
    if usage.ru_maxrss > MEMORY_LIMIT_KB:
        return f"{usage.ru_maxrss // 1024} MB"
    return None


def main():
    program = sys.argv[1]
    folder = pathlib.Path(__file__).parent / "hostile"
    wrong = 0
    count = 0
    with tempfile.TemporaryDirectory() as scratch:
        paths = sorted(folder.glob("*.yaml"))
        for name, text in made_here():
            path = pathlib.Path(scratch) / f"{name}.yaml"
            path.write_bytes(text)
            paths.append(path)
        absent = pathlib.Path(scratch) / "does_not_exist.yaml"
        for path in paths + [pathlib.Path(scratch), absent]:
            count += 1
            complaint = judge(program, path, 2 if path == absent else 1)
            if complaint:
                wrong += 1
                print(f"{path.name}: {complaint}")
    print(f"{count - wrong} of {count} refused as they should be")
    return 1 if wrong or count < 10 else 0


if __name__ == "__main__":
    sys.exit(main())
