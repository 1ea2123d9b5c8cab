#!/usr/bin/env python3
"""No Python function binds a name that its module imports: in all of the function, also in lines before, the import would then be hidden, and using it fails only when
the function is called. Scripts that want PyTorch or a GPU are called by no test. Parameters are bound from the start, and may."""
import ast

import common

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def imports_of(module):
    """Names that imports of the module bind, those under conditions too."""
    for node in ast.walk(module):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name.split(".")[0] for alias in node.names)


def inside(function):
    """What stands in a function, but not in functions and classes within it."""
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, SCOPES):
            waiting += ast.iter_child_nodes(node)


def check(tree):
    for path in tree.paths():
        if path.suffix != ".py" and not tree.read(path).startswith("#!/usr/bin/env python3"):
            continue
        module = ast.parse(tree.read(path), str(path))
        imported = set(imports_of(module))
        for function in ast.walk(module):
            if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            parameters = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
            for node in inside(function):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in imported - parameters:
                    tree.complain(path, node.lineno, f"{function.name}() binds {node.id}, which is imported")


if __name__ == "__main__":
    common.main("shadows", check)
