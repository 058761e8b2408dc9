"""How often `tritium bisect` names the right commit, and with how many builds: 64 commits, one of which is 8 % slower.

    python bench/bisection.py --repeats 1000                 simulated times: noise with heavy tails, drift, from 0.5 to 8 %
    python bench/bisection.py --real --repeats 20            a made-up git repository, its programs built and timed for real
    python bench/bisection.py --real --metric cpu            by CPU time, for a machine with other load
    python bench/bisection.py --real --waiting               programs that sleep, for a machine with much other load

A search is right if it names the commit, wrong if it names another, and undecided otherwise. The script fails if fewer than 19 of 20
searches are right in 8 builds, with noise of at most 2 %.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tritium.perf.projects.bisect import Bisection, bisect
from tritium.perf.projects.probe import ProjectProbe
from tritium.perf.projects.project import project
from tritium.perf.revisions.git import commits as commits_of
from tritium.perf.revisions.trees import trees
from tritium.perf.stats.estimates import share_interval

COMMITS, SLOWDOWN = 64, 0.08
NOISE = (0.005, 0.01, 0.02, 0.04, 0.08)  # sd of a round's log time
GOAL, QUIET = 0.95, 0.02  # the share that must be right in 8 builds, up to this noise
WAIT = "sleep {seconds:.5f}\n"
WAIT_S = 0.02
WORK = "total = 0\nfor i in range({count}):\n    total += i * i\n"
COUNT = 600_000
IDENTITY = ("-c", "user.name=bench", "-c", "user.email=bench@localhost")


class Simulated:
    """A probe whose times are drawn: common drift, noise of each commit, and now and then a round that takes far longer."""

    def __init__(self, culprit: int, sd: float, rng: random.Random) -> None:
        self.culprit, self.sd, self.rng = culprit, sd, rng
        self.drift = 0.0

    def prepare(self, commit: str) -> None:
        """Build nothing."""

    def release(self, commit: str) -> None:
        """Forget nothing."""

    def measure(self, commits: Sequence[str], rounds: int, look: int) -> list[list[float]]:
        """Return drawn times, side by side."""
        rows = []
        for _ in range(rounds):
            self.drift += self.rng.gauss(0, self.sd)
            rows.append([self._time(int(commit)) for commit in commits])
        return rows

    def _time(self, commit: int) -> float:
        slow = math.log1p(SLOWDOWN) if commit >= self.culprit else 0.0
        late = self.rng.expovariate(4) if self.rng.random() < 0.05 else 0.0
        return self.drift + slow + self.rng.gauss(0, self.sd) + late


def simulated(repeats: int, sd: float, seed: int = 0) -> Iterator[tuple[bool, Bisection]]:
    """Yield the searches of drawn times, and whether each is right."""
    rng = random.Random(f"bisect {seed} {sd}")
    names = [str(i) for i in range(COMMITS)]
    for _ in range(repeats):
        culprit = rng.randrange(1, COMMITS)
        outcome = bisect(names, Simulated(culprit, sd, rng))
        yield outcome.culprit == str(culprit), outcome


def repository(folder: Path, culprit: int, count: int, waiting: bool = False) -> list[str]:
    """Make a repository whose program takes 8 % longer from one commit on; return its commits."""
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    for i in range(COMMITS):
        slow = 1 + SLOWDOWN if i >= culprit else 1
        text = WAIT.format(seconds=WAIT_S * slow) if waiting else WORK.format(count=round(count * slow))
        (folder / "work.py").write_text(f"# version {i}\n{text}", encoding="utf-8")
        subprocess.run(["git", "-C", str(folder), "add", "work.py"], check=True)
        subprocess.run(["git", "-C", str(folder), *IDENTITY, "commit", "--quiet", "-m", f"version {i}"], check=True)
    return [c.hash for c in commits_of(folder, "..HEAD")]


def real(repeats: int, metric: str, count: int, waiting: bool, seed: int = 0) -> Iterator[tuple[bool, Bisection]]:
    """Yield the searches of real programs, and whether each is right."""
    rng = random.Random(f"real {seed}")
    for _ in range(repeats):
        culprit = rng.randrange(1, COMMITS)
        with tempfile.TemporaryDirectory(prefix="bisect-") as name:
            names = repository(Path(name), culprit, count, waiting)
            own = project(Path(name), commands=["sh work.py" if waiting else f"{sys.executable} -S -E work.py"])
            with trees(own.root) as every:
                outcome = bisect(names, ProjectProbe(own, every, own.cases[0], metric=metric))
            yield outcome.culprit == names[culprit], outcome


def summary(searches: list[tuple[bool, Bisection]]) -> dict[str, float | int]:
    """Return how many searches were right, wrong and undecided, and what they took."""
    right = sum(ok for ok, _ in searches)
    wrong = sum(bool(b.culprit) and not ok for ok, b in searches)
    low, high = share_interval(right, len(searches))
    return {
        "searches": len(searches), "right": right, "wrong": wrong, "undecided": len(searches) - right - wrong,
        "share": right / len(searches), "low": low, "high": high,
        "most_builds": max(b.builds for _, b in searches), "rounds": sum(t.rounds for _, b in searches for t in b.tests) // len(searches),
        "right_in_8_builds": sum(ok and b.builds <= 8 for ok, b in searches),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20, help="searches of each kind")
    parser.add_argument("--real", action="store_true", help="time real programs in a made-up repository")
    parser.add_argument("--waiting", action="store_true", help="programs that sleep instead of computing")
    parser.add_argument("--metric", choices=["wall", "cpu"], default="wall", help="what is compared")
    parser.add_argument("--count", type=int, default=COUNT, help="iterations of the program's loop")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures")
    options = parser.parse_args()
    rows: dict[str, dict[str, float | int]] = {}
    kinds = {"real programs": 0.0} if options.real else {f"noise {100 * sd:g} %": sd for sd in NOISE}
    print(f"{COMMITS} commits, one {100 * SLOWDOWN:g} % slower")
    for name, sd in kinds.items():
        run = (
            real(options.repeats, options.metric, options.count, options.waiting, options.seed)
            if options.real
            else simulated(options.repeats, sd, options.seed)
        )
        searches = []
        for ok, outcome in run:
            searches.append((ok, outcome))
            if options.real:
                print(
                    f"  {'right' if ok else 'wrong' if outcome.culprit else 'undecided'}: {outcome.builds} builds",
                    flush=True,
                )
        rows[name] = s = summary(searches)
        print(
            f"{name}: {s['right']} of {s['searches']} right ({100 * s['low']:.1f} … {100 * s['high']:.1f} %), {s['wrong']} wrong, "
            f"{s['undecided']} undecided; {s['right_in_8_builds']} in at most 8 builds, {s['rounds']} rounds a search"
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    missed = [
        name for name, sd in kinds.items() if sd <= QUIET and rows[name]["right_in_8_builds"] < GOAL * options.repeats
    ]
    if missed:
        sys.exit(f"fewer than {100 * GOAL:g} % right in 8 builds: {', '.join(missed)}")


if __name__ == "__main__":
    main()
