#!/usr/bin/env python3
"""The heads of the models name the code that they stand for: mapping.py ROOT fails for a name that is not there any more."""
import pathlib
import re
import sys

# Type::function, namespace::Type, file.hpp
NAMES = re.compile(r"\b([A-Za-z_]\w*(?:::\w+)+|[\w/]+\.(?:hpp|cuh|cpp))\b")
FOLDERS = ("include/ccks", "scheduler", "gpu")


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    files = [p for folder in FOLDERS for p in sorted((root / folder).rglob("*")) if p.suffix in (".hpp", ".cuh", ".cpp")]
    words = set(re.findall(r"\w+", "\n".join(p.read_text() for p in files)))
    missing, checked = [], 0
    for model in sorted((root / "tests/spin").glob("*.pml")):
        head = model.read_text().split("*/")[0]
        for name in NAMES.findall(head):
            checked += 1
            there = any(str(p).endswith("/" + name) for p in files) if "." in name else set(name.split("::")) <= words
            if not there:
                missing.append(f"{model.name}: {name} is nowhere in {', '.join(FOLDERS)}")
    print(f"{checked} names, {len(missing)} missing")
    print("\n".join(missing))
    sys.exit(1 if missing or checked == 0 else 0)


if __name__ == "__main__":
    main()
