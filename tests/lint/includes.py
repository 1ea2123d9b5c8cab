#!/usr/bin/env python3
"""Who may include whom: the table of DESIGN in tests/README.md, for includes and for CMake's links."""
import re

import common

# Folder -> folders it may include besides itself. `api` is include/ccks/*.hpp.
MAY_INCLUDE = {
    "wire": set(),
    "worker": {"wire"},
    "api": {"wire"},
    "spec": {"api", "wire"},
    "codegen": {"spec", "api", "wire"},
    "scheduler": {"api", "wire"},
    "gpu": {"api", "wire", "worker"},
}
# Single headers that may cross, with the reason.
EXCEPTIONS = {
    ("codegen", "ccks/worker/tile_hints.hpp"): "tile sizes that the op bodies ask of the planner; plain constants",
}
# Programs stand on top of the libraries and may include anything; nothing includes them.
PROGRAM_FOLDERS = ("bench", "tests", "scheduler/tools", "scheduler/examples", "codegen/tools")
MAY_LINK = {
    "ccks_headers": set(),
    "ccks_spec": {"ccks_headers"},
    "ccks_codegen": {"ccks_headers", "ccks_spec"},
    "ccks_scheduler": {"ccks_headers"},
    "ccks_gpu": {"ccks_headers"},
}
CUDA_FREE = {"wire", "worker", "api", "spec", "codegen", "scheduler"}
CUDA_HEADER = re.compile(r"^(cuda|nv|cub/|cooperative_groups|mma\.h)")


def folder_of_source(path):
    parts = path.parts
    if parts[:2] == ("include", "ccks"):
        return parts[2] if len(parts) > 3 else "api"
    return parts[0]


def folder_of_include(name):
    parts = name.split("/")
    if parts[0] == "ccks":
        return parts[1] if len(parts) > 2 else "api"
    return parts[0] if len(parts) > 1 else None


def is_program(path):
    return any(path.is_relative_to(folder) for folder in PROGRAM_FOLDERS)


def check_source(tree, path):
    folder = folder_of_source(path)
    if folder not in MAY_INCLUDE or "templates" in path.parts:
        return
    for line in common.lines_of(tree.read(path)):
        found = re.match(r'\s*#\s*include\s*(["<])([^">]+)[">]', line.text)
        if not found:
            continue
        name = found.group(2)
        if found.group(1) == "<":
            if CUDA_HEADER.match(name) and folder in CUDA_FREE and not guarded_header(path):
                tree.complain(path, line.number, f"{folder} may not include CUDA's <{name}>")
            continue
        target = folder_of_include(name)
        if target is None:
            tree.complain(path, line.number, f'"{name}": an include path equals the path in the repository')
        elif any(name.startswith(program + "/") for program in PROGRAM_FOLDERS):
            tree.complain(path, line.number, f'"{name}": nothing includes programs, tests or benches')
        elif target != folder and target not in MAY_INCLUDE[folder] and (folder, name) not in EXCEPTIONS:
            tree.complain(path, line.number, f'{folder} may not include "{name}"')


def guarded_header(path):
    """Device bodies of the worker are CUDA's own: .cuh is only read by nvcc and NVRTC."""
    return path.suffix in (".cuh", ".cu")


def check_links(tree, path):
    text = re.sub(r"#.*", "", tree.read(path))
    for found in re.finditer(r"target_link_libraries\s*\(\s*(\S+)([^)]*)\)", text):
        target, rest = found.group(1), found.group(2)
        if target not in MAY_LINK:
            continue
        number = text.count("\n", 0, found.start()) + 1
        for name in re.findall(r"\bccks_\w+", rest):
            if name not in MAY_LINK[target] | {"ccks_build_flags"} and name.startswith(tuple(MAY_LINK)):
                tree.complain(path, number, f"{target} may not link {name}")
        if target == "ccks_scheduler" and re.search(r"(?i)\bcuda", rest):
            tree.complain(path, number, f"{target} may not link CUDA")


def check(tree):
    for path in tree.sources("spec", "codegen", "scheduler", "gpu", "include/ccks"):
        if not is_program(path):
            check_source(tree, path)
    for path in tree.paths():
        if path.name == "CMakeLists.txt" and path.parts[0] != "tests":
            check_links(tree, path)


if __name__ == "__main__":
    common.main("includes", check)
