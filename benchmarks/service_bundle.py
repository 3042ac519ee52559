"""What a look-up in a bundle costs, from the text of a key to the first byte of its answer, from Python and from C.

From C it is measured in three ways, in bundles of all sizes in turn:

batch    1,000 keys at once (``tilewright_bundle_find_all``), as a program asks that loads a model. Memory is asked for
         many entries before it is waited for, so that it costs the same however many there are.
cold     one look-up between other work: before each one the program walks over more bytes than the last-level cache
         has, and the same walk without a look-up is timed in turn and taken off. It waits for the slot, for the entry,
         for the tables of the pages on the way to both, and for its own code, whatever the bundle's size.
loop     one look-up after the other, with nothing between. The answers of 10,000 records fit into the caches and those
         of 1,000,000 do not, so that each look-up waits for memory alone: it grows by the distance of memory from the
         processor, beyond the bar of 1.3. Programs that have many keys look them up in batches.

The file is read into huge pages. SHA-256 of the answers, one by one and in batches, is compared with what Python finds.
"""

import hashlib
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tilewright.service.bundle import HEADER, Bundle

BLOCKS, ROUNDS = 50, 400
MOST_C_US, MOST_PYTHON_US = 2.0, 20.0
KINDS = ("python", "c loop", "c batch", "c cold")
READER = r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "tilewright_bundle.h"
/* reader DEVICE TOOLCHAIN PROFILE BLOCKS ROUNDS FILE KEYS [FILE KEYS]...: looks keys up in all files in turn. For each
 * file a line says what was found, and then one of each kind has nanoseconds for each look-up: BLOCKS for "loop" and
 * "batch", and for "cold" ROUNDS of look-ups and ROUNDS of the same without them. */
enum { KEYS = 200000, BLOCK = 20000, BATCH = 1000, FILES = 4 };
typedef struct {
    tilewright_bundle bundle;
    long conditions;
    char (*names)[65];
    size_t keys;
} source;
static const char *wanted[BATCH], *json[BATCH];
static size_t length[BATCH], misses;
static volatile unsigned char begins;
static double now(clockid_t clock) {
    struct timespec at;
    clock_gettime(clock, &at);
    return 1e9 * (double)at.tv_sec + (double)at.tv_nsec;
}
static char *read_file(const char *path, size_t *bytes) { /* into huge pages */
    FILE *file = fopen(path, "rb");
    size_t huge = 2 << 20;
    if (!file) exit(9);
    fseek(file, 0, SEEK_END);
    *bytes = (size_t)ftell(file);
    rewind(file);
    size_t room = (*bytes + huge) / huge * huge;
    char *data = aligned_alloc(huge, room);
    if (!data) exit(9);
#ifdef MADV_HUGEPAGE
    madvise(data, room, MADV_HUGEPAGE);
#endif
    if (fread(data, 1, *bytes, file) != *bytes) exit(9);
    fclose(file);
    return data;
}
static void find(const source *s, const char *key) {
    const char *found;
    size_t bytes;
    if (tilewright_bundle_find(&s->bundle, s->conditions, key, &found, &bytes)) begins += (unsigned char)*found;
    else misses++;
}
static void find_all(const source *s, char (*names)[65]) {
    for (size_t i = 0; i < BATCH; i++) wanted[i] = names[i];
    misses += BATCH - tilewright_bundle_find_all(&s->bundle, s->conditions, wanted, BATCH, json, length);
    for (size_t i = 0; i < BATCH; i++) begins += (unsigned char)*json[i];
}
/* Print the SHA-256 of all answers, one by one and in batches. */
static void print_answers(const source *s) {
    unsigned char digests[2][32];
    tilewright_sha256 sums[2];
    for (int i = 0; i < 2; i++) tilewright_sha256_begin(sums + i);
    for (size_t k = 0; k < s->keys; k++) {
        if (k % BATCH == 0) find_all(s, s->names + k);
        tilewright_sha256_add(sums, json[k % BATCH], length[k % BATCH]);
        const char *found;
        size_t bytes;
        if (!tilewright_bundle_find(&s->bundle, s->conditions, s->names[k], &found, &bytes)) exit(7);
        tilewright_sha256_add(sums + 1, found, bytes);
    }
    for (int i = 0; i < 2; i++) {
        tilewright_sha256_end(sums + i, digests[i]);
        for (int n = 0; n < 32; n++) printf("%02x", digests[i][n]);
        printf(i ? "\n" : " ");
    }
}
int main(int count, char **a) {
    static source sources[FILES];
    int files = 0, blocks = atoi(a[4]), rounds = atoi(a[5]);
    for (int i = 6; i + 1 < count && files < FILES; i += 2, files++) {
        source *s = sources + files;
        size_t bytes;
        char *data = read_file(a[i], &bytes);
        FILE *names = fopen(a[i + 1], "rb");
        s->names = malloc(65 * KEYS);
        if (!names || !s->names || tilewright_bundle_open(&s->bundle, data, bytes, NULL, 0)) return 8;
        while (s->keys < KEYS && fscanf(names, "%64s", s->names[s->keys]) == 1) s->keys++;
        s->keys -= s->keys % BLOCK;
        fclose(names);
        s->conditions = tilewright_bundle_conditions(&s->bundle, a[1], a[2], a[3]);
    }
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    size_t wide = 2 * (size_t)(cache > 32 << 20 ? cache : 32 << 20);
    volatile unsigned char *walked = malloc(wide);
    double *hot = malloc(sizeof(double) * 2 * FILES * (size_t)blocks);
    double *cold = malloc(sizeof(double) * 2 * FILES * (size_t)rounds);
    if (!hot || !cold || !walked) return 9;
    for (int block = 0; block < blocks; block++)
        for (int n = 0; n < 2 * files; n++) {
            const source *s = sources + n % files;
            char(*names)[65] = s->names + (size_t)block * BLOCK % s->keys;
            double start = now(CLOCK_PROCESS_CPUTIME_ID);
            if (n < files)
                for (size_t k = 0; k < BLOCK; k++) find(s, names[k]);
            else
                for (size_t k = 0; k < BLOCK; k += BATCH) find_all(s, names + k);
            hot[n * blocks + block] = (now(CLOCK_PROCESS_CPUTIME_ID) - start) / BLOCK;
        }
    for (int round = 0; round < rounds; round++)
        for (int n = 0; n < 2 * files; n++) {
            const source *s = sources + n / 2;
            char key[65];
            for (size_t k = 0; k < wide; k += 64) walked[k]++;
            memcpy(key, s->names[(size_t)round * 97 % s->keys], 65); /* a program has just made it */
            now(CLOCK_MONOTONIC); /* the clock itself is cold, too */
            double start = now(CLOCK_MONOTONIC);
            if (n % 2 == 0) find(s, key);
            cold[n * rounds + round] = now(CLOCK_MONOTONIC) - start;
        }
    for (int n = 0; n < files; n++) {
        print_answers(sources + n);
        for (int kind = 0; kind < 4; kind++) {
            const double *from = kind < 2 ? hot + (kind * files + n) * blocks : cold + (2 * n + kind - 2) * rounds;
            for (int i = 0; i < (kind < 2 ? blocks : rounds); i++) printf("%.2f ", from[i]);
            printf("\n");
        }
    }
    return misses ? 6 : 0;
}
"""


@dataclass(frozen=True, slots=True)
class Asked:
    """A bundle of so many records, and keys that it has under the conditions ``place``: multiples of 20,000."""

    records: int
    file: Path
    keys: Sequence[str]
    place: tuple[str, str, str]


def measure(bundles: Sequence[Asked]) -> list[dict[str, object]]:
    """Look the keys of all bundles up, whose conditions are the same. C is left out where there is no compiler."""
    rows = [_from_python(asked) for asked in bundles]
    compiler = shutil.which("cc")
    if compiler is None:
        return rows
    folder = bundles[0].file.parent
    (folder / "reader.c").write_text(READER)
    command = [compiler, "-O2", f"-I{HEADER.parent}", "reader.c", "-o", "reader"]
    subprocess.run(command, cwd=folder, check=True)
    command = [str(folder / "reader"), *bundles[0].place, str(BLOCKS), str(ROUNDS)]
    for asked in bundles:
        names = asked.file.with_suffix(".keys")
        names.write_text("\n".join(asked.keys))
        command += [str(asked.file), str(names)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    for asked, first in zip(bundles, range(0, len(told), 5), strict=True):
        answers, *lines = told[first : first + 5]
        assert answers.split() == [_answers(asked)] * 2
        loop, batch, cold, without = ([float(ns) / 1e3 for ns in line.split()] for line in lines)
        for kind, blocks in (("c loop", loop), ("c batch", batch)):
            row = _row(asked, kind, median(blocks), MOST_C_US)
            rows.append({**row, "least_us": min(blocks), "blocks_us": blocks})
        row = _row(asked, "c cold", median(cold) - median(without), MOST_C_US)
        rows.append({**row, "least_us": min(cold) - min(without)})
    return rows


def _from_python(asked: Asked) -> dict[str, object]:
    with Bundle.open(asked.file) as bundle:
        costs = []
        for _ in range(3):
            cpu = time.process_time()
            for key in asked.keys:
                bundle.find(key, *asked.place)
            costs.append((time.process_time() - cpu) / len(asked.keys))
    return _row(asked, "python", 1e6 * median(costs), MOST_PYTHON_US)


def _answers(asked: Asked) -> str:
    """Return the SHA-256 of the answers to all keys."""
    digest = hashlib.sha256()
    with Bundle.open(asked.file) as bundle:
        for key in asked.keys:
            found = bundle.find_text(key, *asked.place)
            assert found is not None and key in found
            digest.update(found.encode())
    return digest.hexdigest()


def _row(asked: Asked, kind: str, cpu_us: float, most_us: float) -> dict[str, object]:
    return {"row": f"bundle {asked.records} {kind}", "cpu_us": cpu_us, "most_us": most_us, "met": cpu_us < most_us}
