#!/usr/bin/env python3
"""Each lint passes a good tree and refuses a bad one, with the words it is meant to say."""
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent

GOOD_ORDER = """// Roles: ready is written by host [M1], read by worker [M2].
#include <atomic>
std::atomic<int> ready;
// [M1] release: the payload is visible in [M2].
void give() { ready.store(1, std::memory_order_release); }
// [M2] acquire: pairs with [M1].
int take() { return ready.load(std::memory_order_acquire); }
"""
UNFINISHED = "TO" + "DO"
ROOT_FILES = {name: "\n" for name in ("CMakeLists.txt", "CMakePresets.json", "README.md", "LICENSE", "ccks")}
FOLDERS = {f"{folder}/README.md": "\n" for folder in ("spec", "codegen", "scheduler", "gpu", "include/ccks", "bench", "tests")}
GOOD_TREE = {**ROOT_FILES, **FOLDERS}


def function_of(lines):
    return "void f() {\n" + "  g();\n" * lines + "}\n"


# lint, files, what it must say; None: it must pass
CASES = [
    ("includes", {"spec/a.cpp": '#include "ccks/plan.hpp"\n', "codegen/a.cpp": '#include "spec/a.hpp"\n',
                  "gpu/a.cpp": '#include "ccks/worker/lanes.hpp"\n', "tests/a.cpp": '#include "gpu/a.hpp"\n',
                  "codegen/tools/main.cpp": '#include "scheduler/a.hpp"\n'}, None),
    ("includes", {"include/ccks/wire/a.hpp": '#include "ccks/plan.hpp"\n'}, 'wire may not include "ccks/plan.hpp"'),
    ("includes", {"include/ccks/worker/a.hpp": '#include "ccks/engine.hpp"\n'}, 'worker may not include'),
    ("includes", {"include/ccks/a.hpp": '#include "spec/expr.hpp"\n'}, 'api may not include'),
    ("includes", {"spec/a.cpp": '#include "codegen/plan.hpp"\n'}, "spec may not include"),
    ("includes", {"codegen/a.cpp": '#include "scheduler/policy.hpp"\n'}, "codegen may not include"),
    ("includes", {"scheduler/a.cpp": '#include "gpu/host.hpp"\n'}, "scheduler may not include"),
    ("includes", {"scheduler/a.cpp": '#include <cuda_runtime.h>\n'}, "may not include CUDA"),
    ("includes", {"gpu/a.cpp": '#include "scheduler/slot.hpp"\n'}, "gpu may not include"),
    ("includes", {"gpu/a.cpp": '#include "tests/support/a.hpp"\n'}, "nothing includes programs"),
    ("includes", {"gpu/a.cpp": '#include "slot.hpp"\n'}, "equals the path"),
    ("includes", {"gpu/CMakeLists.txt": "target_link_libraries(ccks_gpu PUBLIC ccks_headers)\n"}, None),
    ("includes", {"gpu/CMakeLists.txt": "target_link_libraries(ccks_gpu\n  PUBLIC ccks_spec)\n"}, "ccks_gpu may not link ccks_spec"),
    ("includes", {"scheduler/CMakeLists.txt": "target_link_libraries(ccks_scheduler PRIVATE CUDA::cudart)\n"}, "may not link CUDA"),
    ("memory_order", {"gpu/a.cpp": GOOD_ORDER}, None),
    ("memory_order", {"gpu/a.cpp": GOOD_ORDER.replace("1, std::memory_order_release", "1")}, "does not name its memory order"),
    ("memory_order", {"gpu/a.cpp": GOOD_ORDER + "void h() { ready = 2; }\n"}, "an operator on the atomic ready"),
    ("memory_order", {"gpu/a.cpp": GOOD_ORDER + "void h() { ++ready; }\n"}, "an operator on the atomic ready"),
    ("memory_order", {"gpu/a.cpp": "\n".join(x for x in GOOD_ORDER.split("\n") if "//" not in x)}, "without a tag"),
    ("memory_order", {"gpu/a.cpp": GOOD_ORDER.replace("[M2]", "")}, "[M1] has no partner"),
    ("memory_order", {"gpu/a.cpp": GOOD_ORDER + "// [M3] pairs with [M1]\n"}, "[M3] stands beside no access"),
    ("memory_order", {"gpu/a.cpp": GOOD_ORDER.replace("order_acquire", "order_seq_cst")}, "names the race"),
    ("memory_order", {"gpu/a.cpp": GOOD_ORDER.replace("order_acquire", "order_seq_cst").replace("Roles", "The race")}, None),
    ("memory_order", {"gpu/a.cpp": "std::atomic<int> n;\nint f() { return n.load(std::memory_order_relaxed); }\n"},
     "relaxed says why"),
    ("memory_order", {"gpu/a.cpp": "// Relaxed: counts only.\nstd::atomic<int> n;\n" + "\n" * 20 +
                      "int f() { return n.load(std::memory_order_relaxed); }\n"}, None),
    ("memory_order", {"gpu/a.cpp": "std::atomic<int> n;\nint f() { return n.fetch_sub(1, std::memory_order_acq_rel); }\n"},
     "acq_rel without a tag"),
    ("memory_order", {"scheduler/a.cpp": "volatile int n;\n"}, "volatile orders nothing"),
    ("memory_order", {"scheduler/a.cpp": "// not volatile\nconst char* s = \"volatile\";\n"}, None),
    ("memory_order", {"scheduler/a.cpp": "void f() { std::atomic_thread_fence(std::memory_order_acquire); }\n"}, "bare fence"),
    ("memory_order", {"include/ccks/worker/a.hpp": 'void f() { asm("nop"); }\n'}, "inline assembly"),
    ("memory_order", {"include/ccks/worker/ptx.cuh": 'void f() { asm volatile("nop"); }\n'}, None),
    ("shadows", {"bench/a.py": "from b import folder\n\n\ndef main(folder):\n    folder = 1\n\n\ndef other():\n    return folder\n"}, None),
    ("shadows", {"bench/a.py": "from b import folder\n\n\ndef main():\n    use(folder)\n    folder = 1\n"}, "main() binds folder, which is imported"),
    ("shadows", {"bench/run": "#!/usr/bin/env python3\nimport b as c\n\n\ndef main():\n    for c in range(2):\n        pass\n"}, "main() binds c"),
    ("sizes", {"spec/a.cpp": function_of(70)}, None),
    ("sizes", {"spec/a.cpp": function_of(81)}, "a function of 83 lines"),
    ("sizes", {"spec/a.cpp": "int a;\n" * 801}, "801 lines; the limit"),
    ("sizes", {f"spec/a{i}.cpp": "int a;\n" * (401 if i < 3 else 1) for i in range(20)}, "3 of 20 files are over"),
    ("layout", GOOD_TREE, None),
    ("layout", {**GOOD_TREE, "notes.txt": "\n"}, "does not belong at the root"),
    ("layout", {k: v for k, v in GOOD_TREE.items() if k != "LICENSE"}, "is missing at the root"),
    ("layout", {**{k: v for k, v in GOOD_TREE.items() if k != "gpu/README.md"}, "gpu/a.cpp": "\n"}, "has no README.md"),
    ("layout", {**GOOD_TREE, "gpu/a.cpp": f"// {UNFINISHED}: later\n"}, "unfinished"),
    ("layout", {**GOOD_TREE, "gpu/a.cpp": "#ifdef __CUDA_ARCH__\n#endif\n"}, "outside the platform headers"),
    ("layout", {**GOOD_TREE, "include/ccks/worker/platform.hpp": "#ifdef __CUDA_ARCH__\n#endif\n"}, None),
]


def run(lint, files):
    with tempfile.TemporaryDirectory() as root:
        for name, text in files.items():
            path = pathlib.Path(root) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        done = subprocess.run([sys.executable, HERE / f"{lint}.py", "--root", root], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr


def main():
    wrong = 0
    for number, (lint, files, expected) in enumerate(CASES):
        code, said = run(lint, files)
        good = code == 0 if expected is None else code == 1 and expected in said
        if not good:
            wrong += 1
            print(f"case {number} of {lint}: expected {expected or 'ok'}, exit {code}:\n{said}")
    print(f"{len(CASES) - wrong} of {len(CASES)} cases as they should be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
