/* See harness.h. Each operand, including its guards, is copied to the device and back as one block, so the same checks
 * work on devices whose memory the processor cannot access. */
#include "tests/kernels/harness.h"
#include "tests/lib/test.h"

#define GUARD 64 /* elements before and after an operand */
#define ALIGN 64 /* bytes: the alignment that the plan guarantees for a buffer */

struct guarded {
    enum dtype type;
    uint8_t *image;  /* content of the device memory, before and after the call */
    uint8_t *memory; /* device memory */
    size_t size, offset, bytes, total;
};

void kernel_setup_init(struct kernel_setup *r, struct dev *d, const struct kern_ops *k, int threads)
{
    struct why why = {{0}};
    *r = (struct kernel_setup){.dev = d, .k = k};
    if (dev_stream_new(d, threads, false, &r->s, &why) != OK)
        fail_msg("no stream: %s", why.text);
}

void kernel_setup_fini(struct kernel_setup *r)
{
    dev_stream_free(r->s);
}

static void guarded_init(struct guarded *g, const struct kernel_setup *r, int64_t n, enum dtype type, int shift)
{
    struct why why = {{0}};
    *g = (struct guarded){.type = type, .size = dtype_bytes(type)};
    g->bytes = (size_t)n * g->size;
    g->offset = (GUARD * g->size + ALIGN - 1) / ALIGN * ALIGN + (size_t)(shift % 16) * g->size;
    g->total = g->offset + g->bytes + GUARD * g->size;
    g->image = malloc(g->total);
    assert_non_null(g->image);
    for (size_t at = 0; at + g->size <= g->total; at += g->size)
        hole_put(g->size, g->image + at);
    if (dev_alloc(r->dev, g->total, "an operand", (void **)&g->memory, &why) != OK)
        fail_msg("no memory for an operand: %s", why.text);
}

static void guarded_fini(struct guarded *g, const struct kernel_setup *r)
{
    if (g->memory)
        dev_free(r->dev, g->memory, g->total);
    free(g->image);
}

static bool guarded_intact(const struct guarded *g)
{
    const uint8_t *data = g->image + g->offset;
    for (size_t i = 1; i <= GUARD; i++)
        if (!hole_is(g->size, data - i * g->size) || !hole_is(g->size, data + g->bytes + (i - 1) * g->size))
            return false;
    return true;
}

/* Copies operand i into the image, in the kernel's type; an OUT operand stays holes. */
static void image_put(const struct values *v, int i, struct guarded *g)
{
    uint8_t *data = g->image + g->offset;
    if (v->o[i].role == OUT)
        return;
    if (g->type == DT_I32)
        memcpy(data, v->p[i], g->bytes);
    for (int64_t j = 0; g->type != DT_I32 && j < v->o[i].n; j++)
        element_put(g->type, data + (size_t)j * g->size, ((const double *)v->p[i])[j]);
}

static void image_get(struct values *v, int i, const struct guarded *g)
{
    if (g->type == DT_I32)
        memcpy(v->p[i], g->image + g->offset, g->bytes);
    for (int64_t j = 0; g->type != DT_I32 && j < v->o[i].n; j++) {
        double x = element_get(g->type, g->image + g->offset + (size_t)j * g->size);
        memcpy((double *)v->p[i] + j, &x,
               sizeof(x)); /* a copy of bits, because an assignment would quiet a signalling NaN */
    }
}

static uint64_t hash_of(uint64_t h, const struct guarded *g)
{
    for (size_t i = 0; i < g->bytes; i++)
        h = (h ^ g->image[g->offset + i]) * 0x100000001b3u;
    return h;
}

static bool is_ok(err_t err, const struct why *why, const char *what, const struct kcase *c)
{
    if (err != OK)
        print_error("%s: %s: %s %s\n", case_text(c), what, err_name(err), why->text);
    return err == OK;
}

static bool call_kernel(const struct kernel_setup *r, const struct kcase *c, struct guarded *g, void **p)
{
    struct why why = {{0}};
    bool good = true;
    for (int i = 0; i < MAX_OPERANDS && good; i++)
        if (g[i].image)
            good = is_ok(dev_copy(r->s, g[i].memory, g[i].image, g[i].total), &why, "copy to the device", c);
    good = good && is_ok(op_find(c->op)->call(r->k, r->s, c, p), &why, "call", c) &&
           is_ok(dev_stream_sync(r->s, &why), &why, "the kernel", c);
    for (int i = 0; i < MAX_OPERANDS && good; i++)
        if (g[i].image)
            good = is_ok(dev_copy(r->s, g[i].image, g[i].memory, g[i].total), &why, "copy back", c);
    return good && is_ok(dev_stream_sync(r->s, &why), &why, "copy back", c);
}

/* The operand whose memory operand i uses. */
static int place_of(const struct kcase *c, int i)
{
    const int *alias = c->alias ? op_find(c->op)->aliases[c->alias - 1] : NULL;
    return alias && alias[0] == i ? alias[1] : i;
}

static bool take_results(struct values *v, const struct kcase *c, const struct guarded *g, uint64_t *bits)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (int i = 0; i < MAX_OPERANDS; i++) {
        if (!g[i].image)
            continue;
        if (!guarded_intact(&g[i])) {
            print_error("%s: wrote outside operand %d\n", case_text(c), i);
            return false;
        }
        if (v->o[i].role == IN)
            continue;
        image_get(v, i, &g[place_of(c, i)]);
        hash = hash_of(hash, &g[place_of(c, i)]);
    }
    if (bits)
        *bits = hash;
    return true;
}

bool values_run(struct values *v, const struct kernel_setup *r, int shift, const struct kcase *c, uint64_t *bits)
{
    struct guarded g[MAX_OPERANDS] = {{0}};
    void *p[MAX_OPERANDS] = {0};
    for (int i = 0; i < MAX_OPERANDS; i++) {
        if (v->o[i].role == ABSENT)
            continue;
        guarded_init(&g[i], r, v->o[i].n, operand_type(&v->o[i], r->k), shift * (2 * i + 1));
        image_put(v, i, &g[i]);
        p[i] = g[i].memory + g[i].offset;
    }
    if (c->alias)
        p[op_find(c->op)->aliases[c->alias - 1][0]] = p[op_find(c->op)->aliases[c->alias - 1][1]];
    bool good = call_kernel(r, c, g, p) && take_results(v, c, g, bits);
    for (int i = 0; i < MAX_OPERANDS; i++)
        guarded_fini(&g[i], r);
    return good;
}

/* Created once and kept, like the tables that it uses. */
static const struct kernel_setup *oracle(void)
{
    static struct kernel_setup setup;
    static struct dev *dev;
    if (!dev) {
        assert_ok(dev_open("cpu", 0, &dev, NULL));
        kernel_setup_init(&setup, dev, kern_find("ref", DT_F64), 1);
    }
    return &setup;
}

void oracle_run(struct values *v, const struct kcase *c)
{
    struct kcase apart = *c;
    apart.alias = 0;
    assert_true(values_run(v, oracle(), 0, &apart, NULL));
}

/* ---- the whole table ---- */

static bool is_wanted(const struct kcase *c, const struct cases_options *o)
{
    return (!o->op || strcmp(o->op, c->op) == 0) && !(o->no_slow && c->effort == SLOW) &&
           !(o->tiny && c->effort != TINY);
}

static bool same_bits(const struct kernel_setup *r, const struct kcase *c, int shift, uint64_t first, const char *label)
{
    struct values v;
    uint64_t bits = 0;
    values_init(&v, c, r->k);
    bool good = values_run(&v, r, shift, c, &bits);
    if (good && bits != first) {
        print_error("%s: %s: different bits in the second run\n", label, case_text(c));
        good = false;
    }
    values_fini(&v);
    return good;
}

static bool case_good(const struct kernel_setup *r, const struct kcase *c, int shift, const struct cases_options *o,
                      const char *label)
{
    struct values want, got;
    uint64_t bits = 0;
    values_init(&want, c, r->k);
    values_copy(&got, &want);
    oracle_run(&want, c);
    bool good = values_run(&got, r, shift, c, &bits) && values_near(&got, &want, r->k, c, label);
    if (good && o->twice)
        good = same_bits(r, c, shift, bits, label);
    values_fini(&want);
    values_fini(&got);
    return good;
}

int cases_run(struct dev *d, const struct kern_ops *k, const struct cases_options *options)
{
    const struct cases_options o = options ? *options : (struct cases_options){0};
    struct kernel_setup setup;
    char label[64];
    int ran = 0, bad = 0;
    snprintf(label, sizeof(label), "%s %s", o.label ? o.label : k->name, dtype_name(k->dtype));
    kernel_setup_init(&setup, d, k, o.threads);
    for (int j = 0; j < n_kcases; j++) {
        const struct kcase *c = &kcases[j];
        if (!is_wanted(c, &o))
            continue;
        bool shifted = d->ops->host_memory || op_find(c->op)->anywhere;
        bad += !case_good(&setup, c, shifted ? j : 0, &o, label);
        ran++;
    }
    kernel_setup_fini(&setup);
    if (bad)
        fail_msg("%s: %d of %d cases are wrong", label, bad, ran);
    return ran;
}
