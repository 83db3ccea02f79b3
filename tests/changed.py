"""Print the tests of what has changed since the branch left main, or since the last commit on main: for `make check`.

python -m tests.changed
"""

import subprocess
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]


def git(*arguments: str, root: Path = ROOT) -> list[str]:
    """Return the lines that git prints; none if it fails."""
    found = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return found.stdout.splitlines() if found.returncode == 0 else []


def changed_files(root: Path = ROOT) -> list[str]:
    """Return the files that differ from the point where the branch left main, and the new ones."""
    bases = [line for main in ("main", "origin/main") for line in git("merge-base", main, "HEAD", root=root)]
    return [
        *git("diff", "--name-only", (bases or ["HEAD"])[0], root=root),
        *git("ls-files", "--others", "--exclude-standard", root=root),
    ]


def select_tests(files: Iterable[str], root: Path = ROOT) -> list[str]:
    """Return the test files, and the folders of tests that mirror the innermost package of each changed file."""
    found = {place for file in files if (place := _place(PurePosixPath(file), root))}
    return sorted(place for place in found if not {*map(str, PurePosixPath(place).parents)} & found)


def _place(file: PurePosixPath, root: Path) -> str:
    if file.parts[0] == "tests" and file.name.startswith("test_") and file.suffix == ".py":
        return str(file) if (root / file).exists() else ""
    if file.parts[0] == "polyarr":
        own = PurePosixPath("tests", f"test_{PurePosixPath(file.parts[1]).stem}.py")  # of a module, or a small package
        if (root / own).exists():
            return str(own)
        file = PurePosixPath("tests", *file.parts[1:])
    elif file.parts[0] in ("docs", "examples", "benchmarks"):
        file = "tests" / file
    elif file.parts[0] != "tests":
        return ""
    folders = [str(folder) for folder in file.parents if str(folder) not in ("tests", ".")]
    return next((folder for folder in folders if any((root / folder).rglob("test_*.py"))), "")


if __name__ == "__main__":
    print(*select_tests(changed_files()))
