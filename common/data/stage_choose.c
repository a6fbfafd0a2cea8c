#include "common/data/stage_choose.h"

#include <stdio.h>
#include <string.h>

/* `auto` leaves memory to the page cache and to other jobs. */
#define AUTO_SHARE 5

struct stage_mode {
    const char *name; /* NULL: a folder */
    enum stage_folder_kind folders[2];
    int n;
};

static const struct stage_mode modes[] = {
    {STAGE_SHM, {STAGE_TMPFS}, 1}, {STAGE_AUTO, {STAGE_NODE, STAGE_TMPFS}, 2}, {NULL, {STAGE_GIVEN}, 1}};

static double mib(int64_t bytes)
{
    return (double)bytes / (1 << 20);
}

/* Memory that the job leaves. */
static int64_t memory_left(const struct stage_facts *f)
{
    return f->memory_bytes > f->need_bytes ? f->memory_bytes - f->need_bytes : 0;
}

static int64_t room(const struct stage_facts *f, const struct stage_folder *s)
{
    return s->memory && memory_left(f) < s->free_bytes ? memory_left(f) : s->free_bytes;
}

/* Appends the reason against a folder. */
static void refuse(struct why *why, const char *fmt, const char *path, const char *unfit, double needed, double free)
{
    size_t len = strlen(why->text);
    int n = snprintf(why->text + len, sizeof(why->text) - len, "%s%s: ", len ? "; " : "", path);
    len += n > 0 ? (size_t)n : 0;
    if (len >= sizeof(why->text))
        return;
    if (unfit)
        snprintf(why->text + len, sizeof(why->text) - len, "%s", unfit);
    else
        snprintf(why->text + len, sizeof(why->text) - len, fmt, needed, free);
}

static bool fits(const struct stage_facts *f, const struct stage_folder *s, bool careful, struct why *why)
{
    const int64_t free = room(f, s);
    if (s->unfit || f->bytes > free)
        refuse(why,
               s->memory ? "the data has %.1f MiB, and without what the job itself needs %.1f MiB of memory are free"
                         : "the data has %.1f MiB, and %.1f MiB are free",
               s->path, s->unfit, mib(f->bytes), mib(free));
    else if (s->memory && careful && f->bytes > memory_left(f) / AUTO_SHARE)
        refuse(why, "the data has %.1f MiB, more than a fifth of the %.1f MiB of free memory", s->path, NULL,
               mib(f->bytes), mib(memory_left(f)));
    else
        return true;
    return false;
}

const struct stage_folder *stage_choose(const struct stage_facts *f, struct why *ret)
{
    const struct stage_mode *m = modes;
    while (m->name && strcmp(m->name, f->mode) != 0)
        m++;
    const bool careful = m->name && strcmp(m->name, STAGE_AUTO) == 0;
    ret->text[0] = '\0';
    for (int i = 0; i < m->n; i++) {
        const struct stage_folder *s = &f->folder[m->folders[i]];
        if (s->path && fits(f, s, careful, ret))
            return s;
    }
    return NULL;
}
