"""Prints the licenses of all libraries that are part of the program, each with its text where its source has one.

Usage: third-party.py TARGET, in the workspace. Needs the sources that `cargo fetch` brings.
"""

import json
import pathlib
import subprocess
import sys

PACKAGE = "taskwire-cli"
NAMES = ("LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE")
# Sources in other languages have texts of their own, further down.
DEPTH_MAX = 3


def cargo(*args):
    return json.loads(subprocess.run(["cargo", *args], check=True, stdout=subprocess.PIPE).stdout)


def linked(metadata):
    """The packages that the program is made of: not those that only build or test it."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    start = next(package["id"] for package in metadata["packages"] if package["name"] == PACKAGE)
    found, open_ids = set(), [start]
    while open_ids:
        name = open_ids.pop()
        if name in found:
            continue
        found.add(name)
        for dependency in nodes[name]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                open_ids.append(dependency["pkg"])
    packages = [package for package in metadata["packages"] if package["id"] in found and package["source"]]
    # Macros run in the compiler.
    packages = [package for package in packages if not any("proc-macro" in target["kind"] for target in package["targets"])]
    return sorted(packages, key=lambda package: (package["name"], package["version"]))


def texts(package):
    root = pathlib.Path(package["manifest_path"]).parent
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if len(parts) <= DEPTH_MAX and path.is_file() and path.name.upper().startswith(NAMES) and path.suffix not in (".rs", ".py"):
            yield "/".join(parts), path.read_text(encoding="utf-8", errors="replace").strip()


def main():
    metadata = cargo("metadata", "--format-version", "1", "--locked", "--offline", "--filter-platform", sys.argv[1])
    packages = linked(metadata)
    # Many have the same text: it is printed once.
    seen = {}
    print("The program `taskwire` is made with the Rust standard library (MIT OR Apache-2.0) and the libraries below.")
    print("Texts that are the same for several are here once.\n")
    for package in packages:
        line = f"{package['name']} {package['version']}: {package['license'] or 'see the text'}"
        print("=" * 80 + f"\n{line}\n")
        for name, text in texts(package):
            if text in seen:
                print(f"{name}: as for {seen[text]}")
            else:
                seen[text] = f"{package['name']} {package['version']}, {name}"
                print(f"{name}:\n\n{text}\n")
        print()


main()
