"""Run the benchmarks, print their output, and write it into results/.

python -m benchmarks [name ...]
"""

from __future__ import annotations

import argparse
import datetime
import pathlib
import subprocess
import sys
from collections.abc import Sequence

FOLDER = pathlib.Path(__file__).parent
RESULTS = FOLDER / "results"
IMAGES = FOLDER.parent / "docs" / "images"
BENCHMARKS: dict[str, tuple[str, ...]] = {
    "gradient_of_matmul": (),
    "overheads": (),
    "first_call": (),
    "training_step": (),
    "both_modes": (),
    "one_line": (),
    "log_sum_exp": (),
    "networks": (),
    "wide_networks": (),
    "sum_product": (),
    "questions": (),
    "alignments": (),
    "chains": (),
    "durations": (),
    "closures": (),
    "sparse_paths": ("--large",),
    "mesh": (),
    "tropical": (
        "--json",
        str(RESULTS / "tropical.json"),
        "--plot",
        str(IMAGES / "tropical_speed.png"),
    ),
}
"""Each benchmark with its arguments; the large table of cases, routes, peers, ratios and bounds
comes last.
"""


def run(command: Sequence[str]) -> str:
    """What a command prints, shown as it comes.

    Raises:
      subprocess.CalledProcessError: it failed.
    """
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=FOLDER.parent) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return "".join(lines)


def main(names: Sequence[str], results: pathlib.Path = RESULTS) -> None:
    """Run some benchmarks and write what each prints into a file of its name."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    stamp = f"{datetime.date.today()}, commit {commit or 'unknown'}"
    for name in names:
        output = run([sys.executable, "-m", f"benchmarks.{name}", *BENCHMARKS[name]])
        print()
        (results / f"{name}.txt").write_text(f"{stamp}\n{output.strip()}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="name", help=f"of {', '.join(BENCHMARKS)}; all by default"
    )
    given = parser.parse_args()
    if unknown := set(given.names) - set(BENCHMARKS):
        parser.error(
            f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}"
        )
    main(given.names or list(BENCHMARKS))
