#!/usr/bin/env python3
"""The shape of the tree: what stands at the root, a README in each folder, no marks of unfinished work, and compiler
macros of the device only where the platform is described."""
import re

import common

ROOT = {"spec", "codegen", "scheduler", "gpu", "include", "bench", "tests",
        "CMakeLists.txt", "CMakePresets.json", "README.md", "LICENSE", "ccks"}
NEED_README = ("spec", "codegen", "scheduler", "gpu", "include/ccks", "bench", "tests")
# Put together here so that this file does not hold them.
MARKS = re.compile(r"\b(?:" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK", "WI" + "P", "TB" + "D"]) + r")\b")
DEVICE_MACRO = re.compile(r"\b__CUDA_ARCH(?:_\w+)?__\b")
MAY_NAME_DEVICE = re.compile(r"^include/ccks/worker/(?:platform|lanes|ptx|isa)\w*\.(?:hpp|cuh)$")


def check_root(tree, paths):
    for top in sorted({path.parts[0] for path in paths}):
        if top not in ROOT and not top.startswith("."):
            tree.complain(top, 0, "does not belong at the root")
    for name in sorted(ROOT - {path.parts[0] for path in paths}):
        tree.complain(name, 0, "is missing at the root")
    for folder in NEED_README:
        inside = [p for p in paths if p.is_relative_to(folder)]
        if inside and not any(str(p) == f"{folder}/README.md" for p in inside):
            tree.complain(folder, 0, "has no README.md")


def check(tree):
    paths = tree.paths()
    check_root(tree, paths)
    for path in paths:
        if path.suffix not in common.TEXT_ENDINGS and path.name != "ccks" or "corpus" in path.parts:
            continue
        text = tree.read(path)
        for number, line in enumerate(text.split("\n"), 1):
            if MARKS.search(line):
                tree.complain(path, number, f"unfinished: {line.strip()[:80]}")
        if path.suffix in common.SOURCE_ENDINGS and not MAY_NAME_DEVICE.match(str(path)):
            for line in common.lines_of(text):
                if DEVICE_MACRO.search(line.code):
                    tree.complain(path, line.number, "asks for the device's architecture outside the platform headers")


if __name__ == "__main__":
    common.main("layout", check)
