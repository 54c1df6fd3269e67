"""Measures all operators that torch has tests for; writes docs/torch-operators.md and the table of the package.

op_coverage.py [--only TEXT] [--most N] [--part I/N FILE]
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict

from op_samples import measure, operators


def main() -> int:
    words = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=False))
    only, most = words.get("--only", ""), int(words.get("--most", "6"))
    part, count = (int(x) for x in words.get("--part", "0/1").split("/"))
    rows = []
    for i, (name, info) in enumerate(operators()):
        if only not in name or i % count != part:
            continue
        started = time.perf_counter()
        row = measure(name, info, most)
        if row is None:
            continue
        rows.append(row)
        state = f"{row.right:3} {row.refused:3} {row.wrong:3} {time.perf_counter() - started:5.1f} s  {name}"
        print(state, "; ".join([*sorted(row.refusals), *row.mistakes])[:300], flush=True)
    if "--out" in words:
        with open(words["--out"], "w", encoding="utf-8") as file:
            json.dump([{**asdict(r), "seen": sorted(r.seen), "refusals": sorted(r.refusals)} for r in rows], file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
