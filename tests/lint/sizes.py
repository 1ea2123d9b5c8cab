#!/usr/bin/env python3
"""Files stay small: none over 800 lines, nine in ten under 400; no function over 80 lines."""
import re

import common

FILE_LIMIT, FILE_WISH, WISH_SHARE = 800, 400, 0.9
FUNCTION_LIMIT = 80
CONTROL = re.compile(r"^\s*(?:if|for|while|switch|do|else|namespace|class|struct|enum|union|extern|try|catch)\b")
OPENS = re.compile(r"^(\s*)\S.*\)\s*(?:const|noexcept|override|final|->\s*[\w:<>*& ]+|\s)*\{$")


def long_functions(lines):
    """(line, length) of each function over the limit. Relies on the closing brace standing under the first line."""
    for index, line in enumerate(lines):
        found = OPENS.match(line.code.rstrip())
        if not found or CONTROL.match(line.code) or line.code.lstrip().startswith("}"):
            continue
        indent = found.group(1)
        for last in range(index + 1, len(lines)):
            if lines[last].code.startswith(indent + "}"):
                if last - index + 1 > FUNCTION_LIMIT:
                    yield line.number, last - index + 1
                break


def check(tree):
    files = over = 0
    for path in tree.paths():
        if path.suffix not in common.SOURCE_ENDINGS | {".py", ".sh", ".cmake"} and path.name not in ("ccks", "CMakeLists.txt"):
            continue
        text = tree.read(path)
        count = text.count("\n")
        files += 1
        if count > FILE_WISH:
            over += 1
            print(f"{path}: {count} lines: what is the second thing in it?")
        if count > FILE_LIMIT:
            tree.complain(path, 1, f"{count} lines; the limit is {FILE_LIMIT}")
        if path.suffix in common.SOURCE_ENDINGS:
            for number, length in long_functions(common.lines_of(text)):
                tree.complain(path, number, f"a function of {length} lines; the limit is {FUNCTION_LIMIT}")
    if files >= 20 and over > files * (1 - WISH_SHARE):
        tree.complain("tree", 0, f"{over} of {files} files are over {FILE_WISH} lines; one in ten may be")


if __name__ == "__main__":
    common.main("sizes", check)
