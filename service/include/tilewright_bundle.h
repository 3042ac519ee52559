/* Reads a bundle of Tilewright: the best schedules of a release, in one file.
 *
 *     tilewright_bundle bundle;
 *     if (tilewright_bundle_open(&bundle, data, bytes, key, key_bytes) == TILEWRIGHT_BUNDLE_OK) {
 *         long at = tilewright_bundle_conditions(&bundle, device_key, toolchain_key, profile);
 *         const char *json; size_t length;
 *         if (tilewright_bundle_find(&bundle, at, workload_key, &json, &length)) ...
 *     }
 *
 * Whoever has many keys asks for all of them at once (tilewright_bundle_find_all): one look-up after the other waits for
 * memory each time. `data` is the whole file, in memory or mapped, and stays there while the bundle is used. Nothing is
 * allocated, and threads may share a bundle. service/bundle.py says what the file holds. Needs C99.
 *
 * What is checked here is the hash of the content, so that damage is found. A signature is checked where it is an HMAC
 * (version 1 of bundles). Releases are signed by Ed25519 since, which takes a library: with libsodium,
 * crypto_sign_verify_detached(tilewright_bundle_signature(&bundle), bundle.data, TILEWRIGHT_SIGNED, public_key).
 */
#ifndef TILEWRIGHT_BUNDLE_H
#define TILEWRIGHT_BUNDLE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
    TILEWRIGHT_BUNDLE_OK = 0,
    TILEWRIGHT_BUNDLE_MALFORMED = 1, /* it is no bundle of this version, or it was cut */
    TILEWRIGHT_BUNDLE_CHANGED = 2,   /* its content is not what was released */
    TILEWRIGHT_BUNDLE_FORGED = 3,    /* it was not signed with this key */
    TILEWRIGHT_BUNDLE_UNCHECKED = 4  /* a key was given, and the signature is none that is checked here */
};

typedef struct {
    const unsigned char *data, *places;
    uint64_t bytes, entries, conditions, version, place_bytes;
} tilewright_bundle;

enum { TILEWRIGHT_SIGNED = 96 };

typedef struct {
    uint32_t state[8];
    uint64_t bytes;
    unsigned char block[64];
} tilewright_sha256;

static inline uint32_t tilewright_rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

static inline void tilewright_sha256_block(tilewright_sha256 *s, const unsigned char *p) {
    static const uint32_t k[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + w[i - 7] + (tilewright_rotate(a, 7) ^ tilewright_rotate(a, 18) ^ a >> 3) +
               (tilewright_rotate(b, 17) ^ tilewright_rotate(b, 19) ^ b >> 10);
    }
    memcpy(v, s->state, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t e = v[4], a = v[0];
        uint32_t t = v[7] + k[i] + w[i] + ((e & v[5]) ^ (~e & v[6])) +
                     (tilewright_rotate(e, 6) ^ tilewright_rotate(e, 11) ^ tilewright_rotate(e, 25));
        uint32_t u = (tilewright_rotate(a, 2) ^ tilewright_rotate(a, 13) ^ tilewright_rotate(a, 22)) +
                     ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t;
        v[0] = t + u;
    }
    for (int i = 0; i < 8; i++) s->state[i] += v[i];
}

static inline void tilewright_sha256_begin(tilewright_sha256 *s) {
    static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(s->state, first, sizeof first);
    s->bytes = 0;
}

static inline void tilewright_sha256_add(tilewright_sha256 *s, const void *data, uint64_t bytes) {
    const unsigned char *p = (const unsigned char *)data;
    while (bytes) {
        size_t filled = (size_t)(s->bytes % 64), n = 64 - filled < bytes ? 64 - filled : (size_t)bytes;
        if (n == 64) {
            tilewright_sha256_block(s, p);
        } else {
            memcpy(s->block + filled, p, n);
            if (filled + n == 64) tilewright_sha256_block(s, s->block);
        }
        s->bytes += n, p += n, bytes -= n;
    }
}

static inline void tilewright_sha256_end(tilewright_sha256 *s, unsigned char digest[32]) {
    unsigned char tail[72] = {0x80};
    uint64_t bits = 8 * s->bytes;
    size_t pad = 64 - (size_t)((s->bytes + 8) % 64);
    for (int i = 0; i < 8; i++) tail[pad + (size_t)i] = (unsigned char)(bits >> (56 - 8 * i));
    tilewright_sha256_add(s, tail, pad + 8);
    for (int i = 0; i < 32; i++) digest[i] = (unsigned char)(s->state[i / 4] >> (24 - 8 * (i % 4)));
}

/* HMAC-SHA256 of 32 bytes (RFC 2104). */
static inline void tilewright_hmac(const void *key, size_t key_bytes, const unsigned char in[32], unsigned char out[32]) {
    unsigned char pad[64] = {0};
    tilewright_sha256 s;
    if (key_bytes > 64) {
        tilewright_sha256_begin(&s), tilewright_sha256_add(&s, key, key_bytes), tilewright_sha256_end(&s, pad);
    } else if (key_bytes) {
        memcpy(pad, key, key_bytes);
    }
    for (int i = 0; i < 64; i++) pad[i] ^= 0x36;
    tilewright_sha256_begin(&s), tilewright_sha256_add(&s, pad, 64), tilewright_sha256_add(&s, in, 32);
    tilewright_sha256_end(&s, out);
    for (int i = 0; i < 64; i++) pad[i] ^= 0x36 ^ 0x5c;
    tilewright_sha256_begin(&s), tilewright_sha256_add(&s, pad, 64), tilewright_sha256_add(&s, out, 32);
    tilewright_sha256_end(&s, out);
}

/* Little-endian numbers of 32 and of 64 bits. */
static inline uint64_t tilewright_u32(const unsigned char *p) {
    return (uint64_t)p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 | (uint64_t)p[3] << 24;
}

static inline uint64_t tilewright_u64(const unsigned char *p) { return tilewright_u32(p) | tilewright_u32(p + 4) << 32; }

/* The slot at which a key is looked for first: its first 32 bits, as a share of all homes. */
static inline uint64_t tilewright_home(const unsigned char *key, uint64_t homes) {
    return (((uint64_t)key[0] << 24 | (uint64_t)key[1] << 16 | (uint64_t)key[2] << 8 | key[3]) * homes) >> 32;
}

/* The slots of the answers under the same conditions. Without homes they are sorted by key, and none is empty. */
typedef struct {
    const unsigned char *slots;
    uint64_t homes, count;
} tilewright_table;

static inline tilewright_table tilewright_table_of(const tilewright_bundle *b, uint64_t conditions) {
    const unsigned char *numbers = b->places + conditions * b->place_bytes + 96;
    uint64_t first = tilewright_u64(numbers), second = tilewright_u64(numbers + 8);
    if (b->version > 2) return (tilewright_table){b->data + first, second, tilewright_u64(numbers + 16)};
    /* the numbers of the first entry, and of the first one of the next conditions */
    return (tilewright_table){b->places + b->conditions * b->place_bytes + first * 48, 0, second - first};
}

/* Say whether what conditions tell of their table lies within the file, and ends as it should. */
static inline int tilewright_table_fits(const tilewright_bundle *b, uint64_t conditions) {
    const unsigned char *numbers = b->places + conditions * b->place_bytes + 96;
    uint64_t first = tilewright_u64(numbers), second = tilewright_u64(numbers + 8);
    if (b->version < 3) return first <= second && second <= b->entries;
    uint64_t count = tilewright_u64(numbers + 16), bytes = b->version > 3 ? 8 : 48;
    if (first > b->bytes || count > (b->bytes - first) / bytes || second > count) return 0;
    return b->version == 3 || (count > second && tilewright_u64(b->data + first + (count - 1) * bytes) == 0);
}

/* Open a bundle that lies in memory and check all of it. Without a `key` (NULL) its content is checked against the hash
 * that it has itself, which finds damage and no forgery. A `key` is the secret of a bundle of version 1. Returns a
 * TILEWRIGHT_BUNDLE_ code. */
static inline int tilewright_bundle_open(tilewright_bundle *b, const void *data, size_t bytes, const void *key,
                                         size_t key_bytes) {
    const unsigned char *p = (const unsigned char *)data;
    unsigned char digest[32], signature[32], differ = 0;
    tilewright_sha256 s;
    if (bytes < TILEWRIGHT_SIGNED || memcmp(p, "TWBUNDLE", 8) || tilewright_u64(p + 16) != bytes)
        return TILEWRIGHT_BUNDLE_MALFORMED;
    uint64_t version = tilewright_u64(p + 8), header = TILEWRIGHT_SIGNED + (version == 1 ? 32 : 64);
    if (version < 1 || version > 4 || bytes < header) return TILEWRIGHT_BUNDLE_MALFORMED;
    tilewright_sha256_begin(&s);
    tilewright_sha256_add(&s, p, 64);
    tilewright_sha256_add(&s, p + header, bytes - header);
    tilewright_sha256_end(&s, digest);
    if (memcmp(digest, p + 64, 32)) return TILEWRIGHT_BUNDLE_CHANGED;
    if (key != NULL && version != 1) return TILEWRIGHT_BUNDLE_UNCHECKED;
    if (key != NULL) {
        tilewright_hmac(key, key_bytes, digest, signature);
        for (int i = 0; i < 32; i++) differ |= (unsigned char)(signature[i] ^ p[96 + i]);
        if (differ) return TILEWRIGHT_BUNDLE_FORGED;
    }
    uint64_t entries = tilewright_u64(p + 24), places = tilewright_u64(p + 32), manifest = tilewright_u64(p + 40);
    uint64_t left = bytes - header, place_bytes = version > 2 ? 128 : 112;
    if (manifest > left || manifest % 8) return TILEWRIGHT_BUNDLE_MALFORMED;
    left -= manifest;
    if (places > left / place_bytes) return TILEWRIGHT_BUNDLE_MALFORMED;
    left -= places * place_bytes;
    if (entries > left / 48) return TILEWRIGHT_BUNDLE_MALFORMED; /* 8 for its slot and 40 before its record, or both */
    b->data = p, b->places = p + header + manifest;
    b->bytes = bytes, b->entries = entries, b->conditions = places, b->version = version, b->place_bytes = place_bytes;
    for (uint64_t i = 0; i < places; i++)
        if (!tilewright_table_fits(b, i)) return TILEWRIGHT_BUNDLE_MALFORMED;
    return TILEWRIGHT_BUNDLE_OK;
}

/* Return the Ed25519 signature (64 bytes) of the first TILEWRIGHT_SIGNED bytes of a bundle; NULL in version 1. */
static inline const unsigned char *tilewright_bundle_signature(const tilewright_bundle *b) {
    return b->version == 1 ? NULL : b->data + TILEWRIGHT_SIGNED;
}

/* Read `bytes` bytes from hexadecimal digits; 0 where they are none. There are no branches, because nothing foretells the
 * digits of a key. */
static inline int tilewright_hex(const char *text, unsigned char *out, int bytes) {
    static const unsigned char digits[256] = {['0'] = 16, 17, 18, 19, 20, 21, 22, 23, 24, 25,
                                              ['a'] = 26, 27, 28, 29, 30, 31}; /* and 0 for what is no digit */
    unsigned char all = 16;
    for (int i = 0; i < bytes; i++) {
        unsigned char high = digits[(unsigned char)text[2 * i]], low = digits[(unsigned char)text[2 * i + 1]];
        all &= high & low;
        out[i] = (unsigned char)(high << 4 | (low & 15));
    }
    return all != 0;
}

/* Read a key of 64 hexadecimal digits; 0 where it is none. */
static inline int tilewright_key(const char *text, unsigned char key[32]) {
    return memchr(text, 0, 64) == NULL && tilewright_hex(text, key, 32);
}

/* Say that memory will be read soon. */
#ifdef __GNUC__
#define TILEWRIGHT_PREFETCH(at) __builtin_prefetch(at)
#else
#define TILEWRIGHT_PREFETCH(at) ((void)(at))
#endif

/* Return the number of the conditions of a look-up, or -1 where the bundle has none such. Call it once. */
static inline long tilewright_bundle_conditions(const tilewright_bundle *b, const char *device_key,
                                                const char *toolchain_key, const char *profile) {
    unsigned char wanted[96] = {0};
    size_t length = strlen(profile);
    if (length > 32 || !tilewright_key(device_key, wanted) || !tilewright_key(toolchain_key, wanted + 32)) return -1;
    memcpy(wanted + 64, profile, length);
    for (uint64_t i = 0; i < b->conditions; i++)
        if (!memcmp(b->places + i * b->place_bytes, wanted, 96)) return (long)i;
    return -1;
}

/* Give out the record at `offset`: 1, or 0 where it reaches beyond the file. */
static inline int tilewright_record(const tilewright_bundle *b, uint64_t offset, uint64_t bytes, const char **json,
                                    size_t *length) {
    if (offset > b->bytes || bytes > b->bytes - offset) return 0;
    *json = (const char *)b->data + offset, *length = (size_t)bytes;
    return 1;
}

/* Find a key in a table of versions 1 to 3: from slot to slot, or by bisection where no slot is empty. */
static inline int tilewright_find_earlier(const tilewright_bundle *b, tilewright_table t, const unsigned char key[32],
                                          const char **json, size_t *length) {
    uint64_t low = tilewright_home(key, t.homes), high = t.count;
    while (low < high) {
        uint64_t middle = t.homes ? low : low + (high - low) / 2;
        const unsigned char *slot = t.slots + middle * 48;
        uint64_t offset = tilewright_u64(slot + 32);
        int order = memcmp(key, slot, 32);
        if (order == 0 && offset) return tilewright_record(b, offset, tilewright_u64(slot + 40), json, length);
        if (order > 0 && offset) low = middle + 1;
        else if (t.homes) return 0;
        else high = middle;
    }
    return 0;
}

/* A look-up that is under way: the key, the slot that is read next, and the entry that may be the key's, or NULL. */
typedef struct {
    unsigned char key[32];
    const unsigned char *slot, *entry;
} tilewright_look_up;

/* Go to the next entry whose slot has the second 32 bits of the key. */
static inline void tilewright_next(const tilewright_bundle *b, tilewright_look_up *l) {
    uint64_t place;
    l->entry = NULL;
    while ((place = tilewright_u32(l->slot + 4)) != 0) {
        int same = !memcmp(l->slot, l->key + 4, 4);
        l->slot += 8;
        if (same) {
            if (64 * place + 40 <= b->bytes) l->entry = b->data + 64 * place;
            return;
        }
    }
}

/* Give out the answer, if one of the entries has the key. */
static inline int tilewright_answer(const tilewright_bundle *b, tilewright_look_up *l, const char **json, size_t *length) {
    for (; l->entry != NULL; tilewright_next(b, l))
        if (!memcmp(l->entry, l->key, 32))
            return tilewright_record(b, (uint64_t)(l->entry - b->data) + 40, tilewright_u64(l->entry + 32), json, length);
    return 0;
}

/* Find the best schedule of a workload: 1, with the JSON of its record (not terminated), or 0 where there is none. */
static inline int tilewright_bundle_find(const tilewright_bundle *b, long conditions, const char *workload_key,
                                         const char **json, size_t *length) {
    tilewright_look_up l;
    if (conditions < 0 || (uint64_t)conditions >= b->conditions || memchr(workload_key, 0, 64) != NULL) return 0;
    tilewright_table t = tilewright_table_of(b, (uint64_t)conditions);
    if (b->version < 4)
        return tilewright_hex(workload_key, l.key, 32) && tilewright_find_earlier(b, t, l.key, json, length);
    if (!tilewright_hex(workload_key, l.key, 8)) return 0;
    l.slot = t.slots + 8 * tilewright_home(l.key, t.homes);
    tilewright_next(b, &l);
    if (l.entry != NULL) TILEWRIGHT_PREFETCH(l.entry); /* it arrives while the rest of the key is read */
    return tilewright_hex(workload_key + 16, l.key + 8, 24) && tilewright_answer(b, &l, json, length);
}

/* Find the best schedules of `count` workloads, and return how many there are: `json` and `length` get what
 * tilewright_bundle_find gives for each, NULL and 0 where there is none. Memory is asked for many slots and entries
 * before it is waited for. */
static inline size_t tilewright_bundle_find_all(const tilewright_bundle *b, long conditions,
                                                const char *const *workload_keys, size_t count, const char **json,
                                                size_t *length) {
    enum { AT_ONCE = 16, KEPT = 2 * AT_ONCE };
    static const unsigned char none[8] = {0};
    tilewright_look_up kept[KEPT];
    size_t found = 0;
    for (size_t i = 0; i < count; i++) json[i] = NULL, length[i] = 0;
    if (conditions < 0 || (uint64_t)conditions >= b->conditions) return 0;
    if (b->version < 4) {
        for (size_t i = 0; i < count; i++)
            found += (size_t)tilewright_bundle_find(b, conditions, workload_keys[i], json + i, length + i);
        return found;
    }
    tilewright_table t = tilewright_table_of(b, (uint64_t)conditions);
    for (size_t from = 0, earlier = 0; from < count || earlier;) { /* the block before is answered between two steps */
        size_t end = count - from < AT_ONCE ? count : from + AT_ONCE;
        for (size_t i = from; i < end; i++) {
            tilewright_look_up *l = kept + i % KEPT;
            int good = tilewright_key(workload_keys[i], l->key);
            l->slot = good ? t.slots + 8 * tilewright_home(l->key, t.homes) : none;
            TILEWRIGHT_PREFETCH(l->slot);
        }
        for (size_t i = from - earlier; i < from; i++)
            found += (size_t)tilewright_answer(b, kept + i % KEPT, json + i, length + i);
        for (size_t i = from; i < end; i++) {
            tilewright_next(b, kept + i % KEPT);
            if (kept[i % KEPT].entry != NULL) TILEWRIGHT_PREFETCH(kept[i % KEPT].entry);
        }
        earlier = end - from, from = end;
    }
    return found;
}

#endif
