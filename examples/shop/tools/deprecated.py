#!/usr/bin/env python3
"""Fails where a file still calls `utcnow` or `utcfromtimestamp`.

    deprecated.py FILE…
"""
import ast
import sys

OLD = {"utcnow", "utcfromtimestamp"}


def calls(path):
    with open(path, "rb") as file:
        tree = ast.parse(file.read(), path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in OLD:
            yield node


left = 0
for path in sys.argv[1:]:
    for node in calls(path):
        print(f"{path}:{node.lineno}: {node.attr} is deprecated", file=sys.stderr)
        left += 1
sys.exit(1 if left else 0)
