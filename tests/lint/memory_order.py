#!/usr/bin/env python3
"""Memory order is always written, tagged, and answered.

In include/ccks, scheduler and gpu:
 - an operation on an atomic names its order; operators on atomics (x = 1, ++x) are refused, they hide seq_cst
 - acquire, release, acq_rel, seq_cst stand within reach of a comment with a tag like [M1], or, for the acq_rel of a count
   of holders, of one that says acq_rel; relaxed within reach of one that says why, at the use or the declaration; a tag of
   seq_cst stands in some comment together with the word race
 - a tag has a partner: some comment names both, and both stand beside an ordered access of the same letter's file set
 - no volatile, no bare fence, no __sync or __atomic builtins; inline assembly only in the platform's own header
"""
import collections
import re

import common

FOLDERS = ("include/ccks", "scheduler", "gpu")
ASM_HEADERS = re.compile(r"^include/ccks/worker/(?:ptx|platform|isa)\w*\.(?:hpp|cuh)$")
SPIN_HINT = re.compile(r'asm volatile\("yield"\)')  # tells the core that this is a spin loop; touches nothing
REACH = 14  # lines above an access in which its comment may stand: a short function below its comment

TAG = re.compile(r"\[([A-Z]{1,2})(\d+)\]")
ORDER = re.compile(r"\bmemory_order(?:_|::)(relaxed|consume|acquire|release|acq_rel|seq_cst)\b")
NAMED_ACCESS = re.compile(r"\b\w+_(acquire|release)\w*\s*\(")
ATOMIC_NAME = re.compile(r"\bstd::atomic(?:_ref|_flag)?\s*(?:<[^;{}()=]*>)?\s*&?\s*(\w+)\s*(?:[;{(=\[]|,)")
CALL = re.compile(r"([\w\])>]+)\s*(?:\.|->)\s*(load|store|exchange|fetch_add|fetch_sub|fetch_or|fetch_and|fetch_xor|"
                  r"compare_exchange_weak|compare_exchange_strong|test_and_set|clear|wait)\s*\(")
FORBIDDEN = [
    (re.compile(r"\bvolatile\b"), "volatile orders nothing: use an atomic"),
    (re.compile(r"\batomic_(?:thread|signal)_fence\b"), "a bare fence: let an operation on an object carry the order"),
    (re.compile(r"\b__(?:sync|atomic)_\w+\s*\("), "a compiler builtin: use std::atomic"),
    (re.compile(r"\b__threadfence\w*\s*\("), "a bare fence: let an operation on an object carry the order"),
    (re.compile(r"\b(?:asm|__asm__)\b"), "inline assembly outside the platform header"),
]


def call_text(code, start):
    """The text of a call from its name to its closing parenthesis."""
    depth = 0
    for i in range(code.index("(", start), len(code)):
        depth += {"(": 1, ")": -1}.get(code[i], 0)
        if depth == 0:
            return code[start:i + 1]
    return code[start:]


def atomics_of(tree):
    """Names declared as atomics anywhere in the scanned folders: members are used in other files than they stand in."""
    names = set()
    for path in tree.sources(*FOLDERS):
        code = "\n".join(line.code for line in common.lines_of(tree.read(path)))
        names |= set(ATOMIC_NAME.findall(code))
    return names - {"ref"}


def check_calls(tree, path, lines, names):
    code = "\n".join(line.code for line in lines)
    uses_atomics = "atomic" in code
    for found in CALL.finditer(code):
        receiver, method = found.group(1), found.group(2)
        known = receiver in names or (uses_atomics and receiver.endswith(")") and method not in ("clear", "wait"))
        if known and not ORDER.search(call_text(code, found.start(2))):
            number = code.count("\n", 0, found.start()) + 1
            tree.complain(path, number, f"{receiver}.{method}() does not name its memory order")
    for name in set(ATOMIC_NAME.findall(code)):
        if re.search(rf"\b(?:u?int\w*|u\d+|bool|auto|T|State)\s+{name}\s*=", code):
            continue  # a plain local of the same name: which one is meant cannot be told here
        for found in re.finditer(rf"(?<![\w.>:]){name}\s*(?:\+\+|--|[-+|&^]=|=(?!=))(?!\s*\{{)|(?:\+\+|--){name}\b", code):
            line = code[code.rfind("\n", 0, found.start()) + 1:found.start()]
            if "atomic" not in line:
                number = code.count("\n", 0, found.start()) + 1
                tree.complain(path, number, f"an operator on the atomic {name}: write the operation and its order")


def nearby_comment(lines, index):
    return " ".join(line.comment for line in lines[max(0, index - REACH):index + 1])


def check_tags(tree, path, lines, sited, raced, explained):
    for index, line in enumerate(lines):
        for order in ORDER.findall(line.code):
            comment = nearby_comment(lines, index)
            tags = TAG.findall(comment)
            if order == "seq_cst" and not re.search(r"\b[Rr]ace\b", comment) and not any("".join(tag) in raced for tag in tags):
                tree.complain(path, line.number, "seq_cst names the race that needs it")
            if order == "relaxed":
                if not comment.strip() and not explained & {call[0] for call in CALL.findall(line.code)}:
                    tree.complain(path, line.number, "relaxed says why that is safe")
            elif order == "acq_rel" and "acq_rel" in comment:
                continue  # a count of holders: each decrement is its own other side
            elif not tags:
                tree.complain(path, line.number, f"{order} without a tag like [M1] that names the other side")
        if ORDER.search(line.code) or NAMED_ACCESS.search(line.code):
            sited.update("".join(tag) for tag in TAG.findall(nearby_comment(lines, index)))


def comment_blocks(lines):
    """Runs of adjacent lines with comments: (first line number, text)."""
    block, first = [], 0
    for line in lines:
        if line.comment.strip():
            first = first or line.number
            block.append(line.comment)
        elif block:
            yield first, "\n".join(block)
            block, first = [], 0
    if block:
        yield first, "\n".join(block)


def check_partners(tree, partners, places, sited):
    for tag, (path, number) in sorted(places.items()):
        answered = [other for other in partners[tag] if other in sited]
        if tag not in sited:
            tree.complain(path, number, f"[{tag}] stands beside no access that names its order")
        elif not answered:
            tree.complain(path, number, f"[{tag}] has no partner: no comment names it together with a tag of the other side")


def check(tree):
    names = atomics_of(tree)
    partners = collections.defaultdict(set)
    places, sited, raced = {}, set(), set()
    files = {path: common.lines_of(tree.read(path)) for path in tree.sources(*FOLDERS)}
    explained = set()  # atomics whose declaration says why relaxed is enough, for all their uses
    for lines in files.values():
        for index, line in enumerate(lines):
            if "elaxed" in " ".join(above.comment for above in lines[max(0, index - 3):index + 1]):
                explained |= set(ATOMIC_NAME.findall(line.code))
        for _, block in comment_blocks(lines):
            if re.search(r"\b[Rr]ace\b", block):
                raced |= {"".join(tag) for tag in TAG.findall(block)}
    for path, lines in files.items():
        for line in lines:
            for pattern, message in FORBIDDEN:
                if pattern.search(line.code) and not ASM_HEADERS.match(str(path)) and not SPIN_HINT.search(line.text):
                    tree.complain(path, line.number, message)
        check_calls(tree, path, lines, names)
        check_tags(tree, path, lines, sited, raced, explained)
        for number, block in comment_blocks(lines):
            tags = {"".join(tag) for tag in TAG.findall(block)}
            for tag in tags:
                places.setdefault(tag, (path, number))
                partners[tag] |= {other for other in tags if other != tag and other.rstrip("0123456789") == tag.rstrip("0123456789")}
    check_partners(tree, partners, places, sited)


if __name__ == "__main__":
    common.main("memory_order", check)
