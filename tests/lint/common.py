"""What all lints share: which files there are, what is comment and what is code, and how to complain."""
import argparse
import dataclasses
import pathlib
import re
import shutil
import subprocess
import sys

SOURCE_ENDINGS = {".hpp", ".cpp", ".cuh", ".cu", ".h", ".in"}
TEXT_ENDINGS = SOURCE_ENDINGS | {".py", ".sh", ".cmake", ".txt", ".md", ".yaml", ".json", ".html"}


@dataclasses.dataclass
class Line:
    """One line of a source: `code` has comments and the contents of strings blanked, `comment` is the rest."""
    number: int
    text: str
    code: str
    comment: str


class Tree:
    """The files of a checkout. Asks git where there is one, so that build folders do not count."""

    def __init__(self, root):
        self.root = pathlib.Path(root).resolve()
        self.complaints = []

    def paths(self):
        if (self.root / ".git").exists() and shutil.which("git"):
            listed = subprocess.run(["git", "-C", str(self.root), "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
                                    capture_output=True, check=False)
            if listed.returncode == 0:
                names = [n for n in listed.stdout.decode().split("\0") if n]
                return sorted(pathlib.PurePosixPath(n) for n in names if (self.root / n).is_file())
        return sorted(pathlib.PurePosixPath(p.relative_to(self.root).as_posix())
                      for p in self.root.rglob("*") if p.is_file() and not self._built(p))

    def _built(self, path):
        top = path.relative_to(self.root).parts[0]
        return top.startswith("build") or top == ".git"

    def sources(self, *folders):
        for path in self.paths():
            if path.suffix in SOURCE_ENDINGS and (not folders or any(path.is_relative_to(f) for f in folders)):
                yield path

    def read(self, path):
        return (self.root / path).read_text(encoding="utf-8", errors="replace")

    def complain(self, path, number, message):
        self.complaints.append(f"{path}:{number}: {message}")

    def finish(self, name):
        for complaint in self.complaints:
            print(complaint)
        print(f"{name}: {len(self.complaints)} complaints" if self.complaints else f"{name}: ok")
        return 1 if self.complaints else 0


TOKEN = re.compile(r'//|/\*|R"(\w*)\(|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'')


def split_comments(text):
    """Yields (start, end, kind) of comments and strings."""
    at = 0
    while True:
        found = TOKEN.search(text, at)
        if not found:
            return
        token = found.group(0)
        if token == "//":
            end = text.find("\n", found.start())
            kind = "comment"
        elif token == "/*":
            end = text.find("*/", found.end())
            end = end + 2 if end >= 0 else -1
            kind = "comment"
        elif token.startswith('R"'):
            close = f"){found.group(1)}\""
            end = text.find(close, found.end())
            end = end + len(close) if end >= 0 else -1
            kind = "string"
        else:
            end = found.end()
            kind = "string"
        end = len(text) if end < 0 else end
        yield found.start(), end, kind
        at = end


def lines_of(text):
    """The lines of a C++ source, each split into code and comment."""
    code = list(text)
    comment = [" " if c != "\n" else c for c in text]
    for start, end, kind in split_comments(text):
        for i in range(start, end):
            if text[i] == "\n":
                continue
            if kind == "comment":
                comment[i] = text[i]
                code[i] = " "
            elif i not in (start, end - 1):
                code[i] = " "
    rows = zip(text.split("\n"), "".join(code).split("\n"), "".join(comment).split("\n"))
    return [Line(i + 1, *row) for i, row in enumerate(rows)]


def main(name, check):
    """Runs `check(tree)` on --root."""
    parser = argparse.ArgumentParser(description=name)
    parser.add_argument("--root", required=True)
    tree = Tree(parser.parse_args().root)
    check(tree)
    sys.exit(tree.finish(name))
