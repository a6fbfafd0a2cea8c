/* Why a comparison is possible: a voter's term never decreases, and in one term its leader removes nothing that the
 * voter has acknowledged to it. So a voter that has acknowledged index X in term T later starts either with a term
 * above T, or with T and at least X.
 *
 * A running process is not compared again: what it had at its start may be long out of date. So a mark has the number
 * of the process, which is random. */
#include "daemon/control/log/witness.h"

#include "daemon/control/log/sum.h"

#include <endian.h>
#include <string.h>

static const char magic[8] = {'d', 't', 'd', '-', 'w', 'i', 't', '1'};

static int position(const struct log_witness *w, uint64_t id)
{
    int at = 0;
    while (at < w->n && w->marks[at].id != id)
        at++;
    return at;
}

static bool is_less(const struct log_mark *a, const struct log_mark *b)
{
    return a->term < b->term || (a->term == b->term && a->stored < b->stored);
}

/* NULL: there is no room. */
static struct log_mark *find_or_add(struct log_witness *w, uint64_t id)
{
    int at = position(w, id);
    if (at == LOG_MAX_MEMBERS)
        return NULL;
    if (at == w->n) {
        w->marks[at] = (struct log_mark){.id = id};
        w->is_old[at] = false;
        w->n++;
    }
    return &w->marks[at];
}

void witness_note(struct log_witness *w, const struct log_mark *mark)
{
    struct log_mark *m = mark->id && mark->process ? find_or_add(w, mark->id) : NULL;
    if (!m || !is_less(m, mark))
        return;
    *m = *mark;
    w->is_dirty = true;
}

bool witness_judge(struct log_witness *w, const struct log_mark *shown)
{
    struct log_mark *m = shown->id && shown->process ? find_or_add(w, shown->id) : NULL;
    if (!m || m->process == shown->process)
        return true;
    if (is_less(shown, m)) {
        w->is_old[m - w->marks] = true;
        return false;
    }
    w->is_old[m - w->marks] = false;
    *m = *shown;
    w->is_dirty = true;
    return true;
}

const struct log_mark *witness_find(const struct log_witness *w, uint64_t id)
{
    int at = position(w, id);
    return at < w->n ? &w->marks[at] : NULL;
}

bool witness_is_old(const struct log_witness *w, uint64_t id)
{
    int at = position(w, id);
    return at < w->n && w->is_old[at];
}

/* ---- bytes: magic, {u64 id, process, term, stored} of each, zeros, u32 log_crc ---- */

void witness_encode(const struct log_witness *w, uint8_t ret[WITNESS_BYTES])
{
    memset(ret, 0, WITNESS_BYTES);
    memcpy(ret, magic, 8);
    for (int i = 0; i < w->n; i++) {
        const uint64_t values[4] = {htole64(w->marks[i].id), htole64(w->marks[i].process), htole64(w->marks[i].term),
                                    htole64(w->marks[i].stored)};
        memcpy(ret + 8 + 32 * i, values, sizeof(values));
    }
    uint32_t crc = htole32(log_crc(0, ret, WITNESS_BYTES - 4));
    memcpy(ret + WITNESS_BYTES - 4, &crc, 4);
}

err_t witness_decode(const uint8_t *data, size_t len, struct log_witness *ret)
{
    struct log_witness w = {.n = 0};
    uint8_t again[WITNESS_BYTES];
    for (int i = 0; len == WITNESS_BYTES && i < LOG_MAX_MEMBERS; i++) {
        uint64_t values[4];
        memcpy(values, data + 8 + 32 * i, sizeof(values));
        if (!values[0])
            break;
        w.marks[w.n++] =
            (struct log_mark){le64toh(values[0]), le64toh(values[1]), le64toh(values[2]), le64toh(values[3])};
    }
    witness_encode(&w, again);
    if (len != WITNESS_BYTES || memcmp(again, data, len) != 0)
        return ERR_CORRUPT;
    *ret = w;
    return OK;
}
