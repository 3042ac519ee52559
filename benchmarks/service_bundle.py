"""What a look-up in a bundle costs, from Python and from C.

From C it is measured twice. ``hot`` is a tight loop: nothing happens between look-ups, so that it measures the caches.
All slots of 10,000 records fit into a core's own cache, and those of 1,000,000 do not: their loop waits for memory, or
for a cache that all cores share. That is a physical limit: a look-up reads one place of memory that nothing foretells,
and no order of the file makes a large one as near as a small one. ``cold`` is what a program sees that looks up one
schedule between other work: before each look-up it walks over more bytes than the last-level cache has, and the same
walk without a look-up is timed in turn and taken off. Every look-up waits for memory then, whatever the bundle's size:
for the slot, for the tables of the pages on the way to it, and for its own code. The file is read into huge pages, with
fewer such tables: without them ``cold`` takes 1.4 times as long, and ``hot`` the same.
"""

import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from tilewright.service.bundle import HEADER, Bundle

PASSES, ROUNDS = 25, 400
MOST_C_US, MOST_PYTHON_US = 2.0, 20.0
READER = r"""
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "tilewright_bundle.h"
/* reader FILE DEVICE TOOLCHAIN PROFILE KEYS PASSES ROUNDS: prints nanoseconds for each look-up in the first pass
 * through all keys, in the median of all passes, for a look-up with cold caches, by how much the middle half of these
 * differ, and how many hit. */
static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double now(clockid_t clock) {
    struct timespec at;
    clock_gettime(clock, &at);
    return 1e9 * (double)at.tv_sec + (double)at.tv_nsec;
}
int main(int count, char **a) {
    FILE *file = fopen(a[1], "rb"), *keys = fopen(a[5], "rb");
    if (count < 8 || !file || !keys) return 9;
    fseek(file, 0, SEEK_END);
    size_t bytes = (size_t)ftell(file), length, n = 0, hits = 0;
    rewind(file);
    size_t huge = 2 << 20, room = (bytes + huge - 1) / huge * huge;
    char *data = aligned_alloc(huge, room), *names = malloc(65 * 1000000u), key[65];
#ifdef MADV_HUGEPAGE
    if (data) madvise(data, room, MADV_HUGEPAGE);
#endif
    if (!data || !names || fread(data, 1, bytes, file) != bytes) return 9;
    while (n < 1000000u && fscanf(keys, "%64s", names + 65 * n) == 1) n++;
    tilewright_bundle bundle;
    if (tilewright_bundle_open(&bundle, data, bytes, NULL, 0)) return 8;
    long at = tilewright_bundle_conditions(&bundle, a[2], a[3], a[4]), cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    int passes = atoi(a[6]), rounds = atoi(a[7]);
    size_t wide = 2 * (size_t)(cache > 32 << 20 ? cache : 32 << 20);
    double *hot = malloc(sizeof(double) * (size_t)passes), *cold = malloc(sizeof(double) * (size_t)rounds), first;
    double *control = malloc(sizeof(double) * (size_t)rounds);
    volatile unsigned char *walked = malloc(wide);
    const char *json;
    if (!hot || !cold || !control || !walked) return 9;
    for (int i = 0; i < passes; i++) {
        double start = now(CLOCK_PROCESS_CPUTIME_ID);
        for (size_t k = 0; k < n; k++)
            hits += (size_t)tilewright_bundle_find(&bundle, at, names + 65 * k, &json, &length);
        hot[i] = (now(CLOCK_PROCESS_CPUTIME_ID) - start) / (double)n;
    }
    first = hot[0];
    for (int i = 0; i < 2 * rounds; i++) {
        int found = 0;
        for (size_t k = 0; k < wide; k += 64) walked[k]++;
        memcpy(key, names + 65 * ((size_t)i * 97 % n), 65); /* a program has just made the key that it asks for */
        now(CLOCK_MONOTONIC); /* the clock itself is cold, too; a median of short times is none of other programs' */
        double start = now(CLOCK_MONOTONIC);
        if (i % 2) found = tilewright_bundle_find(&bundle, at, key, &json, &length);
        (i % 2 ? cold : control)[i / 2] = now(CLOCK_MONOTONIC) - start;
        hits += (size_t)found;
    }
    qsort(hot, (size_t)passes, sizeof(double), by_size);
    qsort(cold, (size_t)rounds, sizeof(double), by_size);
    qsort(control, (size_t)rounds, sizeof(double), by_size);
    printf("%.1f %.1f %.1f %.1f %zu\n", first, hot[passes / 2], cold[rounds / 2] - control[rounds / 2],
           cold[3 * rounds / 4] - cold[rounds / 4], hits);
    return 0;
}
"""


def measure(file: Path, keys: Sequence[str], place: tuple[str, str, str], records: int) -> list[dict[str, object]]:
    """Look the keys up, which the bundle in ``file`` has under the conditions ``place``. C is left out where there is
    no compiler."""
    with Bundle.open(file) as bundle:
        costs = []
        for _ in range(3):
            cpu = time.process_time()
            for key in keys:
                bundle.find(key, *place)
            costs.append((time.process_time() - cpu) / len(keys))
        assert all(bundle.find(key, *place) is not None for key in keys[:1000])
    rows = [_row(f"bundle {records} python", 1e6 * median(costs), MOST_PYTHON_US)]
    compiler = shutil.which("cc")
    if compiler is None:
        return rows
    source, names, reader = (file.with_name(name) for name in ("reader.c", "keys", "reader"))
    source.write_text(READER)
    names.write_text("\n".join(keys))
    subprocess.run([compiler, "-O2", f"-I{HEADER.parent}", str(source), "-o", str(reader)], check=True)
    command = [str(reader), str(file), *place, str(names), str(PASSES), str(ROUNDS)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    first, hot, cold, spread = (float(ns) / 1e3 for ns in told[:4])
    assert int(told[4]) == PASSES * len(keys) + ROUNDS
    cold_row = {**_row(f"bundle {records} c cold", cold, MOST_C_US), "middle_half_us": spread}
    return [*rows, {**_row(f"bundle {records} c hot", hot, MOST_C_US), "first_us": first}, cold_row]


def _row(name: str, cpu_us: float, most_us: float) -> dict[str, object]:
    return {"row": name, "cpu_us": cpu_us, "most_us": most_us, "met": cpu_us < most_us}
